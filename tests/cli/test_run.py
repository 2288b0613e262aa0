"""What `kvmedic run` sets up before the operator starts."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from asyncio.sslproto import SSLProtocol
from pathlib import Path

import pytest

from kvmedic.cli.run import TLS_BYTES, limit_tls_buffers


async def _buffer_of_a_tls_connection() -> int:
    tls = SSLProtocol(asyncio.get_running_loop(), asyncio.Protocol(), ssl.create_default_context(), None)
    tls._app_transport.close()  # as it warns when it is collected open
    return sum(len(held) for held in vars(tls).values() if isinstance(held, bytearray))


def test_a_tls_connection_reads_into_a_small_buffer(monkeypatch) -> None:
    monkeypatch.setattr(SSLProtocol, "max_size", 256 << 10)
    limit_tls_buffers()
    assert asyncio.run(_buffer_of_a_tls_connection()) == TLS_BYTES


LEFT_AFTER_LARGE_BUFFERS = """
import sys
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "limited":
    from kvmedic.cli.run import return_freed_memory
    return_freed_memory()
for size in (8 << 20, 16 << 20):
    bytearray(size)  # what glibc raises its thresholds by
large, kept, before = [], [], resident()
for _ in range(64):
    large.append(bytearray(1 << 20))
    kept.append(bytearray(60_000))
large.clear()
print(resident() - before)
"""


@pytest.mark.parametrize(
    ("how", "holds"), [("limited", range(8 << 20)), ("as it is", range(32 << 20, 1 << 30))]
)
def test_large_buffers_that_are_freed_are_no_longer_held(how: str, holds: range) -> None:
    argv = [sys.executable, "-c", LEFT_AFTER_LARGE_BUFFERS, how]
    assert int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout) in holds


LEFT_BETWEEN_WHAT_IS_KEPT = """
import asyncio
from contextlib import suppress
from pathlib import Path
from kvmedic.cli import run

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def trim():
    run.TRIM_SECONDS = 0.01
    with suppress(TimeoutError):
        await asyncio.wait_for(run.trim_memory(), 0.2)

kept = [b"x" * (60_000 + number % 7) for number in range(1000)][::2]
before = resident()
asyncio.run(trim())
print(before - resident())
"""


def test_what_is_free_between_what_is_kept_is_given_back() -> None:
    argv = [sys.executable, "-c", LEFT_BETWEEN_WHAT_IS_KEPT]
    given_back = int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert given_back > 20 << 20  # of 30 MB, but for the pages that both share


IMPORTED = "import gc; from kvmedic.cli.run import spare_what_was_imported as spare; spare(); "


def test_no_look_for_garbage_goes_through_what_was_imported() -> None:
    argv = [sys.executable, "-c", f"{IMPORTED}print(gc.get_freeze_count(), len(gc.get_objects()))"]
    counts = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    spared, left = map(int, counts.split())
    assert spared > 100 * left


def test_what_an_operator_does_not_need_of_its_libraries_is_not_loaded(tmp_path: Path) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "kvmedic", "run", "--yes"]
    env = {**os.environ, "KVMEDIC_CONFIG": str(tmp_path / "none.yaml")}
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert ended.returncode == 2, ended.stderr[-400:]
    assert {"httpx", "kopf", "kubernetes"} <= loaded
    assert not {"rich", "pygments", "click"} & loaded
