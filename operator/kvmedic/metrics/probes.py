"""Tests on trial pods, beside the ticks: each is a task of this process, and a tick only asks how far it is.

Nothing of a test outlives the process; who comes next begins it anew. What the engine or a library says of
a failure is never repeated, because it may hold the key that was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import httpx

from kvmedic.engines import Vocabulary
from kvmedic.engines.engine_log import MODELS_OWN, Start, Started, StartForms
from kvmedic.manifests.flags import may_chunk
from kvmedic.manifests.trial_pod import api_key_of
from kvmedic.metrics.generation import (
    Course,
    Engine,
    MemoryPace,
    Rhythm,
    Sent,
    compute,
    generate,
    lengths_up_to,
    limit_of,
)
from kvmedic.metrics.page import METRICS
from kvmedic.metrics.scrape import PodAddress, Scraper, load_authorities, model_of, read_served, resolver_of
from kvmedic.metrics.scrape import pool_of_page as pool_of
from kvmedic.metrics.series import PodKey
from kvmedic.model.devices import Device
from kvmedic.model.evidence import Absence, Measured, Missing, Pool, Reading
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import TrialStep
from kvmedic.model.trial import Begun, Interrupted, Progress, Prompted, Question, Served, Shown, Underway
from kvmedic.runbooks.compression.probes import LEAST_LONGEST
from kvmedic.settings import ProbeOptions, ScrapeOptions

AT_ONCE = 8
"""Tests that go on side by side, at most: twice the runs that the operator opens by default. A choice; each
is one stream of events and one page a second."""
KEPT = 64
"""Tests of which anything is remembered, at most; of more the oldest that came to an end is forgotten, and
would be begun anew."""


_Ended: TypeAlias = Shown | Interrupted


class _CannotBeginError(Exception):
    """A test cannot be begun; the message says why in our words. `_in_turn` and `read_served` catch it."""


Devices: TypeAlias = Callable[
    [str, Sequence[Pod], str, timedelta], Awaitable[Mapping[str, Reading[tuple[Device, ...]]]]
]
"""Returns the devices under replicas by pod name, by source, pods, namespace and a window that ends now."""
Starts: TypeAlias = Callable[[str, Sequence[Pod], str, StartForms], Awaitable[Mapping[str, Start]]]
"""Returns what replicas' present logs say of their start by pod name, by namespace, pods and container."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What reports about a trial pod where its own API does not."""

    devices: Devices
    starts: Starts


@dataclass(frozen=True, slots=True)
class Tempo:
    """How often is looked, how long is waited, and how much goes on at once."""

    rhythm: Rhythm = field(default_factory=Rhythm)
    memory: MemoryPace = field(default_factory=MemoryPace)
    at_once: int = AT_ONCE


def _where(namespace: str, pod: Pod) -> PodAddress:
    return PodAddress(PodKey(namespace, pod.name), pod.address, port=pod.port)


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a test is made on."""

    namespace: str
    pod: Pod
    template: Mapping[str, object] = field(repr=False)
    step: TrialStep

    @property
    def where(self) -> PodAddress:
        return _where(self.namespace, self.pod)

    @property
    def tokens(self) -> int:
        """Return how many there are until the test's end, as far as is known before it."""
        longest = self.step.tokens
        return sum(lengths_up_to(longest)) if self.step.question is Question.PROMPTS else longest


@dataclass(frozen=True, slots=True)
class _Test:
    """One test."""

    task: asyncio.Task[_Ended]
    course: Course
    tokens: int

    @property
    def progress(self) -> Progress:
        if not self.task.done():
            return Underway(self.course.tokens, self.tokens)
        if self.task.cancelled():
            return Interrupted("the operator ends")
        error = self.task.exception()
        # Its text may hold what was sent, and the engine's answer.
        return self.task.result() if error is None else Interrupted(f"{type(error).__name__} in the operator")


class GenerationProbes:
    """Long generations, prompts of rising length, and mere starts, on trial pods."""

    def __init__(
        self,
        scrape: ScrapeOptions,
        options: ProbeOptions,
        vocabulary: Vocabulary,
        beside: Beside,
        tempo: Tempo = Tempo(),
    ) -> None:
        self._key, self._vocabulary, self._tempo = options.api_key, vocabulary, tempo
        self._beside = beside
        self._resolve = resolver_of(scrape)
        self._scraper = Scraper(scrape, vocabulary.signals, self._resolve)
        self._http = httpx.AsyncClient(
            verify=load_authorities(),
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._turns = asyncio.Semaphore(tempo.at_once)
        self._tests: dict[str, _Test] = {}
        self._tasks: set[asyncio.Task[_Ended]] = set()
        """Every task that did not come to its end yet, also those that are forgotten."""

    def progress(self, pod: Pod) -> Progress | None:
        """Return how far the test on a pod is; None: this process began none."""
        test = self._tests.get(pod.uid)
        return None if test is None else test.progress

    def begin(self, namespace: str, pod: Pod, template: Mapping[str, object], step: TrialStep) -> None:
        """Begin what a step asks of a pod, whose template this is; nothing where that was begun.

        Where as many go on as may, it waits for its turn, and is underway without a token.
        """
        if pod.uid in self._tests:
            return
        subject, course = _Subject(namespace, pod, template, step), Course()
        task = asyncio.create_task(self._in_turn(subject, course), name=f"probe {namespace}/{pod.name}")
        self._tasks.add(task)
        task.add_done_callback(self._drop_task)
        ended = [uid for uid, test in self._tests.items() if test.task.done()]
        for uid in ended[: max(0, len(self._tests) - KEPT + 1)]:
            del self._tests[uid]
        self._tests[pod.uid] = _Test(task, course, subject.tokens)

    def forget(self, pod: Pod) -> None:
        """End the test on a pod and forget what it came to."""
        test = self._tests.pop(pod.uid, None)
        if test is not None:
            test.task.cancel()

    def forget_all(self) -> None:
        """End every test and forget it: another process may lead, and begins them anew."""
        for test in self._tests.values():
            test.task.cancel()
        self._tests.clear()

    async def read_served(self, namespace: str, pod: Pod) -> Served | str:
        """Return what a pod's engine says of itself and of its work so far, or why it cannot be read."""
        where = _where(namespace, pod)
        metrics = self._resolve(where)
        if metrics is None:
            return "the pod has no address"
        page = await self._scraper.page(where)
        if isinstance(page, Missing):
            return "the engine's metrics cannot be read"
        try:
            return read_served(page, self._vocabulary.signals, api_of(metrics))
        except _CannotBeginError as error:
            return str(error)

    async def close(self) -> None:
        """End all that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()
        await self._scraper.close()

    def _drop_task(self, task: asyncio.Task[_Ended]) -> None:
        """Let go of a task; an exception that nobody fetches would be logged with all that it says."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _in_turn(self, subject: _Subject, course: Course) -> _Ended:
        async with self._turns:
            try:
                if subject.step.question is Question.START:
                    pool, start = await self._pool(subject), await self._start(subject)
                    is_open = pool.cache_dtype == MODELS_OWN and bool(start.cache_type)
                    cache_type = start.cache_type if is_open else pool.cache_dtype
                    return Begun(pool.blocks, cache_type, start.backends, pool.block_tokens)
                engine = self._engine(subject)
                model = await self._model(engine)
                if subject.step.question is Question.PROMPTS:
                    sent = await self._choose_prompts(engine, subject, model)
                    # Before the prompts: one may be the engine's end, and its log begins anew then.
                    start = await self._start(subject)
                    found = await compute(engine, sent, course)
                    return replace(found, backends=start.backends) if isinstance(found, Prompted) else found
            except _CannotBeginError as error:
                return Interrupted(str(error))
            return await generate(engine, model, subject.step.tokens, course, self._tempo.rhythm)

    async def _pool(self, subject: _Subject) -> Pool:
        """Return the pool of an engine by its own page, which is asked for again while it reports none."""
        rhythm = self._tempo.rhythm
        try:
            async with asyncio.timeout(rhythm.silence_seconds):
                while True:
                    page = await self._scraper.page(subject.where)
                    found = None if isinstance(page, Missing) else pool_of(page, self._vocabulary.signals)
                    if isinstance(found, Measured):
                        return found.value
                    await asyncio.sleep(rhythm.interval_seconds)
        except TimeoutError:
            raise _CannotBeginError("the engine's metrics do not report its blocks") from None

    async def _start(self, subject: _Subject) -> Started:
        """Return what the log of a trial pod says about its start; nothing where it cannot be read."""
        step, pod = subject.step, subject.pod
        found = await self._beside.starts(subject.namespace, [pod], step.container, self._vocabulary.start)
        start = found.get(pod.name)
        return start if isinstance(start, Started) else Started()

    async def _choose_prompts(self, engine: Engine, subject: _Subject, model: str) -> Sent:
        """Return the prompts that are sent to an engine."""
        step, pod = subject.step, subject.pod
        limit = await limit_of(engine)
        longest = step.tokens if limit is None else min(step.tokens, limit - 1)
        if longest < LEAST_LONGEST:
            raise _CannotBeginError(f"the engine takes no prompt of {LEAST_LONGEST} tokens")

        async def read_devices(window: timedelta) -> Reading[tuple[Device, ...]]:
            found = await self._beside.devices(step.source, [pod], subject.namespace, window)
            return found.get(pod.name, Missing(Absence.NO_SERIES))

        return Sent(
            model,
            lengths_up_to(longest),
            may_chunk(subject.template, step.container, self._vocabulary.profile),
            read_devices,
            self._tempo.rhythm.silence_seconds,
            self._tempo.memory,
        )

    def _engine(self, subject: _Subject) -> Engine:
        """Return an engine as it is spoken to."""
        metrics = self._resolve(subject.where)
        if metrics is None:
            raise _CannotBeginError("the pod has no address")
        key = api_key_of(subject.template, self._vocabulary.profile)
        if not key and self._key is not None:
            try:
                key = self._key.read()
            except (OSError, UnicodeError):
                raise _CannotBeginError("the file of probe.apiKey cannot be read: mount it again") from None
        if not (key.isascii() and key.isprintable()):
            # A library's exception would show it.
            raise _CannotBeginError("the API key has characters that cannot be sent: use printable ASCII")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        pages = partial(self._scraper.page, subject.where)
        return Engine(self._http, api_of(metrics), headers, self._vocabulary.signals, pages)

    async def _model(self, engine: Engine) -> str:
        """Return the name under which an engine serves, by its own word."""
        page = await engine.pages()
        if isinstance(page, Missing):
            raise _CannotBeginError("the engine's metrics cannot be read")
        name = model_of(page, self._vocabulary.signals)
        if name is None:
            raise _CannotBeginError("the engine's metrics do not report its model")
        return name


def api_of(metrics_url: str) -> str:
    """Return the URL of an engine's API beside that of its metrics: the same host and port.

    What a proxy has before `/metrics` stays; any other path is the metrics' own.

    Raises:
        _CannotBeginError: it is no URL.
    """
    try:
        parts = urlsplit(metrics_url)
    except ValueError:
        raise _CannotBeginError("the pod's address is no URL") from None
    path = parts.path.rstrip("/")
    prefix = path.removesuffix(METRICS) if path.endswith(METRICS) else ""
    return urlunsplit((parts.scheme, parts.netloc, prefix, "", ""))
