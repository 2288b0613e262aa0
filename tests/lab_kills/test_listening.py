"""A server of the tests ends without a trace, also while somebody connects."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

from aiohttp import web

from lab.scripted.listening import listening


async def test_a_connection_that_is_accepted_as_the_server_closes_is_closed_too() -> None:
    runner = web.ServerRunner(web.Server(lambda _: web.Response()), shutdown_timeout=0.1)

    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        async with listening(runner) as port:
            client = socket.create_connection(("127.0.0.1", port))
            for _ in range(2):  # the loop accepts it in the first turn, and makes its transport in the third
                await asyncio.sleep(0)
        client.close()
        gc.collect()

    assert [str(each.message) for each in left_open] == []
