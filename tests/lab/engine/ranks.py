"""Data-parallel ranks with a port each (`--data-parallel-multi-port-external-lb`): one process each.

As vLLM's supervisor does it (0.22.1 and newer): ports are consecutive from `--port`, health is that of all
ranks at the supervisor's own port, a rank that ends takes all others with it, termination is handed on.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from lab.engine import logs

SUPERVISOR_PORT = 9256
"""Where health is reported unless `--data-parallel-supervisor-port` says otherwise; a default of the lab."""
PATHS = ("/health", "/ready", "/readyz")
ANSWER_SECONDS = 5.0
BIGGEST_ANSWER = 1 << 12


def has_ranks(parsed: argparse.Namespace) -> bool:
    """Return whether a command line starts several engines; each of them is given its rank."""
    return bool(parsed.data_parallel_multi_port_external_lb) and parsed.data_parallel_rank is None


async def supervise(parsed: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run all ranks until they are asked to stop or one of them ends; return the exit code."""
    size = parsed.data_parallel_size_local or parsed.data_parallel_size or 1
    ports = range(parsed.port, parsed.port + size)
    command = (sys.executable, "-m", "lab.engine", *arguments)
    ranks = [
        await asyncio.create_subprocess_exec(*command, f"--port={port}", f"--data-parallel-rank={rank}")
        for rank, port in enumerate(ports)
    ]
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    health = await asyncio.start_server(
        lambda reader, writer: _answer_health(reader, writer, ports),
        parsed.host,
        parsed.data_parallel_supervisor_port or SUPERVISOR_PORT,
    )
    waiting = [asyncio.create_task(each.wait()) for each in ranks]
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait((stopping, *waiting), return_when=asyncio.FIRST_COMPLETED)
    has_ended = not stopped.is_set()
    if has_ended:
        logs.log("APIServer", "dp_supervisor.py", "a data-parallel rank ended, so all others are ended")
    for each in ranks:
        with suppress(ProcessLookupError):
            each.terminate()
    await asyncio.gather(*waiting)
    stopping.cancel()
    health.close()
    return 1 if has_ended else 0


async def _answer_health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ports: range) -> None:
    """Answer one request: 200 while every rank is well."""
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1].decode()
        well = path in PATHS and all(await asyncio.gather(*(_is_well(port) for port in ports)))
        status = "200 OK" if well else "503 Service Unavailable" if path in PATHS else "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
    writer.close()


async def _is_well(port: int) -> bool:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.read(BIGGEST_ANSWER)
            writer.close()
            return answer.startswith(b"HTTP/1.1 200")
    return False
