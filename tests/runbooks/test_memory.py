"""A lever that did not help is left alone until the evidence is another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import THRASHING, UNSUPPORTED, Replica, an_evidence, spread, with_histogram, without
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Histogram, Pool, Signal
from kvmedic.model.status import Attempt, FailedAttempt, Load
from kvmedic.runbooks.branches import Evidence
from kvmedic.runbooks.preemption.levers import LENGTHS_ALIKE, exhausted_levers
from run_builder import a_failure

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
