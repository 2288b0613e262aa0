"""Event loops of threads, which end with every connection cut.

A connection that is still open when its loop ends is found by the garbage collector at any later time, in
the middle of a test that has nothing to do with it. Cancelling what is under way is not enough: httpcore
1.0.9 lets go of a connection that was cancelled in its TLS handshake without closing it, and a server whose
clients go on has taken more of them by then.
"""

import asyncio
from collections.abc import Coroutine

TURNS = 5
"""Turns of the loop that an aborted connection needs to be gone, TLS included, with some to spare."""


def run_and_cut(main: Coroutine[object, object, None]) -> None:
    """Run as `asyncio.run` does; in the end all other tasks are cancelled, and what is open is cut."""
    with asyncio.Runner() as runner:
        try:
            runner.run(main)
        finally:
            runner.run(_cut())


async def _cut() -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await loop.shutdown_asyncgens()
    # asyncio tells nobody what is open: this is its own list (3.4 to 3.14).
    for transport in list(loop._transports.values()):  # type: ignore[attr-defined]
        transport.abort()
    for _ in range(TURNS):
        await asyncio.sleep(0)
