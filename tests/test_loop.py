"""Which resource is looked at next: one with an open run, then one of each namespace; never twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kvmedic.kube.backoff import (
    ALLOWANCE_SECONDS,
    HALF_LIFE_SECONDS,
    LONGEST_REST_SECONDS,
    RecentCpuCost,
    rest_after,
)
from kvmedic.loop import Loop
from kvmedic.model.status import Key


def key(name: str, namespace: str = "a") -> Key:
    return Key(namespace, name, f"uid-{namespace}-{name}")


@dataclass
class Ticks:
    """Looks that take a moment, and answer when the next is due."""

    delay: float | None = 60.0
    lasts: float = 0.0
    looked: list[str] = field(default_factory=list)
    at_once: int = 0
    most: int = 0

    async def __call__(self, which: Key) -> float | None:
        self.looked.append(f"{which.namespace}/{which.name}")
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(self.lasts)
        self.at_once -= 1
        return self.delay


async def run(loop: Loop, until: Callable[[], bool]) -> None:
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(5):
        while not until():
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_open_runs_come_first_and_then_one_of_each_namespace() -> None:
    ticks = Ticks()
    loop = Loop(ticks, 1, is_urgent=lambda which: which.name == "open")
    for name in ("1", "2", "3"):
        loop.wake(key(name, "crowd"))
    loop.wake(key("4", "few"))
    loop.wake(key("5", "other"))
    loop.wake(key("open", "crowd"))

    await run(loop, lambda: len(ticks.looked) == 6)

    assert ticks.looked == ["crowd/open", "crowd/1", "few/4", "other/5", "crowd/2", "crowd/3"]


async def test_no_more_are_worked_on_at_once_than_there_are_workers_and_what_waits_is_counted() -> None:
    ticks = Ticks(lasts=0.02)
    loop = Loop(ticks, 2)
    for number in range(6):
        loop.wake(key(str(number)))
    waiting: list[int] = []

    await run(loop, lambda: waiting.append(loop.count_waiting()) or len(ticks.looked) == 6)  # type: ignore[func-returns-value]

    assert ticks.most == 2
    assert max(waiting) == 4
    assert sorted(ticks.looked) == [f"a/{number}" for number in range(6)]


async def test_a_wake_up_during_a_look_makes_one_more_follow_and_not_two_at_once() -> None:
    ticks = Ticks(lasts=0.05)
    loop = Loop(ticks, 4)
    loop.wake(key("1"))

    def twice() -> bool:
        if ticks.at_once and len(ticks.looked) == 1:
            loop.wake(key("1"))
            loop.wake(key("1"), 0.01)
        return len(ticks.looked) == 2 and not ticks.at_once

    await run(loop, twice)
    await asyncio.sleep(0.02)

    assert ticks.most == 1
    assert ticks.looked == ["a/1", "a/1"]


async def test_an_earlier_wake_up_counts_and_a_later_one_does_not() -> None:
    ticks = Ticks()
    loop = Loop(ticks, 1)
    loop.wake(key("1"), 60)
    loop.wake(key("1"), 0.01)
    loop.wake(key("1"), 30)

    await run(loop, lambda: bool(ticks.looked))

    assert ticks.looked == ["a/1"]


async def test_what_is_gone_is_not_looked_at_again() -> None:
    ticks = Ticks(delay=None)
    loop = Loop(ticks, 1)
    loop.wake(key("gone"))
    loop.wake(key("forgotten"), 0.01)
    loop.forget(key("forgotten"))

    await run(loop, lambda: bool(ticks.looked) and not loop.keys())
    await asyncio.sleep(0.02)

    assert ticks.looked == ["a/gone"]


async def test_while_another_process_leads_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvmedic.loop.PARKED_SECONDS", 0.01)
    ticks, parked = Ticks(), [True]
    loop = Loop(ticks, 1, is_parked=lambda: parked[0])
    loop.wake(key("1"))
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0.05)
    before = list(ticks.looked)

    parked[0] = False
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert (before, ticks.looked) == ([], ["a/1"])


@pytest.mark.parametrize("is_open", [True, False], ids=["open run", "no run"])
async def test_a_look_without_a_run_is_not_late_and_one_of_a_run_is_not_early(is_open: bool) -> None:
    ticks = Ticks()
    loop = Loop(ticks, 1, is_urgent=lambda which: is_open)
    for number in range(20):
        loop.wake(key(str(number)))
    await run(loop, lambda: len(ticks.looked) == 20 and not loop.count_waiting() and not loop._tasks)

    delays = [entry.due - entry.looked_at for entry in loop._entries.values()]
    least, most = (60, 63) if is_open else (57, 60)
    assert least <= min(delays) < max(delays) <= most
    assert max(delays) - min(delays) > 0.5  # by chance less once in 10^12


async def test_the_age_of_the_oldest_look_counts_from_the_first_wake_up() -> None:
    loop, now = Loop(Ticks(), 1), asyncio.get_running_loop().time()
    loop.wake(key("1"), 60)

    assert loop.oldest_look_seconds(now + 90) == pytest.approx(90, abs=1)
    assert Loop(Ticks(), 1).oldest_look_seconds(now) == 0


@dataclass
class Costly:
    """Looks of which those in one namespace take CPU, by their own clock, and are woken again at once."""

    loop: Loop = field(init=False)
    cpu: float = 0.0
    looked: list[Key] = field(default_factory=list)
    seconds: float = 0.8

    async def __call__(self, which: Key) -> float | None:
        await asyncio.sleep(0)
        self.looked.append(which)
        if which.namespace == "poison":
            self.cpu += self.seconds
            self.loop.wake(which)
        return 60.0

    def count(self, namespace: str) -> int:
        return sum(each.namespace == namespace for each in self.looked)


def a_costly_loop(workers: int = 4, seconds: float = 0.8, urgent: str = "") -> Costly:
    ticks = Costly(seconds=seconds)
    ticks.loop = Loop(ticks, workers, lambda which: which.name == urgent, cpu_clock=lambda: ticks.cpu)
    return ticks


async def test_a_tenant_with_poison_waits_behind_everybody_else_and_rests() -> None:
    ticks = a_costly_loop()
    for number in range(50):
        ticks.loop.wake(key(f"p{number}", "poison"))
    for number in range(400):
        ticks.loop.wake(key(str(number), f"team-{number % 40}"))
    late = key("late", "other")

    def all_looked_at() -> bool:
        if len(ticks.looked) > 420:
            ticks.loop.wake(late)
        return late in ticks.looked and ticks.count("poison") >= 100

    await run(ticks.loop, all_looked_at)

    first = ticks.looked[:400]
    # As many were under way when the first one's price was known; each has one more look, and rests.
    assert sum(each.namespace == "poison" for each in first) <= 4
    assert ticks.count("poison") == 100
    assert max(index for index, each in enumerate(ticks.looked) if each.namespace == "team-0") < 410


async def test_dear_looks_of_a_namespace_come_one_after_another() -> None:
    """Others would wait for their texts to be read behind all those that are under way."""
    dear = {f"p{number}" for number in range(8)}
    under_way: set[str] = set()
    most, looked, cpu = 0, 0, 0.0

    async def look(which: Key) -> float | None:
        nonlocal most, looked, cpu
        under_way.add(which.name)
        # The first looks of all: nobody knows yet that they are dear.
        most = max(most, len(under_way & dear)) if looked >= len(dear) else 0
        cpu += 0.15 if which.name in dear else 0.0
        await asyncio.sleep(0.01)
        under_way.discard(which.name)
        looked += 1
        return 0.0 if looked < 24 else 60.0

    loop = Loop(look, 8, cpu_clock=lambda: cpu)
    for name in dear:
        loop.wake(key(name, "poison"))

    await run(loop, lambda: looked >= 24)

    assert most == 1


async def test_looks_as_cheap_as_usual_rest_for_nothing() -> None:
    ticks = a_costly_loop(seconds=0.2)
    ticks.loop.wake(key("p", "poison"))

    await run(ticks.loop, lambda: len(ticks.looked) >= 5)

    assert ticks.count("poison") >= 5


async def test_an_open_run_is_looked_at_whatever_it_costs() -> None:
    ticks = a_costly_loop(urgent="open")
    ticks.loop.wake(key("open", "poison"))

    await run(ticks.loop, lambda: len(ticks.looked) >= 5)

    assert ticks.count("poison") >= 5


@pytest.mark.parametrize(
    ("cpu", "rest"), [(0.0, 0.0), (ALLOWANCE_SECONDS, 0.0), (1.6, 60.0), (60.0, LONGEST_REST_SECONDS)]
)
def test_a_rest_is_a_hundred_times_what_looks_took_beyond_the_allowance(cpu: float, rest: float) -> None:
    assert rest_after(cpu) == pytest.approx(rest)


def test_what_a_namespace_took_is_forgotten() -> None:
    cpu_cost = RecentCpuCost()
    cpu_cost.add("a", 0.8, 0.0)
    cpu_cost.add("cheap", 0.04, 0.0)

    ranks = [cpu_cost.rank("a", at) for at in (0.0, HALF_LIFE_SECONDS, 4 * HALF_LIFE_SECONDS)]

    assert ranks == [4, 2, 0]
    assert cpu_cost.rank("cheap", 0.0) == cpu_cost.rank("unknown", 0.0) == 0
