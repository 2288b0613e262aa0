"""Which lever is turned: the first allowed one that applies, in the order of the spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from documentation.generated import lever_table
from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.reasons import Reason, Trait, reasons_with
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks.branches import Advice, Assignment, NoChange, Setting
from kvmedic.runbooks.preemption.levers import LEVERS, Lever, first_that_applies
from kvmedic.runbooks.preemption.pressure import Case
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


def test_one_reason_is_told_as_it_is() -> None:
    found = first_that_applies(CASE, setting(CAP), (never(CAP),))

    assert found == NoChange(Reason.GAIN_WITHIN_NOISE, "not maxNumSeqs")


def test_several_reasons_are_told_lever_by_lever_in_one_sentence() -> None:
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
def test_without_a_lever_the_cap_is_told(case: Case) -> None:
    found = first_that_applies(case, setting())

    assert isinstance(found, NoChange)
    assert found.reason is Reason.LEVER_NOT_ALLOWED


def test_every_lever_of_the_table_is_another_knob_and_says_what_it_expects() -> None:
    assert len({lever.knob for lever in LEVERS}) == len(LEVERS)
    assert all(lever.expects.endswith(".") for lever in LEVERS)


def test_the_table_of_levers_on_the_page_is_generated() -> None:
    assert lever_table(LEVERS) in page("PreemptionThrash")
