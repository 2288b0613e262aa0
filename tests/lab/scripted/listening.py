"""Servers on a port of loopback that leave nothing open."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import create_server

from aiohttp import web


@asynccontextmanager
async def listening(runner: web.BaseRunner, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve on a port of loopback that is free, which is yielded.

    In the end nothing more is accepted before what was accepted has its transport: that of a server which is
    closed meanwhile is never closed itself (asyncio, Python 3.11), and fails whichever test is next.
    """
    await runner.setup()
    taken = create_server(("127.0.0.1", 0))
    site = web.SockSite(runner, taken, ssl_context=context)
    await site.start()
    try:
        yield int(taken.getsockname()[1])
    finally:
        asyncio.get_running_loop().remove_reader(taken)
        await asyncio.sleep(0)
        await runner.cleanup()
