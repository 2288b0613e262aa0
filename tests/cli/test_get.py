"""`kvmedic get` and `kvmedic watch`: what each fleet's line says, for people and for programs."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from ruamel.yaml import YAML

from api.records import full_record
from kvmedic.cli.live.get import fleet_table
from kvmedic.cli.live.rows import row_from, short_time
from kvmedic.cli.live.watch import Followed, Lines, draw
from kvmedic.kube.client import Limits, connect
from kvmedic.model.reasons import Reason
from kvmedic.model.run import ComparedSide, ReplicaComparison, StepState
from kvmedic.model.status import Condition, ConditionType, Truth
from run_builder import NOW, a_run, an_intent
from worlds.api_double import CALM, CommandLine, a_command_line, a_resource, walking


@pytest.fixture
def kvmedic(tmp_path: Path) -> Iterator[CommandLine]:
    bodies = (
        a_resource("chat", walking()),
        a_resource("calm", CALM),
        a_resource("fresh", namespace="other"),
        a_resource("odd", namespace="other", trigger={"window": "never"}),
    )
    with ExitStack() as stack:
        yield a_command_line(stack, tmp_path, NOW, bodies)


def items(result: Any) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "kvmedic.io/get/v1"
    return {each["name"]: each for each in document["items"]}


def test_each_fleet_has_a_line_with_its_run(kvmedic):
    done = kvmedic("get")

    head, *lines = [line.split() for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert head == ["NAME", "TARGET", "STATE", "REASON", "IN", "TIME", "RUN", "CHANGED", "AGE"]
    assert [line[0] for line in lines] == ["calm", "chat"]
    assert " ".join(lines[0]) == "calm calm Watching Healthy - - - 3h"
    assert " ".join(lines[1]) == (
        "chat chat RollingOut ComparingReplicas 100% before 20260301-025500 2 of 3, 10m 3h"
    )


def test_all_namespaces_are_named(kvmedic):
    done = kvmedic("get", "-A", "-o", "wide")

    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["other", "fresh"],
        ["other", "odd"],
        ["serving", "calm"],
        ["serving", "chat"],
    ]
    assert lines[0].split()[-3:] == ["MODE", "CHANGE", "MESSAGE"]
    assert "maxNumSeqs 64 -> 16" in lines[4]


def test_numbers_are_numbers_and_what_is_unknown_has_its_reason(kvmedic):
    found = items(kvmedic("get", "-A", "-o", "json"))

    chat, calm, fresh, odd = (found[name] for name in ("chat", "calm", "fresh", "odd"))
    assert (chat["servedInTime"], chat["servedInTimeOf"]) == (1.0, "before")
    assert chat["run"]["seconds"] == 600
    assert (chat["run"]["replicas"], chat["run"]["replicasChanged"]) == (3, 2)
    assert calm["ageSeconds"] == 3 * 3600
    assert (calm["run"], calm["unknown"]["run"]) == (None, "no run is open")
    assert "no run is open" in calm["unknown"]["servedInTime"]
    assert (fresh["state"], fresh["reason"]) == ("Unseen", None)
    assert "not looked" in fresh["unknown"]["reason"]
    assert (odd["state"], odd["reason"], odd["mode"]) == ("NotReady", "SpecInvalid", None)
    assert "SpecInvalid" in odd["unknown"]["mode"]
    for each in found.values():
        assert each["unknown"].keys() == {field for field, value in each.items() if value is None}


def test_yaml_says_the_same_as_json(kvmedic):
    as_json, as_yaml = kvmedic("get", "chat", "-o", "json"), kvmedic("get", "chat", "-o", "yaml")

    assert YAML(typ="safe").load(as_yaml.stdout) == json.loads(as_json.stdout)


def test_one_that_is_not_there_exits_4(kvmedic):
    done = kvmedic("get", "nobody")

    assert done.exit_code == 4
    assert "nobody does not exist in namespace serving" in done.stderr


def test_what_may_not_be_listed_exits_4(kvmedic):
    kvmedic.api.refuses.add(("GET", "kvremediations"))

    done = kvmedic("get", "-A")

    assert done.exit_code == 4
    assert "Forbidden" in done.stderr


def test_an_empty_namespace_says_how_to_begin(kvmedic):
    done = kvmedic("get", "-n", "empty")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "kvmedic init" in done.stderr


@pytest.mark.parametrize(
    ("side", "share", "of"),
    [("new", 0.4, "beside"), ("after", 0.6, "after"), ("none", None, None)],
)
def test_the_newest_share_on_record_is_shown(side, share, of):
    run = a_run(StepState.ROLLING_OUT, an_intent(2, "Pulse"))
    step = run.current
    if side == "new":
        new = ComparedSide(1, 10.0, 0.4, 100.0)
        step = replace(step, comparison=ReplicaComparison(NOW, ("a",), new=new))
    elif side == "after":
        assert run.baseline is not None
        step = replace(step, after=replace(run.baseline, in_time_share=0.6))
    else:
        run = replace(run, goal=run.goal.CALM, baseline=None)
    row = row_from(a_resource("chat", replace(walking(), run=run.with_step(step))), NOW)

    fields = row.describe_row()

    assert (fields["servedInTime"], fields["servedInTimeOf"]) == (share, of)


def test_an_action_for_a_person_comes_before_the_diagnosis():
    act = Condition(ConditionType.ACTION_REQUIRED, Truth.TRUE, Reason.SPARE_NEEDED, "make room", NOW, 3)
    body = a_resource("chat", replace(CALM, conditions=(*CALM.conditions, act)))

    row = row_from(body, NOW)

    assert (row.state, row.reason, row.message) == ("ActionRequired", "SpareNeeded", "make room")


def drawn(width: int) -> str:
    seen = Followed("", {"a": a_resource("chat", walking()), "b": a_resource("calm", CALM)})
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False).print(
        draw(seen, NOW, width, everywhere=True)
    )
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_live_view_fits_the_terminal_and_keeps_the_states(width):
    lines = drawn(width).splitlines()

    assert max(map(len, lines)) <= width
    assert any("RollingOut" in line for line in lines[1:3])
    assert "RollingOut for ComparingReplicas: beside old ones" in "\n".join(lines)


def test_no_colour_where_there_is_no_terminal(kvmedic):
    assert "\x1b" not in kvmedic("get", "-A").output


def test_a_colour_is_only_added_to_words():
    rows = [row_from(a_resource("chat", walking()), NOW)]
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system="standard", markup=False)
    console.print(fleet_table(rows, 200, everywhere=False))

    assert "\x1b[36mRollingOut" in out.getvalue()


def test_texts_of_a_tenant_cannot_move_the_cursor():
    condition = Condition(ConditionType.READY, Truth.FALSE, Reason.TARGET_NOT_FOUND, "x\x1b[2Jy", NOW, 3)
    body = a_resource("chat", CALM)
    body["status"]["conditions"][0] |= {"status": "False", "message": condition.message}

    assert row_from(body, NOW).message == "x[2Jy"


def test_outside_a_terminal_each_change_is_one_line(kvmedic):
    async def write_lines() -> list[str]:
        async with await connect(kvmedic.kubeconfig, Limits()) as client:
            out, bodies = io.StringIO(), {"uid-chat": a_resource("chat", CALM)}
            lines, seen = Lines(client, out), Followed("chat", bodies)
            for event in ("", "MODIFIED", "BOOKMARK", "DELETED"):
                if event:
                    seen.take_event({"type": event, "object": a_resource("chat", walking())})
                lines.write_changes(seen)
            return [line.partition(" ")[2] for line in out.getvalue().splitlines()]

    written = asyncio.run(write_lines())

    assert [line.split()[:3] for line in written] == [
        ["serving/chat", "Watching", "Healthy"],
        ["serving/chat", "RollingOut", "ComparingReplicas"],
        ["serving/chat", "Gone"],
    ]


def test_a_watch_ends_after_the_time_that_was_asked_for(kvmedic):
    done = kvmedic("watch", "chat", "--for", "1s500ms")

    assert done.exit_code == 0, done.output
    assert [line.split()[1:3] for line in done.stdout.splitlines()] == [["serving/chat", "RollingOut"]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nobody",), 4, "nobody does not exist"),
        (("chat", "--for", "soon"), 2, "--for: 'soon' is not a duration"),
    ],
)
def test_a_watch_that_cannot_begin_says_why(kvmedic, arguments, code, said):
    done = kvmedic("watch", *arguments)

    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "120m"), (7200, "2h"), (172_800, "2d")],
)
def test_lengths_of_time_are_short(seconds, text):
    assert short_time(seconds) == text


def test_a_record_that_says_everything_is_shown():
    row = row_from(a_resource("chat", full_record()), NOW + timedelta(minutes=1))

    assert json.loads(json.dumps(row.describe_row()))["run"]["ending"] == "NotRecovered"
