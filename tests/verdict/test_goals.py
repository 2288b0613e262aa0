"""Which rule judges a change, and what each of them asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from builders import (
    CALM,
    IDLE,
    NO_SERIES,
    STALE,
    THRASHING,
    TRIGGER,
    Nothing,
    Replica,
    an_observation,
    without,
)
from kvmedic.model.devices import Cause
from kvmedic.model.evidence import Inconclusive, Observation, PodReadings, Signal
from kvmedic.model.plan import BundleStep, Change, FlagStep, Goal, ReplaceStep, ReplicasStep, RevisionStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives, OnInconclusive
from kvmedic.verdict.baseline import FEWEST_FINISHED, baseline_of
from kvmedic.verdict.comparison import (
    GIVEN_UP,
    HEAVIER,
    LIGHTER,
    MORE_PREEMPTIONS,
    NO_STALL_SECONDS,
    ROUGHER,
    THROUGHPUT_HELD,
    TRIGGER_SHARE,
    Comparison,
)
from kvmedic.verdict.goals import (
    RULES,
    compare_for_no_worse,
    judge,
    judge_fewer,
    judge_more,
    judge_no_worse,
    judge_relief,
    judge_replacement,
    judge_stays_up,
    judge_without,
    share_of,
)
from kvmedic.verdict.vetoes import LEAST_FREE_MIB, VerdictInput, keep_first_replicas
from run_builder import a_run
from worlds.vitals_builder import an_end

STEP = a_run().current.step
GIVEN = VerdictInput(None, an_observation(CALM, CALM), Objectives(), TRIGGER)
TEMPLATE, NUMBER = (FlagStep, BundleStep, RevisionStep), (ReplicasStep,)
EXPECTED = {
    **{(Goal.STAYS_UP, kind): judge_stays_up for kind in get_args(Change)},
    **{(Goal.NO_WORSE, kind): judge_no_worse for kind in get_args(Change)},
    (Goal.CALM, FlagStep): judge_without,
    **{(Goal.CALM, kind): judge_fewer for kind in NUMBER},
    **{(Goal.RELIEF, kind): judge_relief for kind in TEMPLATE},
    **{(Goal.RELIEF, kind): judge_more for kind in NUMBER},
    (Goal.RELIEF, ReplaceStep): judge_replacement,
}


@pytest.mark.parametrize(("goal", "kind"), EXPECTED, ids=[f"{g}, {k.__name__}" for g, k in EXPECTED])
def test_a_change_is_judged_by_the_rule_of_its_goal_and_kind(goal: Goal, kind: type[Change]) -> None:
    rules = [rule for rule in RULES if rule.goal is goal and kind in rule.steps]

    assert rules[0].judge is EXPECTED[goal, kind]


@pytest.mark.parametrize("goal", [goal for goal in Goal if goal is not Goal.ANSWER])
def test_each_goal_has_a_rule_for_every_kind_of_change(goal: Goal) -> None:
    covered = {kind for rule in RULES if rule.goal is goal for kind in rule.steps}

    assert covered == set(get_args(Change))


@pytest.mark.parametrize("goal", [Goal.RELIEF, Goal.NO_WORSE])
def test_without_figures_of_before_it_is_judged_by_whether_replicas_stay_up(goal: Goal) -> None:
    assert judge(goal, STEP, GIVEN) == judge_stays_up(GIVEN)


def test_full_memory_overrules_a_good_verdict() -> None:
    before = baseline_of(GIVEN.looked, 0)
    assert isinstance(before, Baseline)
    full = replace(GIVEN, before=before, free_mib=LEAST_FREE_MIB - 1)

    assert judge(Goal.NO_WORSE, STEP, replace(full, free_mib=LEAST_FREE_MIB)).verdict is Verdict.RECOVERED
    assert judge(Goal.NO_WORSE, STEP, full).verdict is Verdict.IMPROVED


def test_what_speaks_for_the_only_replicas_that_are_up_is_asked_last() -> None:
    ended = replace(GIVEN, restarts=1, ends={"a": an_end(Cause.HOST_MEMORY)}, free_mib=0.0, first_up=1)

    found = judge(Goal.STAYS_UP, STEP, ended)

    assert found.verdict is Verdict.IMPROVED
    assert found.message == (
        "1 restarts of replicas that run the change; a (exit code 137): it was ended at its container's "
        "memory limit; 1 replicas are up, none was before the change, so it stays"
    )


def before(*replicas: Replica) -> Baseline:
    found = baseline_of(an_observation(*replicas), 0)
    assert not isinstance(found, Inconclusive)
    return found


FEW = TRIGGER_SHARE * TRIGGER.preemptions_per_request
BEFORE = replace(
    before(CALM, CALM),
    preemptions_per_request=FEW,
    requests_per_second=10.0,
    generated_tokens_per_second=2000.0,
    inter_token_p95_seconds=0.05,
    inter_token_tail_seconds=2.0,
    end_to_end_p95_seconds=20.0,
    waiting_mean=0.0,
    stalls_per_request=0.0,
    aborted_share=0.0,
)
STRICT = Objectives(inter_token_p95_seconds=0.08, e2e_p95_seconds=30)
JUST = 1e-6
UNREAD = without(CALM.readings(), Signal.PREEMPTIONS, STALE)
ROWS = [
    ("everything as before", {}, Verdict.RECOVERED),
    (
        "all tokens that count as held",
        {"generated_tokens_per_second": 2000 * THROUGHPUT_HELD},
        Verdict.RECOVERED,
    ),
    ("fewer tokens", {"generated_tokens_per_second": 2000 * (THROUGHPUT_HELD - JUST)}, Verdict.NOT_RECOVERED),
    ("preemptions at the limit", {"preemptions_per_request": FEW * MORE_PREEMPTIONS}, Verdict.RECOVERED),
    (
        "more preemptions",
        {"preemptions_per_request": FEW * (MORE_PREEMPTIONS + JUST)},
        Verdict.NOT_RECOVERED,
    ),
    ("gaps at the limit", {"inter_token_tail_seconds": 2 * ROUGHER}, Verdict.RECOVERED),
    ("longer gaps", {"inter_token_tail_seconds": 2 * (ROUGHER + JUST)}, Verdict.NOT_RECOVERED),
    ("an objective that was met is missed", {"end_to_end_p95_seconds": 31}, Verdict.NOT_RECOVERED),
    ("requests are given up", {"aborted_share": GIVEN_UP + JUST}, Verdict.NOT_RECOVERED),
    ("as many arrive as makes it like load", {"requests_per_second": 10 * LIGHTER}, Verdict.RECOVERED),
    ("fewer arrive", {"requests_per_second": 10 * (LIGHTER - JUST)}, Verdict.INCONCLUSIVE),
    ("more arrive", {"requests_per_second": 10 * (HEAVIER + JUST)}, Verdict.RECOVERED),
    (
        "more arrive, and gaps are longer",
        {"requests_per_second": 10 * (HEAVIER + JUST), "inter_token_tail_seconds": 5},
        Verdict.INCONCLUSIVE,
    ),
    (
        "as many as may arrive, and gaps are longer",
        {"requests_per_second": 10 * HEAVIER, "inter_token_tail_seconds": 5},
        Verdict.NOT_RECOVERED,
    ),
    ("longer answers", {"output_tokens_mean": 400}, Verdict.INCONCLUSIVE),
]


@pytest.mark.parametrize(("after", "verdict"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_figures_after_are_no_worse_or_clearly_worse(after: dict[str, float], verdict: Verdict) -> None:
    found = compare_for_no_worse(Comparison(BEFORE, replace(BEFORE, **after), STRICT, TRIGGER))

    assert found.verdict is verdict


def test_what_is_no_trouble_is_not_worse_however_it_compares() -> None:
    calm = replace(BEFORE, preemptions_per_request=0.0, inter_token_tail_seconds=NO_STALL_SECONDS / 4)
    after = replace(calm, preemptions_per_request=FEW - JUST, inter_token_tail_seconds=NO_STALL_SECONDS)

    assert compare_for_no_worse(Comparison(calm, after, STRICT, TRIGGER)).verdict is Verdict.RECOVERED
    hot = replace(after, preemptions_per_request=FEW)
    assert compare_for_no_worse(Comparison(calm, hot, STRICT, TRIGGER)).verdict is Verdict.NOT_RECOVERED


def test_the_message_says_what_is_worse() -> None:
    after = replace(BEFORE, preemptions_per_request=9.0, inter_token_tail_seconds=9.0)

    found = compare_for_no_worse(Comparison(BEFORE, after, STRICT, TRIGGER))

    assert found.reason is Reason.NOT_RECOVERED
    assert found.message.startswith(
        "more than 2 times the preemptions per request, more than 2 times the gap between tokens; "
    )
    assert found.after == after


@pytest.mark.parametrize(
    ("replicas", "restarts", "verdict", "reason"),
    [
        ([CALM, CALM], 0, Verdict.RECOVERED, Reason.RECOVERED),
        ([CALM, CALM], 1, Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED),
        (
            [CALM, without(CALM.readings(), Signal.PREEMPTIONS, STALE)],
            0,
            Verdict.INCONCLUSIVE,
            Reason.METRICS_STALE,
        ),
    ],
    ids=["as before", "a replica restarted", "a replica cannot be read"],
)
def test_a_window_is_judged_like_the_one_before(
    replicas: list[Replica | PodReadings], restarts: int, verdict: Verdict, reason: Reason
) -> None:
    found = judge_no_worse(
        VerdictInput(before(CALM, CALM), an_observation(*replicas), STRICT, TRIGGER, restarts)
    )

    assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [(60, Verdict.RECOVERED), (600, Verdict.NOT_RECOVERED)],
    ids=["200 requests", "2,000"],
)
def test_stalls_that_two_windows_differ_by_by_chance_are_no_loss(seconds: float, verdict: Verdict) -> None:
    stalling = replace(BEFORE, window_seconds=seconds, requests_per_second=3.3, stalls_per_request=1.4)
    after = replace(stalling, stalls_per_request=1.6)

    assert compare_for_no_worse(Comparison(stalling, after, Objectives(), TRIGGER)).verdict is verdict


def seen(looked: Observation, restarts: int = 0) -> VerdictInput:
    return VerdictInput(None, looked, Objectives(), TRIGGER, restarts)


def busy(finished: float) -> Replica:
    return Replica(finished=finished, preemptions=0, stalls=0)


@pytest.mark.parametrize(
    ("finished", "restarts", "verdict"),
    [
        (FEWEST_FINISHED, 0, Verdict.RECOVERED),
        (FEWEST_FINISHED - 1, 0, Verdict.INCONCLUSIVE),
        (0, 0, Verdict.INCONCLUSIVE),
        (0, 1, Verdict.NOT_RECOVERED),
        (1000, 1, Verdict.NOT_RECOVERED),
    ],
    ids=["enough traffic", "one request too few", "no traffic", "a restart without traffic", "a restart"],
)
def test_staying_up_under_load_is_what_counts(finished: float, restarts: int, verdict: Verdict) -> None:
    found = judge_stays_up(seen(an_observation(busy(finished)), restarts))

    assert found.verdict is verdict


def test_the_traffic_is_that_of_the_whole_fleet() -> None:
    share = FEWEST_FINISHED / 2

    found = judge_stays_up(seen(an_observation(busy(share), busy(share), window_seconds=600)))

    assert (found.verdict, found.reason) == (Verdict.RECOVERED, Reason.RECOVERED)
    assert found.message == "none of 2 replicas restarted; 50 requests finished in 600 s"


def test_preemptions_do_not_decide_it() -> None:
    assert judge_stays_up(seen(an_observation(THRASHING))).verdict is Verdict.RECOVERED


@pytest.mark.parametrize(
    ("why", "reason"), [(NO_SERIES, Reason.METRICS_MISSING), (STALE, Reason.METRICS_STALE)]
)
def test_a_replica_that_cannot_be_read_proves_nothing(why: Nothing, reason: Reason) -> None:
    silent = without(busy(500).readings(), Signal.REQUESTS_FINISHED, why)

    found = judge_stays_up(seen(an_observation(busy(500), silent)))

    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, reason)


@pytest.mark.parametrize(
    ("verdict", "up", "otherwise", "expected"),
    [
        (Verdict.NOT_RECOVERED, 1, OnInconclusive.HOLD, Verdict.IMPROVED),
        (Verdict.NOT_RECOVERED, 0, OnInconclusive.HOLD, Verdict.NOT_RECOVERED),
        (Verdict.INCONCLUSIVE, 1, OnInconclusive.ROLL_BACK, Verdict.IMPROVED),
        (Verdict.INCONCLUSIVE, 1, OnInconclusive.HOLD, Verdict.INCONCLUSIVE),
        (Verdict.INCONCLUSIVE, 0, OnInconclusive.ROLL_BACK, Verdict.INCONCLUSIVE),
        (Verdict.RECOVERED, 2, OnInconclusive.ROLL_BACK, Verdict.RECOVERED),
        (Verdict.IMPROVED, 2, OnInconclusive.HOLD, Verdict.IMPROVED),
    ],
    ids=[
        "one is up, and some restarted",
        "none is up",
        "one is up, and nobody can say more",
        "held until somebody can",
        "none is up, and nobody can say more",
        "recovered",
        "improved",
    ],
)
def test_replicas_that_are_up_where_none_was_are_not_taken_away_again(
    verdict: Verdict, up: int, otherwise: OnInconclusive, expected: Verdict
) -> None:
    given = replace(seen(an_observation()), first_up=up, on_inconclusive=otherwise)

    found = keep_first_replicas(Judged(verdict, Reason(verdict.value), "so it is"), given)

    assert (found.verdict, found.reason) == (expected, Reason(expected.value))
    assert found.message.startswith("so it is")
    assert ("none was before" in found.message) is (expected is not verdict)


def figures_before(*replicas: Replica) -> Baseline:
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


TWO = figures_before(THRASHING, THRASHING)
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
    five, one_silent = figures_before(*[THRASHING] * 5), [share(CALM, 5 / 6)] * 4

    found = judge_more(
        VerdictInput(share_of(five, 4 / 6), an_observation(*one_silent), Objectives(), TRIGGER, 0)
    )
    unlike = judge_more(VerdictInput(five, an_observation(*one_silent), Objectives(), TRIGGER, 0))

    assert found.verdict is Verdict.RECOVERED
    assert unlike.reason is Reason.LOAD_DIFFERS


def test_the_message_has_both_numbers_of_replicas():
    found = judge_more(VerdictInput(TWO, an_observation(*[SPREAD] * 3), Objectives(), TRIGGER, 0))

    assert found.message.startswith("2 -> 3 replicas, the fleet's figures: served in time x1.07, ")


def test_the_figures_that_it_is_judged_by_are_those_of_all_replicas():
    found = judge_more(VerdictInput(TWO, an_observation(*[SPREAD] * 3), Objectives(), TRIGGER, 0))

    assert found.after == replace(figures_before(*[SPREAD] * 3), restarts=0)


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


def test_the_running_sequences_of_a_fleet_are_recorded_where_every_replica_reports_them():
    complete = an_observation(THRASHING, THRASHING)
    silent = an_observation(THRASHING, without(THRASHING.readings(), Signal.RUNNING_MEAN, NO_SERIES))

    found = [baseline_of(each, 0) for each in (complete, silent)]

    assert [each.running_mean for each in found if isinstance(each, Baseline)] == [45.6, None]


HANGING = replace(CALM, stalls=CALM.finished * 0.05 + 1e-6, stall_seconds=7.0)
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
        VerdictInput(figures_before(CALM, CALM), an_observation(*replicas), Objectives(), TRIGGER, restarts)
    )

    assert found.verdict is verdict


def test_answers_that_hung_with_it_as_well_do_not_speak_against_going_without():
    seen = an_observation(HANGING, HANGING)

    found = [
        judge_without(VerdictInput(had, seen, Objectives(), TRIGGER)).verdict
        for had in (figures_before(HANGING, HANGING), None)
    ]

    assert found == [Verdict.RECOVERED, Verdict.NOT_RECOVERED]


@pytest.mark.parametrize("judge_calm", [judge_fewer, judge_without])
@pytest.mark.parametrize(
    ("before", "first_token", "verdict"),
    [
        (figures_before(CALM, CALM), 1.2, Verdict.RECOVERED),
        (figures_before(CALM, CALM), 4.0, Verdict.NOT_RECOVERED),
        (figures_before(*[replace(CALM, first_token_seconds=4.0)] * 2), 4.0, Verdict.RECOVERED),
        (None, 4.0, Verdict.RECOVERED),
    ],
    ids=["met before and after", "broken", "missed before, too", "not known before"],
)
def test_what_is_given_back_must_break_no_objective(judge_calm, before, first_token, verdict):
    looked = an_observation(*[replace(CALM, first_token_seconds=first_token)] * 2)
    objectives = Objectives(time_to_first_token_p95_seconds=2.0)

    found = judge_calm(VerdictInput(before, looked, objectives, TRIGGER))

    assert found.verdict is verdict
    assert ("an objective is broken: ttftP95" in found.message) is (verdict is Verdict.NOT_RECOVERED)


def test_fewer_replicas_that_keep_users_waiting_are_too_few() -> None:
    queue = replace(CALM, waiting_mean=40)

    assert judge_fewer(seen(an_observation(CALM, queue))).verdict is Verdict.NOT_RECOVERED
    assert "llm-1 (12.5 s per request, limit 5)" in judge_fewer(seen(an_observation(CALM, queue))).message
