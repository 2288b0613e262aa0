"""Opening one run at a time: who gets the last place, and when the administrator is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from kvmedic.controller.blockers import Bounds, RunLimits
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Key
from kvmedic.rollout.gates.one_resource_per_target import Roster
from kvmedic.rollout.gates.runs_at_once import BadEnd, Budgets, Peer
from kvmedic.rollout.gates.storm_breaker import Breaker
from run_builder import NOW

MINUTE = timedelta(minutes=1)
BOUNDS = Bounds(
    Budgets(runs=1, runs_per_namespace=1, fleet_share=1.0),
    Breaker(runs=2, window=60 * MINUTE, lasts=60 * MINUTE),
    over="kubectl create it",
    reread=MINUTE,
)


@dataclass
class Stored:
    """Resources as the API server has them, and the administrator's word."""

    peers: dict[str, Peer] = field(default_factory=dict)
    over_at: datetime | None = None
    lists: int = 0
    asked: int = 0

    async def census(self) -> Sequence[Peer]:
        self.lists += 1
        await asyncio.sleep(0)
        return tuple(self.peers.values())

    async def storm_over_at(self) -> datetime | None:
        self.asked += 1
        return self.over_at


def peer(uid: str, bad: int = 0) -> Peer:
    ends = (BadEnd("a", uid, Reason.NOT_RECOVERED, NOW - 5 * MINUTE),) * bad
    return Peer("a", uid, uid, uid, bad_ends=ends)


def some_limits(*peers: Peer) -> tuple[RunLimits, Stored, Roster]:
    """Return limits whose watch has reported what is stored."""
    stored, roster = Stored({each.uid: each for each in peers}), Roster()
    for each in peers:
        roster.note(Key(each.namespace, each.name, each.uid), each)
    return RunLimits(BOUNDS, roster, stored.census, stored.storm_over_at), stored, roster


async def test_of_many_that_want_the_last_place_at_once_one_gets_it() -> None:
    limits, stored, _ = some_limits(*(peer(str(i)) for i in range(8)))

    async def wants(uid: str) -> bool:
        async with limits.reserve(uid, NOW) as blocked:
            await asyncio.sleep(0)
            if blocked is None:
                stored.peers[uid] = replace(stored.peers[uid], opened_at=NOW)
        return blocked is None

    won = await asyncio.gather(*(wants(str(i)) for i in range(8)))

    assert sum(won) == 1


async def test_what_is_stored_counts_where_the_watch_lags() -> None:
    limits, stored, _ = some_limits(peer("1"), peer("2"))
    stored.peers["1"] = replace(stored.peers["1"], opened_at=NOW)

    hinted = await limits.hint("2", NOW)
    async with limits.reserve("2", NOW) as blocked:
        pass

    assert hinted is None
    assert blocked is not None


async def test_where_the_watch_reports_that_there_is_no_place_nothing_is_listed() -> None:
    limits, stored, roster = some_limits(peer("1"), peer("2"))
    roster.note(Key("a", "1", "1"), replace(peer("1"), opened_at=NOW))

    hinted = await limits.hint("2", NOW)
    async with limits.reserve("2", NOW) as blocked:
        pass

    assert hinted is not None
    assert blocked == hinted
    assert stored.lists == 0


async def test_of_two_that_were_opened_within_one_breath_the_older_is_confirmed() -> None:
    limits, stored, _ = some_limits(
        replace(peer("1"), opened_at=NOW), replace(peer("2"), opened_at=NOW - MINUTE)
    )

    assert await limits.recheck_limits("2", NOW) is None
    assert await limits.recheck_limits("1", NOW) is not None
    assert stored.lists == 2


async def test_nobody_is_asked_while_there_is_no_storm() -> None:
    limits, stored, _ = some_limits(peer("1", bad=1), peer("2"))

    await limits.refresh(NOW)

    assert await limits.hint("2", NOW) is None
    assert stored.asked == 0
    assert not limits.has_tripped(NOW)


async def test_a_storm_ends_by_the_administrators_word_which_is_read_now_and_then() -> None:
    limits, stored, _ = some_limits(peer("1", bad=2), peer("2"))

    blocked = await limits.hint("2", NOW)
    stored.over_at = NOW
    still = await limits.hint("2", NOW + 0.9 * MINUTE)
    over = await limits.hint("2", NOW + MINUTE)

    assert blocked.reason is Reason.STORM_BREAKER_TRIPPED
    assert blocked.message.endswith("kubectl create it")
    assert still == blocked
    assert over is None
    assert stored.asked == 2
    assert not limits.has_tripped(NOW + MINUTE)


async def test_the_metrics_follow_the_administrators_word_also_where_nobody_wants_a_run() -> None:
    limits, stored, _ = some_limits(peer("1", bad=2))

    for seconds in range(0, 60, 10):
        await limits.refresh(NOW + timedelta(seconds=seconds))
    before = limits.has_tripped(NOW)
    stored.over_at = NOW
    await limits.refresh(NOW + MINUTE)

    assert before
    assert not limits.has_tripped(NOW + MINUTE)
    assert stored.asked == 2


async def test_a_storm_ends_by_itself() -> None:
    limits, _, _ = some_limits(peer("1", bad=2), peer("2"))

    assert limits.has_tripped(NOW)
    assert await limits.hint("2", NOW + 54 * MINUTE) is not None
    assert await limits.hint("2", NOW + 55 * MINUTE) is None
    assert not limits.has_tripped(NOW + 55 * MINUTE)
