"""Whether a fleet is no worse off after a change that was not to make it better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import CALM, STALE, TRIGGER, Replica, an_observation, without
from kvmedic.model.evidence import Inconclusive, PodReadings, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.verdict.baseline import baseline_of
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
from kvmedic.verdict.goals import compare_for_parity, judge_parity
from kvmedic.verdict.vetoes import VerdictInput


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
    found = compare_for_parity(Comparison(BEFORE, replace(BEFORE, **after), STRICT, TRIGGER))

    assert found.verdict is verdict


def test_what_is_no_trouble_is_not_worse_however_it_compares() -> None:
    calm = replace(BEFORE, preemptions_per_request=0.0, inter_token_tail_seconds=NO_STALL_SECONDS / 4)
    after = replace(calm, preemptions_per_request=FEW - JUST, inter_token_tail_seconds=NO_STALL_SECONDS)

    assert compare_for_parity(Comparison(calm, after, STRICT, TRIGGER)).verdict is Verdict.RECOVERED
    hot = replace(after, preemptions_per_request=FEW)
    assert compare_for_parity(Comparison(calm, hot, STRICT, TRIGGER)).verdict is Verdict.NOT_RECOVERED


def test_the_message_says_what_is_worse() -> None:
    after = replace(BEFORE, preemptions_per_request=9.0, inter_token_tail_seconds=9.0)

    found = compare_for_parity(Comparison(BEFORE, after, STRICT, TRIGGER))

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
    found = judge_parity(
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

    assert compare_for_parity(Comparison(stalling, after, Objectives(), TRIGGER)).verdict is verdict
