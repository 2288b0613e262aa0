"""One at a time, across processes."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .progress import say


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
