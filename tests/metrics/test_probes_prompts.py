"""Prompts of rising length on lab engines, with the device memory that these report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmedic.engines.engine_log import Start, StartForms, parse_start
from kvmedic.model.devices import Device, Vital
from kvmedic.model.evidence import Measured, Reading
from kvmedic.model.fleet import Pod
from kvmedic.model.trial import Begun, Growth, Interrupted, Prompted, Question, Underway
from kvmedic.runbooks.compression.probes import Grown, judge_prompts
from lab_engine.engine_process import PLAIN as DIRECT
from lab_engine.engine_process import Running, a_process, an_engine, until_healthy
from worlds.probing import NAMESPACE, PLAIN, Place, a_place, a_step

LONGEST = 4096
LENGTHS = (512, 1024, 2048, 4096)
TAKES = ("--max-model-len=4200", "--block-size=16", "--num-gpu-blocks-override=600", "--max-num-seqs=8")
WHOLE = (*TAKES, "--no-enable-chunked-prefill", "--max-num-batched-tokens=4200")
GPU = {"LAB_MODEL_MAX_LEN": "8192", "LAB_DEVICE_MEMORY_MIB": "40000"}
EAGER = {"LAB_EAGER_ATTENTION": "quiet"}
RECORDED = Path(__file__).parents[1] / "data" / "vllm" / "startup-0.32-cpu.log"
ARGUMENT = "--no-enable-chunked-prefill"


class Exporter:
    """Reports one GPU under each pod: that of the engine behind it, or what is scripted."""

    def __init__(self, url: object, free: Callable[[], float] | None = None) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self._url, self._free = str(url).rstrip("/"), free

    async def __call__(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        at = datetime.now(UTC)
        self.asked += [(source, namespace, pod.name) for pod in pods]
        async with httpx.AsyncClient(**DIRECT) as http:
            memory = (await http.get(f"{self._url}/lab/device")).json()
        free, whole = (memory["total"] - memory["used"]) / (1 << 20), memory["total"] / (1 << 20)
        if self._free is not None:
            free = self._free()
        readings: dict[Vital, Reading[float]] = {
            Vital.MEMORY_FREE: Measured(float(int(free)), at),
            Vital.MEMORY_IN_USE: Measured(1 - free / whole, at),
        }
        return {pod.name: Measured((Device("GPU 0", readings),), at) for pod in pods}


def a_template(*args: str) -> dict[str, Any]:
    command = ["vllm", "serve", "m", *args]
    return {
        "spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "command": command}]}
    }


@asynccontextmanager
async def a_trial(directory: Path, *flags: str, **environ: str) -> AsyncIterator[tuple[Place, Pod, Running]]:
    """An engine on one GPU whose exporter reports it, as the trial pod."""
    async with an_engine(*flags, environ={**GPU, **environ}) as engine:
        exporter = Exporter(engine.http.base_url)
        async with a_place(directory, devices=exporter, silence_seconds=2.0) as place:
            yield place, place.pod("trial", engine.http.base_url), engine


def begin(place: Place, pod: Pod, longest: int = LONGEST, template: dict[str, Any] | None = None) -> None:
    step = a_step(longest, Question.PROMPTS)
    place.probes.begin(NAMESPACE, pod, a_template(ARGUMENT) if template is None else template, step)


def verdict(seen: object) -> Growth:
    assert isinstance(seen, Prompted), seen
    found = judge_prompts(seen.before, seen.prompts, in_chunks=seen.in_chunks)
    assert isinstance(found, Grown), found
    return found.growth


@pytest.mark.parametrize(
    ("environ", "growth"), [(EAGER, Growth.SQUARE), ({}, Growth.NONE)], ids=["eager", "fused"]
)
async def test_memory_shows_whether_attention_is_fused(
    tmp_path: Path, environ: dict[str, str], growth: Growth
) -> None:
    async with an_engine(*WHOLE, environ={**GPU, **environ}) as engine:
        exporter = Exporter(engine.http.base_url)
        async with a_place(tmp_path, devices=exporter) as place:
            pod = place.pod("trial", engine.http.base_url)
            begin(place, pod)
            before = place.probes.progress(pod)
            seen = await place.ended(pod)

    assert before == Underway(0, sum(LENGTHS))
    assert verdict(seen) is growth
    assert isinstance(seen, Prompted)
    assert tuple(each.tokens for each in seen.prompts) == LENGTHS
    assert set(exporter.asked) == {("main", NAMESPACE, "trial")}


async def the_log(
    namespace: str, pods: Sequence[Pod], container: str, forms: StartForms
) -> Mapping[str, Start]:
    """Return what a recorded start-up log says, in a form that names attention."""
    assert (namespace, container) == (NAMESPACE, "vllm")
    lines = RECORDED.read_text().splitlines()
    backend = (
        "INFO [cuda.py:446] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']."
    )
    return {pod.name: parse_start([backend, *lines], forms) for pod in pods}


async def test_what_computes_attention_is_reported_with_the_prompts(tmp_path: Path) -> None:
    async with an_engine(*WHOLE, environ=GPU) as engine:
        exporter = Exporter(engine.http.base_url)
        async with a_place(tmp_path, devices=exporter, starts=the_log) as place:
            pod = place.pod("trial", engine.http.base_url)
            begin(place, pod)
            seen = await place.ended(pod)

    assert isinstance(seen, Prompted), seen
    assert seen.backends == ("FLASH_ATTN",)


@pytest.mark.parametrize("flags", [(), ("--kv-cache-dtype=fp8",)], ids=["the model's own type", "eight bits"])
async def test_a_start_reports_blocks_and_type_and_sends_nothing(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    async with an_engine(*TAKES, *flags, environ=GPU) as engine:
        async with a_place(tmp_path, starts=the_log) as place:
            pod = place.pod("trial", engine.http.base_url)
            step = replace(a_step(1, Question.START), without=True)
            place.probes.begin(NAMESPACE, pod, a_template(), step)
            seen = await place.ended(pod)
        page = (await engine.http.get("/metrics")).text

    assert seen == Begun(599, "fp8" if flags else "auto", ("FLASH_ATTN",), 16)
    assert not [
        line
        for line in page.splitlines()
        if line.startswith("vllm:request_success_total") and float(line.split()[-1])
    ]


async def test_a_start_of_which_no_blocks_are_reported_shows_nothing(tmp_path: Path) -> None:
    with a_process(*TAKES, LAB_FAULT_DROP_METRICS="vllm:cache_config_info", **GPU) as (_, url):
        until_healthy(url)
        async with a_place(tmp_path, silence_seconds=0.5) as place:
            pod = place.pod("trial", url)
            place.probes.begin(NAMESPACE, pod, a_template(), replace(a_step(1, Question.START), without=True))
            seen = await place.ended(pod)

    assert seen == Interrupted("the engine's metrics do not report its blocks")


async def test_a_start_is_asked_again_while_its_engine_does_not_answer(tmp_path: Path) -> None:
    async with an_engine(*TAKES, environ=GPU) as engine, a_place(tmp_path) as place:
        pod = place.pod("trial", "http://127.0.0.1:1")
        place.probes.begin(NAMESPACE, pod, a_template(), replace(a_step(1, Question.START), without=True))
        await asyncio.sleep(0.2)
        before = place.probes.progress(pod)
        place.pod("trial", engine.http.base_url)
        seen = await place.ended(pod)

    assert before == Underway(0, 1)
    assert isinstance(seen, Begun), seen
    assert seen.blocks == 599


async def test_memory_in_proportion_to_the_prompt_is_reported_as_such(tmp_path: Path) -> None:
    sent = 0

    async with an_engine(*WHOLE, environ=GPU) as engine:
        exporter = Exporter(engine.http.base_url, free=lambda: 3000.0 - 0.1 * min(sent, LONGEST))
        async with a_place(tmp_path, devices=exporter) as place:
            pod = place.pod("trial", engine.http.base_url)
            begin(place, pod)
            while isinstance(now := place.probes.progress(pod), Underway):
                sent = (now.tokens + LENGTHS[0]) // 2 if now.tokens else 0
                await place.until(pod, lambda seen, now=now: seen != now)
            seen = now

    assert verdict(seen) is Growth.LINEAR


async def test_prompts_in_chunks_show_nothing(tmp_path: Path) -> None:
    async with a_trial(tmp_path, *TAKES, "--max-num-batched-tokens=512", **EAGER) as (place, pod, _engine):
        begin(place, pod, template=a_template())
        seen = await place.ended(pod)

    assert isinstance(seen, Prompted), seen
    assert seen.in_chunks
    assert not isinstance(judge_prompts(seen.before, seen.prompts, in_chunks=True), Grown)


async def test_the_engine_itself_bounds_the_longest_prompt(tmp_path: Path) -> None:
    async with a_trial(tmp_path, *WHOLE, **EAGER) as (place, pod, _engine):
        begin(place, pod, 16_384)
        seen = await place.ended(pod)

    assert verdict(seen) is Growth.SQUARE
    assert isinstance(seen, Prompted)
    assert seen.prompts[-1].tokens == 4199


async def test_an_engine_that_takes_no_long_prompt_is_not_asked(tmp_path: Path) -> None:
    async with an_engine(environ=GPU) as engine, a_place(tmp_path) as place:
        pod = place.pod("trial", engine.http.base_url)
        begin(place, pod)

        assert await place.ended(pod) == Interrupted("the engine takes no prompt of 2048 tokens")


async def test_without_series_of_the_trial_pod_it_says_so(tmp_path: Path) -> None:
    async with an_engine(*WHOLE, environ=GPU) as engine, a_place(tmp_path) as place:
        pod = place.pod("trial", engine.http.base_url)
        begin(place, pod)
        seen = await place.ended(pod)

    assert isinstance(seen, Interrupted), seen
    assert "the source has no device memory of the trial pod: no new sample" in seen.why


async def test_samples_from_before_a_prompt_do_not_count(tmp_path: Path) -> None:
    async def old(
        source: str, pods: Sequence[Pod], namespace: str, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        del source, namespace
        at = datetime.now(UTC) - timedelta(seconds=10)
        readings: dict[Vital, Reading[float]] = {
            Vital.MEMORY_FREE: Measured(100.0, at),
            Vital.MEMORY_IN_USE: Measured(0.9, at),
        }
        return {pod.name: Measured((Device("GPU 0", readings),), at) for pod in pods}

    async with an_engine(*WHOLE, environ=GPU) as engine, a_place(tmp_path, devices=old) as place:
        pod = place.pod("trial", engine.http.base_url)
        begin(place, pod)
        seen = await place.ended(pod)

    assert isinstance(seen, Interrupted), seen
    assert "no new sample" in seen.why


async def test_an_engine_that_computed_prompts_before_shows_nothing_more(tmp_path: Path) -> None:
    """As where the operator died in the middle of the test: the memory is taken already."""
    async with a_trial(tmp_path, *WHOLE, **EAGER) as (place, pod, _engine):
        begin(place, pod)
        await place.ended(pod)
        place.probes.forget(pod)
        begin(place, pod)
        seen = await place.ended(pod)

    assert isinstance(seen, Interrupted), seen
    assert "served other requests already" in seen.why


async def test_an_engine_that_others_send_to_shows_nothing(tmp_path: Path) -> None:
    async with a_trial(tmp_path, *WHOLE, **EAGER) as (place, pod, engine):
        begin(place, pod)
        await place.generating(pod)
        body = {"model": "tiny", "prompt": "somebody else", "max_tokens": 1}
        (await engine.http.post("/v1/completions", json=body)).raise_for_status()
        seen = await place.ended(pod)

    assert seen == Interrupted("other requests were served meanwhile")


@pytest.mark.parametrize(("computed", "is_judged"), [(3, True), (2, False)])
async def test_an_engine_that_ends_at_a_long_prompt_is_judged_by_those_before(
    tmp_path: Path, computed: int, is_judged: bool
) -> None:
    async with a_trial(tmp_path, *WHOLE, **EAGER) as (place, pod, engine):
        begin(place, pod)
        sent = sum(LENGTHS[:computed])
        await place.until(pod, lambda seen: isinstance(seen, Underway) and seen.tokens == sent)
        engine.server.engine.slow_down(1e6)
        seen = await place.ended(pod)

    if is_judged:
        assert verdict(seen) is Growth.SQUARE
        return
    assert isinstance(seen, Interrupted), seen
    assert seen.why == f"after {sent} tokens of prompts no answer came for 2 s"


async def test_a_key_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    async with a_trial(tmp_path, *WHOLE, "--api-key=hunter2", **EAGER) as (place, pod, _engine):
        begin(place, pod, template=PLAIN)
        seen = await place.ended(pod)

    assert isinstance(seen, Interrupted), seen
    assert "401" in seen.why
