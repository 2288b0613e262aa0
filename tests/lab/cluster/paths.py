"""What the lab keeps on a machine: what it builds and runs, all under `build/`; locks, folders, ports."""

import fcntl
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.cluster.progress import say

ROOT = Path(__file__).resolve().parents[3]
LAB_SOURCES = ROOT / "tests" / "lab"
BUILD = ROOT / "build" / "lab"
BIN = BUILD / "bin"
IMAGES = BUILD / "images"
KUBECONFIG = BUILD / "kubeconfig"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which is made if needed; a process that dies lets go.

    Not reentrant: a holder that takes it again waits for itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command of the lab, which holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_scratch(parent: Path) -> Path:
    """A new directory under `parent` for this process; removes those of processes that are gone."""
    parent.mkdir(parents=True, exist_ok=True)
    sweep_scratch(parent)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))


def sweep_scratch(parent: Path) -> None:
    """Remove the directories of processes that are gone."""
    for leftover in parent.glob("*-*"):
        owner = leftover.name.split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(leftover, ignore_errors=True)


# Below Linux' ephemeral range (32768-60999): no outgoing connection takes one between the look and the use.
FIRST, LAST = 20000, 32000
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that nobody listens on at this moment."""
    found: list[int] = []
    while len(found) < count:
        port = _random.randrange(FIRST, LAST)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
