"""Scripted replicas for a real Prometheus: each name is a case that the readings must get right."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import Page, parse_page
from kvmedic.metrics.prometheus import PrometheusClient
from kvmedic.metrics.series import PodKey
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import Look, Observation
from kvmedic.settings import SourceOptions
from worlds.metric_tape import Curve, Tape, constant, restarted, rising, until
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_devices import record_devices

END = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
"""When the tape ends; tests look at that moment."""

TWO, FIVE, THIRTY = timedelta(minutes=2), timedelta(minutes=5), timedelta(minutes=30)
NAMESPACE = "fleet"
BOUNDS = (1.0, 2.5, 100.0)
DATA = Path(__file__).parents[1] / "data" / "vllm"

_BUCKET_RATES = (("1.0", 0.0), ("2.5", 0.4), ("100.0", 1.0), ("+Inf", 1.25))
_STEADY = {
    "vllm:prompt_tokens_total": 100.0,
    "vllm:generation_tokens_total": 200.0,
    "vllm:prefix_cache_queries_total": 100.0,
    "vllm:prefix_cache_hits_total": 25.0,
}
_HISTOGRAMS = (
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_max_tokens",
    "vllm:time_to_first_token_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:e2e_request_latency_seconds",
)
_HALF, _ONE, _FULL = rising(0.5), rising(1.0), constant(0.9)
_RUNNING, _WAITING = constant(8.0), constant(3.0)


@dataclass(frozen=True)
class Engine:
    """One engine's series; rates are per second, times are seconds before the end (negative)."""

    preemptions: Curve = _HALF
    finished: Curve = _ONE
    ended_by_length: float = 0.25
    running: Curve = _RUNNING
    waiting: Curve = _WAITING
    usage: Curve = _FULL
    usage_name: str = "vllm:kv_cache_usage_perc"
    inter_token: str = "vllm:inter_token_latency_seconds"
    born: float = -math.inf
    last: float = 0.0
    blocks: int = 150
    answers: tuple[str, ...] = ("stop", "length", "abort")
    """How requests ended so far; engines of old export no other."""
    began_anew: float = -math.inf
    """When its process last did."""
    index: str | None = "0"
    """Value of the label `engine`; None: an engine of old without that label."""

    @property
    def own(self) -> dict[str, str]:
        """Labels that the engine sets itself."""
        return {"model_name": "tiny"} | ({} if self.index is None else {"engine": self.index})

    def curves(self) -> list[tuple[str, dict[str, str], Curve]]:
        """All series with their own labels, the pool's and the process' apart."""
        found = [
            ("vllm:num_requests_running", {}, self.running),
            ("vllm:num_requests_waiting", {}, self.waiting),
            (self.usage_name, {}, self.usage),
            ("vllm:num_preemptions_total", {}, self.preemptions),
            *(
                ("vllm:request_success_total", {"finished_reason": reason}, self._ended(reason))
                for reason in self.answers
            ),
            *((name, {}, self._since(rate)) for name, rate in _STEADY.items()),
        ]
        for name in (*_HISTOGRAMS, self.inter_token):
            found += [(f"{name}_bucket", {"le": le}, self._since(rate)) for le, rate in _BUCKET_RATES]
            found += [(f"{name}_sum", {}, self._since(60.0)), (f"{name}_count", {}, self._since(1.25))]
        return found

    def alive(self, curve: Curve) -> Curve:
        """Return a curve over the engine's life alone."""
        return until(lambda t: None if t < self.born else curve(t), self.last)

    def _ended(self, reason: str) -> Curve:
        rates = {"length": self.ended_by_length, "abort": 0.1}
        return self.finished if reason == "stop" else self._since(rates[reason])

    def _since(self, rate: float) -> Curve:
        return rising(rate, born=self.born)


STEADY = Engine()
SINGLES = {
    "thrashing": STEADY,
    "calm": Engine(preemptions=constant(7.0), usage=constant(0.4)),
    "quick-restart": Engine(preemptions=restarted(0.5, at=-150), began_anew=-150.0),
    "stuck": Engine(preemptions=rising(0.1), finished=constant(4.0), ended_by_length=0.0),
    "silent": Engine(last=-180.0),
    "silent-long": Engine(last=-1500.0),
    "young": Engine(preemptions=rising(0.5, born=-90), finished=rising(1.0, born=-90), born=-90.0),
    "burst": Engine(preemptions=lambda t: 1000 + max(0.0, t + 60.0) * 40),
    "unserved": Engine(preemptions=constant(0.0), answers=()),
    "given-up": Engine(answers=("abort",)),
    "unfinished": Engine(answers=()),
    "draining": Engine(waiting=lambda t: 11.0 if t < -120 else 2.0),
    "queueing": Engine(waiting=constant(27.0)),
    "queueing-of-old": Engine(waiting=constant(27.0), answers=()),
    "queue-comes": Engine(waiting=lambda t: 5.0 + max(0.0, t + 300.0) / 10),
    "queue-of-a-minute": Engine(waiting=lambda t: 600.0 if t > -60 else 0.0),
    "swinging": Engine(
        usage=lambda t: 0.5 if round(t / 15) % 2 else 0.9,
        running=lambda t: 4.0 if round(t / 15) % 2 else 12.0,
    ),
    "nan-usage": Engine(usage=lambda t: math.nan if t > -60 else 0.9),
    "old": Engine(
        usage_name="vllm:gpu_cache_usage_perc", inter_token="vllm:time_per_output_token_seconds", index=None
    ),
    "both": Engine(usage=constant(0.8)),
    "half-said": Engine(blocks=300),
    "gone-6f-abcde": Engine(preemptions=constant(7.0), last=-1200.0),
    "gone-6f-fghij": Engine(last=-1200.0),
    "gone-6f-k2-abcde": STEADY,
    "lacking": Engine(preemptions=lambda _: None),
}
"""Replicas with one engine and one scraper."""


def fleet_tape() -> Tape:
    """Return the tape of all scripted replicas."""
    tape = Tape(END, length=timedelta(minutes=65))
    for pod, engine in SINGLES.items():
        _record(tape, pod, engine)
    _two_names_at_once(tape)
    _duplicates(tape)
    _several_engines(tape)
    _several_ports(tape)
    _recorded_pages(tape)
    _record(tape, "elsewhere", STEADY, namespace="other")
    record_devices(tape)
    return tape


def source(url: str, at: datetime = END, **options: Any) -> PrometheusSource:
    """Return a source whose clock stands still."""
    chosen = SourceOptions(url=url, **{"timeout": "5s", **options})
    return PrometheusSource("default", PrometheusClient(chosen), chosen, VLLM_SIGNALS, now=lambda: at)


async def observed(server: PrometheusServer, look: Look, *pods: str, **options: Any) -> Observation:
    """Return one look at scripted replicas."""
    looked = source(server.url, **options)
    try:
        return await looked.observe([PodKey(NAMESPACE, pod) for pod in pods], look)
    finally:
        looked.close()


def _record(tape: Tape, pod: str, engine: Engine, **scraped: str) -> None:
    """Write the series of a process with one engine as one scraper sees them."""
    target = _target(pod) | scraped
    began, anew = 1_700_000_000.0, END.timestamp() + engine.began_anew
    start = engine.alive(lambda at: began if at < engine.began_anew else max(began, anew))
    tape.add("process_start_time_seconds", target, start)
    _record_engine(tape, target, engine)


def _record_engine(tape: Tape, target: dict[str, str], engine: Engine) -> None:
    for name, labels, curve in engine.curves():
        tape.add(name, target | engine.own | labels, engine.alive(curve))
    config = {"num_gpu_blocks": str(engine.blocks), "block_size": "32", "cache_dtype": "auto"}
    index = {} if engine.index is None else {"engine": engine.index}
    tape.add("vllm:cache_config_info", target | config | index, engine.alive(constant(1.0)))


def _target(pod: str) -> dict[str, str]:
    return {
        "namespace": NAMESPACE,
        "pod": pod,
        "container": "vllm",
        "job": "vllm",
        "instance": f"{pod}:8000",
    }


def _two_names_at_once(tape: Tape) -> None:
    """Let `both` export the old names beside the new ones, with other values and bounds."""
    labels = _target("both") | STEADY.own
    tape.add("vllm:gpu_cache_usage_perc", labels, constant(0.1))
    for bound in ("0.5", "+Inf"):
        tape.add("vllm:time_per_output_token_seconds_bucket", labels | {"le": bound}, rising(9.0))


def _duplicates(tape: Tape) -> None:
    _record(tape, "twice", STEADY, prometheus_replica="a")
    _record(tape, "twice", Engine(preemptions=lambda t: _HALF(t + 9)), prometheus_replica="b")
    _record(tape, "contradicted", STEADY, job="first")
    _record(tape, "contradicted", Engine(preemptions=rising(5.0)), job="second")
    _record(tape, "moved", Engine(last=-200.0), instance="10.0.0.2:8001")
    _record(tape, "moved", STEADY, instance="10.0.0.2:8000")


def _several_engines(tape: Tape) -> None:
    """Data-parallel engines: the label with the number of blocks has the sum over all."""
    parallel = Engine(blocks=300)
    _record(tape, "parallel", parallel)
    second = replace(parallel, index="1", preemptions=rising(0.25), usage=constant(0.3))
    _record_engine(tape, _target("parallel"), second)
    _record(tape, "half-dead", STEADY)
    _record(tape, "half-dead", Engine(index="1", last=-240.0), instance="half-dead:8001")
    tape.add("vllm:num_requests_running", _target("half-said") | STEADY.own | {"engine": "1"}, constant(3.0))


def _several_ports(tape: Tape) -> None:
    """Two engines with a port each: ranks that count on, and processes that both say they are the first."""
    slower = replace(STEADY, preemptions=rising(0.25), usage=constant(0.3))
    for pod, second in (("ranks", replace(slower, index="1")), ("processes", slower)):
        _record(tape, pod, STEADY, instance=f"{pod}:8000")
        _record(tape, pod, second, instance=f"{pod}:8001")
    # Another model's engine is another container's.
    _record(tape, "models", STEADY, instance="models:8000")
    other = _target("models") | {"instance": "models:8001"}
    for name, labels, curve in replace(slower, index="1").curves():
        tape.add(name, other | {"model_name": "other", "engine": "1"} | labels, curve)
    # A mesh's own port reports the same engine again.
    _record(tape, "meshed", STEADY, instance="meshed:8000")
    _record(tape, "meshed", STEADY, instance="meshed:15020")


def _recorded_pages(tape: Tape) -> None:
    """Let the recorded idle page turn into the thrashing one over the last five minutes."""
    target = {"namespace": NAMESPACE, "instance": "10.1.1.1:8000", "job": "vllm"}
    tape.replay(page("idle"), page("thrash"), target | {"pod": "recorded"}, since=-300)
    served = page("apiserver2")
    tape.replay(served, served, target | {"pod": "two-servers"}, since=-300)


def page(name: str) -> Page:
    """Return a page that was recorded from a real engine."""
    return parse_page((DATA / f"metrics-{name}.txt").read_text(), END)
