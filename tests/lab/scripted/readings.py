"""What a replica would export, by the name of a state."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvmedic.model.devices import Device, Vital
from kvmedic.model.engine import Version
from kvmedic.model.evidence import (
    Absence,
    Histogram,
    Look,
    LookSeries,
    Measured,
    Missing,
    Observation,
    PastLengths,
    PodReadings,
    Pool,
    Reading,
    Signal,
    Stale,
)
from kvmedic.model.fleet import Pod


class State(StrEnum):
    """A replica's metrics in one word."""

    THRASH = "thrash"
    RECOVERED = "recovered"
    WORSE = "worse"
    PROMPTS = "prompts"
    """Thrash of long prompts with short answers."""
    PROMPTS_RECOVERED = "prompts recovered"
    PROMPTS_WORSE = "prompts worse"
    UNSHARED = "unshared"
    """Thrash of prompts of which none is short, on an engine that does not reuse prefixes."""
    SHARED = "shared"
    """The same once they are reused: calm, and most tokens are found."""
    SHARED_WITHOUT_HITS = "shared without hits"
    """Calm, and no token is found: something else helped."""
    SMOOTH = "smooth"
    """It preempts as before, and nobody hangs."""
    FEWER_THRASH = "fewer requests, and thrash"
    """Thrash at two thirds of the requests."""
    LONG = "long"
    """Calm, with answers of 10k to 20k tokens, all of which are kept."""
    LONG_KEPT_SHORT = "long, kept short"
    """The same where a method keeps 2,048 tokens of each, and blocks come back."""
    LATE = "late"
    """Calm, fewer tokens, and first tokens after a minute: requests wait in front of the engine."""
    IDLE = "idle"
    MISSING = "missing"
    STALE = "stale"
    NAN = "nan"
    DOWN = "down"


LENGTHS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
POOL = Pool(blocks=149, block_tokens=32)
REQUESTS = 400.0
"""Finished in one window by each replica."""
HOUR, WINDOWS_OF_HOUR = 3600.0, 60.0
"""Over an hour as many finish as in so many windows of a minute, which most looks are of."""


def _histogram(
    bounds: tuple[float, ...], shares: Mapping[float, float], mean: float, count: float
) -> Histogram:
    """Return a histogram with shares of its observations in the buckets that end at some bounds."""
    counts = [count * shares.get(bound, 0.0) for bound in bounds] + [0.0]
    return Histogram(bounds, tuple(counts), mean * count)


PROMPTS = _histogram(LENGTHS, {50.0: 0.3, 100.0: 0.6, 200.0: 0.1}, 64.0, REQUESTS)
OUTPUTS = _histogram(
    LENGTHS, {20.0: 0.05, 50.0: 0.15, 100.0: 0.22, 200.0: 0.25, 500.0: 0.27, 1000.0: 0.06}, 190.0, REQUESTS
)
TOKENS = 190.0 * REQUESTS
CALM_GAPS = _histogram(SECONDS, {0.05: 0.9, 0.075: 0.1}, 0.045, TOKENS)
STALLED_GAPS = _histogram(SECONDS, {0.05: 0.9, 0.075: 0.07, 5.0: 0.02, 10.0: 0.01}, 0.2, TOKENS)
FIRST = _histogram(SECONDS, {1.0: 0.5, 5.0: 0.5}, 2.0, REQUESTS)
LATE_FIRST = _histogram(SECONDS, {30.0: 0.5, 60.0: 0.5}, 40.0, REQUESTS)
WHOLE = _histogram(SECONDS, {10.0: 0.7, 30.0: 0.3}, 9.0, REQUESTS)

THRASH_NUMBERS = {
    Signal.PREEMPTIONS: 2.0 * REQUESTS,
    Signal.PREEMPTIONS_PER_REQUEST_HELD: 2.0,
    Signal.REQUESTS_FINISHED: REQUESTS,
    Signal.REQUESTS_ABORTED: 0.0,
    Signal.REQUESTS_IN_FLIGHT_CHANGE: 0.0,
    Signal.RUNNING_MEAN: 17.0,
    Signal.RUNNING_MAX: 24.0,
    Signal.WAITING_MEAN: 15.0,
    Signal.WAITING_AT_END: 15.0,
    Signal.KV_CACHE_USAGE_MEAN: 0.94,
    Signal.KV_CACHE_USAGE_MAX: 1.0,
    Signal.KV_CACHE_USAGE_DEVIATION: 0.05,
    Signal.PROMPT_TOKENS: 64.0 * REQUESTS,
    Signal.GENERATED_TOKENS: TOKENS,
    Signal.PREFIX_CACHE_QUERIES: 64.0 * REQUESTS,
    Signal.PREFIX_CACHE_HITS: 0.0,
}
CALM_NUMBERS = {
    **THRASH_NUMBERS,
    Signal.PREEMPTIONS: 0.05 * REQUESTS,
    Signal.PREEMPTIONS_PER_REQUEST_HELD: 0.05,
    Signal.RUNNING_MEAN: 13.0,
    Signal.RUNNING_MAX: 14.0,
    Signal.KV_CACHE_USAGE_MEAN: 0.85,
}
WORSE_NUMBERS = {**THRASH_NUMBERS, Signal.PREEMPTIONS: 3.0 * REQUESTS, Signal.GENERATED_TOKENS: 0.9 * TOKENS}
LATE_NUMBERS = {
    **CALM_NUMBERS,
    Signal.GENERATED_TOKENS: 0.8 * TOKENS,
    Signal.WAITING_MEAN: 100.0,
    Signal.WAITING_AT_END: 100.0,
    Signal.SILENT_SECONDS_HELD: 15.0,
}
ZERO = dict.fromkeys(THRASH_NUMBERS, 0.0)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What clients send, and how it fares."""

    numbers: Mapping[Signal, float]
    gaps: Histogram
    prompts: Histogram = PROMPTS
    outputs: Histogram = OUTPUTS
    pool: Pool = POOL
    firsts: Histogram = FIRST


LONG_PROMPTS = _histogram(LENGTHS, {200.0: 0.2, 500.0: 0.7, 1000.0: 0.1}, 310.0, REQUESTS)
ALL_LONG_PROMPTS = _histogram(LENGTHS, {500.0: 0.95, 1000.0: 0.05}, 310.0, REQUESTS)
SHORT_OUTPUTS = _histogram(LENGTHS, {20.0: 0.2, 50.0: 0.6, 100.0: 0.2}, 40.0, REQUESTS)
FEW_TOKENS = 40.0 * REQUESTS


def _of_long_prompts(numbers: Mapping[Signal, float], gaps: Histogram) -> Traffic:
    """Return the same trouble or calm for long prompts with short answers."""
    share = FEW_TOKENS / TOKENS
    fewer = replace(gaps, counts=tuple(count * share for count in gaps.counts), total=gaps.total * share)
    rescaled = {
        **numbers,
        Signal.GENERATED_TOKENS: numbers[Signal.GENERATED_TOKENS] * share,
        Signal.PROMPT_TOKENS: 310.0 * REQUESTS,
        Signal.PREFIX_CACHE_QUERIES: 310.0 * REQUESTS,
        Signal.RUNNING_MEAN: 13.0,
    }
    return Traffic(rescaled, fewer, LONG_PROMPTS, SHORT_OUTPUTS)


def _with_prefixes(numbers: Mapping[Signal, float], gaps: Histogram, found: float = 0.0) -> Traffic:
    """Return the same for prompts of which none is short, with a share of their tokens found in the cache."""
    traffic = _of_long_prompts(numbers, gaps)
    hits = found * traffic.numbers[Signal.PREFIX_CACHE_QUERIES]
    with_hits = {**traffic.numbers, Signal.PREFIX_CACHE_HITS: hits}
    return replace(traffic, numbers=with_hits, prompts=ALL_LONG_PROMPTS)


COUNTED = frozenset(
    {
        Signal.PREEMPTIONS,
        Signal.REQUESTS_FINISHED,
        Signal.PROMPT_TOKENS,
        Signal.GENERATED_TOKENS,
        Signal.PREFIX_CACHE_QUERIES,
    }
)


def _thinned(traffic: Traffic, share: float) -> Traffic:
    """Return the same trouble or calm at a share of the requests."""

    def thin(whole: Histogram) -> Histogram:
        return replace(whole, counts=tuple(c * share for c in whole.counts), total=whole.total * share)

    numbers = {s: value * share if s in COUNTED else value for s, value in traffic.numbers.items()}
    counted = (thin(each) for each in (traffic.gaps, traffic.prompts, traffic.outputs))
    return Traffic(numbers, *counted, firsts=thin(traffic.firsts))


LONG_POOL = Pool(blocks=5000, block_tokens=16)
LONG_OUTPUTS = _histogram((*LENGTHS, 5000.0, 10_000.0, 20_000.0), {20_000.0: 1.0}, 14_000.0, REQUESTS)
LONG_RUNNING = 10.0


def _of_long_answers(blocks: float) -> Traffic:
    """Return calm traffic of long answers whose sequences take so many blocks each."""
    changed = {
        **CALM_NUMBERS,
        Signal.RUNNING_MEAN: LONG_RUNNING,
        Signal.KV_CACHE_USAGE_MEAN: blocks * LONG_RUNNING / LONG_POOL.blocks,
        Signal.GENERATED_TOKENS: LONG_OUTPUTS.total,
    }
    prompts = replace(PROMPTS, bounds=LONG_OUTPUTS.bounds, counts=(*PROMPTS.counts, 0.0, 0.0, 0.0))
    return Traffic(changed, CALM_GAPS, prompts, LONG_OUTPUTS, LONG_POOL)


MEASURED = {
    State.LONG: _of_long_answers(450),
    State.LONG_KEPT_SHORT: _of_long_answers(130),
    State.UNSHARED: _with_prefixes(THRASH_NUMBERS, STALLED_GAPS),
    State.SHARED: _with_prefixes(CALM_NUMBERS, CALM_GAPS, 0.6),
    State.SHARED_WITHOUT_HITS: _with_prefixes(CALM_NUMBERS, CALM_GAPS),
    State.SMOOTH: Traffic(THRASH_NUMBERS, CALM_GAPS),
    State.THRASH: Traffic(THRASH_NUMBERS, STALLED_GAPS),
    State.RECOVERED: Traffic(CALM_NUMBERS, CALM_GAPS),
    State.LATE: Traffic(LATE_NUMBERS, CALM_GAPS, firsts=LATE_FIRST),
    State.WORSE: Traffic(WORSE_NUMBERS, STALLED_GAPS),
    State.FEWER_THRASH: _thinned(Traffic(THRASH_NUMBERS, STALLED_GAPS), 2 / 3),
    State.PROMPTS: _of_long_prompts(THRASH_NUMBERS, STALLED_GAPS),
    State.PROMPTS_RECOVERED: _of_long_prompts(CALM_NUMBERS, CALM_GAPS),
    State.PROMPTS_WORSE: _of_long_prompts(WORSE_NUMBERS, STALLED_GAPS),
}


def readings(state: State, at: datetime, windows: float = 1) -> PodReadings:
    if state in MEASURED:
        return _measured(MEASURED[state] if windows == 1 else _thinned(MEASURED[state], windows), at)
    absent = {
        State.STALE: Stale(at - timedelta(minutes=10)),
        State.NAN: Missing(Absence.NOT_A_NUMBER),
        State.DOWN: Missing(Absence.SOURCE_UNAVAILABLE),
        State.MISSING: Missing(Absence.NO_SERIES),
    }
    return _absent(absent[state]) if state in absent else _idle(at)


def only(found: PodReadings, signals: frozenset[Signal]) -> PodReadings:
    """Return what was asked for; the rest is as if the replica had never exported it."""
    return replace(
        found,
        numbers={signal: each for signal, each in found.numbers.items() if signal in signals},
        histograms={signal: each for signal, each in found.histograms.items() if signal in signals},
    )


def _measured(traffic: Traffic, at: datetime) -> PodReadings:
    started = (at - timedelta(hours=2)).timestamp()
    values = {**traffic.numbers, Signal.STARTED_SECONDS: started}
    histograms = {
        Signal.PROMPT_LENGTH: traffic.prompts,
        Signal.OUTPUT_LENGTH: traffic.outputs,
        Signal.OUTPUT_LIMIT: traffic.outputs,
        Signal.INTER_TOKEN_SECONDS: traffic.gaps,
        Signal.TIME_TO_FIRST_TOKEN_SECONDS: traffic.firsts,
        Signal.E2E_SECONDS: WHOLE,
    }
    return PodReadings(
        numbers={signal: Measured(value, at) for signal, value in values.items()},
        histograms={signal: Measured(value, at) for signal, value in histograms.items()},
        pool=Measured(traffic.pool, at),
        model_names=("tiny",),
    )


def _idle(at: datetime) -> PodReadings:
    measured = _measured(Traffic(ZERO, CALM_GAPS), at)
    empty = {
        signal: Measured(
            replace(reading.value, counts=tuple(0.0 for _ in reading.value.counts), total=0.0), at
        )
        for signal, reading in measured.histograms.items()
        if isinstance(reading, Measured)
    }
    return replace(measured, histograms=empty)


def _absent(reading: Reading[float]) -> PodReadings:
    return PodReadings(
        numbers=dict.fromkeys((*THRASH_NUMBERS, Signal.STARTED_SECONDS), reading),
        histograms=dict.fromkeys(
            (
                Signal.PROMPT_LENGTH,
                Signal.OUTPUT_LENGTH,
                Signal.OUTPUT_LIMIT,
                Signal.INTER_TOKEN_SECONDS,
                Signal.TIME_TO_FIRST_TOKEN_SECONDS,
                Signal.E2E_SECONDS,
            ),
            reading,
        ),
        pool=reading,
    )


@dataclass(frozen=True, slots=True)
class ScriptedMetrics:
    """Answers from the script; what a test says of a pod by name wins over what it says of a revision."""

    path: Path

    def _script(self) -> dict[str, Any]:
        return json.loads(self.path.read_text())

    async def observe(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta, hold: timedelta
    ) -> Observation:
        return await self.look(source, pods, namespace, Look(window, hold))

    async def look_series(
        self, source: str, pods: Sequence[Pod], namespace: str, series: LookSeries
    ) -> Sequence[Observation]:
        return [await self.look(source, pods, namespace, series.look)] * series.count

    async def look(self, source: str, pods: Sequence[Pod], namespace: str, look: Look) -> Observation:
        script, at = self._script(), datetime.now(UTC)
        named, counted = script.get("pods", {}), script.get("byCount", {}).get(str(len(pods)))
        states = {
            pod.name: State(
                named.get(pod.name)
                or counted
                or script["old" if pod.revision == script["revision"] else "new"]
            )
            for pod in pods
        }
        window, hold = look.window.total_seconds(), look.hold.total_seconds()
        windows = WINDOWS_OF_HOUR if window >= HOUR else 1
        pods = {name: only(readings(state, at, windows), look.signals) for name, state in states.items()}
        return Observation(at, window, hold, pods)

    async def observe_past(
        self, source: str, namespace: str, replica_set: str, at: datetime, look: Look
    ) -> Reading[Observation]:
        before = self._script().get("before")
        if before is None:
            return Missing(Absence.NO_SERIES)
        pods = {f"{replica_set}-{end}": only(readings(State(before), at), look.signals) for end in "ab"}
        return Measured(Observation(at, look.window.total_seconds(), 0.0, pods), at)

    async def devices(
        self, source: str, pods: Sequence[Pod], namespace: str, window: timedelta
    ) -> Mapping[str, Reading[tuple[Device, ...]]]:
        script, at = self._script(), datetime.now(UTC)
        by_pod = script.get("devices", {})
        return {pod.name: _device(by_pod.get(pod.name, by_pod.get("*")), at) for pod in pods}

    async def peaks(self, source: str, pods: Sequence[Pod], namespace: str) -> Mapping[str, Reading[float]]:
        script, at = self._script(), datetime.now(UTC)
        value = script.get("peak")
        peak: Reading[float] = Missing(Absence.NO_SERIES) if value is None else Measured(float(value), at)
        return dict.fromkeys((pod.name for pod in pods), peak)

    async def past_lengths(self, source: str, pods: Sequence[Pod], namespace: str) -> tuple[PastLengths, ...]:
        return ()

    async def count_in_flight(self, source: str, namespace: str, pod: Pod, out: timedelta) -> Reading[float]:
        count = self._script().get("inFlight", 0)
        return (
            Missing(Absence.SOURCE_UNAVAILABLE)
            if count is None
            else Measured(float(count), datetime.now(UTC))
        )

    async def count_received(self, source: str, namespace: str, pod: Pod) -> Reading[float]:
        count = self._script().get("received")
        return Missing(Absence.NO_SERIES) if count is None else Measured(float(count), datetime.now(UTC))

    async def pool(self, source: str, namespace: str, pod: Pod) -> Reading[Pool]:
        return Measured(POOL, datetime.now(UTC))

    async def version(self, namespace: str, pod: Pod) -> Reading[Version]:
        text = self._script().get("version")
        return Measured(Version.parse(text), datetime.now(UTC)) if text else Missing(Absence.NOTHING_FOUND)


def _device(values: Mapping[str, float] | None, at: datetime) -> Reading[tuple[Device, ...]]:
    """Return one GPU that is well but for these values; None: no exporter reports it."""
    if values is None:
        return Missing(Absence.NO_SERIES)
    vitals = (Vital.CLOCK_REASONS, Vital.LAST_XID, Vital.UNCORRECTABLE_ERRORS, Vital.ROW_REMAP_FAILED)
    readings: dict[Vital, Reading[float]] = {v: Measured(float(values.get(v, 0)), at) for v in vitals}
    for vital in (Vital.MEMORY_IN_USE, Vital.MEMORY_FREE):
        if vital in values:
            readings[vital] = Measured(float(values[vital]), at)
    return Measured((Device("GPU 0", readings),), at)
