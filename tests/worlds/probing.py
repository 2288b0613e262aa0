"""Tests on trial pods against lab engines in the place of the pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from kvmedic.engines import VOCABULARIES
from kvmedic.engines.engine_log import Start, StartForms, Unread
from kvmedic.metrics.generation import MemoryPace, Rhythm
from kvmedic.metrics.probes import AT_ONCE, Beside, GenerationProbes, Tempo
from kvmedic.model.compression import Keep
from kvmedic.model.devices import Device
from kvmedic.model.evidence import Absence, Missing, Reading
from kvmedic.model.fleet import ObjectRef, Pod
from kvmedic.model.plan import TrialStep
from kvmedic.model.reasons import Reason
from kvmedic.model.trial import Progress, Question, Underway
from kvmedic.settings import ProbeOptions, ScrapeOptions
from run_builder import a_pod

NAMESPACE = "serving"
PLAIN: dict[str, Any] = {"spec": {"containers": [{"name": "vllm", "command": ["vllm", "serve", "m"]}]}}
PATIENT = 20.0
QUICK = MemoryPace(lag_seconds=0.02, reuse_seconds=0.02, interval_seconds=0.02, limit_seconds=2.0)


def a_step(tokens: int, question: Question = Question.RECLAMATION) -> TrialStep:
    """Return what is asked of a trial pod."""
    return TrialStep(
        target=ObjectRef("Deployment", "llm"),
        container="vllm",
        question=question,
        method="Mine",
        tokens=tokens,
        keep=Keep(2048),
        limit_seconds=1800,
        template="0123",
        reason=Reason.TRIAL_RUNNING,
        source="main",
    )


async def no_devices(
    source: str, pods: Sequence[Pod], namespace: str, window: timedelta
) -> Mapping[str, Reading[tuple[Device, ...]]]:
    """Report no device."""
    del source, namespace, window
    return {pod.name: Missing(Absence.NO_SERIES) for pod in pods}


async def no_logs(
    namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
) -> Mapping[str, Start]:
    """Read no log."""
    del namespace, container, forms
    return {pod.name: Unread("403 Forbidden") for pod in pods}


class Place:
    """Probes, and a file that says where each pod's engine is."""

    def __init__(self, file: Path, **options: Any) -> None:
        self.addresses: dict[str, str] = {}
        self._file = file
        self._write()
        rhythm = Rhythm(interval_seconds=0.02, silence_seconds=options.pop("silence_seconds", PATIENT))
        tempo = Tempo(rhythm, QUICK, options.pop("at_once", AT_ONCE))
        self.probes = GenerationProbes(
            ScrapeOptions(addresses_file=file),
            ProbeOptions(api_key=options.pop("api_key", None)),
            VOCABULARIES[0],
            Beside(options.pop("devices", no_devices), options.pop("starts", no_logs)),
            tempo,
        )

    def pod(self, name: str, url: object) -> Pod:
        self.addresses[f"{NAMESPACE}/{name}"] = f"{str(url).rstrip('/')}/metrics"
        self._write()
        return replace(a_pod(name), uid=f"uid-{name}")

    def begin(self, pod: Pod, tokens: int, template: dict[str, Any] = PLAIN) -> None:
        self.probes.begin(NAMESPACE, pod, template, a_step(tokens))

    async def until(self, pod: Pod, holds: Callable[[Progress | None], bool]) -> Progress | None:
        async with asyncio.timeout(100):
            while not holds(self.probes.progress(pod)):
                await asyncio.sleep(0.01)
        return self.probes.progress(pod)

    async def ended(self, pod: Pod) -> Progress | None:
        return await self.until(pod, lambda seen: not isinstance(seen, Underway))

    async def generating(self, pod: Pod) -> None:
        """Wait for the first token; a probe that ended before it has none to wait for."""
        seen = await self.until(pod, lambda seen: not isinstance(seen, Underway) or seen.tokens > 0)
        assert isinstance(seen, Underway), seen

    def _write(self) -> None:
        self._file.write_text(json.dumps(self.addresses))


@asynccontextmanager
async def a_place(directory: Path, **options: Any) -> AsyncIterator[Place]:
    place = Place(directory / "addresses.json", **options)
    try:
        yield place
    finally:
        await place.probes.close()
