"""What a run's record says of its target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmedic.model.fleet import freeze_fields
from kvmedic.model.plan import Goal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Outcome, StepState, Verdict
from kvmedic.rollout.drift import Standing, target_standing
from run_builder import NEW, NOW, OLD, REPLACE, ROLLBACK, UID, a_fleet, a_pod, a_run, a_scaling, an_intent


def test_a_run_without_a_baseline_is_judged_only_by_whether_it_stays_up() -> None:
    steady = replace(a_run(), baseline=None, goal=Goal.STAYS_UP)

    assert steady.baseline is None
    for compared in (Goal.RELIEF, Goal.NO_WORSE):
        with pytest.raises(ValueError, match=f"whose goal is {compared} needs the baseline"):
            replace(steady, goal=compared)


FROZEN = freeze_fields(max_unavailable=0, paused=True)
RUN = a_run(StepState.ROLLING_OUT, an_intent(3))
MINE = f"{UID}/{RUN.id}/"
FIRST = replace(an_intent(1), was_frozen=False)
REPLACING = a_run(StepState.ROLLING_OUT, a_scaling(1, 3, 4), step=REPLACE)

ROWS = [
    ("before the first effect", a_run(), a_fleet(), Standing.AS_RECORDED),
    ("the Deployment is gone", RUN, None, Standing.GONE),
    ("another Deployment of the same name", RUN, a_fleet(uid="uid-2"), Standing.GONE),
    ("edited before the first effect", a_run(), a_fleet(revision="c" * 16), Standing.DRIFTED),
    (
        "the first effect was written down and not committed",
        a_run(StepState.ROLLING_OUT, an_intent(1)),
        a_fleet(),
        Standing.AS_RECORDED,
    ),
    (
        "the first effect was written down, then a person edited",
        a_run(StepState.ROLLING_OUT, an_intent(1)),
        a_fleet(revision="c" * 16),
        Standing.DRIFTED,
    ),
    (
        "an earlier run's claim is still there",
        a_run(StepState.ROLLING_OUT, an_intent(1)),
        a_fleet(fence=f"{UID}/20260101-000000/9"),
        Standing.AS_RECORDED,
    ),
    (
        "the last effect was committed",
        RUN,
        a_fleet(fence=MINE + "3", revision=NEW, fields=FROZEN),
        Standing.AS_RECORDED,
    ),
    (
        "the last effect was not committed",
        replace(RUN, intent=an_intent(3, "Pulse", before=NEW, after=NEW)),
        a_fleet(fence=MINE + "2", revision=NEW, fields=FROZEN),
        Standing.AS_RECORDED,
    ),
    (
        "a person put the old template back in the middle",
        RUN,
        a_fleet(fence=MINE + "3", revision=OLD, fields=FROZEN),
        Standing.REVERTED,
    ),
    (
        "a person took minReadySeconds away in the middle",
        RUN,
        a_fleet(fence=MINE + "3", revision=NEW, fields=replace(FROZEN, min_ready_seconds=5)),
        Standing.SHIFTED,
    ),
    ("an old claim of another resource's", RUN, a_fleet(fence="other/run/3", revision=NEW), Standing.SHIFTED),
    ("the claim ran ahead of the record", RUN, a_fleet(fence=MINE + "4", revision=NEW), Standing.SHIFTED),
    ("the claim was removed in the middle", RUN, a_fleet(fence="", revision=NEW), Standing.SHIFTED),
    (
        "the claim is another run's in the middle, and the template from before",
        RUN,
        a_fleet(fence=f"{UID}/x/1"),
        Standing.REVERTED,
    ),
    (
        "an early claim of the same run came back",
        replace(RUN, intent=an_intent(3, "Retarget", before=NEW, after=OLD)),
        a_fleet(fence=MINE + "1", revision=NEW, fields=FROZEN),
        Standing.SHIFTED,
    ),
    (
        "the first effect was committed and then undone, claim and template",
        a_run(StepState.ROLLING_OUT, FIRST),
        a_fleet(fields=freeze_fields(max_unavailable=0, paused=False)),
        Standing.REVERTED,
    ),
    (
        "the same, and the claim of an earlier run came back",
        a_run(StepState.ROLLING_OUT, FIRST),
        a_fleet(fence=f"{UID}/20260101-000000/9", fields=freeze_fields(max_unavailable=0, paused=False)),
        Standing.REVERTED,
    ),
    (
        "the first effect was not committed and another resource's old claim is there",
        a_run(StepState.ROLLING_OUT, FIRST),
        a_fleet(fence="other/run/9"),
        Standing.AS_RECORDED,
    ),
    (
        "the claim went together with the template",
        RUN,
        a_fleet(fence="", revision="theirs"),
        Standing.DRIFTED,
    ),
    (
        "an older run's claim came back with an older template",
        RUN,
        a_fleet(fence=f"{UID}/x/1", revision="theirs"),
        Standing.DRIFTED,
    ),
    (
        "another's claim came with another template",
        RUN,
        a_fleet(fence="other/run/3", revision="theirs"),
        Standing.DRIFTED,
    ),
    ("the claim is not a number", RUN, a_fleet(fence=MINE + "x", revision=NEW), Standing.SHIFTED),
    ("a replacement before its first effect", a_run(step=REPLACE), a_fleet(), Standing.AS_RECORDED),
    (
        "somebody scaled before a replacement's first effect",
        a_run(step=REPLACE),
        a_fleet(replicas=5),
        Standing.RESCALED,
    ),
    ("the spare was asked for", REPLACING, a_fleet(fence=MINE + "1", replicas=4), Standing.AS_RECORDED),
    ("the spare was intended and not asked for", REPLACING, a_fleet(), Standing.AS_RECORDED),
    ("somebody took the spare away", REPLACING, a_fleet(fence=MINE + "1"), Standing.RESCALED),
    ("somebody scaled up meanwhile", REPLACING, a_fleet(fence=MINE + "1", replicas=6), Standing.RESCALED),
    (
        "somebody scaled to zero in a replacement",
        REPLACING,
        a_fleet(fence=MINE + "1", replicas=0),
        Standing.SCALED_TO_ZERO,
    ),
    (
        "somebody edited the template in a replacement",
        REPLACING,
        a_fleet(fence=MINE + "1", replicas=4, revision=NEW),
        Standing.DRIFTED,
    ),
    (
        "an undo took the claim of a replacement",
        REPLACING,
        a_fleet(replicas=4, revision=NEW),
        Standing.DRIFTED,
    ),
    (
        "the number was put back",
        replace(REPLACING, intent=a_scaling(2, 4, 3)),
        a_fleet(fence=MINE + "2"),
        Standing.AS_RECORDED,
    ),
    (
        "the number was meant to be put back and was not",
        replace(REPLACING, intent=a_scaling(2, 4, 3)),
        a_fleet(fence=MINE + "1", replicas=4),
        Standing.AS_RECORDED,
    ),
    (
        "somebody scaled while a replacement is verified: it does not count on the number any more",
        a_run(StepState.VERIFYING, a_scaling(2, 4, 3), step=REPLACE),
        a_fleet(fence=MINE + "2", replicas=6),
        Standing.AS_RECORDED,
    ),
    (
        "a person put the old template back while it was verified",
        a_run(StepState.VERIFYING, an_intent(3, "Restore", before=NEW, frozen=False)),
        a_fleet(fence=MINE + "3", revision=OLD),
        Standing.REVERTED,
    ),
    (
        "a person undid a way back to another revision",
        a_run(StepState.VERIFYING, an_intent(3, "Restore", before=NEW, frozen=False), step=ROLLBACK),
        a_fleet(fence=MINE + "3", revision=OLD),
        Standing.REVERTED,
    ),
    (
        "a way back to another revision is under way",
        a_run(StepState.ROLLING_OUT, an_intent(3), step=ROLLBACK),
        a_fleet(fence=MINE + "3", revision=NEW, fields=FROZEN),
        Standing.AS_RECORDED,
    ),
    (
        "somebody edited the template in a way back to another revision",
        a_run(StepState.ROLLING_OUT, an_intent(3), step=ROLLBACK),
        a_fleet(fence=MINE + "3", revision="theirs", fields=FROZEN),
        Standing.DRIFTED,
    ),
    (
        "a person ended the freeze on the way back",
        a_run(StepState.ROLLING_BACK, an_intent(3, "Retarget", before=NEW, after=OLD)),
        a_fleet(fence=MINE + "3", revision=OLD),
        Standing.SHIFTED,
    ),
    (
        "an undo on the way back brought the change and the claim before the freeze back",
        a_run(StepState.ROLLING_BACK, replace(an_intent(3, before=NEW, after=OLD), was_frozen=False)),
        a_fleet(fence=MINE + "2", revision=NEW, fields=FROZEN),
        Standing.DRIFTED,
    ),
    (
        "a person put the old template back while replicas of both are there",
        RUN,
        a_fleet(fence=MINE + "3", fields=FROZEN, pods=(*a_fleet().pods, a_pod("d", NEW))),
        Standing.TURNED,
    ),
    (
        "all was put back but our pause",
        RUN,
        a_fleet(fence="", fields=replace(a_fleet().fields, paused=True)),
        Standing.TURNED,
    ),
    (
        "a person set another surge in the middle",
        replace(RUN, intent=replace(an_intent(3), fields_after=FROZEN)),
        a_fleet(fence=MINE + "3", revision=NEW, fields=replace(FROZEN, max_surge="50%")),
        Standing.SHIFTED,
    ),
    (
        "a person set another type of strategy in the middle",
        RUN,
        a_fleet(fence=MINE + "3", revision=NEW, fields=FROZEN, strategy="Recreate"),
        Standing.SHIFTED,
    ),
    (
        "a person paused in the middle of a pulse",
        replace(
            RUN, intent=replace(an_intent(3), fields_after=freeze_fields(max_unavailable=1, paused=False))
        ),
        a_fleet(fence=MINE + "3", revision=NEW, fields=freeze_fields(max_unavailable=1, paused=True)),
        Standing.AS_RECORDED,
    ),
    (
        "the record lost its intent in the middle",
        a_run(),
        a_fleet(fence=MINE + "3", revision=NEW, fields=FROZEN),
        Standing.SHIFTED,
    ),
    (
        "it lost that and the claim",
        a_run(),
        a_fleet(revision=NEW, fields=FROZEN),
        Standing.SHIFTED,
    ),
    (
        "the claim of a replacement was pruned",
        replace(REPLACING, intent=a_scaling(2, 3, 4)),
        a_fleet(replicas=4),
        Standing.SHIFTED,
    ),
    (
        "it was pruned, and somebody scaled",
        replace(REPLACING, intent=a_scaling(2, 3, 4)),
        a_fleet(replicas=6),
        Standing.RESCALED,
    ),
    (
        "the claim was pruned while the change is verified",
        a_run(StepState.VERIFYING, an_intent(3, "Restore", before=NEW, frozen=False)),
        a_fleet(revision=NEW),
        Standing.SHIFTED,
    ),
    (
        "scaled to zero",
        RUN,
        a_fleet(fence=MINE + "3", revision=NEW, fields=FROZEN, replicas=0),
        Standing.SCALED_TO_ZERO,
    ),
]


@pytest.mark.parametrize(
    ("run", "fleet", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_how_the_target_stands_to_the_record(run, fleet, expected):
    assert target_standing(run, UID, fleet) is expected


@pytest.mark.parametrize("revision", [OLD, NEW, "theirs"])
def test_a_claim_of_another_open_run_ends_this_one(revision):
    fleet = a_fleet(fence="other/run/3", revision=revision)

    assert target_standing(RUN, UID, fleet, rivalled=True) is Standing.FENCE_LOST


def test_a_kept_step_ends_the_run_with_its_verdict():
    run = RUN.open_verification(NOW).keep_step(Judged(Verdict.RECOVERED, Reason.RECOVERED, "gone"))

    assert run.current.state is StepState.KEPT
    assert run.current.verdict is Verdict.RECOVERED
    assert run.ending == Outcome(Reason.RECOVERED, "gone")


def test_an_improved_step_goes_on_to_the_next_one():
    two = replace(RUN, steps=(RUN.steps[0], RUN.steps[0]))

    run = two.open_verification(NOW).keep_step(Judged(Verdict.IMPROVED, Reason.IMPROVED, "better"))

    assert run.ending is None
    assert run.index == 1
    assert run.current.state is StepState.ROLLING_OUT


def test_a_step_taken_back_names_why_the_run_ends():
    run = RUN.turn_step_back(Outcome(Reason.CANARY_FAILED, "crashed"), None)

    assert run.current.state is StepState.ROLLING_BACK
    assert run.end_reverted().current.state is StepState.REVERTED
    assert run.ending == Outcome(Reason.CANARY_FAILED, "crashed")


def test_the_last_of_several_kept_steps_is_the_current_one():
    kept = RUN.open_verification(NOW).keep_step(Judged(Verdict.RECOVERED, Reason.RECOVERED, "gone"))

    assert kept.index == 0
    assert kept.sequence == 3
    assert a_run().sequence == 0
