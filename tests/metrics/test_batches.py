"""Who shares a batch: looks that begin together, and those that would wait for the source anyway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from weakref import ref

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.batches import Closeness, Moment
from kvmedic.metrics.page import names_of
from kvmedic.metrics.series import Answer, PodKey
from kvmedic.settings import Labels

AT = datetime(2026, 1, 1, tzinfo=UTC)
TOGETHER_SECONDS = 0.02


@dataclass
class Source:
    """Answers once it is let."""

    asked: list[str] = field(default_factory=list)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, text: str, _: datetime) -> Answer:
        self.asked.append(text)
        await self.answers.wait()
        return Answer({})

    def moment(self, at_once: int) -> Moment:
        names = names_of(VLLM_SIGNALS)
        return Moment(AT, self.ask, Labels(), names, gathered_seconds=TOGETHER_SECONDS, at_once=at_once)


async def look(moment: Moment, pod: str, after: float = 0.0) -> None:
    await asyncio.sleep(after)
    batch = await moment.batch_of([PodKey("serving", pod)], Closeness.WHOLE)
    await batch.reply("vllm:num_requests_running")


async def ask_three(source: Source, at_once: int) -> list[str]:
    """What a look asks, a second one that begins once the first has sent its query, and a third after it."""
    moment = source.moment(at_once)
    apart = 3 * TOGETHER_SECONDS
    looks = asyncio.gather(*(look(moment, f"pod-{number}", number * apart) for number in range(3)))
    await asyncio.sleep(6 * apart)
    before = list(source.asked)
    source.answers.set()
    await looks
    assert source.asked[: len(before)] == before
    return source.asked


async def test_looks_that_begin_one_after_another_ask_for_themselves_while_a_turn_is_free() -> None:
    assert len(await ask_three(Source(), at_once=4)) == 3


async def test_looks_share_a_batch_while_the_source_is_busy() -> None:
    first, second = await ask_three(Source(), at_once=1)

    assert "pod-0" in first
    assert "pod-1|pod-2" in second


async def test_a_batch_does_not_wait_for_a_source_that_does_not_answer() -> None:
    source = Source()
    moment = source.moment(at_once=1)
    looks = asyncio.gather(look(moment, "pod-0"), look(moment, "pod-1", 3 * TOGETHER_SECONDS))
    async with asyncio.timeout(5):
        while len(source.asked) < 2:
            await asyncio.sleep(TOGETHER_SECONDS)
    source.answers.set()
    await looks


async def test_a_text_that_names_many_replicas_is_not_kept() -> None:
    source = Source()
    source.answers.set()
    moment = source.moment(at_once=4)
    await asyncio.gather(*(look(moment, f"pod-{number}") for number in range(100)))

    (sent,) = source.asked
    batch = await moment.batch_of([PodKey("serving", "pod-0")], Closeness.WHOLE)
    assert "pod-99" in sent
    assert sum(len(str(key)) for key in batch.answers) < len(sent)


async def test_what_was_answered_about_calm_fleets_is_let_go_before_their_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvmedic.metrics.batches.QUICK_LOOK_SECONDS", 3 * TOGETHER_SECONDS)
    source = Source()
    source.answers.set()
    moment, pod = source.moment(at_once=4), [PodKey("serving", "pod-0")]
    for _ in range(2):
        batch = await moment.batch_of(pod, Closeness.QUICK)
        await batch.reply("vllm:num_requests_running")
    kept = ref(batch)
    del batch

    assert len(source.asked) == 1
    assert kept() is not None
    await asyncio.sleep(4 * TOGETHER_SECONDS)
    assert kept() is None
