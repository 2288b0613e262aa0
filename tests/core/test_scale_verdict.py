"""More replicas are judged by the whole fleet's figures, fewer by whether it stays calm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import CALM, IDLE, NO_SERIES, STALE, THRASHING, TRIGGER, Replica, an_observation, without
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.verdict.baseline import baseline_of
from kvmedic.verdict.goals import judge_fewer, judge_more, judge_without, share_of
from kvmedic.verdict.vetoes import VerdictInput


def before(*replicas: Replica) -> Baseline:
    found = baseline_of(an_observation(*replicas), 2)
    assert not isinstance(found, Inconclusive)
    return found


def share(replica: Replica, of: float) -> Replica:
    """Return a replica that gets a share of the requests."""
    return replace(
        replica,
        finished=replica.finished * of,
        preemptions=replica.preemptions * of,
        stalls=replica.stalls * of,
    )


TWO = before(THRASHING, THRASHING)
SPREAD = share(CALM, 2 / 3)

MORE = [
    ("the same requests on three, calm", [SPREAD] * 3, 0, Verdict.RECOVERED),
    ("as many preemptions as before", [share(THRASHING, 2 / 3)] * 3, 0, Verdict.NOT_RECOVERED),
    (
        "clearly fewer, still over the trigger",
        [replace(share(THRASHING, 2 / 3), preemptions=0.7 * 640, stalls=100)] * 3,
        0,
        Verdict.IMPROVED,
    ),
    ("a restart since", [SPREAD] * 3, 1, Verdict.NOT_RECOVERED),
    ("fewer requests arrive", [share(CALM, 0.4)] * 3, 0, Verdict.INCONCLUSIVE),
    (
        "a replica cannot be read",
        [SPREAD, SPREAD, without(SPREAD.readings(), Signal.PREEMPTIONS, STALE)],
        0,
        Verdict.INCONCLUSIVE,
    ),
]


@pytest.mark.parametrize(
    ("replicas", "restarts", "verdict"), [row[1:] for row in MORE], ids=[row[0] for row in MORE]
)
def test_more_replicas(replicas, restarts, verdict):
    found = judge_more(VerdictInput(TWO, an_observation(*replicas), Objectives(), TRIGGER, restarts))

    assert found.verdict is verdict


def test_replicas_that_cannot_be_judged_are_missing_on_both_sides() -> None:
    five, one_silent = before(*[THRASHING] * 5), [share(CALM, 5 / 6)] * 4

    found = judge_more(
        VerdictInput(share_of(five, 4 / 6), an_observation(*one_silent), Objectives(), TRIGGER, 0)
    )
    unlike = judge_more(VerdictInput(five, an_observation(*one_silent), Objectives(), TRIGGER, 0))

    assert found.verdict is Verdict.RECOVERED
    assert unlike.reason is Reason.LOAD_DIFFERS


def test_the_message_has_both_numbers_of_replicas():
    found = judge_more(VerdictInput(TWO, an_observation(*[SPREAD] * 3), Objectives(), TRIGGER, 0))

    assert found.message.startswith("2 -> 3 replicas, the fleet's figures: preemptions per request 1.75 -> ")


def test_the_figures_that_it_is_judged_by_are_those_of_all_replicas():
    found = judge_more(VerdictInput(TWO, an_observation(*[SPREAD] * 3), Objectives(), TRIGGER, 0))

    assert found.after == replace(before(*[SPREAD] * 3), restarts=0)


AT_THE_TRIGGER = replace(THRASHING, preemptions=0.5 * THRASHING.finished)
FEWER = [
    ("calm", [CALM, CALM], Verdict.RECOVERED, Reason.RECOVERED),
    ("nobody sends anything", [IDLE, IDLE], Verdict.RECOVERED, Reason.RECOVERED),
    ("at the trigger", [AT_THE_TRIGGER, CALM], Verdict.RECOVERED, Reason.RECOVERED),
    (
        "one over it",
        [replace(AT_THE_TRIGGER, preemptions=0.5 * THRASHING.finished + 1), CALM],
        Verdict.NOT_RECOVERED,
        Reason.NOT_RECOVERED,
    ),
    (
        "one cannot be read",
        [CALM, without(CALM.readings(), Signal.PREEMPTIONS, NO_SERIES)],
        Verdict.INCONCLUSIVE,
        Reason.METRICS_MISSING,
    ),
    (
        "one is stale",
        [CALM, without(CALM.readings(), Signal.REQUESTS_FINISHED, STALE)],
        Verdict.INCONCLUSIVE,
        Reason.METRICS_STALE,
    ),
]


@pytest.mark.parametrize(
    ("replicas", "verdict", "reason"), [row[1:] for row in FEWER], ids=[row[0] for row in FEWER]
)
def test_fewer_replicas(replicas, verdict, reason):
    found = judge_fewer(VerdictInput(None, an_observation(*replicas), Objectives(), TRIGGER))

    assert (found.verdict, found.reason) == (verdict, reason)


def test_the_running_sequences_of_a_fleet_are_recorded_where_every_replica_tells_them():
    told = an_observation(THRASHING, THRASHING)
    silent = an_observation(THRASHING, without(THRASHING.readings(), Signal.RUNNING_MEAN, NO_SERIES))

    found = [baseline_of(each, 0) for each in (told, silent)]

    assert [each.running_mean for each in found if isinstance(each, Baseline)] == [45.6, None]


HANGING = replace(CALM, stalls=CALM.finished * 0.05, stall_seconds=7.0)
SOUND = replace(HANGING, stalls=HANGING.stalls - 1)
WITHOUT = [
    ("calm", [CALM, CALM], 0, Verdict.RECOVERED),
    ("nobody sends anything", [IDLE, IDLE], 0, Verdict.RECOVERED),
    ("hardly anybody hangs", [SOUND, SOUND], 0, Verdict.RECOVERED),
    ("answers hang again", [HANGING, HANGING], 0, Verdict.NOT_RECOVERED),
    ("one is over the trigger", [THRASHING, CALM], 0, Verdict.NOT_RECOVERED),
    ("a restart", [CALM, CALM], 1, Verdict.NOT_RECOVERED),
    (
        "one cannot be read",
        [CALM, without(CALM.readings(), Signal.PREEMPTIONS, NO_SERIES)],
        0,
        Verdict.INCONCLUSIVE,
    ),
]


@pytest.mark.parametrize(
    ("replicas", "restarts", "verdict"), [row[1:] for row in WITHOUT], ids=[row[0] for row in WITHOUT]
)
def test_without_what_was_there_for_a_while(replicas, restarts, verdict):
    found = judge_without(
        VerdictInput(before(CALM, CALM), an_observation(*replicas), Objectives(), TRIGGER, restarts)
    )

    assert found.verdict is verdict


def test_answers_that_hung_with_it_as_well_do_not_speak_against_going_without():
    seen = an_observation(HANGING, HANGING)

    found = [
        judge_without(VerdictInput(had, seen, Objectives(), TRIGGER)).verdict
        for had in (before(HANGING, HANGING), None)
    ]

    assert found == [Verdict.RECOVERED, Verdict.NOT_RECOVERED]
