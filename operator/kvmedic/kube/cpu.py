"""What tenants write is read in threads, and the CPU that a look takes is counted wherever it is taken.

Anyone who writes a Deployment, a page or a log writes text that is read here: the loop goes on meanwhile, and
the look pays for it. Each reader bounds its own text.

What is so short that it is read on the loop, with what the worst text of the largest size that was found cost
there (ms of one core; tests/test_tenant_text.py has such texts):

* an answer of `nvidia-smi`, of 64 lines and 64 KiB at most (`MOST_LINES`, `LIMIT_BYTES`): 3;
* an engine's `/version`, 4 KiB (`LIMIT_BYTES` of metrics/page.py): 0.4;
* events of a probe that come together, 4 KiB (`READ_AT_ONCE_BYTES`; more go to a thread): 1;
* an engine's `/v1/models`, 64 KiB (`MOST_EVENT_BYTES`): 3;
* a Job's termination message, 12 KiB (`MESSAGE_LENGTH`): 0.6;
* a note in an annotation, 64 Ki characters (`NOTE_LENGTH`): 3.

Answers of Prometheus are read in the threads of their source.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

_Args = TypeVarTuple("_Args")
_T = TypeVar("_T")

_READERS = ThreadPoolExecutor(2, thread_name_prefix="readers")
"""Python reads one text at a time whatever the threads: a second one lets a short text by a long one."""


@dataclass(slots=True)
class Metered:
    """A look, with the CPU that it takes: all parsing, judging and planning of a tenant's objects."""

    look: Awaitable[float | None]
    cpu_clock: Callable[[], float]
    """Of the loop's thread."""
    seconds: float = 0.0

    def __await__(self) -> Generator[Any, None, float | None]:
        """Go through the look step by step; what others do between its steps is not counted."""
        _PAYS.set(self)
        steps = self.look.__await__()
        go_on: Callable[[], Any] = partial(next, steps)
        while True:
            began = self.cpu_clock()
            try:
                waits_for = go_on()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.seconds += self.cpu_clock() - began
            try:
                yield waits_for
                go_on = partial(next, steps)
            except BaseException as error:  # noqa: BLE001 - a cancellation is the look's
                go_on = partial(steps.throw, error)


_PAYS: ContextVar[Metered | None] = ContextVar("_PAYS", default=None)
"""The look under way; the tasks that it begins have it too."""


async def in_thread(read: Callable[[*_Args], _T], *args: *_Args, pool: Executor = _READERS) -> _T:
    """Return what a function makes of a tenant's text, read in a thread; the look pays for its CPU.

    Args:
        read: bounds the text itself.
        pool: threads of its own, for texts that may be many at once.
    """
    took = 0.0

    def time_read() -> _T:
        nonlocal took
        began = time.thread_time()
        try:
            return read(*args)
        finally:
            took = time.thread_time() - began

    try:
        return await asyncio.get_running_loop().run_in_executor(pool, time_read)
    finally:
        if (payer := _PAYS.get()) is not None:
            payer.seconds += took
