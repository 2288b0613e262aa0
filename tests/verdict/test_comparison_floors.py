"""What users feel decides: who is kept waiting or served less has not recovered, who is served more has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import nan

import pytest

from builders import TRIGGER
from kvmedic.model.run import Baseline, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.verdict.comparison import Comparison, is_broken
from kvmedic.verdict.goals import compare_for_no_worse, compare_for_relief

NONE = Objectives()
BEFORE = Baseline(
    window_seconds=600,
    replicas=2,
    preemptions_per_request=2.0,
    requests_per_second=10.0,
    prompt_tokens_mean=60.0,
    output_tokens_mean=200.0,
    generated_tokens_per_second=2000.0,
    inter_token_p95_seconds=0.05,
    inter_token_tail_seconds=8.0,
    stalls_per_request=0.1,
    time_to_first_token_p95_seconds=1.0,
    first_token_limit_seconds=30.0,
    in_time_share=1.0,
    served_in_time_per_second=1810,
    end_to_end_p95_seconds=20.0,
    kv_cache_usage_ratio=0.95,
    waiting_mean=30.0,
    restarts=0,
)
AFTER = replace(
    BEFORE, preemptions_per_request=0.0, inter_token_tail_seconds=0.4, stalls_per_request=0.0, waiting_mean=60
)
STARVING = {
    "generated_tokens_per_second": 580.0,
    "time_to_first_token_p95_seconds": 600.0,
    "waiting_mean": 1500.0,
    "in_time_share": 0.05,
}


def verdict_of(objectives: Objectives = NONE, before: Baseline = BEFORE, **after: float) -> Verdict:
    return compare_for_relief(Comparison(before, replace(AFTER, **after), objectives, TRIGGER)).verdict


@pytest.mark.parametrize("objective", [None, 5.0, 0.5], ids=["none", "met", "missed"])
@pytest.mark.parametrize("stalls", [0.0, 0.5, 9.0], ids=["no stalls before", "some", "all"])
@pytest.mark.parametrize("tokens", [580.0, 1200.0, 2000.0], ids=["x 0.29", "x 0.6", "x 1"])
def test_a_fleet_that_starves_has_not_recovered_whatever_stalls_are_gone(
    objective: float | None, stalls: float, tokens: float
) -> None:
    limits = Objectives(time_to_first_token_p95_seconds=objective)
    before = replace(BEFORE, stalls_per_request=stalls)
    after = replace(AFTER, **{**STARVING, "generated_tokens_per_second": tokens})

    found = compare_for_relief(Comparison(before, after, limits, TRIGGER))

    assert found.verdict is Verdict.NOT_RECOVERED
    assert "first token p95 1.0 -> 600.0 s, silent seconds per request 3.0 -> 150.0" in found.message
    assert compare_for_no_worse(Comparison(before, after, limits, TRIGGER)).verdict is Verdict.NOT_RECOVERED


LATE = {"time_to_first_token_p95_seconds": 31.0, "waiting_mean": 81.0}
ROWS: Mapping[str, tuple[Mapping[str, float], Mapping[str, float], Verdict]] = {
    "late, and silent for longer": ({}, LATE, Verdict.NOT_RECOVERED),
    "first token at the limit": (
        {},
        {**LATE, "time_to_first_token_p95_seconds": 30.0},
        Verdict.RECOVERED,
    ),
    "silent for twice as long and 2 s": ({}, {**LATE, "waiting_mean": 80.0}, Verdict.RECOVERED),
    "first token at twice that of before": (
        {"time_to_first_token_p95_seconds": 20.0},
        {**LATE, "time_to_first_token_p95_seconds": 40.0},
        Verdict.RECOVERED,
    ),
    "first token over twice that of before": (
        {"time_to_first_token_p95_seconds": 20.0},
        {**LATE, "time_to_first_token_p95_seconds": 40.1},
        Verdict.NOT_RECOVERED,
    ),
    "nobody waited before, and 2 s now": (
        {"waiting_mean": 0.0},
        {**LATE, "waiting_mean": 20.0},
        Verdict.RECOVERED,
    ),
    "nobody waited before, and over 2 s now": (
        {"waiting_mean": 0.0},
        {**LATE, "waiting_mean": 20.1},
        Verdict.NOT_RECOVERED,
    ),
    "late, and fewer tokens go out than come in": (
        {"stalls_per_request": 2.0},
        {**LATE, "waiting_mean": 30.0, "generated_tokens_per_second": 1799.0},
        Verdict.NOT_RECOVERED,
    ),
    "late, and nine tenths of the tokens go out": (
        {"stalls_per_request": 2.0},
        {**LATE, "waiting_mean": 30.0, "generated_tokens_per_second": 1800.0},
        Verdict.RECOVERED,
    ),
    "late, and fewer tokens go out as fewer come in": (
        {"stalls_per_request": 2.0},
        {
            **LATE,
            "waiting_mean": 30.0,
            "generated_tokens_per_second": 1799.0,
            "requests_per_second": 9.4,
        },
        Verdict.RECOVERED,
    ),
    "arrivals at the bound excuse nothing": (
        {},
        {**LATE, "waiting_mean": 110.0, "requests_per_second": 13.0},
        Verdict.NOT_RECOVERED,
    ),
    "more arrivals than the bound, nobody knows": (
        {},
        {**LATE, "waiting_mean": 110.0, "requests_per_second": 13.1},
        Verdict.INCONCLUSIVE,
    ),
    "some wait and none arrives": ({}, {**LATE, "requests_per_second": 0.0}, Verdict.NOT_RECOVERED),
    "tokens without a stall at nine tenths": (
        {"stalls_per_request": 0.0},
        {"generated_tokens_per_second": 1900.0, "stalls_per_request": 0.054},
        Verdict.RECOVERED,
    ),
    "under nine tenths": (
        {"stalls_per_request": 0.0},
        {"generated_tokens_per_second": 1900.0, "stalls_per_request": 0.055},
        Verdict.NOT_RECOVERED,
    ),
    "under nine tenths as fewer arrive": (
        {"stalls_per_request": 0.0},
        {
            "generated_tokens_per_second": 1900.0,
            "stalls_per_request": 0.055,
            "requests_per_second": 9.49,
            "waiting_mean": 30.0,
        },
        Verdict.RECOVERED,
    ),
    "under nine tenths as fewer arrive, and more wait": (
        {"stalls_per_request": 0.0},
        {
            "generated_tokens_per_second": 1900.0,
            "stalls_per_request": 0.055,
            "requests_per_second": 9.49,
            "waiting_mean": 30.1,
        },
        Verdict.NOT_RECOVERED,
    ),
    "under nine tenths as fewer arrive, and hardly any waits": (
        {"stalls_per_request": 0.0, "waiting_mean": 0.0},
        {
            "generated_tokens_per_second": 1900.0,
            "stalls_per_request": 0.055,
            "requests_per_second": 9.49,
            "waiting_mean": 1.9,
        },
        Verdict.RECOVERED,
    ),
    "fewer tokens and arrivals, a longer queue, and much more of it in time": (  # 76 clients, capped
        {"stalls_per_request": 1.56, "time_to_first_token_p95_seconds": 38.0, "waiting_mean": 36.0},
        {
            "generated_tokens_per_second": 1720.0,
            "requests_per_second": 8.6,
            "stalls_per_request": 0.02,
            "time_to_first_token_p95_seconds": 80.0,
            "waiting_mean": 55.0,
        },
        Verdict.RECOVERED,
    ),
    "under nine tenths, arrivals at the bound": (
        {"stalls_per_request": 0.0},
        {
            "generated_tokens_per_second": 1900.0,
            "stalls_per_request": 0.055,
            "requests_per_second": 9.5,
        },
        Verdict.NOT_RECOVERED,
    ),
}


@pytest.mark.parametrize(("before", "after", "verdict"), ROWS.values(), ids=ROWS)
def test_every_threshold(before: Mapping[str, float], after: Mapping[str, float], verdict: Verdict) -> None:
    assert verdict_of(before=replace(BEFORE, **before), **after) is verdict


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [(30.9, Verdict.NOT_RECOVERED), (31.0, Verdict.RECOVERED)],
    ids=["over the objective", "at it"],
)
def test_the_objective_is_the_limit_where_there_is_one(limit: float, verdict: Verdict) -> None:
    assert verdict_of(Objectives(time_to_first_token_p95_seconds=limit), **LATE) is verdict


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        (5.0, 5.1, True),
        (5.0, 5.0, False),
        (8.0, 10.0, False),
        (8.0, 10.1, True),
        (8.0, 4.0, False),
        (nan, 4.0, False),
        (8.0, nan, False),
    ],
    ids=[
        "missed that was met",
        "met at the bound",
        "missed, worse by a quarter",
        "missed, worse by more",
        "met at last",
        "no number before",
        "no number after",
    ],
)
def test_an_objective_that_was_missed_is_broken_once_it_is_worse_by_a_quarter(
    before: float, after: float, *, broken: bool
) -> None:
    assert is_broken(5.0, before, after) is broken
    assert is_broken(None, before, after) is False


@pytest.mark.parametrize(
    ("objectives", "figure"),
    [
        (Objectives(inter_token_p95_seconds=1.0), "inter_token_p95_seconds"),
        (Objectives(e2e_p95_seconds=1.0), "end_to_end_p95_seconds"),
        (Objectives(time_to_first_token_p95_seconds=1.0), "time_to_first_token_p95_seconds"),
    ],
    ids=["between tokens", "end to end", "first token"],
)
def test_each_objective_may_be_broken_though_it_was_missed_before(
    objectives: Objectives, figure: str
) -> None:
    before = replace(BEFORE, **{figure: 8.0})

    held = compare_for_relief(Comparison(before, replace(AFTER, **{figure: 10.0}), objectives, TRIGGER))
    worse = compare_for_relief(Comparison(before, replace(AFTER, **{figure: 10.1}), objectives, TRIGGER))

    assert held.verdict is Verdict.IMPROVED
    assert "not met: " in held.message
    assert worse.verdict is Verdict.NOT_RECOVERED
    assert worse.message.startswith("an objective is broken; not met: ")


def test_a_change_that_was_to_do_no_harm_starves_nobody_either() -> None:
    found = compare_for_no_worse(Comparison(BEFORE, replace(AFTER, **LATE), NONE, TRIGGER))

    assert found.verdict is Verdict.NOT_RECOVERED
    assert "users are kept waiting" in found.message


@pytest.mark.parametrize(
    ("after", "worse"),
    [
        pytest.param({}, "", id="none waits for longer"),
        pytest.param(STARVING, "users are kept waiting, less is served in time", id="it starves"),
        pytest.param({**STARVING, "requests_per_second": 11.1}, "", id="it starves, by more requests"),
        pytest.param({**STARVING, "output_tokens_mean": 221.0}, "", id="it starves, by longer answers"),
        pytest.param(
            {"generated_tokens_per_second": 1600.0, "output_tokens_mean": 180.0, "waiting_mean": 30.0},
            "",
            id="less to do",
        ),
        pytest.param(
            {"generated_tokens_per_second": 1600.0, "requests_per_second": 8.5, "waiting_mean": 31.0},
            "less is served in time",
            id="less to do, as more wait before they come again",
        ),
        pytest.param({"aborted_share": 0.11}, "requests end without an answer", id="clients leave"),
        pytest.param({"aborted_share": 0.0999}, "", id="hardly more clients leave"),
    ],
)
def test_after_the_walk_the_whole_fleet_is_judged_where_it_has_as_much_to_do(
    after: Mapping[str, float], worse: str
) -> None:
    before = replace(BEFORE, aborted_share=0.05)
    found = Comparison(before, replace(AFTER, **{"aborted_share": 0.05, **after}), NONE, TRIGGER)

    assert found.sinks_after_walk() == worse


CROWDED = replace(
    BEFORE,
    stalls_per_request=0.0,
    in_time_share=0.5,
    time_to_first_token_p95_seconds=40.0,
    waiting_mean=60.0,
    window_seconds=6000,
)
"""As many preemptions and as long gaps before and after: what users feel is their wait alone."""
GAINS: Mapping[str, tuple[Mapping[str, float], Verdict]] = {
    "a tenth more in time": ({"in_time_share": 0.551}, Verdict.IMPROVED),
    "less than a tenth": ({"in_time_share": 0.549}, Verdict.NOT_RECOVERED),
    "a tenth more, fewer arrivals": (
        {"in_time_share": 0.551, "requests_per_second": 9.49},
        Verdict.NOT_RECOVERED,
    ),
    "a tenth more, arrivals at the bound": (
        {"in_time_share": 0.551, "requests_per_second": 9.5},
        Verdict.IMPROVED,
    ),
    "a tenth more of a third more arrivals": (
        {"in_time_share": 0.551, "requests_per_second": 13.0, "generated_tokens_per_second": 2600.0},
        Verdict.IMPROVED,
    ),
    "more arrivals alone": (
        {"requests_per_second": 13.0, "generated_tokens_per_second": 2600.0},
        Verdict.NOT_RECOVERED,
    ),
    "a tenth more, but answers hang longer": (
        {"in_time_share": 0.551, "inter_token_tail_seconds": 8.9},
        Verdict.NOT_RECOVERED,
    ),
    "a tenth more by chance": ({"in_time_share": 0.551, "window_seconds": 20.0}, Verdict.NOT_RECOVERED),
    "a tenth fewer in time": ({"in_time_share": 0.449}, Verdict.NOT_RECOVERED),
}


@pytest.mark.parametrize(("after", "verdict"), GAINS.values(), ids=GAINS)
def test_a_fleet_that_clearly_serves_more_in_time_is_better_off(
    after: Mapping[str, float], verdict: Verdict
) -> None:
    found = compare_for_relief(Comparison(CROWDED, replace(CROWDED, **after), NONE, TRIGGER))

    assert found.verdict is verdict
    assert found.message.partition(", ")[0].partition("served in time x")[2]


def test_a_share_in_time_that_falls_by_more_than_chance_is_a_loss() -> None:
    lost = Comparison(CROWDED, replace(CROWDED, in_time_share=0.449), NONE, TRIGGER)
    short = Comparison(
        replace(CROWDED, window_seconds=30),
        replace(CROWDED, in_time_share=0.449, window_seconds=30),
        NONE,
        TRIGGER,
    )

    assert lost.sinks() == "less is served in time"
    assert short.sinks() == ""


def test_outputs_of_one_length_are_compared_whatever_ended_in_a_window() -> None:
    before = replace(BEFORE, stalls_per_request=1.0, output_tokens_mean=200.0)
    after = replace(before, stalls_per_request=0.9, output_tokens_mean=180.0)

    assert Comparison(before, after, NONE, TRIGGER).served_in_time == pytest.approx(1.0)


SILENT = replace(
    BEFORE,
    preemptions_per_request=0.0,
    inter_token_tail_seconds=0.2,
    stalls_per_request=0.0,
    time_to_first_token_p95_seconds=20.0,
    waiting_mean=100.0,
    requests_per_second=10.0,
)
"""Users wait for 10 s, and nothing else is wrong."""
MORE_TOKENS = {"generated_tokens_per_second": 1.73 * SILENT.generated_tokens_per_second}
PREEMPTED = {"preemptions_per_request": 0.58, "inter_token_tail_seconds": 2.1}
SILENCE: Mapping[str, tuple[Mapping[str, float], Mapping[str, float], Verdict]] = {
    "as before": ({}, {}, Verdict.NOT_RECOVERED),
    "a fifth shorter": ({}, {"waiting_mean": 80.0}, Verdict.RECOVERED),
    "less than a fifth": ({}, {"waiting_mean": 80.1}, Verdict.NOT_RECOVERED),
    "shorter, arrivals at the bound": (
        {},
        {"waiting_mean": 50.0, "requests_per_second": 9.5},
        Verdict.RECOVERED,
    ),
    "shorter, as fewer arrive": (
        {},
        {"waiting_mean": 50.0, "requests_per_second": 9.49},
        Verdict.NOT_RECOVERED,
    ),
    "shorter, but it thrashes": (
        {},
        {"waiting_mean": 10.0, "preemptions_per_request": 0.3},
        Verdict.NOT_RECOVERED,
    ),
    "shorter, and more in time by request, as more arrive": (
        {},
        {"waiting_mean": 45.0, "requests_per_second": 17.2, **MORE_TOKENS, **PREEMPTED},
        Verdict.IMPROVED,
    ),
    "shorter, but less in time by request, as more arrive": (
        {},
        {"waiting_mean": 45.0, "requests_per_second": 17.4, **MORE_TOKENS, **PREEMPTED},
        Verdict.INCONCLUSIVE,
    ),
    "shorter, but answers hang": (
        {},
        {
            "waiting_mean": 45.0,
            "requests_per_second": 12.0,
            **MORE_TOKENS,
            **PREEMPTED,
            "stalls_per_request": 0.6,
        },
        Verdict.NOT_RECOVERED,
    ),
    "as long, but more in time": ({"in_time_share": 0.5}, {"in_time_share": 0.6}, Verdict.RECOVERED),
    "more in time, but it thrashes": (
        {"in_time_share": 0.5},
        {"in_time_share": 0.6, "preemptions_per_request": 0.3},
        Verdict.IMPROVED,
    ),
    "nobody waited for long": ({"waiting_mean": 50.0}, {"waiting_mean": 50.0}, Verdict.RECOVERED),
}


@pytest.mark.parametrize(("before", "after", "verdict"), SILENCE.values(), ids=SILENCE)
def test_a_fleet_whose_users_wait_must_have_them_wait_less(
    before: Mapping[str, float], after: Mapping[str, float], verdict: Verdict
) -> None:
    then = replace(SILENT, **before)

    found = compare_for_relief(Comparison(then, replace(then, **after), NONE, TRIGGER))

    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (6.3, 5.0, Verdict.RECOVERED),
        (6.2, 5.0, Verdict.NOT_RECOVERED),
        (6.3, 5.1, Verdict.NOT_RECOVERED),
        (5.0, 4.0, Verdict.NOT_RECOVERED),
    ],
    ids=["missed, and met", "by less than two windows differ", "still missed", "was met before"],
)
def test_a_change_that_brings_a_missed_objective_within_did_what_it_was_for(
    before: float, after: float, verdict: Verdict
) -> None:
    then = replace(BEFORE, time_to_first_token_p95_seconds=before)
    now = replace(BEFORE, time_to_first_token_p95_seconds=after)

    found = compare_for_relief(
        Comparison(then, now, Objectives(time_to_first_token_p95_seconds=5.0), TRIGGER)
    )

    assert found.verdict is verdict
    assert found.message.startswith("an objective is met again; ") is (verdict is Verdict.RECOVERED)


def test_an_objective_that_is_met_again_excuses_none_that_is_broken() -> None:
    objectives = Objectives(inter_token_p95_seconds=0.06, time_to_first_token_p95_seconds=5.0)
    then = replace(BEFORE, time_to_first_token_p95_seconds=8.0)
    now = replace(BEFORE, time_to_first_token_p95_seconds=2.0, inter_token_p95_seconds=0.07)

    found = compare_for_relief(Comparison(then, now, objectives, TRIGGER))

    assert found.verdict is Verdict.NOT_RECOVERED
    assert found.message.startswith("an objective is broken; ")


def test_first_tokens_that_come_in_time_excuse_no_loss_of_throughput() -> None:
    """New replicas begin with an empty queue; a simulated cap that lost nearly all was kept for it."""
    before = replace(BEFORE, in_time_share=0.01)
    after = replace(AFTER, in_time_share=0.5, stalls_per_request=0.1, generated_tokens_per_second=1680.0)

    assert compare_for_relief(Comparison(before, after, NONE, TRIGGER)).verdict is Verdict.NOT_RECOVERED
