"""The questions: each has one needle, and they are the same ones every time."""

import pytest

from lab.engine.requests import NEEDLE_MARK, needle_in
from lab.evaluation.samples import samples_of


@pytest.mark.parametrize("tokens", [3, 4, 100])
def test_every_question_has_a_beginning_of_its_own_and_one_needle(tokens):
    samples = list(samples_of(300, tokens))

    assert {len(sample.prompt) for sample in samples} == {tokens}
    assert len({sample.prompt[0] for sample in samples}) == 300
    assert all(sample.prompt.count(NEEDLE_MARK) == 1 for sample in samples)
    assert all(sample.answer == f"w{sample.prompt[needle_in(list(sample.prompt))]}" for sample in samples)


def test_needles_lie_anywhere_behind_the_first_token():
    places = [needle_in(list(sample.prompt)) for sample in samples_of(400, 10)]

    assert {*places} == set(range(2, 10))


def test_a_larger_evaluation_begins_with_the_questions_of_a_smaller_one():
    assert list(samples_of(5, 50)) == list(samples_of(9, 50))[:5]


def test_a_prompt_without_room_is_refused():
    with pytest.raises(ValueError, match="a prompt of 2 tokens holds no needle"):
        next(samples_of(1, 2))
