"""`kvmedic judge`: which pages it takes, what it prints, and how it ends."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for

INTER_TOKEN = (0.05, 0.5, 1.0, 2.5)
FIRST_TOKEN = (1.0, 10.0, 40.0)


@dataclass(frozen=True)
class Moment:
    """What a replica counts by some moment."""

    requests: int
    late: int = 0
    """First tokens between 10 and 40 s."""
    waiting: int = 0
    started: int = 1000
    model: str = "llm"


def page(at: Moment) -> str:
    labels = f'engine="0",model_name="{at.model}"'
    tokens, quick = at.requests * 200, at.requests - at.late
    firsts = (quick, quick, at.requests, at.requests)
    return "\n".join(
        (
            f"process_start_time_seconds {at.started}",
            f"vllm:num_requests_running{{{labels}}} 20",
            f"vllm:num_requests_waiting{{{labels}}} {at.waiting}",
            f"vllm:num_preemptions_total{{{labels}}} 0",
            f"vllm:num_preemptions_created{{{labels}}} {at.started}",
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.5",
            f"vllm:generation_tokens_total{{{labels}}} {tokens}",
            f"vllm:prompt_tokens_total{{{labels}}} {tokens}",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {at.requests}',
            *histogram("vllm:inter_token_latency_seconds", labels, INTER_TOKEN, [tokens] * 5, tokens * 0.03),
            *histogram("vllm:time_to_first_token_seconds", labels, FIRST_TOKEN, firsts, at.requests * 0.5),
            *histogram(
                "vllm:e2e_request_latency_seconds", labels, FIRST_TOKEN, [0, *firsts[1:]], tokens * 0.03
            ),
            f"vllm:iteration_tokens_total_count{{{labels}}} {tokens / 20:.0f}",
            "",
        )
    )


def histogram(
    name: str, labels: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> list[str]:
    buckets = zip((*map(str, bounds), "+Inf"), counts, strict=True)
    lines = [f'{name}_bucket{{{labels},le="{bound}"}} {count}' for bound, count in buckets]
    return [*lines, f"{name}_count{{{labels}}} {counts[-1]}", f"{name}_sum{{{labels}}} {total}"]


GOOD = (Moment(100), Moment(400), Moment(700))
LATE = (Moment(100), Moment(400, late=150), Moment(700, late=300))


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str, Sequence[Moment]], str]:
    def save_pages(name: str, moments: Sequence[Moment]) -> str:
        later = zlib.crc32(name.encode()) % 1000  # Each replica starts at a time of its own.
        moments = [replace(each, started=each.started + later) for each in moments]
        files = [tmp_path / f"{name}-{place}.txt" for place in range(len(moments))]
        for file, moment in zip(files, moments, strict=True):
            file.write_text(page(moment))
        return ",".join(map(str, files))

    return save_pages


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app_for(["judge"]), ["judge", *arguments], env={"COLUMNS": "200"})


Save = Callable[[str, Sequence[Moment]], str]


def test_a_canary_that_serves_as_well_goes_on(save: Save):
    ended = run("--old", save("a", GOOD), "--new", save("b", GOOD), "--interval", "5m")

    assert ended.exit_code == 0
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert lines[0].startswith("go-on (served-in-time): x 1.00 of the old replicas")
    assert "requests/s of a replica 1 (0.922 to 1.09) 1 (0.922 to 1.09)" in lines
    assert "waiting on a replica 0.0 0.0" in lines
    assert any(line.endswith("of the old replicas (x 0.98 to 1.02)") for line in lines)
    assert "with 95% confidence; what is read off moments has one from 5 of them on" in lines[-1]


def test_a_canary_that_makes_users_wait_is_rolled_back(save: Save):
    """Half of its first tokens come after 10 s, which the objective forbids and the old replicas keep."""
    old, new = save("a", GOOD), save("b", LATE)

    ended = run("--old", old, "--new", new, "--interval", "5m", "--objective", "ttftP95=5s", "-o", "json")

    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["verdict"], found["decidedBy"]) == (1, "roll-back", "served-in-time")
    assert found["new"]["inTimeShare"] < 0.6 < found["old"]["inTimeShare"]
    assert (
        found["new"]["intervals"]["inTimeShare"]["high"]
        < 0.6
        < found["old"]["intervals"]["inTimeShare"]["low"]
    )
    assert (found["confidence"], found["new"]["intervals"]["waiting"]) == (0.95, None)
    assert {each["name"] for each in found["checks"] if each["fails"]} == {"served-in-time", "objective"}


def test_the_same_waits_are_in_time_where_nobody_promised_less(save: Save):
    ended = run("--old", save("a", LATE), "--new", save("b", LATE), "--interval", "5m")

    assert ended.exit_code == 0


def test_several_replicas_of_each_side_count_together(save: Save):
    sides = [("--old", "a"), ("--old", "c"), ("--new", "b"), ("--new", "d")]
    options = [each for side, name in sides for each in (side, f"{name}={save(name, GOOD)}")]

    found = json.loads(run(*options, "--interval", "5m", "-o", "json").stdout)

    assert (found["old"]["replicas"], found["new"]["replicas"]) == (2, 2)
    assert found["new"]["arrivalsPerSecond"] == 1


def test_without_an_interval_the_engines_steps_show_the_time(save: Save):
    old, new = save("a", GOOD), save("b", GOOD)

    found, timed = (
        json.loads(run("--old", old, "--new", new, *more, "-o", "json").stdout)
        for more in ((), ("--interval", "1m"))
    )

    assert found["seconds"] == pytest.approx(6000 * 0.03, rel=0.1)
    assert (found["decidedBy"], timed["decidedBy"]) == ("time", "time")
    assert "--interval DURATION gives the time between pages" in found["message"]
    assert timed["message"] == "watched for 120 s of 600 s"


def test_a_time_between_pages_that_steps_alone_speak_against_is_remarked_upon(save: Save):
    """They took 90 s: 3000 of 30 ms."""
    old, new = save("a", GOOD), save("b", GOOD)

    said = {each: run("--old", old, "--new", new, "--interval", each).stdout for each in ("55s", "65s")}

    assert "an engine's own steps took about 90 s between two pages, and --interval gives 55 s" in said["55s"]
    assert "own steps" not in said["65s"]


@pytest.mark.parametrize(
    ("seconds", "waiting", "expected"),
    [
        pytest.param(9, 0, "more than 10 s passed from {0}b-0.txt to {0}b-1.txt, as requests took", id="9 s"),
        pytest.param(11, 0, "", id="no page shows more than 10 s"),
        pytest.param(9, 130, "", id="all may have waited before"),
    ],
)
def test_a_time_between_pages_that_the_pages_contradict_is_refused(
    save: Save, tmp_path: Path, seconds: int, waiting: int, expected: str
):
    """150 first tokens took 10 to 40 s, and 20 requests ran when the first page was written."""
    late = [replace(each, waiting=waiting) for each in LATE]

    ended = run("--old", save("a", GOOD), "--new", save("b", late), "--interval", f"{seconds}s")

    assert (ended.exit_code == 2) is bool(expected)
    assert expected.format(f"{tmp_path}/") in ended.stderr


def test_too_little_to_say_anything_says_what_is_missing(save: Save):
    short = (Moment(100), Moment(110), Moment(120))

    ended = run("--old", save("a", GOOD), "--new", save("b", short), "--interval", "5m")

    assert ended.exit_code == 3
    assert "20 first tokens on the new replicas of 40 that are needed" in ended.stdout


def drop(name: str) -> Callable[[str], bytes]:
    return lambda text: "".join(line for line in text.splitlines(True) if not line.startswith(name)).encode()


def value(name: str, new: float) -> Callable[[str], bytes]:
    return lambda text: re.sub(rf"(?m)^({name}\S*) .*", rf"\1 {new}", text).encode()


def put(old: str, new: str) -> Callable[[str], bytes]:
    def edit(text: str) -> bytes:
        assert old in text
        return text.replace(old, new).encode()

    return edit


@pytest.mark.parametrize(
    ("place", "edit", "expected"),
    [
        pytest.param(1, lambda text: b"", "b-1.txt is empty: save it with curl", id="nothing"),
        pytest.param(0, lambda text: b"HTTP/1.1 200 OK\r\n\r\n", "b-0.txt is empty", id="headers alone"),
        pytest.param(
            1, lambda text: gzip.compress(text.encode())[:-20], "b-1.txt is cut off", id="a gzip cut off"
        ),
        pytest.param(
            1, lambda text: f"{text}{text}".encode(), "b-1.txt has a series of process_start", id="appended"
        ),
        pytest.param(
            1,
            drop("vllm:num_requests_running"),
            "running in {}b-1.txt: not an engine's",
            id="no engine's page",
        ),
        pytest.param(
            1,
            drop("vllm:time_to_first_token_seconds"),
            "b: timeToFirstTokenSeconds: the replica is scraped, without this",
            id="no first tokens",
        ),
        pytest.param(
            1,
            put("generation_tokens_total", "other_tokens_total"),
            "(in {0}b-0.txt or {0}b-1.txt)",
            id="no tokens",
        ),
        pytest.param(
            0,
            drop("vllm:e2e_request_latency_seconds"),
            "b: {0}b-0.txt has no vllm:e2e_request_latency_seconds, and {0}b-1.txt has it",
            id="a histogram that the first page lacks",
        ),
        pytest.param(
            0,
            drop('vllm:time_to_first_token_seconds_bucket{engine="0",model_name="llm",le="10.0"}'),
            "b-0.txt has no vllm:time_to_first_token_seconds, and",
            id="a bucket that the first page lacks",
        ),
        pytest.param(
            0, drop("vllm:request_success"), "b-0.txt has no vllm:request_success_total", id="ended"
        ),
        pytest.param(
            0,
            put('model_name="llm"', 'model_name="chat"'),
            "{0}b-0.txt (b) is of model chat, and {0}a-0.txt (a) of llm: they do not serve the same requests",
            id="another model",
        ),
        pytest.param(
            1,
            value("process_start_time_seconds", 2000),
            "{0}b-0.txt and {0}b-1.txt are of different processes (process_start_time_seconds 1",
            id="a restart",
        ),
        pytest.param(
            1,
            drop("process_start_time_seconds"),
            "(process_start_time_seconds is on one of them alone): the engine restarted in between",
            id="a start that one page alone shows",
        ),
        pytest.param(
            1, value("vllm:num_preemptions_created", 7), "num_preemptions_created 1", id="counted anew"
        ),
        pytest.param(
            1,
            value("vllm:generation_tokens_total", 5),
            "b: from {0}b-0.txt to {0}b-1.txt vllm:generation_tokens_total fell from 20000 to 5: the older",
            id="a counter that fell, as in the wrong order",
        ),
        pytest.param(
            1,
            value("vllm:inter_token_latency_seconds_sum", 5),
            "_sum fell from 600 to 5",
            id="a sum that fell",
        ),
        pytest.param(
            1,
            value("vllm:e2e_request_latency_seconds_count", 5),
            "seconds_count fell from 100 to 5",
            id="a count that fell",
        ),
        pytest.param(
            1,
            put(
                'seconds_bucket{engine="0",model_name="llm",le="+Inf"} 400',
                'seconds_bucket{engine="0",model_name="llm",le="+Inf"} 4',
            ),
            "seconds_bucket fell from 100 to 4",
            id="a bucket that fell",
        ),
    ],
)
def test_a_page_that_cannot_be_used_is_named(
    save: Save, tmp_path: Path, place: int, edit: Callable[[str], bytes], expected: str
):
    old, new = save("a", GOOD[:2]), save("b", GOOD[:2])
    file = tmp_path / f"b-{place}.txt"
    file.write_bytes(edit(file.read_text()))

    options = ("--interval", "5m", "--objective", "e2eP95=1m", "-o", "json")
    ended = run("--old", f"a={old}", "--new", f"b={new}", *options)

    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["verdict"]) == (2, None)
    assert expected.format(f"{tmp_path}/") in found["error"]
    assert found["error"] in ended.stderr


def test_series_that_come_with_the_first_request_count_from_nothing(save: Save, tmp_path: Path):
    """As V0 exports them; the page itself says that no token was generated before."""
    old, new = save("a", GOOD), save("b", (Moment(0), Moment(300), Moment(600)))
    file = tmp_path / "b-0.txt"
    kept = drop("vllm:request_success")(file.read_text()).decode()
    file.write_bytes(drop("vllm:time_to_first_token_seconds")(kept))

    assert run("--old", old, "--new", new, "--interval", "5m").exit_code == 0


def test_a_compressed_page_is_read_whole_also_where_it_is_in_parts(save: Save, tmp_path: Path):
    old, new = save("a", GOOD), save("b", GOOD)
    for file in tmp_path.glob("*.txt"):
        text = file.read_bytes()
        file.write_bytes(gzip.compress(text[:900]) + gzip.compress(text[900:]))

    assert run("--old", old, "--new", new, "--interval", "5m").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(("--new", "{a0}"), "one page shows counters since the start", id="one page"),
        pytest.param(("--new", "{a}", "--interval", "0s"), "the second scrape comes after", id="no time"),
        pytest.param(("--new", "{a}", "--objective", "ttftP95"), "write NAME=DURATION", id="no duration"),
        pytest.param(("--new", "{a}", "--objective", "ttft=5s"), "objectives.ttft", id="no such objective"),
        pytest.param(
            ("--new", "{a}", "--objective", "ttftP95=5s,e2eP95=30s"),
            "give --objective twice",
            id="two objectives in one option",
        ),
        pytest.param(
            ("--new", "{a}", "--objective", "ttftP95=5s", "--objective", "ttftP95=1s"),
            "ttftP95 is given twice",
            id="an objective twice",
        ),
        pytest.param(("--new", "x={a}", "--new", "x={a}"), "x is given twice", id="a replica twice"),
        pytest.param(
            ("--new", "x={a}", "--old", "x={old}"),
            "a-0.txt): a replica runs the change or does not",
            id="a replica on both sides",
        ),
        pytest.param(
            ("--new", "{old}"), "b-0.txt is given as old-1 and as new-1", id="the same page on both sides"
        ),
        pytest.param(
            ("--new", "{a}", "--old", "{a}"), "a-0.txt is given as old-2 and as new-1", id="of another place"
        ),
        pytest.param(
            ("--old", "{old}", "--new", "{a}"), "b-0.txt is given as old-1 and as old-2", id="on one side"
        ),
        pytest.param(("--new", "{a0},nowhere.txt"), "nowhere.txt: No such file", id="no such file"),
        pytest.param(("--new", "{three}"), "3 of new-1 (the last is {here}/c-2.txt)", id="other moments"),
    ],
)
def test_wrong_usage_says_what_to_write(save: Save, tmp_path: Path, arguments: Sequence[str], expected: str):
    two = save("a", GOOD[:2])
    known = {"a": two, "a0": two.split(",")[0], "three": save("c", GOOD), "old": save("b", GOOD[:2])}

    ended = run("--old", known["old"], *(each.format(**known) for each in arguments), "-o", "json")

    assert (ended.exit_code, json.loads(ended.stdout)["error"]) == (2, ended.stderr.rstrip("\n"))
    assert expected.format(here=tmp_path) in ended.stderr
