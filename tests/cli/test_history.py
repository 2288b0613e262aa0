"""`kvmedic history`: what ended runs changed, how they were judged, and what is not known of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kvmedic.model.reasons import Reason
from kvmedic.model.run import Approved, Cost, Shift, Summary
from kvmedic.model.status import ClosedRun
from run_builder import NOW
from worlds.api_double import CALM, CommandLine, a_command_line, a_resource

NEWER = ClosedRun(
    id="2",
    reason=Reason.FLEET_WIDE_DEMAND,
    outcome=Reason.RECOVERED,
    message="0.2 preemptions per request",
    steps=("Deployment/chat: maxNumSeqs 64 -> 16: Kept",),
    started_at=NOW - timedelta(minutes=20),
    ended_at=NOW,
    approval=Approved("chat-x7", "uid"),
    template="aaaa",
    template_after="bbbb",
)
OLDER = replace(
    NEWER,
    id="1",
    outcome=Reason.NOT_RECOVERED,
    ended_at=NOW - timedelta(hours=5),
    started_at=NOW - timedelta(hours=6),
    approval=None,
    template_after="",
)
SUMMARY = Summary(
    "2",
    NOW,
    Reason.RECOVERED,
    "it helped",
    NEWER.steps,
    Cost(4, 120.0, 240.0),
    (Shift("preemptionsPerRequest", 2.5, 0.2),),
)


@pytest.fixture
def kvmedic(tmp_path: Path) -> Iterator[CommandLine]:
    chat = a_resource("chat", replace(CALM, history=(NEWER, OLDER), summary=SUMMARY))
    other = a_resource("code", replace(CALM, history=(replace(OLDER, id="3", ended_at=NOW),)), "other")
    with ExitStack() as stack:
        yield a_command_line(stack, tmp_path, NOW, (chat, other, a_resource("new")))


def test_the_newest_run_comes_first_with_its_change_and_verdict(kvmedic):
    done = kvmedic("history", "chat")

    head, *lines = [line.split() for line in done.stdout.splitlines()]
    assert done.exit_code == 0, done.output
    assert head == ["RUN", "ENDED", "TOOK", "WHY", "CHANGED", "VERDICT"]
    assert [line[0] for line in lines] == ["2", "1"]
    assert " ".join(lines[0]) == (
        "2 2026-03-01 03:00:00Z 20m FleetWideDemand maxNumSeqs 64 -> 16: Kept Recovered"
    )


def test_fleets_are_named_where_there_are_several(kvmedic):
    lines = kvmedic("history", "-A").stdout.splitlines()

    assert sorted(line.split()[0] for line in lines[1:]) == ["other/code", "serving/chat", "serving/chat"]


def test_figures_and_cost_are_of_the_run_that_they_are_kept_of(kvmedic):
    document = json.loads(kvmedic("history", "chat", "-o", "json").stdout)

    newer, older = document["items"]
    assert document["schema"] == "kvmedic.io/history/v1"
    assert newer["figures"] == [{"name": "preemptionsPerRequest", "before": 2.5, "after": 0.2}]
    assert newer["cost"] == {"replicasStarted": 4, "spareReplicaSeconds": 120.0, "spareGpuSeconds": 240.0}
    assert (newer["kept"], newer["approval"], newer["seconds"]) == (True, "chat-x7", 1200)
    assert (older["kept"], older["figures"], older["cost"]) == (False, None, None)
    assert "newest run that changed" in older["unknown"]["cost"]
    for each in document["items"]:
        assert each["unknown"].keys() == {field for field, value in each.items() if value is None}


def test_a_status_that_cannot_be_read_is_named(kvmedic):
    kvmedic.api.one("kvremediations", "chat")["status"]["history"][0]["endedAt"] = "yesterday"

    done = kvmedic("history", "-A")

    assert done.exit_code == 0
    assert "left out: serving/chat: " in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["other/code"]


def test_no_run_is_said_to_be_none(kvmedic):
    done = kvmedic("history", "new")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "no run has ended" in done.stderr
