"""`kvmedic diagnose` on saved pages: no cluster, no Prometheus, no clock."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for

DATA = Path(__file__).parent.parent / "data" / "vllm"
IDLE, THRASH, RECOVERED, OTHER = (
    (DATA / f"metrics-{name}.txt").read_text()
    for name in ("idle", "thrash", "recovered", "after-restart-seqs8")
)
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        command: [vllm, serve]
        args: [/models/tiny, --max-num-seqs, "64"]
"""
SPEC = """\
apiVersion: kvmedic.io/v1alpha1
kind: KVRemediation
metadata: {name: chat}
spec:
  targetRef: {name: chat}
  levers: [{name: maxNumSeqs, min: 14}]
"""

Write = Callable[[str, str | bytes], str]


@pytest.fixture
def write(tmp_path) -> Write:
    def written(name: str, content: str | bytes) -> str:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return written


def diagnose(*arguments: str) -> Result:
    argv = ["diagnose", *arguments]
    return CliRunner().invoke(app_for(argv), argv)


def of(write: Write, *pages: str | bytes, options: tuple[str, ...] = ()) -> Result:
    files = [write(f"T{place}.txt", page) for place, page in enumerate(pages)]
    scrapes = [word for file in files for word in ("--scrape", file)]
    return diagnose(*scrapes, *options, "-o", "json")


def answer(result: Result) -> Any:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)


def test_two_recorded_pages_of_thrash_lead_to_a_cap(write):
    result = of(write, IDLE, THRASH)

    found = answer(result)
    assert result.exit_code == 0
    assert (found["branch"], found["reason"]) == ("FleetWideDemand", "FleetWideDemand")
    [change] = found["plan"]
    assert (change["knob"], change["flag"], change["before"]) == ("maxNumSeqs", "--max-num-seqs", None)
    assert 8 <= int(change["after"]) <= 16, "caps that the same engine ran best with, measured"
    assert found["evidence"]["replica"]["preemptions"] == 338
    assert found["evidence"]["replica"]["outputLengthMean"] == pytest.approx(433.66, abs=0.01)


def test_a_manifest_may_hold_numbers_and_booleans_as_every_real_one_does(write):
    whole = f"{MANIFEST}        ports: [{{containerPort: 8000}}]\n        stdin: false\n"

    found = answer(of(write, IDLE, THRASH, options=("--manifest", write("chat.yaml", whole))))

    assert [step["before"] for step in found["plan"]] == ["64"]


IN_A_FILE = """\
kind: ConfigMap
metadata: {name: limits}
data:
  engine.yaml: |
    max-num-seqs: 64  # cap
---
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      volumes: [{name: config, configMap: {name: limits}}]
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: [--model=/models/tiny, --config, /etc/vllm/engine.yaml]
        volumeMounts: [{name: config, mountPath: /etc/vllm}]
"""


def test_a_flag_in_a_config_map_of_the_manifest_is_told_too(write):
    seen = answer(of(write, IDLE, THRASH, options=("--manifest", write("chat.yaml", IN_A_FILE))))
    alone = IN_A_FILE.partition("---\n")[2]
    unseen = answer(of(write, IDLE, THRASH, options=("--manifest", write("chat.yaml", alone))))

    [change] = seen["plan"]
    assert (change["knob"], change["before"]) == ("maxNumSeqs", "64")
    assert unseen["reason"] == "FlagNotEditable"
    assert "ConfigMap/limits, which does not exist" in unseen["obstacle"]


def test_the_manifest_tells_what_is_set_now(write):
    result = of(write, IDLE, THRASH, options=("--manifest", write("chat.yaml", MANIFEST)))

    [change] = answer(result)["plan"]
    assert (change["before"], change["object"]) == ("64", "chat")


def test_a_cap_that_is_set_already_is_not_planned_again(write):
    manifest = write("chat.yaml", MANIFEST.replace("64", "8"))

    found = answer(of(write, IDLE, THRASH, options=("--manifest", manifest)))

    assert (found["branch"], found["reason"], found["plan"]) == ("FleetWideDemand", "CapWithoutEffect", [])
    assert "at most 8 were running or allowed" in found["obstacle"]


def test_a_command_line_that_cannot_be_edited_leaves_no_plan_and_says_what_was_wanted(write):
    manifest = write("chat.yaml", MANIFEST.replace('"64"', "$(CAP)"))

    found = answer(of(write, IDLE, THRASH, options=("--manifest", manifest)))

    assert (found["reason"], found["plan"]) == ("FlagNotEditable", [])
    assert re.match(r"maxNumSeqs \d+ cannot be set: ", found["obstacle"])


def test_the_spec_bounds_the_lever_and_sets_the_trigger(write):
    bounded = write("kvr.yaml", SPEC)
    patient = write("patient.yaml", SPEC + "  trigger: {preemptionsPerRequest: 2}\n")

    at_bound = answer(of(write, IDLE, THRASH, options=("--spec", bounded)))
    calm = answer(of(write, IDLE, THRASH, options=("--spec", patient)))

    assert at_bound["plan"][0]["after"] == "14"
    assert (calm["branch"], calm["plan"]) == ("Healthy", [])


def test_where_only_replicas_are_allowed_their_number_is_planned(write):
    more = write("more.yaml", SPEC.replace("{name: maxNumSeqs, min: 14}", "{name: scaleOut, maxReplicas: 3}"))

    found = answer(of(write, IDLE, THRASH, options=("--spec", more)))

    assert (found["branch"], found["reason"]) == ("CapacityShort", "CapacityShort")
    [change] = found["plan"]
    assert (change["knob"], change["flag"], change["after"]) == ("replicas", None, "2")
    assert "given back after 60 minutes of calm" in found["because"]


def test_where_nothing_is_left_the_numbers_for_a_split_are_printed(write):
    none = write("none.yaml", SPEC.replace("{name: maxNumSeqs, min: 14}", "{name: scaleOut, maxReplicas: 1}"))

    found = answer(of(write, IDLE, THRASH, options=("--spec", none)))

    assert (found["branch"], found["reason"], found["plan"]) == ("CapacityExhausted", "CapacityExhausted", [])
    assert "1 replicas are there and scaleOut allows 1" in found["message"]
    assert re.search(r"prefill takes \d+% and decode \d+% of the time", found["obstacle"])
    assert "answers of 434 tokens on average" in found["obstacle"]


def test_a_lever_that_the_spec_does_not_allow_is_named(write):
    spec = write("kvr.yaml", SPEC.replace("[{name: maxNumSeqs, min: 14}]", "[]"))

    found = answer(of(write, IDLE, THRASH, options=("--spec", spec)))

    assert (found["reason"], found["plan"]) == ("LeverNotAllowed", [])


def test_an_idle_engine_is_healthy(write):
    later = IDLE.replace("process_cpu_seconds_total 6.46", "process_cpu_seconds_total 7.46")

    result = of(write, IDLE, later)

    assert result.exit_code == 0
    assert answer(result)["branch"] == "Healthy"


def test_text_names_evidence_diagnosis_and_plan(write):
    result = diagnose("--scrape", write("a", IDLE), "--scrape", write("b", THRASH))

    assert result.exit_code == 0
    kinds = [line.split()[0] for line in result.stdout.splitlines()]
    assert kinds == ["target", "evidence", "note", "diagnosis", "plan", "because"]
    assert "maxNumSeqs (unknown without --manifest) -> " in result.stdout


def started_later(page: str) -> str:
    """The same page of a replica that started a minute later."""
    return page.replace("1.79523658462e+09", "1.79523664462e+09")


def test_several_replicas_are_told_apart_by_name(write):
    pages = [("a", IDLE), ("a", THRASH), ("b", started_later(IDLE)), ("b", started_later(THRASH))]
    scrapes = [f"--scrape={name}={write(f'{name}{i}', page)}" for i, (name, page) in enumerate(pages)]

    found = answer(diagnose(*scrapes, "-o", "json"))

    assert sorted(found["evidence"]) == ["a", "b"]
    assert found["branch"] == "FleetWideDemand"
    assert len(found["plan"]) == 1


def test_one_pressured_replica_of_two_is_one_to_be_replaced(write):
    calm = re.sub(r"(?m)^(vllm:num_preemptions_total\S*) .*", r"\1 2.0", started_later(THRASH))
    pages = [("a", IDLE), ("a", THRASH), ("b", started_later(IDLE)), ("b", calm)]
    scrapes = [f"--scrape={name}={write(f'{name}{i}', page)}" for i, (name, page) in enumerate(pages)]

    result = diagnose(*scrapes, "-o", "json")

    found = answer(result)
    assert (result.exit_code, found["reason"]) == (0, "OneReplicaPressured")
    (change,) = found["plan"]
    assert (change["knob"], change["flag"], change["before"], change["after"]) == (
        "replica",
        None,
        "a",
        "a new one",
    )
    assert "the other one serves and has" in found["because"]


HEADERS = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
FORMS = [
    ("compressed", gzip.compress(THRASH.encode())),
    ("with another system's line ends", THRASH.replace("\n", "\r\n")),
    ("in UTF-16, as PowerShell redirects", THRASH.encode("utf-16")),
    ("with a byte order mark", "\ufeff" + THRASH),
    ("with the headers of curl -i", HEADERS + THRASH),
    ("as OpenMetrics", re.sub(r"(# TYPE \S+?)_total counter", r"\1 counter", THRASH) + "# EOF\n"),
]


@pytest.mark.parametrize("page", [row[1] for row in FORMS], ids=[row[0] for row in FORMS])
def test_a_page_is_read_as_it_was_saved(write, page):
    plain = answer(of(write, IDLE, THRASH))

    assert answer(of(write, IDLE, page)) == plain


def of_v0(page: str) -> str:
    """The same page by the names and labels of a V0 engine."""
    later = ("vllm:prefix_cache", "vllm:iteration")
    kept = [line for line in page.splitlines() if not line.startswith(later)]
    text = "\n".join(kept) + "\n"
    for new, old in (
        ('engine="0",', ""),
        ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    ):
        text = text.replace(new, old)
    return text


def test_an_engine_of_old_is_read_by_its_own_names(write):
    found = answer(of(write, of_v0(IDLE), of_v0(THRASH)))

    assert found["branch"] == "FleetWideDemand"
    assert 8 <= int(found["plan"][0]["after"]) <= 16


def dropped(name: str) -> str:
    return "\n".join(line for line in THRASH.splitlines() if not line.startswith(name)) + "\n"


NAN = THRASH.replace(
    'vllm:num_preemptions_total{engine="0",model_name="tiny"} 338.0',
    'vllm:num_preemptions_total{engine="0",model_name="tiny"} NaN',
)
MIXED = THRASH + 'vllm:num_requests_running{engine="0",model_name="other"} 3.0\n'
UNFIT = [
    ("statistics are off", dropped("vllm:"), "MetricsMissing", "--disable-log-stats"),
    ("no preemptions", dropped("vllm:num_preemptions_total"), "MetricsMissing", "preemptionsPerRequestHeld"),
    ("no gaps", dropped("vllm:inter_token_latency_seconds"), "MetricsMissing", "interTokenSeconds"),
    ("no lengths", dropped("vllm:request_generation_tokens"), "MetricsMissing", "outputLength"),
    ("no pool", dropped("vllm:cache_config_info"), "MetricsMissing", "KV-cache pool"),
    ("not a number", NAN, "MetricsMissing", "NaN"),
    ("two models", MIXED, "SeveralModels", "other, tiny"),
    ("another process", OTHER, "MetricsMissing", "different processes"),
]


@pytest.mark.parametrize(
    ("page", "reason", "named"), [row[1:] for row in UNFIT], ids=[row[0] for row in UNFIT]
)
def test_pages_that_say_too_little_are_inconclusive_and_name_what_is_missing(write, page, reason, named):
    result = of(write, IDLE, page)

    found = answer(result)
    assert result.exit_code == 3
    assert (found["branch"], found["reason"], found["plan"]) == (None, reason, [])
    assert named in found["message"]


def test_the_newer_page_first_is_noticed(write):
    result = of(write, THRASH, IDLE)

    assert result.exit_code == 3
    assert "the older scrape must come first" in answer(result)["message"]


def test_requests_that_stay_longer_than_the_time_between_are_inconclusive(write):
    result = of(write, IDLE, THRASH, options=("--interval", "3s"))

    assert (result.exit_code, answer(result)["reason"]) == (3, "WindowTooShort")


def test_the_time_between_is_taken_as_given(write):
    found = answer(of(write, IDLE, THRASH, options=("--interval", "5m")))

    assert found["windowSeconds"] == 300
    assert found["notes"] == []
    assert len(found["plan"]) == 1


def test_too_few_requests_are_counted(write):
    result = of(write, THRASH, RECOVERED)

    assert (result.exit_code, answer(result)["reason"]) == (3, "TooFewRequests")
    assert "72 requests finished" in answer(result)["message"]


def test_scrapes_of_resting_engines_say_that_gauges_tell_nothing(write):
    result = of(write, IDLE, RECOVERED)

    assert result.exit_code == 3
    assert any("scrape while requests are being served" in note for note in answer(result)["notes"])


WRONG = [
    ("one scrape", ["--scrape", "T0"], "give two"),
    ("one scrape of a replica", ["--scrape", "a=T0", "--scrape", "a=T1", "--scrape", "b=T1"], "of b"),
    ("the same twice", ["--scrape", "T0", "--scrape", "T0"], "the same scrape"),
    ("no such file", ["--scrape", "T0", "--scrape", "nowhere"], "No such file"),
    ("a web page", ["--scrape", "T0", "--scrape", "page.html"], "no metrics page"),
    ("half a page", ["--scrape", "T0", "--scrape", "half"], "no metrics page"),
    ("no text", ["--scrape", "T0", "--scrape", "noise"], "neither text nor gzip"),
    ("some named", ["--scrape", "T0", "--scrape", "a=T1"], "NAME=FILE for each"),
    ("no name", ["--scrape", "=T0", "--scrape", "=T1"], "NAME=FILE"),
    ("no duration", ["--scrape", "T0", "--scrape", "T1", "--interval", "soon"], "--interval soon"),
    ("no time at all", ["--scrape", "T0", "--scrape", "T1", "--interval", "0s"], "comes after"),
    ("no manifest", ["--scrape", "T0", "--scrape", "T1", "--manifest", "half"], "half"),
    ("no spec", ["--scrape", "T0", "--scrape", "T1", "--spec", "chat.yaml"], "0 objects of kind KVRem"),
    ("a wrong spec", ["--scrape", "T0", "--scrape", "T1", "--spec", "bad.yaml"], "spec.mode"),
    ("a spec for later", ["--scrape", "T0", "--scrape", "T1", "--spec", "later.yaml"], "not implemented"),
    (
        "no version",
        ["--scrape", "T0", "--scrape", "T1", "--manifest", "chat.yaml", "--engine-version", "latest"],
        "not a version",
    ),
    (
        "a version of nothing",
        ["--scrape", "T0", "--scrape", "T1", "--engine-version", "0.32.0"],
        "--manifest",
    ),
    ("a version beside a resource", ["chat", "--engine-version", "0.32.0"], "--engine-version out"),
    ("nothing to look at", [], "say what to look at"),
    ("two things to look at", ["chat", "--scrape", "T0"], "say what to look at"),
]


@pytest.mark.parametrize(("argv", "told"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_usage_ends_with_2_and_says_what_to_write(write, monkeypatch, tmp_path, argv, told):
    for name, content in (
        ("T0", IDLE),
        ("T1", THRASH),
        ("page.html", "<html>hello</html>"),
        ("half", THRASH[: THRASH.index('le="') + 3]),
        ("noise", b"\x1f\x8b\x00\xff\xfe"),
        ("chat.yaml", MANIFEST),
        ("bad.yaml", SPEC + "  mode: Sometimes\n"),
        ("later.yaml", SPEC + "  rollout: {spare: BestEffort}\n"),
    ):
        write(name, content)
    monkeypatch.chdir(tmp_path)

    result = diagnose(*argv)

    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_a_file_whose_name_has_an_equals_sign_is_a_file(write):
    files = [write("pod=a,T0.txt", IDLE), write("pod=a,T1.txt", THRASH)]

    found = answer(diagnose("--scrape", files[0], "--scrape", files[1], "-o", "json"))

    assert list(found["evidence"]) == ["replica"]
