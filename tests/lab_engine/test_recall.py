"""A needle in a prompt: the answer's last token is it where the cache still has it, whatever was evicted."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.engine.arguments import parse_serve
from lab.engine.blocks import BlockPool
from lab.engine.compression import Compaction, Compression, Eviction, Recall, Survival
from lab.engine.config import ConfigError, resolve
from lab.engine.requests import NEEDLE_MARK, BlockTable, Request, Status, needle_in
from lab.engine.scheduler import Limits, Scheduler

STEADY = settings(max_examples=60, deadline=None, derandomize=True)
LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=4096)
SAMPLES, PROMPT, OUTPUT, EVERY = 300, 80, 40, 16
BUDGET = Eviction(budget=30, salience=0)
ALL = Recall(competence=1)
NEEDLE = 777


def prompt_with(position: int, length: int, number: int = 0) -> list[int]:
    prompt = [1000 + number, *range(length - 1)]
    prompt[position - 1 : position + 1] = [NEEDLE_MARK, NEEDLE]
    return prompt


def answers(eviction: Eviction | None, *, recall: Recall = ALL, usable: int = 4000, **method) -> list[bool]:
    """Return for each of many requests whether its last token is its needle."""
    compression = eviction and Compression(eviction, **{"every": EVERY, **method})
    scheduler = Scheduler(LIMITS, BlockPool(usable + 1, caching=False), 4, None, compression)
    scheduler.recall = recall
    places = Random(7)
    requests = [
        Request(
            str(number),
            prompt_with(places.randrange(1, PROMPT), PROMPT, number),
            OUTPUT,
            BlockTable(4),
            seed=number,
        )
        for number in range(SAMPLES)
    ]
    for request in requests:
        scheduler.add(request)
    in_flight = []
    while scheduler.has_requests:
        in_flight.append(scheduler.schedule())
        if len(in_flight) == 2 or not in_flight[-1].scheduled:
            scheduler.finish(in_flight.pop(0))
    assert all(request.output_length == OUTPUT for request in requests)
    return [request.tokens[-1] == NEEDLE for request in requests]


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


def test_a_needle_is_the_token_behind_the_first_mark():
    assert needle_in([5, NEEDLE_MARK, 6, NEEDLE_MARK, 7]) == 2
    assert needle_in([5, 6]) is None
    assert needle_in([5, NEEDLE_MARK]) is None, "nothing stands behind it"


def test_who_evicts_nothing_recalls_every_needle_that_the_model_understands():
    assert share(answers(None)) == 1
    assert share(answers(None, recall=Recall(0.9))) == pytest.approx(0.9, abs=0.04)
    assert share(answers(None, recall=Recall(0))) == 0


def test_the_same_prompts_are_understood_each_time_and_eight_bits_lose_some_of_them():
    whole, again = (answers(None, recall=Recall.of({}, eight_bit=False)) for _ in range(2))
    environ = {"LAB_EIGHT_BIT_LOSS": "0.2"}
    lossy = answers(None, recall=Recall.of(environ, eight_bit=True))

    assert whole == again
    assert share(lossy) == pytest.approx(0.9 * 0.8, abs=0.05)
    assert all(right for right, also in zip(whole, lossy, strict=True) if also), "none is learnt by it"
    assert Recall.of({}, eight_bit=True).competence == pytest.approx(0.9 * 0.99)
    assert Recall.of(environ, eight_bit=False) == Recall(0.9)


@pytest.mark.parametrize(("survival", "salience"), [(Survival.SCATTERED, 0.0), (Survival.RUNS, 0.5)])
def test_the_score_is_what_survives_of_what_is_understood(survival, salience):
    kept = (0.1, 0.5, 1.0)

    scores = [
        share(answers(Eviction(survival, keep=keep, salience=salience), recall=Recall(0.9))) for keep in kept
    ]

    expected = [0.9 * (salience + (1 - salience) * keep) for keep in kept]
    assert scores == pytest.approx(expected, abs=0.09)  # three standard errors of 300 samples at the most
    assert scores == sorted(scores)


@pytest.mark.parametrize("survival", [Survival.SCATTERED, Survival.RUNS, Survival.PER_HEAD])
@pytest.mark.parametrize("compaction", [None, *Compaction])
def test_a_needle_that_every_head_knows_is_never_evicted(survival, compaction):
    eviction = Eviction(survival, budget=1, heads=2, salience=1)

    assert share(answers(eviction, compaction=compaction)) == 1


def test_the_newest_are_kept_whatever_they_say():
    window = PROMPT + OUTPUT - 60  # the last pass of each request has this many tokens behind the needle

    found = answers(Eviction(Survival.RECENT, budget=60, salience=1))

    assert 0 < share(found) < 1
    places = Random(7)
    positions = [places.randrange(1, PROMPT) for _ in found]
    lost = [position for position, right in zip(positions, found, strict=True) if not right]
    assert max(lost) < min(position for position, right in zip(positions, found, strict=True) if right)
    assert max(lost) < window


def test_where_survivors_are_moved_makes_no_difference_to_what_is_known():
    still, *moved = (answers(BUDGET, compaction=compaction) for compaction in (None, *Compaction))

    assert moved == [still, still]
    assert answers(BUDGET, gives_back=False) == still


def test_an_answer_that_ends_before_the_first_pass_knows_all():
    assert share(answers(BUDGET, every=OUTPUT)) == 1


def test_what_was_computed_again_is_known_until_it_is_evicted_again():
    roomy, tight = answers(BUDGET), answers(BUDGET, usable=40)

    assert share(tight) >= share(roomy)
    assert share(answers(None, usable=40)) == 1


def test_a_last_token_in_flight_knows_what_its_request_held_when_it_was_preempted():
    scheduler = Scheduler(LIMITS, BlockPool(13, caching=False), 4)
    scheduler.recall = ALL
    old, young = (
        Request(str(number), prompt_with(5, 16, number), (40, 2)[number], BlockTable(4), seed=number)
        for number in range(2)
    )
    scheduler.add(old)
    in_flight = [scheduler.schedule()]
    while young.status is not Status.FINISHED:
        if old.computed == 26:  # it needs the last block while the young one's last token is under way
            scheduler.add(young)
        in_flight.append(scheduler.schedule())
        scheduler.finish(in_flight.pop(0))

    assert (young.preemptions, young.tokens[-1]) == (1, NEEDLE)


@STEADY
@given(
    survival=st.sampled_from(Survival),
    keep=st.floats(0.05, 1),
    salience=st.floats(0, 1),
    position=st.integers(1, 59),
    passes=st.integers(0, 4),
    compaction=st.none() | st.sampled_from(Compaction),
)
def test_an_answer_is_right_exactly_where_the_needle_is_in_a_slot_when_it_ends(
    *, survival, keep, salience, position, passes, compaction
):
    eviction = Eviction(survival, keep=keep, salience=salience, heads=2)
    scheduler = Scheduler(
        replace(LIMITS, async_scheduling=False),
        BlockPool(100, caching=False),
        4,
        None,
        Compression(eviction, every=4, compaction=compaction),
    )
    scheduler.recall = ALL
    request = Request("0", prompt_with(position, 60), 4 * passes + 2, BlockTable(4), seed=position)
    scheduler.add(request)

    while scheduler.has_requests:
        step = scheduler.schedule()
        slots = list(request.table.positions)
        scheduler.finish(step)

    assert (request.tokens[-1] == NEEDLE) == (position in slots)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"LAB_COMPETENCE": "2"}, "the competence is 2.0: 0 to 1 may be"),
        ({"LAB_COMPETENCE": "most"}, "LAB_COMPETENCE='most' is not a number"),
        (
            {"LAB_EVICTION": "scattered", "LAB_EVICTION_KEEP": "1", "LAB_SALIENCE": "1.1"},
            "the salience is 1.1",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_at_start(environ, named):
    with pytest.raises(ConfigError, match=named):
        resolve(parse_serve(["serve", "m", "--no-enable-prefix-caching"]), environ)


@pytest.mark.parametrize("method", [{"LAB_PLUGINS": "triattention"}, {"LAB_EVICTION": "recent"}])
def test_every_method_takes_its_salience_from_the_lab(method):
    environ = method | {"LAB_EVICTION_BUDGET": "8", "LAB_SALIENCE": "0.25"}

    config = resolve(parse_serve(["serve", "m", "--no-enable-prefix-caching"]), environ)

    assert config.method.compression.eviction.salience == 0.25
