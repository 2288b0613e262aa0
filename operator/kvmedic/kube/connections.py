"""Connections that are all gone once their pool is closed, whatever was under way on them."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

import aiohttp

TURNS = 3
"""Turns of the event loop that an aborted TLS connection needs to be gone: one to tell the connection,
one to tell what is over TLS, one to close the socket (asyncio of Python 3.11 to 3.14)."""


class Connections(aiohttp.TCPConnector):
    """A pool that leaves no socket open behind it.

    aiohttp 3.14 hands a TLS connection whose request was cancelled to asyncio for a graceful end, which
    waits up to 30 s for the peer and which closing the pool does not wait for.
    """

    def __init__(self, **options: Any) -> None:
        """Prepare; takes what `aiohttp.TCPConnector` takes."""
        super().__init__(**options)
        self._opened: WeakSet[asyncio.Transport] = WeakSet()

    async def _create_connection(self, *arguments: Any) -> Any:
        """Open a connection and remember it: what every connector of aiohttp has to provide."""
        protocol = await super()._create_connection(*arguments)
        if protocol.transport is not None:
            self._opened.add(protocol.transport)
        return protocol

    async def close_all(self) -> None:
        """Close the pool and cut what is still open; a request under way fails."""
        await self.close()
        for transport in list(self._opened):
            transport.abort()
        for _ in range(TURNS):
            await asyncio.sleep(0)
