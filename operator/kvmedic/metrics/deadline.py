"""A limit on one HTTP exchange as a whole, for `requests`, whose time-outs begin anew with every byte.

An end that sends a byte now and then would hold the thread that reads for as long as it likes. So each read
of a socket gets what is left of the exchange's time: for the line of status, headers and body alike.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection


class _Exchange(threading.local):
    """The exchange of this thread: when it must have ended, by the monotonic clock."""

    ends = inf


_EXCHANGE = _Exchange()


@contextmanager
def ended_within(seconds: float) -> Iterator[None]:
    """Let what this thread exchanges meanwhile end in time, all of it together."""
    _EXCHANGE.ends = time.monotonic() + seconds
    try:
        yield
    finally:
        _EXCHANGE.ends = inf


class _TimedReader(io.RawIOBase):
    """Reads a socket until the thread's exchange must have ended."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        # A file of the socket keeps it open for as long as an answer is read.
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read once.

        Raises:
            TimeoutError: the time of the exchange is over.
        """
        left = _EXCHANGE.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the exchange takes too long")
        self._sock.settimeout(None if left == inf else left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Let go of the socket."""
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """An answer that is read in time."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedReader(sock))


class _Connection(HTTPConnection):
    response_class = _TimedResponse


class _SecureConnection(HTTPSConnection):
    response_class = _TimedResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class TimedAdapter(HTTPAdapter):
    """Connections whose exchanges end in time, directly and through a proxy."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Prepare connections."""
        super().init_poolmanager(*args, **kwargs)
        _time(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Return the connections through a proxy."""
        return _time(super().proxy_manager_for(*args, **kwargs))


def _time(manager: PoolManager) -> PoolManager:
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager
