"""When and how a temporary change is restored."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.config_edits import ConfigMap, Contents, Sight, Unseen
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import template_hash
from kvmedic.model.plan import FlagStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound, Policy
from kvmedic.model.status import Record, TemporaryChange
from kvmedic.runbooks.preemption.restore import SetValue, due_change, restore_after, restore_setting, state_of
from kvmedic.runbooks.workload import Workload
from run_builder import NOW, STEP, a_fleet
from worlds.settled import HELD, POLICY, four
from worlds.workloads import a_workload

KNOB = Knob.KV_OFFLOADING_SIZE
UID = "uid-1"
HOST_MEMORY = TemporaryChange(
    step=replace(STEP, knob=KNOB, before=None, after="32"),
    run="run",
    target_uid=UID,
    at=NOW - timedelta(hours=3),
    calm_since=NOW - timedelta(hours=1),
)
FILE = "# sizes\nmax-num-seqs: 64\nkv-offloading-size: 32  # GiB\n"


def workload(*args: str, maps: dict[str, Sight] | None = None, **pod: object) -> Workload:
    spec = {"volumes": [{"name": "config", "configMap": {"name": "limits"}}], **pod}
    mounts = [{"name": "config", "mountPath": "/etc/vllm"}]
    return a_workload(*args, uid=UID, maps=maps or {}, template={"spec": spec}, volumeMounts=mounts)


def in_file(text: str = FILE) -> Workload:
    sight = ConfigMap(Contents({"engine.yaml": text}))
    return workload("--config", "/etc/vllm/engine.yaml", maps={"limits": sight})


def planned(of: Workload, held: TemporaryChange = HOST_MEMORY) -> Plan:
    assert isinstance(held.step, FlagStep)
    found = restore_setting(of, held.step, "calm", 3)
    assert isinstance(found, Plan), found
    return found


def test_a_flag_that_was_not_given_is_removed_again() -> None:
    changed, never = workload("--kv-offloading-size=32"), workload()

    plan = planned(changed)

    [step] = plan.steps
    assert isinstance(step, FlagStep)
    assert (step.before, step.after, step.reason) == ("32", None, Reason.HOST_MEMORY_GIVEN_BACK)
    assert step.before_template == template_hash(changed.template) == plan.template
    assert step.after_template == template_hash(never.template)
    assert step.edit.apply(changed.template) == never.template


def test_a_flag_that_had_a_value_gets_it_again() -> None:
    changed = workload("--kv-offloading-size", "32")

    [step] = planned(changed, replace(HOST_MEMORY, step=replace(HOST_MEMORY.step, before="8"))).steps

    assert isinstance(step, FlagStep)
    assert (step.before, step.after, step.reason) == ("32", "8", Reason.HOST_MEMORY_GIVEN_BACK)
    assert step.after_template == template_hash(workload("--kv-offloading-size", "8").template)


def test_a_value_in_a_file_is_put_back_in_a_copy() -> None:
    [step] = planned(in_file(), replace(HOST_MEMORY, step=replace(HOST_MEMORY.step, before="8"))).steps

    assert isinstance(step, FlagStep)
    assert (step.before, step.after, step.reason) == ("32", "8", Reason.HOST_MEMORY_GIVEN_BACK)
    copied = step.file_of.make_copy(Contents({"engine.yaml": FILE}))
    assert copied.data["engine.yaml"] == FILE.replace("32", "8")
    assert step.file_of.config_map == "limits"


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (workload("--kv-offloading-size", "32"), "not one word"),
        (in_file(), "not on the command line"),
    ],
    ids=["written otherwise by somebody", "moved into a file by somebody"],
)
def test_what_cannot_be_removed_for_sure_is_left_to_a_person(of: Workload, words: str) -> None:
    found = restore_setting(of, HOST_MEMORY.step, "calm", 3)

    assert isinstance(found, Blocked)
    assert found.reason is Reason.FLAG_NOT_EDITABLE
    assert words in found.message


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (workload("--kv-offloading-size=32"), SetValue.UNCHANGED),
        (in_file(), SetValue.UNCHANGED),
        (workload("--kv-offloading-size=16"), SetValue.CHANGED),
        (workload(), SetValue.CHANGED),
        (in_file("max-num-seqs: 64\n"), SetValue.CHANGED),
        (workload("--config", "/etc/vllm/engine.yaml", maps={"limits": Unseen.UNREADABLE}), SetValue.UNKNOWN),
        (
            workload(
                "--config",
                "/etc/vllm/engine.yaml",
                "--kv-offloading-size=32",
                maps={"limits": Unseen.GONE},
            ),
            SetValue.UNCHANGED,
        ),
        (Blocked(Reason.ENGINE_UNRECOGNISED, ""), SetValue.UNKNOWN),
    ],
    ids=[
        "as set",
        "as set, in a file",
        "another value",
        "removed",
        "removed from the file",
        "the file cannot be read",
        "the command line beats a file that is gone",
        "no engine that is known",
    ],
)
def test_whose_the_flag_is_follows_from_what_the_engine_is_given(
    of: Workload | Blocked, expected: SetValue
) -> None:
    assert state_of(HOST_MEMORY, a_fleet(uid=UID), of) is expected
    assert state_of(HOST_MEMORY, a_fleet(uid="another"), of) is SetValue.CHANGED


def policy(*levers: LeverBound) -> Policy:
    assert POLICY is not None
    return replace(POLICY, levers=levers)


SOON = LeverBound(KNOB, maximum=32, restore_after=timedelta(minutes=5))


@pytest.mark.parametrize(
    ("levers", "minutes"), [((), 60), ((LeverBound(Knob.MAX_NUM_SEQS),), 60), ((SOON,), 5)]
)
def test_how_long_it_must_have_been_calm_is_the_levers_or_an_hour(
    levers: tuple[LeverBound, ...], minutes: int
) -> None:
    assert restore_after(HOST_MEMORY, policy(*levers)) == timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("record", "args", "expected"),
    [
        (Record(temporary=(HOST_MEMORY,)), ["--kv-offloading-size=32"], HOST_MEMORY),
        (Record(temporary=(HOST_MEMORY,)), ["--kv-offloading-size=16"], None),
        (Record(temporary=(replace(HOST_MEMORY, calm_since=NOW),)), ["--kv-offloading-size=32"], None),
        (Record(temporary=(replace(HOST_MEMORY, calm_since=None),)), ["--kv-offloading-size=32"], None),
        (Record(temporary=(HELD, HOST_MEMORY)), ["--kv-offloading-size=32"], HELD),
        (
            Record(temporary=(replace(HELD, calm_since=NOW), HOST_MEMORY)),
            ["--kv-offloading-size=32"],
            None,
        ),
        (
            Record(temporary=(replace(HELD, step=replace(HELD.step, after=9)), HOST_MEMORY)),
            ["--kv-offloading-size=32"],
            HOST_MEMORY,
        ),
        (Record(), ["--kv-offloading-size=32"], None),
    ],
    ids=[
        "calm for long enough",
        "somebody else's now",
        "not calm for long enough",
        "not calm",
        "replicas first",
        "replicas first, though they are not due",
        "the replicas are somebody else's now",
        "nothing is temporary",
    ],
)
def test_one_thing_at_a_time_is_due(record: Record, args: list[str], expected: object) -> None:
    temporary = tuple(replace(each, target_uid=four().uid) for each in record.temporary)

    found = due_change(replace(record, temporary=temporary), four(), policy(), workload(*args), NOW)

    due = replace(expected, target_uid=four().uid) if isinstance(expected, TemporaryChange) else expected
    assert found == due
