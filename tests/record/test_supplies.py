"""What turns of the supply leave behind: shares that were too much, and what speaks against a change."""

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.engine import Knob
from kvmedic.model.fleet import body_hash
from kvmedic.model.plan import FlagStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Outcome, Run, StepState, Verdict
from kvmedic.model.status import HISTORY_LENGTH, Attempt, OomShare, Record
from kvmedic.record.runs import after_trouble, close_run, raised_share, with_oom_share
from run_builder import CONFIG, NEW, NOW, OLD, REPLACE, STEP, a_fleet, a_pod, a_run, an_intent

RAISED = replace(
    STEP, knob=Knob.GPU_MEMORY_UTILIZATION, before="0.9", after="0.92", reason=Reason.MEMORY_STEPPED_UP
)
IN_FILE = replace(
    CONFIG, knob=Knob.GPU_MEMORY_UTILIZATION, before="0.9", after="0.92", reason=Reason.MEMORY_STEPPED_UP
)
HOST_MEMORY = replace(
    STEP, knob=Knob.KV_OFFLOADING_SIZE, before=None, after="32", reason=Reason.HOST_MEMORY_USED
)
KEPT = Judged(Verdict.IMPROVED, Reason.IMPROVED, "smoother")
FAILED = Outcome(Reason.CANARY_FAILED, "it does not come up")


def template(image: str = "a", **spec: object) -> dict[str, object]:
    return {"spec": {"containers": [{"name": "vllm", "image": image, "args": ["--x"]}], **spec}}


HERE = body_hash(template())


def verified(step: FlagStep) -> Run:
    return a_run(StepState.VERIFYING, an_intent(), step=step)


def after(run: Run, ending: Reason, before: Record | None = None) -> Record:
    record = replace(before or Record(), run=run)
    return close_run(record, run, Outcome(ending, ""), 1, NOW)


def test_a_share_that_was_too_much_is_written_down_once():
    once = with_oom_share(Record(), 0.92, template(), NOW)

    again = with_oom_share(once, 0.92, template(), NOW + timedelta(hours=1))

    assert once.oom_shares == (OomShare(0.92, HERE, NOW),)
    assert again == once


@pytest.mark.parametrize(
    ("share", "expected"), [(0.9, 0.9), (0.95, 0.92)], ids=["a lower one", "a higher one"]
)
def test_of_one_template_the_lowest_counts(share, expected):
    record = with_oom_share(with_oom_share(Record(), 0.92, template(), NOW), share, template(), NOW)

    assert [one.share for one in record.oom_shares] == [expected]


def test_templates_are_distinguished_and_bounded_in_number():
    record = Record()
    for number in range(HISTORY_LENGTH + 3):
        record = with_oom_share(record, 0.9, template(f"image-{number}"), NOW)

    assert len(record.oom_shares) == HISTORY_LENGTH
    assert record.oom_shares[0].body == body_hash(template(f"image-{HISTORY_LENGTH + 2}"))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (template(), True),
        ({**template(), "metadata": {"annotations": {"restartedAt": "now"}}}, True),
        ({"spec": {"containers": [{"name": "vllm", "image": "a", "args": ["--y"], "env": []}]}}, True),
        (template("b"), False),
        (template(nodeSelector={"gpu": "h100"}), False),
    ],
    ids=["the same", "restarted", "other flags", "another image", "other nodes"],
)
def test_a_template_is_the_same_as_long_as_its_memory_is(other, *, same):
    assert (body_hash(other) == HERE) is same


def test_a_template_without_containers_has_a_hash_too():
    assert body_hash({}) == body_hash({"spec": None})


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (RAISED, 0.92),
        (IN_FILE, 0.92),
        (replace(RAISED, reason=Reason.MEMORY_STEPPED_DOWN), None),
        (replace(RAISED, after=None), None),
        (STEP, None),
        (REPLACE, None),
    ],
    ids=["raised", "raised in a file", "lowered", "put back", "another knob", "another step"],
)
def test_only_a_raise_raises(step, share):
    assert raised_share(step) == share


@pytest.mark.parametrize(
    ("step", "revision", "restarts", "known"),
    [
        (RAISED, NEW, 1, [0.92]),
        (IN_FILE, NEW, 1, [0.92]),
        (RAISED, NEW, 0, []),
        (RAISED, OLD, 3, []),
        (replace(RAISED, reason=Reason.MEMORY_STEPPED_DOWN), NEW, 3, []),
        (STEP, NEW, 3, []),
    ],
    ids=[
        "a new replica restarted",
        "by a file",
        "none restarted",
        "an old one did",
        "a share lowered",
        "another knob",
    ],
)
def test_replicas_that_end_with_more_memory_mark_the_share(step, revision, restarts, known):
    fleet = a_fleet(pods=(a_pod("x", revision, restarts=restarts), a_pod("y", NEW)))

    done = after_trouble(Record(), verified(step), fleet, template(), NOW)

    assert [one.share for one in done.oom_shares] == known


@pytest.mark.parametrize(
    "step",
    [
        RAISED,
        IN_FILE,
        HOST_MEMORY,
        replace(STEP, knob=Knob.PREFIX_CACHING, reason=Reason.SETTING_ADJUSTED),
        STEP,
        replace(RAISED, reason=Reason.MEMORY_STEPPED_DOWN),
    ],
    ids=["a larger share", "in a file", "host memory", "prefixes", "a cap", "a smaller share"],
)
def test_a_change_whose_first_replica_does_not_come_up_is_remembered(step):
    run = verified(step).turn_step_back(FAILED, None).end_reverted()

    done = after(run, Reason.CANARY_FAILED)

    assert [(one.key, one.why) for one in done.failed_attempts] == [(step.knob, "CanaryFailed")]


@pytest.mark.parametrize("reason", [Reason.SPARE_UNSCHEDULABLE, Reason.ROLLED_BACK_BY_HAND])
def test_a_change_that_was_never_judged_is_not_remembered(reason):
    run = verified(STEP).turn_step_back(Outcome(reason, ""), None).end_reverted()

    assert after(run, reason).failed_attempts == ()


def test_the_same_knob_up_and_down_are_two_memories():
    back = Outcome(Reason.NOT_RECOVERED, "")
    down = replace(RAISED, after="0.88", reason=Reason.MEMORY_STEPPED_DOWN)

    first = after(verified(down).turn_step_back(back, Verdict.NOT_RECOVERED).end_reverted(), back.reason)
    done = after(
        verified(RAISED).turn_step_back(back, Verdict.NOT_RECOVERED).end_reverted(), back.reason, first
    )

    assert [(one.attempt, one.template) for one in done.failed_attempts] == [
        (Attempt.RAISE_MEMORY, OLD),
        (Attempt.TURN_LEVER, OLD),
    ]
