"""Every reader of a text that tenants write or serve: each gives a value or its refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeAlias

import httpx

from kvmedic.cluster.containers.exit_causes import CHATTER, bears_device_memory, dated_lines
from kvmedic.cluster.ownership import RECORDED, RUN, Note, note_in
from kvmedic.controller.orphans import FrozenFleet, frozen_fleet
from kvmedic.doctor.documents import DocumentsError, as_served, documents_in, reject_malformed
from kvmedic.engines import ENGINES, VOCABULARIES
from kvmedic.engines.engine_log import Started, parse_start
from kvmedic.kube.objects import WORKLOADS, note_on, pod_template
from kvmedic.manifests.documents import containers_of
from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.flags import may_chunk
from kvmedic.manifests.size_limits import Budget
from kvmedic.manifests.trial_pod import api_key_of, without_remote_cache
from kvmedic.manifests.variables import Environment, environment_of
from kvmedic.metrics.generation import Course, Engine, Rhythm, generate, limit_of
from kvmedic.metrics.page import Page, names_of, parse_page, version_on
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.series import Answer, Unanswered
from kvmedic.model import edits
from kvmedic.model.devices import Device, NvidiaSmiError, Vitals, fill_vitals, parse_devices
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Blocked, LoggedSize, Measured, Missing, logged_size
from kvmedic.model.fleet import ObjectRef, body_hash, own_template, template_hash
from kvmedic.model.run import devices_of, whole_devices_of
from kvmedic.model.trial import Interrupted, Score, Watched
from kvmedic.rollout.trial import refusal_in
from kvmedic.runbooks.compression.accuracy import NotPassed, compare_scores, parse_score
from kvmedic.runbooks.workload import Workload, workload_of
from kvmedic.settings import SourceOptions
from worlds.http_double import Reply, Request, Server

Reader: TypeAlias = Callable[[bytes], object]
"""Reads what came over the wire, or lies in a file; an AssertionError: it gave what it should not."""

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TARGET = ObjectRef("Deployment", "llm")
VOCABULARY = VOCABULARIES[0]
MOMENTS = tuple(NOW + timedelta(seconds=10 * at) for at in range(3))
EXIT_CODES = (0, 2, 6, 15, 255)


def read_engine_log(raw: bytes) -> None:
    """Read a log as the kubelet hands it on, also where its lines have no time."""
    text = raw.decode(errors="replace")
    dated = tuple(words for _, words in dated_lines(text))
    for log in (dated, tuple(line[:4000] for line in text.split("\n"))):
        assert isinstance(bears_device_memory(log), bool)
        started = parse_start(log, VOCABULARY.start)
        assert isinstance(started, Started)
        size = logged_size(log, VOCABULARY.start.pool)
        assert size is None or (isinstance(size, LoggedSize) and float(size.amount) >= 0)
        said = refusal_in((line for line in log if not CHATTER.search(line)), VOCABULARY.refusals)
        kept = (*started.methods, *started.backends, started.cache_type, said)
        assert all(len(each) < 200 for each in kept), "more than a phrase is kept of a log"


def read_driver_answer(raw: bytes) -> None:
    """Read what a command printed in a container, by several exit codes."""
    text = raw.decode(errors="replace")
    for code in EXIT_CODES:
        answer = parse_devices(code, text, NOW)
        if isinstance(answer, NvidiaSmiError):
            continue
        assert isinstance(answer, Measured)
        assert all(isinstance(each, Device) for each in answer.value)
        fill_vitals(Vitals(devices=answer), answer, 8).list_unknown()


def read_version(raw: bytes) -> None:
    """Read an engine's version as its own API reports it."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return
    found = version_on(text, VOCABULARY.signals.version, NOW)
    assert isinstance(found, Missing) or isinstance(found.value, Version)  # type: ignore[union-attr]


def read_page(raw: bytes) -> None:
    """Read an engine's metrics."""
    try:
        assert isinstance(parse_page(raw.decode(), NOW, names_of(VOCABULARY.signals)), Page)
    except ValueError:
        return


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, raw: bytes, size: int) -> None:
        self._pieces = [raw[at : at + size] for at in range(0, len(raw), size)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def read_probe_answer(raw: bytes) -> None:
    """Read an answer of a probed engine: as the events of a generation, and as its list of models."""

    async def nothing() -> Page:
        return parse_page("", NOW)

    async def ask(size: int) -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=_Pieces(raw, size)))
        async with httpx.AsyncClient(transport=transport) as http:
            engine = Engine(http, "http://pod", {}, VOCABULARY.signals, nothing)
            course = Course()
            seen = await generate(engine, "m", 10, course, Rhythm(silence_seconds=20))
            assert isinstance(seen, Watched | Interrupted)
            assert 0 <= course.tokens <= 10
            limit = await limit_of(engine)
            assert limit is None or limit > 0

    for size in (max(1, len(raw)), max(1, len(raw) // 7)):
        asyncio.run(ask(size))


def read_job_message(raw: bytes) -> None:
    """Read what an evaluation left."""
    found = parse_score(raw.decode(errors="replace"))
    assert isinstance(found, Score | NotPassed)
    if isinstance(found, Score):
        compare_scores(found, found, 0.01)


def read_note(raw: bytes) -> None:
    """Read an annotation as each of our notes."""
    text = raw.decode(errors="replace")
    marks = {RECORDED: text, RUN: f"uid/1/{text[:20]}"}
    template = {"spec": {"containers": [{"name": "vllm", "command": ["vllm"], "args": ["--a=1"]}]}}
    body = {"metadata": {"name": "llm", "uid": "u", "annotations": marks}, "spec": {"template": template}}
    assert isinstance(note_on(body, RECORDED), dict)
    note = note_in(text)
    assert note is None or isinstance(note, Note)
    if note is not None:
        assert isinstance(note.is_undone(template), bool)
        assert isinstance(note.fields.is_frozen, bool)
    found = frozen_fleet(TARGET, body)
    assert found is None or isinstance(found, FrozenFleet)


def read_manifest(raw: bytes) -> None:
    """Read a manifest's text, and all pod templates that an API server would take of it."""
    text = raw.decode(errors="replace")
    found = containers_of(text)
    assert isinstance(found, ManifestError | tuple)
    try:
        with reject_malformed():
            bodies = as_served(documents_in(text), "serving").bodies
    except DocumentsError:
        return
    for body in bodies:
        if body.get("kind") in WORKLOADS:
            read_template(pod_template(body))


def read_template(template: Mapping[str, Any]) -> None:
    """Read a pod template in every way that one is read."""
    assert isinstance(template_hash(own_template(template)), edits.Digest)
    assert isinstance(body_hash(template), edits.Digest)
    devices_of(template)
    workload = workload_of(TARGET, "u", template, None, ENGINES)
    assert isinstance(workload, Workload | Blocked)
    if isinstance(workload, Workload):
        workload.knobs(), workload.longest_request(), workload.fixes_the_pool(), workload.unknown_knobs()
    assert isinstance(api_key_of(template, VOCABULARY.profile), str)
    for container in edits.containers_of(template):
        whole_devices_of(container)
        assert isinstance(environment_of(container, Budget()), ManifestError | Environment)
        name = str(container.get("name"))
        assert isinstance(may_chunk(template, name, VOCABULARY.profile), bool)
        assert isinstance(without_remote_cache(template, name, ENGINES), dict | Blocked)


class PrometheusAnswers:
    """A source that answers whatever it is given, and the client that asks it."""

    def __init__(self) -> None:
        self.url = ""
        self.body, self.status = b"", 200
        self._moments = count()

    def read(self, raw: bytes) -> None:
        """Read an answer to a query, to one of a range, and to one that was refused."""
        client = PrometheusClient(SourceOptions(url=self.url, timeout="5s"))  # type: ignore[arg-type]
        try:
            for self.status in (200, 422, 500):
                self.body = raw
                asyncio.run(self._ask(client, NOW + timedelta(seconds=next(self._moments))))
        finally:
            client.close()

    async def _ask(self, client: PrometheusClient, at: datetime) -> None:
        one = await client.query("up", at)
        assert isinstance(one, Answer | Unanswered), one
        for reply in await client.query_range(
            "up", [at + timedelta(seconds=10 * each) for each in (1, 2, 3)]
        ):
            assert isinstance(reply, Answer | Unanswered), reply

    def answer(self, _: Request) -> Reply:
        # A connection that stays open would have each answer wait for an acknowledgement, 40 ms on Linux.
        return Reply(self.status, self.body, {"Content-Type": "application/json", "Connection": "close"})


TEXT_READERS: Mapping[str, Reader] = {
    "engine-log": read_engine_log,
    "job-message": read_job_message,
    "manifest": read_manifest,
    "metrics-page": read_page,
    "note": read_note,
    "nvidia-smi": read_driver_answer,
    "probe-answer": read_probe_answer,
    "version": read_version,
}
PROMETHEUS = "prometheus-answer"
NAMES = (*TEXT_READERS, PROMETHEUS)


@contextmanager
def all_readers() -> Iterator[Mapping[str, Reader]]:
    """Yield every reader by its name; those that ask have somebody who answers."""
    answers = PrometheusAnswers()
    with Server(answers.answer) as server:
        answers.url = server.url
        yield {**TEXT_READERS, PROMETHEUS: answers.read}
