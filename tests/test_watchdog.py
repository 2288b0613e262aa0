"""The liveness probe: a loop that hangs is reported, a busy one is not."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from kvmedic.watchdog import BEAT_SECONDS, HUNG_SECONDS, Watchdog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("silent", "problem", "expected"),
    [
        (0.0, "", ""),
        (HUNG_SECONDS, "", ""),
        (HUNG_SECONDS + 1, "", "the event loop hangs"),
        (0.0, "nothing was looked at", "nothing was looked at"),
    ],
)
def test_only_a_loop_that_hangs_or_lost_its_work_is_started_anew(
    silent: float, problem: str, expected: str
) -> None:
    clock = Clock()
    watchdog = Watchdog(lambda: problem, clock)

    clock.now += silent

    assert watchdog.diagnose().startswith(expected)
    assert bool(watchdog.diagnose()) is bool(expected)


async def test_the_worst_lag_of_the_last_minute_is_reported_and_so_is_the_one_that_lasts() -> None:
    clock = Clock()
    watchdog = Watchdog(lambda: "", clock)
    assert watchdog.lag_seconds() == 0

    clock.now += BEAT_SECONDS + 7
    assert watchdog.lag_seconds() == 7

    beating = asyncio.create_task(watchdog.beat())
    await asyncio.sleep(0)
    assert watchdog.lag_seconds() == 0

    clock.now += BEAT_SECONDS + 3
    await asyncio.sleep(1.2 * BEAT_SECONDS)
    beating.cancel()
    assert watchdog.lag_seconds() == 3


async def ask(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(url)


async def test_the_thread_answers_while_the_loop_is_busy_and_says_when_it_hangs() -> None:
    clock = Clock()
    watchdog = Watchdog(lambda: "", clock, lambda: "another installation serves")
    server = watchdog.answer_at("http://127.0.0.1:0/healthz")
    url = f"http://127.0.0.1:{server.server_address[1]}/healthz"
    beating = asyncio.create_task(watchdog.beat())
    try:
        # A second thread asks while this loop is in nobody's hands.
        answer = asyncio.get_running_loop().run_in_executor(None, lambda: httpx.get(url, trust_env=False))
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is busy
        busy, unready = await answer, await ask(url.replace("/healthz", "/readyz"))
        beating.cancel()
        clock.now += HUNG_SECONDS + 1
        hung, elsewhere = await ask(url), await ask(f"{url}/x")
    finally:
        server.shutdown()
        server.server_close()

    assert (busy.status_code, busy.text) == (200, "working")
    assert (unready.status_code, unready.text) == (503, "another installation serves")
    assert (hung.status_code, elsewhere.status_code) == (503, 404)
    assert "no beat for 61 s" in hung.text
