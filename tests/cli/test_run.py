"""What `kvmedic run` sets up before the operator starts."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol

from kvmedic.cli.run import TLS_BYTES, limit_tls_buffers


async def _buffer_of_a_tls_connection() -> int:
    tls = SSLProtocol(asyncio.get_running_loop(), asyncio.Protocol(), ssl.create_default_context(), None)
    tls._app_transport.close()  # as it is told of when it is collected open
    return sum(len(held) for held in vars(tls).values() if isinstance(held, bytearray))


def test_a_tls_connection_reads_into_a_small_buffer(monkeypatch) -> None:
    monkeypatch.setattr(SSLProtocol, "max_size", 256 << 10)
    limit_tls_buffers()
    assert asyncio.run(_buffer_of_a_tls_connection()) == TLS_BYTES
