import random
from itertools import islice

import pytest

from kvmedic.model.evidence import Measured, Observation, Signal
from lab.bench.drive import UNCAPPED, Drive, Outcome, chosen_cap, observed, prompt_of, saved_pages_cap
from lab.bench.workloads import (
    AZURE_OUTPUT,
    LONG_PROMPTS,
    WORKLOADS,
    Lengths,
    Workload,
    either,
    even,
    fixed,
    table,
    varied,
)

CHAT = Workload("chat", varied(60, 0.6, 8, 400), varied(240, 0.7, 10, 900), 80, 32, 24)


@pytest.fixture(scope="module")
def uncapped() -> Outcome:
    return Drive(CHAT, UNCAPPED).run(warm=48, count=260)


def number(looked: Observation, signal: Signal) -> float:
    reading = looked.pods["bench-0"].number(signal)
    assert isinstance(reading, Measured)
    return reading.value


def test_scrapes_show_what_the_clients_saw(uncapped):
    looked = observed(uncapped)

    assert looked.window_seconds == pytest.approx(uncapped.seconds, rel=0.01)
    assert number(looked, Signal.REQUESTS_FINISHED) == pytest.approx(uncapped.finished, abs=3)
    assert number(looked, Signal.GENERATED_TOKENS) == pytest.approx(uncapped.tokens, rel=0.1)
    assert number(looked, Signal.PREEMPTIONS) > 0
    assert number(looked, Signal.KV_CACHE_USAGE_MEAN) > 0.8


def test_a_cap_holds_and_ends_the_stalls(uncapped):
    capped = Drive(CHAT, 8).run(warm=48, count=260)

    looked = observed(capped)
    assert number(looked, Signal.RUNNING_MAX) <= 8
    assert number(looked, Signal.PREEMPTIONS) < 0.1 * number(observed(uncapped), Signal.PREEMPTIONS)
    assert capped.good_tokens / capped.tokens > uncapped.good_tokens / uncapped.tokens
    assert capped.goodput <= capped.throughput


def test_the_same_run_twice_is_the_same(uncapped):
    again = Drive(CHAT, UNCAPPED).run(warm=48, count=260)

    assert (again.tokens, again.good_tokens) == (uncapped.tokens, uncapped.good_tokens)
    assert again.seconds == pytest.approx(uncapped.seconds)


def test_the_operator_reads_a_cap_off_the_scrapes(uncapped):
    cap, reason = chosen_cap(uncapped)

    assert reason == "CapRightSized"
    assert cap is not None
    assert 8 <= cap <= 20


def test_two_pages_alone_give_nearly_the_same_cap(uncapped):
    cap, _ = chosen_cap(uncapped)
    from_pages, reason = saved_pages_cap(uncapped)

    assert reason == "CapRightSized"
    assert cap is not None
    assert from_pages is not None
    assert abs(from_pages - cap) <= 0.2 * cap


def test_prompts_of_one_group_begin_alike_and_no_two_are_the_same():
    one, other = (prompt_of(number, Lengths(40, 1, shared=32, group=2)) for number in (1, 2))

    assert len(one) == len(other) == 40
    assert one[:32] == other[:32] != prompt_of(3, Lengths(40, 1, shared=32, group=1))[:32]
    assert one[32:] != other[32:]
    assert prompt_of(1, Lengths(3, 1)) != prompt_of(2, Lengths(3, 1))


def test_draws_have_the_shape_that_their_name_says():
    drawn = random.Random(1)

    assert 110 < sum(varied(120, 0.7, 1, 5000)(drawn) for _ in range(4000)) / 4000 < 130
    assert {even(3, 5)(drawn) for _ in range(100)} == {3, 4, 5}
    assert 0.6 < sum(either(fixed(1), fixed(0), 0.7)(drawn) for _ in range(2000)) / 2000 < 0.8
    outputs = sorted(table(AZURE_OUTPUT)(drawn) for _ in range(4000))
    assert outputs[2000] == pytest.approx(129, rel=0.1)
    assert outputs[3600] == pytest.approx(424, rel=0.1)


@pytest.mark.parametrize("workload", [*WORKLOADS, *LONG_PROMPTS], ids=lambda workload: workload.name)
def test_every_request_fits_the_model_and_the_pool(workload):
    for lengths in islice(workload.lengths(), 3000):
        assert lengths.prompt >= 1
        assert lengths.output >= 1
        assert lengths.prompt + lengths.output <= workload.max_model_len
        assert lengths.prompt + lengths.output <= workload.blocks * workload.block_tokens
