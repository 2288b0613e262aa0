from dataclasses import replace

import pytest

from kvmedic.model.engine import Knob
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Advice, Assignment, NoChange, Setting
from kvmedic.runbooks.preemption.cap import LEAST_GAIN, LEAST_GROWTH, cap_of, cut_cap
from kvmedic.runbooks.preemption.pressure import Case
from kvmedic.verdict.sizing import Occupancy
from runbooks.cases import CASE

CAP = 20


def setting(*levers: LeverBound, now: int | None = None) -> Setting:
    return Setting(max_num_seqs=now, levers=levers or (LeverBound(Knob.MAX_NUM_SEQS),))


def reason_of(case: Case, given: Setting | None = None) -> Reason:
    return cut_cap(case, given or setting()).reason


def assigned(found: Advice) -> int | float:
    assert isinstance(found, Assignment)
    assert found.knob is Knob.MAX_NUM_SEQS
    return found.value


def test_the_cap_is_the_safest_of_those_with_about_the_highest_expected_goodput() -> None:
    found = cut_cap(CASE, setting())

    assert (assigned(found), found.reason) == (CAP, Reason.CAP_RIGHT_SIZED)
    assert "149 blocks for sequences of 7.2 +- 5.0 hold 20" in found.message
    assert "longer waits before the first token" in found.message


@pytest.mark.parametrize(
    ("growth", "cheap"),
    [(LEAST_GROWTH - 0.01, True), (LEAST_GROWTH, False), (LEAST_GROWTH + 0.01, False)],
    ids=["below", "at", "above"],
)
def test_where_prompts_dominate_preemptions_are_cheap(growth: float, *, cheap: bool) -> None:
    case = replace(CASE, sequence=replace(CASE.sequence, growth_share=growth))

    found = cut_cap(case, setting())

    assert (found.reason is Reason.PREEMPTIONS_CHEAP) is cheap
    assert not cheap or "watermark" in found.message


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [(5, Reason.POOL_TOO_SMALL), (14, Reason.POOL_TOO_SMALL), (30, Reason.CAP_RIGHT_SIZED)],
    ids=["not even one fits", "one fits", "two fit"],
)
def test_a_pool_for_one_sequence_is_not_mended_by_a_cap(blocks: float, reason: Reason) -> None:
    strain = replace(CASE.strain, running_mean=3)

    assert reason_of(replace(CASE, blocks=blocks, strain=strain)) is reason


@pytest.mark.parametrize(
    ("cap_now", "running_max", "reason"),
    [
        pytest.param(None, CAP - 1, Reason.CAP_WITHOUT_EFFECT, id="fewer ran than the cap"),
        pytest.param(None, CAP, Reason.CAP_WITHOUT_EFFECT, id="as many ran"),
        pytest.param(None, CAP + 1, Reason.CAP_RIGHT_SIZED, id="more ran"),
        pytest.param(CAP - 1, 32, Reason.CAP_WITHOUT_EFFECT, id="the present cap is lower"),
        pytest.param(CAP, 32, Reason.CAP_WITHOUT_EFFECT, id="the present cap is the same"),
        pytest.param(CAP + 1, 32, Reason.CAP_RIGHT_SIZED, id="the present cap is higher"),
    ],
)
def test_a_cap_that_changes_nothing_is_not_set(
    cap_now: int | None, running_max: float, reason: Reason
) -> None:
    assert reason_of(replace(CASE, running_max=running_max), setting(now=cap_now)) is reason


def test_a_gain_within_the_noise_is_no_reason_for_a_cut() -> None:
    smooth = replace(CASE.strain, stalls_per_request=0.01, prefill_extra_seconds=0.0)

    found = cut_cap(replace(CASE, strain=smooth), setting())

    assert found.reason is Reason.GAIN_WITHIN_NOISE
    assert f"under x{1 + LEAST_GAIN:.2f}" in found.message


@pytest.mark.parametrize(
    ("stalls", "reason"),
    [(0.2, Reason.GAIN_WITHIN_NOISE), (0.35, Reason.CAP_RIGHT_SIZED)],
    ids=["few stalls", "more stalls"],
)
def test_stalls_must_be_worth_the_throughput(stalls: float, reason: Reason) -> None:
    strain = replace(CASE.strain, stalls_per_request=stalls, prefill_extra_seconds=0.0)

    assert reason_of(replace(CASE, strain=strain)) is reason


def test_without_the_lever_the_cap_is_only_told() -> None:
    found = cut_cap(CASE, setting(LeverBound(Knob.WATERMARK)))

    assert isinstance(found, NoChange)
    assert found.reason is Reason.LEVER_NOT_ALLOWED
    assert f"a cap of {CAP} would help" in found.message
    assert "add maxNumSeqs to spec.levers" in found.message


@pytest.mark.parametrize(
    ("minimum", "cap", "reason"),
    [
        (CAP - 1, CAP, Reason.CAP_RIGHT_SIZED),
        (CAP, CAP, Reason.CAP_RIGHT_SIZED),
        (CAP + 1, CAP + 1, Reason.CAP_RIGHT_SIZED),
        (31.0, None, Reason.GAIN_WITHIN_NOISE),
        (32, None, Reason.LEVER_NOT_ALLOWED),
        (256, None, Reason.LEVER_NOT_ALLOWED),
    ],
    ids=["below the cap", "at it", "above it", "hardly a cut", "no cut", "far from one"],
)
def test_a_lower_bound_is_applied_if_it_is_still_a_cut(
    minimum: float, cap: int | None, reason: Reason
) -> None:
    found = cut_cap(CASE, setting(LeverBound(Knob.MAX_NUM_SEQS, minimum=minimum)))

    assert found.reason is reason
    assert (found.value if isinstance(found, Assignment) else None) == cap
    told = "lower min of maxNumSeqs" if reason is Reason.LEVER_NOT_ALLOWED else "by the lever's bounds"
    assert (told in found.message) is (minimum > CAP)


@pytest.mark.parametrize(
    ("maximum", "cap", "reason"),
    [
        (CAP - 1, CAP - 1, Reason.CAP_RIGHT_SIZED),
        (CAP, CAP, Reason.CAP_RIGHT_SIZED),
        (CAP + 1, CAP, Reason.CAP_RIGHT_SIZED),
    ],
    ids=["below the cap", "at it", "above it"],
)
def test_an_upper_bound_is_kept(maximum: float, cap: int, reason: Reason) -> None:
    found = cut_cap(CASE, setting(LeverBound(Knob.MAX_NUM_SEQS, maximum=maximum)))

    assert (assigned(found), found.reason) == (cap, reason)


@pytest.mark.parametrize(
    ("spread", "cap"), [(0.0, 9), (0.5, 11), (1.0, 14)], ids=["waves", "half way", "varied"]
)
def test_outputs_that_end_in_waves_lower_the_cap(spread: float, cap: int) -> None:
    equal = replace(
        CASE,
        sequence=Occupancy(mean_blocks=10.0, deviation_blocks=4.0, growth_share=0.8),
        strain=replace(
            CASE.strain, running_mean=15, stalls_per_request=1, output_tokens=512, prefill_tokens=64
        ),
        prompt_tokens=64,
        output_tokens=512,
        spread=spread,
    )

    assert cap_of(equal) == cap
    assert ("end in waves" in cut_cap(equal, setting()).message) is (spread < 1)


def test_waves_never_raise_the_cap() -> None:
    wide = replace(CASE, sequence=replace(CASE.sequence, mean_blocks=20.0, deviation_blocks=30.0), spread=0.0)

    assert cap_of(wide) == cap_of(replace(wide, spread=1.0))


@pytest.mark.parametrize(
    ("growth", "blocks", "warned"),
    [(0.7, 149, False), (0.51, 70, True), (0.5, 70, False)],
    ids=["room for many", "room for few long ones", "room for few, mostly prompt"],
)
def test_a_small_pool_is_said_to_be_small(growth: float, blocks: float, *, warned: bool) -> None:
    case = replace(
        CASE,
        blocks=blocks,
        sequence=replace(CASE.sequence, growth_share=growth),
        strain=replace(CASE.strain, running_mean=12, stalls_per_request=1.0),
    )

    found = cut_cap(case, setting())

    assert isinstance(found, Assignment)
    assert ("more KV cache or replicas would help more" in found.message) is warned


LARGER = 1.25 * CASE.sequence.mean_blocks
WIDER = replace(CASE, measured=(LARGER, 1.6 * CASE.sequence.deviation_blocks))


def test_a_cap_of_ours_that_does_not_fit_is_corrected_by_what_is_seen_to_run() -> None:
    """Without it the same lengths lead to the cap that is set already."""
    kept = replace(setting(now=CAP), is_our_cap=True)

    found = cut_cap(WIDER, kept)

    assert cut_cap(WIDER, setting(now=CAP)).reason is Reason.CAP_WITHOUT_EFFECT
    assert assigned(found) < CAP
    assert f"{LARGER:.1f} +- {1.6 * CASE.sequence.deviation_blocks:.1f}" in found.message


def test_a_cap_that_is_not_ours_is_sized_from_the_lengths_alone() -> None:
    assert assigned(cut_cap(WIDER, setting(now=64))) == CAP


@pytest.mark.parametrize(
    "measured", [None, (5.0, 3.0)], ids=["an engine that does not tell", "a spread as expected"]
)
def test_without_a_wider_spread_nothing_is_corrected(measured: tuple[float, float] | None) -> None:
    kept = replace(setting(now=CAP), is_our_cap=True)

    assert cut_cap(replace(CASE, measured=measured), kept).reason is Reason.CAP_WITHOUT_EFFECT
