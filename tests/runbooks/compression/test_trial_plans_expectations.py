"""What is to be seen of a method that was turned on: of which changes, and what is known of it by then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import NOW
from kvmedic.model.compression import PASS_TOKENS, Compacted, Keep
from kvmedic.model.edits import BundleEdit, EnvEdit
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.plan import BundleStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy, Fix, ProbePolicy, Replacement
from kvmedic.model.trial import Answer, Question, Reclaim, Sample
from kvmedic.runbooks.compression.trial_plans import expectation_of
from kvmedic.verdict.occupancy import Passes

STEP = BundleStep(
    target=ObjectRef("Deployment", "llm"),
    container="vllm",
    method="TriAttention",
    edit=BundleEdit((EnvEdit("vllm", 1, "ENABLE_TRIATTENTION", 0, "0", "1"),)),
    before="off",
    after="on",
    before_template="aaa",
    after_template="bbb",
    reason=Reason.FIX_TURNED_ON,
    fix=Fix.COMPACTING_METHOD,
)
POLICY = CompressionPolicy(replacement=Replacement("triattention"), probe=ProbePolicy(tokens=32_768))
ANSWER = Answer(Question.RECLAMATION, "bbb", "they come back", NOW, 3, Reclaim.RECLAIMS, keep=Keep(512))


def a_template(*variables: dict[str, object]) -> dict[str, object]:
    return {"spec": {"containers": [{"name": "other"}, {"name": "vllm", "env": list(variables)}]}}


EVERY = "TRIATTN_RUNTIME_DIVIDE_LENGTH"
PLAIN = a_template()


@pytest.mark.parametrize(
    "step",
    [
        replace(STEP, fix=Fix.FP8_KV_CACHE),
        replace(STEP, fix=Fix.REVERT_BUNDLE),
        replace(STEP, undoes=Fix.COMPACTING_METHOD),
    ],
    ids=["keeps all tokens", "turned off", "turned off again"],
)
def test_nothing_is_expected_of_other_changes(step: BundleStep) -> None:
    assert expectation_of(step, POLICY, [ANSWER], PLAIN) is None


def test_what_was_tried_counts_before_what_the_spec_says_by_now() -> None:
    found = expectation_of(STEP, POLICY, [ANSWER], PLAIN)

    assert found.passes == Passes(Keep(512), Compacted(), PASS_TOKENS)
    assert (found.method, found.trial, found.length) == ("TriAttention", "they come back", 32_768)


@pytest.mark.parametrize(
    ("answers", "trial"),
    [
        ([], ""),
        ([replace(ANSWER, template="aaa")], ""),
        ([replace(ANSWER, question=Question.PROMPTS)], ""),
        ([replace(ANSWER, keep=None)], "they come back"),
    ],
    ids=["none", "of another template", "of another question", "of an earlier version"],
)
def test_without_a_trial_that_says_so_the_spec_says_what_is_kept(answers: list[Answer], trial: str) -> None:
    found = expectation_of(STEP, POLICY, answers, PLAIN)

    assert found.passes == Passes(Keep(2048), Compacted(), PASS_TOKENS)
    assert found.trial == trial


@pytest.mark.parametrize("replacement", [None, Replacement("Ascend KV compression"), Replacement("Mine", 99)])
def test_a_spec_that_names_no_or_another_replacement_says_nothing(replacement: Replacement | None) -> None:
    found = expectation_of(STEP, replace(POLICY, replacement=replacement), [], PLAIN)

    assert found.passes is None


@pytest.mark.parametrize(
    ("variable", "every"),
    [
        ({"name": EVERY, "value": "512"}, 512),
        ({"name": EVERY, "value": "0"}, PASS_TOKENS),
        ({"name": EVERY, "value": "often"}, PASS_TOKENS),
        ({"name": EVERY, "valueFrom": {"secretKeyRef": {}}}, PASS_TOKENS),
        ({"name": "OTHER", "value": "512"}, PASS_TOKENS),
    ],
)
def test_the_template_shows_how_often_tokens_go(variable: dict[str, object], every: int) -> None:
    found = expectation_of(STEP, POLICY, [ANSWER], a_template(variable))

    assert found.passes.every == every


def test_of_a_method_of_ones_own_nobody_knows_how_often() -> None:
    mine = replace(POLICY, replacement=Replacement("Mine", keep_share=0.25))

    found = expectation_of(
        replace(STEP, method="Mine"), mine, [], a_template({"name": EVERY, "value": "512"})
    )

    assert found.passes == Passes(Keep(share=0.25), Compacted(), PASS_TOKENS)


def seen(*used: float) -> Answer:
    """Return a trial with these blocks of 16 at ever more tokens of one request."""
    samples = tuple(Sample(1000 * count, each) for count, each in enumerate(used, 1))
    return replace(ANSWER, seen=samples, block_tokens=16)


@pytest.mark.parametrize(
    ("answer", "every"),
    [
        (seen(63, 70, 33, 64, 48), 512),
        (seen(63, 125, 33, 36, 40), PASS_TOKENS),
        (replace(seen(63, 70, 33, 64, 48), block_tokens=None), PASS_TOKENS),
        (ANSWER, PASS_TOKENS),
    ],
    ids=["it outgrew what is kept", "only at the beginning", "of an earlier version", "no readings"],
)
def test_where_nothing_says_how_often_the_trial_shows_it(answer: Answer, every: int) -> None:
    found = expectation_of(replace(STEP, method="Mine"), POLICY, [answer], PLAIN)

    assert found.passes.every == every


def test_the_variable_counts_before_what_a_trial_showed() -> None:
    found = expectation_of(STEP, POLICY, [seen(63, 70, 33, 64)], a_template({"name": EVERY, "value": "256"}))

    assert found.passes.every == 256
