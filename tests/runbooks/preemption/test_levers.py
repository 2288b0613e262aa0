"""Which lever is turned, and when one is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import THRASHING, UNSUPPORTED, Replica, an_evidence, spread, with_histogram, without
from documentation.generated import lever_table
from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.evidence import Histogram, Pool, Signal
from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import Attempt, FailedAttempt, Load
from kvmedic.runbooks.branches import Advice, Assignment, Evidence, NoChange, Setting
from kvmedic.runbooks.preemption.levers import (
    LENGTHS_ALIKE,
    LEVERS,
    Lever,
    exhausted_levers,
    first_that_applies,
)
from kvmedic.runbooks.preemption.pressure import Case
from run_builder import a_failure
from runbooks.cases import CASE
from runbooks.pages import page

CAP, MARK, LENGTH, STEP = (
    Knob.MAX_NUM_SEQS,
    Knob.WATERMARK,
    Knob.MAX_MODEL_LEN,
    Knob.MAX_NUM_BATCHED_TOKENS,
)
GIVEN: dict[Knob, Scalar] = {CAP: 64, LENGTH: 32768, STEP: 8192}


def setting(*knobs: Knob, exhausted: frozenset[Knob] = frozenset()) -> Setting:
    levers = tuple(LeverBound(knob) for knob in knobs)
    return Setting(64, levers, exhausted, given=GIVEN, most_sequences=64, chunks_prefill=True)


def always(knob: Knob, value: int) -> Lever:
    return Lever(knob, lambda _, __: Assignment(knob, value, Reason.CAP_RIGHT_SIZED, "it would"), "")


def never(knob: Knob, reason: Reason = Reason.GAIN_WITHIN_NOISE) -> Lever:
    return Lever(knob, lambda _, __: NoChange(reason, f"not {knob}"), "")


def turned(advice: Advice) -> Knob:
    assert isinstance(advice, Assignment), advice
    return advice.knob


@pytest.mark.parametrize("order", [(CAP, STEP), (STEP, CAP)], ids=["cap first", "steps first"])
def test_the_specs_order_decides_not_the_tables(order: tuple[Knob, Knob]) -> None:
    levers = (always(CAP, 8), always(STEP, 512))

    assert turned(first_that_applies(CASE, setting(*order), levers)) is order[0]


def test_a_lever_that_does_not_apply_leaves_it_to_the_next() -> None:
    levers = (never(CAP), always(MARK, 1), always(STEP, 512))

    assert turned(first_that_applies(CASE, setting(CAP, MARK, STEP), levers)) is MARK


def test_a_lever_that_is_not_in_the_spec_is_never_turned() -> None:
    levers = (never(CAP), always(MARK, 1))

    found = first_that_applies(CASE, setting(CAP), levers)

    assert isinstance(found, NoChange)


def test_a_lever_that_did_not_help_is_passed_over() -> None:
    found = first_that_applies(CASE, setting(CAP, STEP, exhausted=frozenset({CAP})))

    assert turned(found) is STEP


def test_a_lever_that_cannot_be_set_is_passed_over() -> None:
    known = replace(setting(CAP, STEP), refused={CAP: NoChange(Reason.FLAG_NOT_EDITABLE, "from a variable")})

    assert turned(first_that_applies(CASE, known)) is STEP


def test_a_lever_of_another_branch_is_none_of_this_ones() -> None:
    found = first_that_applies(CASE, setting(Knob.BLOCK_SIZE, STEP))

    assert turned(found) is STEP


def test_one_reason_is_shown_as_it_is() -> None:
    found = first_that_applies(CASE, setting(CAP), (never(CAP),))

    assert found == NoChange(Reason.GAIN_WITHIN_NOISE, "not maxNumSeqs")


def test_several_reasons_are_listed_lever_by_lever_in_one_sentence() -> None:
    known = setting(CAP, MARK, STEP, exhausted=frozenset({CAP}))
    levers = (never(CAP), never(MARK), never(STEP))

    found = first_that_applies(CASE, known, levers)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.NO_LEVER_LEFT
    assert found.message == (
        "none of the allowed levers would help now: (1) maxNumSeqs was tried on this revision, these lengths "
        "and this pool and did not help; more KV cache or replicas may; (2) watermark: not watermark; "
        "(3) maxNumBatchedTokens: not maxNumBatchedTokens"
    )


@pytest.mark.parametrize("reason", sorted(reasons_with(Trait.NO_GAIN)))
def test_where_no_lever_is_worth_turning_nobody_is_called(reason: Reason) -> None:
    found = first_that_applies(CASE, setting(CAP, MARK), (never(CAP, reason), never(MARK)))

    assert isinstance(found, NoChange)
    assert found.reason is reason


def test_where_something_stands_in_the_way_somebody_is() -> None:
    levers = (never(CAP), never(MARK, Reason.POOL_TOO_SMALL))

    found = first_that_applies(CASE, setting(CAP, MARK), levers)

    assert isinstance(found, NoChange)
    assert found.reason is Reason.NO_LEVER_LEFT


def test_a_cap_that_would_help_is_named_where_it_is_not_allowed() -> None:
    found = first_that_applies(CASE, setting(STEP, exhausted=frozenset({STEP})))

    assert isinstance(found, NoChange)
    assert found.reason is Reason.NO_LEVER_LEFT
    assert "add maxNumSeqs to spec.levers" in found.message


def test_a_cap_that_would_not_help_either_is_not_named() -> None:
    cheap = replace(CASE, sequence=replace(CASE.sequence, growth_share=0.1))

    found = first_that_applies(cheap, setting(STEP, exhausted=frozenset({STEP})))

    assert isinstance(found, NoChange)
    assert found.reason is Reason.LEVER_EXHAUSTED
    assert "maxNumSeqs" not in found.message


@pytest.mark.parametrize("case", [CASE], ids=["thrash"])
def test_without_a_lever_the_cap_is_reported(case: Case) -> None:
    found = first_that_applies(case, setting())

    assert isinstance(found, NoChange)
    assert found.reason is Reason.LEVER_NOT_ALLOWED


def test_every_lever_of_the_table_is_another_knob_and_says_what_it_expects() -> None:
    assert len({lever.knob for lever in LEVERS}) == len(LEVERS)
    assert all(lever.expects.endswith(".") for lever in LEVERS)


def test_the_table_of_levers_on_the_page_is_generated() -> None:
    assert lever_table(LEVERS) in page("PreemptionThrash")


REVISION = "aaaaaaaaaaaaaaaa"
LOAD = Load(20.0, 380.0, 60.0, 190.0)
TRIED = a_failure(Attempt.TURN_LEVER, Knob.WATERMARK, REVISION, blocks=149, load=LOAD)
SAME = an_evidence(THRASHING, THRASHING)


def is_left_alone(tried: FailedAttempt, evidence: Evidence = SAME, revision: str = REVISION) -> bool:
    return exhausted_levers((tried,), revision, evidence) == {tried.key}


def seen(**changes: object) -> Evidence:
    one = replace(THRASHING, **changes)  # type: ignore[arg-type]
    return an_evidence(one, one)


def test_on_the_same_evidence_it_is_left_alone() -> None:
    assert is_left_alone(TRIED)


@pytest.mark.parametrize(
    ("evidence", "alone"),
    [
        pytest.param(seen(outputs=spread(190 / LENGTHS_ALIKE - 3)), True, id="outputs somewhat longer"),
        pytest.param(seen(outputs=spread(190 / LENGTHS_ALIKE + 3)), False, id="outputs half as long again"),
        pytest.param(seen(outputs=spread(190 * LENGTHS_ALIKE - 3)), False, id="outputs a third shorter"),
        pytest.param(seen(prompts=spread(60 / LENGTHS_ALIKE + 3)), False, id="prompts half as long again"),
        pytest.param(seen(pool=Pool(143, 32)), True, id="a pool 4 % smaller"),
        pytest.param(seen(pool=Pool(140, 32)), False, id="a pool 6 % smaller"),
        pytest.param(seen(pool=Pool(160, 32)), False, id="a larger pool"),
    ],
)
def test_other_lengths_or_another_pool_are_other_evidence(evidence: Evidence, *, alone: bool) -> None:
    assert is_left_alone(TRIED, evidence) is alone


def test_another_template_is_other_evidence() -> None:
    assert not is_left_alone(TRIED, revision="bbbbbbbbbbbbbbbb")


def test_each_lever_is_remembered_by_itself() -> None:
    other = replace(TRIED, key="maxNumSeqs", template="bbbbbbbbbbbbbbbb")

    assert exhausted_levers((TRIED, other), REVISION, SAME) == {Knob.WATERMARK}


def test_a_failure_without_figures_counts_by_its_template() -> None:
    old = replace(TRIED, blocks=None, load=None)

    assert is_left_alone(old, seen(outputs=spread(900), pool=Pool(900, 32)))
    assert not is_left_alone(old, revision="bbbbbbbbbbbbbbbb")


def test_silence_is_no_new_evidence() -> None:
    silent = without(THRASHING.readings(), Signal.OUTPUT_LENGTH, UNSUPPORTED)
    empty = with_histogram(THRASHING.readings(), Signal.OUTPUT_LENGTH, Histogram((10.0,), (0.0, 0.0), 0.0))
    mixed = with_histogram(THRASHING.readings(), Signal.OUTPUT_LENGTH, Histogram((10.0,), (9.0, 0.0), 50.0))
    lost = replace(THRASHING.readings(), pool=UNSUPPORTED)
    looks: list[Evidence] = [
        an_evidence(silent),
        an_evidence(empty),
        an_evidence(THRASHING, mixed),
        an_evidence(lost),
        an_evidence(),
    ]

    assert all(is_left_alone(TRIED, look) for look in looks)


def test_the_builders_lengths_are_those_of_the_record() -> None:
    replica: Replica = THRASHING
    outputs = replica.histograms()[Signal.OUTPUT_LENGTH]

    assert outputs.mean == pytest.approx(190, rel=0.02)
