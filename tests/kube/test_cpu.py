"""A look pays for what threads read for it, in the tasks that it begins too; the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvmedic.kube.cpu import Metered, in_thread

SECONDS = 0.05


def read(text: str) -> str:
    began = time.thread_time()
    while time.thread_time() - began < SECONDS:
        pass
    if text == "poison":
        raise ValueError(text)
    return threading.current_thread().name


async def alone() -> None:
    assert (await in_thread(read, "text")).startswith("readers")


async def in_a_pool_of_its_own() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="pages") as pool:
        assert (await in_thread(read, "text", pool=pool)).startswith("pages")


async def in_tasks_of_its_own() -> None:
    await asyncio.gather(alone(), in_a_pool_of_its_own())


async def of_what_it_cannot_read() -> None:
    with pytest.raises(ValueError, match="poison"):
        await in_thread(read, "poison")


async def price_of(look: Callable[[], Awaitable[None]]) -> float:
    async def looked() -> float | None:
        await look()
        return None

    metered = Metered(looked(), lambda: 0.0)
    await metered
    return metered.seconds


@pytest.mark.parametrize(
    ("look", "times"),
    [(alone, 1), (in_a_pool_of_its_own, 1), (in_tasks_of_its_own, 2), (of_what_it_cannot_read, 1)],
)
async def test_a_look_pays_for_what_is_read_in_threads(
    look: Callable[[], Awaitable[None]], times: int
) -> None:
    assert times * SECONDS <= await price_of(look) < (times + 1) * SECONDS


async def test_each_look_pays_for_its_own() -> None:
    prices = await asyncio.gather(
        *(asyncio.create_task(price_of(look)) for look in (alone, in_tasks_of_its_own))
    )

    assert SECONDS <= prices[0] < 2 * SECONDS <= prices[1] < 3 * SECONDS


async def test_the_loop_goes_on_while_a_thread_reads() -> None:
    steps = 0
    reading = asyncio.create_task(alone())
    while not reading.done():
        await asyncio.sleep(0.001)
        steps += 1
    assert steps > 3


async def test_a_look_that_is_cancelled_ends_as_it_would_alone() -> None:
    ended: list[str] = []

    async def look() -> float | None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("cleanly")
        return None

    async def metered() -> float | None:
        return await Metered(look(), lambda: 0.0)

    task = asyncio.create_task(metered())
    await asyncio.sleep(0.01)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cleanly"]
