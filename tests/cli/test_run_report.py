"""`kvmedic report`: a run as Markdown, JSON and a page, with what is known and what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from math import exp
from pathlib import Path
from typing import Any

import pytest

from builders import Replica, an_observation, without
from kvmedic.cli.live.past_figures import SERIES, Asked, distinguish_sides, figures_at, is_replica_of
from kvmedic.cli.live.report_page import PLOTS, plot, report_as_page, top_of_scale
from kvmedic.cli.live.report_text import by_period
from kvmedic.model.evidence import Absence, Missing, Observation, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Cost, Shift, Summary
from kvmedic.model.spec import TargetRef
from kvmedic.model.status import ClosedRun
from kvmedic.verdict.counts import Limits
from run_builder import NOW
from worlds.api_double import CALM, CommandLine, a_command_line, a_resource, walking

NOWHERE = ("--prometheus", "http://127.0.0.1:9")
ENDED = ClosedRun(
    id="20260301-023000",
    reason=Reason.FLEET_WIDE_DEMAND,
    outcome=Reason.RECOVERED,
    message="0.2 preemptions per request",
    steps=("Deployment/chat: maxNumSeqs 64 -> 16: Kept",),
    started_at=NOW - timedelta(minutes=30),
    ended_at=NOW - timedelta(minutes=10),
)
SUMMARY = Summary(
    ENDED.id,
    NOW,
    Reason.RECOVERED,
    "served in time 10 -> 20",
    ENDED.steps,
    Cost(4, 120.0, 240.0),
    (Shift("preemptionsPerRequest", 2.5, 0.2),),
)
ENDED_RECORD = replace(CALM, history=(ENDED, replace(ENDED, id="older")), summary=SUMMARY)


def an_event(
    minutes_ago: float, reason: str, uid: str = "uid-calm", note: str = "it moved"
) -> dict[str, Any]:
    at = NOW - timedelta(minutes=minutes_ago)
    return {
        "apiVersion": "events.k8s.io/v1",
        "metadata": {"namespace": "serving", "name": f"{reason}.{minutes_ago}"},
        "eventTime": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}",
        "reason": reason,
        "note": note,
        "regarding": {"uid": uid, "kind": "KVRemediation"},
    }


@pytest.fixture
def kvmedic(tmp_path: Path) -> Iterator[CommandLine]:
    bodies = (a_resource("calm", ENDED_RECORD), a_resource("chat", walking()), a_resource("new", CALM))
    with ExitStack() as stack:
        made = a_command_line(stack, tmp_path, NOW, bodies)
        made.api.add(
            an_event(15, "Verifying"),
            an_event(25, "RollingOut", note="run | one\nmoved"),
            an_event(300, "LongAgo"),
            an_event(20, "Foreign", uid="another"),
            plural="events",
        )
        yield made


def facts(done: Any) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_an_ended_run_is_reported_with_its_events_figures_and_cost(kvmedic):
    report = facts(kvmedic("report", "calm", "-o", "json", *NOWHERE))

    assert report["schema"] == "kvmedic.io/report/v1"
    assert (report["run"]["id"], report["run"]["state"], report["run"]["kept"]) == (ENDED.id, "ended", True)
    assert report["run"]["seconds"] == 1200
    assert len(report["sentences"]) == 3
    assert "FleetWideDemand" in report["sentences"][0]
    assert "maxNumSeqs 64 -> 16" in report["sentences"][1]
    assert "Recovered" in report["sentences"][2]
    assert [each["what"] for each in report["timeline"]] == ["Opened", "RollingOut", "Verifying", "Recovered"]
    assert report["figures"] == [{"name": "preemptionsPerRequest", "before": 2.5, "after": 0.2}]
    assert report["cost"]["spareGpuSeconds"] == 240.0
    assert (report["series"], "cannot be reached" in report["unknown"]["series"]) == (None, True)
    assert "timeline" not in report["unknown"]


def test_the_way_back_of_a_kept_change_is_what_can_be_typed(kvmedic):
    undo = facts(kvmedic("report", "calm", "-o", "json", *NOWHERE))["undo"]

    assert [each["command"] for each in undo] == [
        "kvmedic suspend calm -n serving",
        "kubectl -n serving get deployment calm -o yaml | kvmedic flags set max_num_seqs=64 -f - "
        "| kubectl replace -f -",
    ]
    assert "undrained" in undo[1]["for"]


def test_an_open_run_is_reported_as_far_as_it_is(kvmedic):
    report = facts(kvmedic("report", "chat", "-o", "json", *NOWHERE))

    run = report["run"]
    assert (run["state"], run["endedAt"], run["outcome"]) == ("open", None, None)
    assert run["steps"] == [{"change": "Deployment/llm: maxNumSeqs 64 -> 16", "state": "RollingOut"}]
    shown = {each["name"]: (each["before"], each["after"]) for each in report["figures"]}
    assert shown["servedInTime"] == (1.0, None)
    assert report["undo"][0]["command"] == "kvmedic rollback chat -n serving --run 20260301-025500"
    assert report["unknown"]["cost"] == "the run is open"
    assert "no Event of it is left" in report["unknown"]["timeline"]


def test_an_older_run_is_chosen_by_its_id_and_its_figures_are_not_made_up(kvmedic):
    report = facts(kvmedic("report", "calm", "--run", "older", "-o", "json", *NOWHERE))

    assert report["run"]["id"] == "older"
    assert (report["figures"], report["cost"]) == (None, None)
    assert "newest run" in report["unknown"]["figures"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("new",), 3, "no run was made yet"),
        (("calm", "--run", "gone"), 3, f"no run gone is on record; there are {ENDED.id}, older"),
        (("nobody",), 4, "nobody does not exist"),
        (("calm", "-o", "report.pdf"), 2, "end it in .md, .json or .html"),
        (("calm", "-o", "/gone/report.md"), 2, "No such file"),
    ],
)
def test_what_cannot_be_reported_is_said_in_a_sentence(kvmedic, arguments, code, said):
    done = kvmedic("report", *arguments, *NOWHERE)

    assert done.exit_code == code, done.output
    assert said in done.stderr
    assert done.stdout == ""


def test_events_that_may_not_be_listed_leave_begin_and_end(kvmedic):
    kvmedic.api.refuses.add(("GET", "events"))

    report = facts(kvmedic("report", "calm", "-o", "json", *NOWHERE))

    assert [each["what"] for each in report["timeline"]] == ["Opened", "Recovered"]
    assert "may not be listed" in report["unknown"]["timeline"]


def test_markdown_has_every_part_and_no_cell_breaks_a_table(kvmedic, tmp_path):
    file = tmp_path / "report.md"

    done = kvmedic("report", "calm", "-o", str(file), *NOWHERE)

    text = file.read_text()
    assert done.stdout == f"wrote {file}\n"
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == [
        "## When",
        "## Before and after",
        "## Over time",
        "## Evidence and arithmetic",
        "## Cost",
        "## To undo it",
        "## What is not known",
    ]
    assert r"| RollingOut | run \| one moved |" in text
    assert "| preemptionsPerRequest | 2.5 | 0.2 |" in text
    assert "4 replicas started; 240 GPU-seconds of spares." in text


def test_a_moment_has_the_figures_that_a_verdict_would_read():
    moment = figures_at(an_observation(Replica(), Replica()), Limits())

    assert moment.keys() == {"at", "why", *SERIES}
    assert (moment["replicas"], moment["running"], moment["waiting"]) == (2, 45.6, 18.4)
    assert moment["preemptionsPerSecond"] == pytest.approx(2 * 1680 / 300)
    assert 0 < moment["servedInTime"] <= 1
    assert moment["why"] is None


@pytest.mark.parametrize(
    ("signal", "known", "gap"),
    [
        (Signal.TIME_TO_FIRST_TOKEN_SECONDS, "running", "servedInTime"),
        (Signal.WAITING_MEAN, "running", "waiting"),
        (Signal.RUNNING_MEAN, "at", "replicas"),
    ],
)
def test_what_no_replica_reports_is_a_gap_with_its_reason(signal, known, gap):
    silent = without(Replica().readings(), signal, Missing(Absence.NO_SERIES))

    moment = figures_at(an_observation(silent, silent), Limits())

    assert moment[known] is not None
    assert moment[gap] is None
    assert moment["why"]


def test_requests_that_wait_are_silent_seconds_of_those_that_come():
    moment = figures_at(an_observation(Replica(finished=300, waiting_mean=6.0)), Limits())
    nobody = figures_at(an_observation(Replica(finished=300, in_flight_change=-300)), Limits())

    assert moment["silentSecondsPerRequest"] == pytest.approx(6.0)
    assert (nobody["servedInTime"] is None, nobody["silentSecondsPerRequest"]) == (False, None)


CHAT = TargetRef("Deployment", "chat", None)
BEGAN = NOW - timedelta(minutes=10)
ASKED = Asked(NOW - timedelta(minutes=30), NOW, BEGAN, is_taken_back=False)


def a_look(minutes_ago: float, **replicas: Replica) -> Observation:
    pods = {name.replace("_", "-"): each.readings() for name, each in replicas.items()}
    return replace(an_observation(), at=NOW - timedelta(minutes=minutes_ago), pods=pods)


def test_the_pods_of_a_new_replica_set_are_new_also_where_one_from_before_runs_again():
    earlier, before = a_look(20, chat_9c9_aaaaa=Replica()), a_look(12, chat_7c9_aaaaa=Replica())
    silent = a_look(11)
    during = a_look(4, chat_7c9_aaaaa=Replica(), chat_9c9_bbbbb=Replica())

    is_new = distinguish_sides(CHAT, [earlier, before, silent, during], ASKED)
    unknown = distinguish_sides(CHAT, [silent, during], ASKED)

    assert not isinstance(is_new, str)
    assert [is_new(name, during) for name in during.pods] == [False, True]
    assert unknown == "no replica reported figures before the run"


@pytest.mark.parametrize("target", [TargetRef("StatefulSet", "chat", None), replace(CHAT, name="c" * 50)])
def test_replicas_whose_names_say_nothing_are_new_by_their_start(target):
    started = {1: BEGAN + timedelta(minutes=1), 0: BEGAN - timedelta(hours=1)}
    look = a_look(0, **{f"chat_{at}": Replica(started_at=when) for at, when in started.items()})
    gone = without(Replica().readings(), Signal.STARTED_SECONDS, Missing(Absence.NO_SERIES))
    look = replace(look, pods={**look.pods, "chat-2": gone})

    is_new = distinguish_sides(target, [look], ASKED)
    taken_back = distinguish_sides(target, [look], replace(ASKED, is_taken_back=True))

    assert not isinstance(is_new, str)
    assert {name: is_new(name, look) for name in look.pods} == {
        "chat-0": False,
        "chat-1": True,
        "chat-2": None,
    }
    assert taken_back == "its replicas keep their names, and the change was taken back"


def test_new_replicas_stand_beside_old_ones_without_those_that_start_and_without_a_guess():
    smooth = Replica(finished=30, stalls=0, waiting_mean=0)
    late = Replica(finished=30, stalls=30, stall_seconds=4.0, waiting_mean=0)
    starting = replace(late, started_at=NOW - timedelta(seconds=100))
    look = a_look(0, chat_9c9_aaaaa=smooth, chat_9c9_bbbbb=starting, chat_7c9_aaaaa=late)
    unread = without(late.readings(), Signal.WAITING_AT_END, Missing(Absence.NO_SERIES))

    moment = figures_at(look, Limits(), lambda name, _: "9c9" in name)
    gap = figures_at(
        replace(look, pods={**look.pods, "chat-7c9-aaaaa": unread}), Limits(), lambda name, _: "9c9" in name
    )
    unknown = figures_at(look, Limits())

    assert moment["servedInTimeOfNew"] == pytest.approx(30.5 / 31, abs=1e-3)
    assert moment["servedInTimeOfOld"] == pytest.approx(30.5 / 31 * exp(-1), abs=1e-3)
    assert (gap["servedInTimeOfNew"], gap["servedInTimeOfOld"]) == (moment["servedInTimeOfNew"], None)
    assert (unknown["servedInTimeOfNew"], unknown["servedInTimeOfOld"]) == (None, None)


def test_part_of_a_sum_is_no_sum():
    silent = without(Replica().readings(), Signal.WAITING_MEAN, Missing(Absence.NO_SERIES))

    moment = figures_at(an_observation(Replica(), silent), Limits())

    assert (moment["replicas"], moment["waiting"]) == (2, None)


def test_moments_belong_to_a_period_of_the_run():
    moments = [{"at": f"2026-03-01T0{hour}:00:00Z"} for hour in range(5)]
    run = {"startedAt": "2026-03-01T01:00:00Z", "endedAt": "2026-03-01T03:00:00Z"}

    ended, still_open = by_period(moments, run), by_period(moments, {**run, "endedAt": None})

    assert [len(each) for each in ended.values()] == [1, 3, 1]
    assert [len(each) for each in still_open.values()] == [1, 4, 0]


@pytest.mark.parametrize(
    ("kind", "pod", "is_ours"),
    [
        ("Deployment", "chat-7c9-x1234", True),
        ("Deployment", "chat-llm-7c9-x1234", False),
        ("StatefulSet", "chat-0", True),
        ("StatefulSet", "chat-llm-0", False),
        ("LeaderWorkerSet", "chat-0-1", True),
    ],
)
def test_a_replica_is_known_by_the_name_that_its_workload_gives(kind, pod, is_ours):
    assert is_replica_of(TargetRef(kind, "chat", None), pod) is is_ours


WAITING = (("waiting", ""),)
RUN = {"startedAt": "2026-03-01T00:10:00Z", "endedAt": "2026-03-01T00:30:00Z"}


def moments(*values: float | None) -> list[dict[str, Any]]:
    return [{"at": f"2026-03-01T00:{5 * at:02}:00Z", "waiting": each} for at, each in enumerate(values)]


def test_a_gap_in_the_figures_is_a_gap_in_the_line():
    drawn = plot("Waiting", WAITING, moments(1, 2, None, 3, 4, 5, None, 6, None), RUN)

    lines = re.findall(r'points="([^"]*)"', drawn)
    assert [len(each.split()) for each in lines] == [2, 3]
    assert drawn.count('<circle class="first dot"') == 1
    assert "3 of 9 moments without a figure" in drawn


def test_two_lines_are_distinguished_without_their_colour_and_share_one_scale():
    both = [{**each, "running": at} for each, at in zip(moments(1, 2, None), (8.0, 4.0, 6.0), strict=True)]

    drawn = plot("Requests", (("running", "running"), ("waiting", "waiting")), both, RUN)
    alone = plot(
        "Requests",
        (("waiting", "waiting"), ("running", "running")),
        [{**each, "waiting": None} for each in both],
        RUN,
    )

    assert re.findall(r'<polyline class="(\w+) data"', drawn) == ["first", "second"]
    assert '<span class="second key">waiting</span>' in drawn
    assert "running from 4 to 8, at last 6; 0 of 3 moments without a figure; waiting from 1 to 2" in drawn
    assert ">8</text>" in drawn
    assert "no figure at any moment" in alone
    assert "<svg" not in alone


@pytest.mark.parametrize(
    ("most", "top"),
    [(0.0, 1.0), (0.998, 1.0), (1.0, 1.0), (0.17, 0.2), (4, 4), (163, 200), (1927, 2000), (9.7, 10)],
)
def test_a_scale_ends_at_a_round_number(most, top):
    assert top_of_scale(most) == pytest.approx(top)


def test_a_figure_that_nobody_reported_is_said_to_be_none():
    assert "no figure at any moment" in plot("Waiting", WAITING, moments(None, None), RUN)


@pytest.mark.parametrize("values", [(0.0,), (0.0, 0.0), (7.0,)])
def test_a_line_is_drawn_within_its_plot(values):
    drawn = plot("Waiting", WAITING, moments(*values), {**RUN, "endedAt": None})

    points = [each.split(",") for line in re.findall(r'points="([^"]*)"', drawn) for each in line.split()]
    dots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn)
    assert len(points) + len(dots) == len(values)
    assert all(44 <= float(x) <= 374 and 8 <= float(y) <= 118 for x, y in [*points, *dots])


class Checked(HTMLParser):
    """A page whose elements must close in order, and that may fetch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert tag not in {"script", "link", "img", "iframe"}
        assert not {"src", "href", "onclick", "xlink:href"} & named.keys()
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"rect", "path", "polyline", "circle"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_has_every_plot_fetches_nothing_and_quotes_no_markup(kvmedic):
    report = facts(kvmedic("report", "calm", "-o", "json", *NOWHERE))
    many = [
        figures_at(replace(an_observation(Replica()), at=NOW - timedelta(minutes=m)), Limits())
        for m in (25, 20, 5)
    ]
    report["series"] = {"source": "default", "windowSeconds": 120.0, "moments": many}
    report["decisions"] = ["<script>alert(1)</script>"]

    page = report_as_page(report)

    checked = Checked()
    checked.feed(page)
    assert checked.open == []
    assert page.count("<svg") == len(PLOTS) - 1  # nobody says which replicas were new
    assert "<script>alert(1)</script>" in "".join(checked.text)
    assert "prefers-color-scheme: dark" in page
    assert "url(" not in page
    assert "http" not in page


def test_a_page_without_figures_over_time_says_why(kvmedic, tmp_path):
    file = tmp_path / "report.html"

    assert kvmedic("report", "calm", "-o", str(file), *NOWHERE).exit_code == 0
    assert "cannot be reached" in file.read_text()
