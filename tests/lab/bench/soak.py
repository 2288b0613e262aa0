"""Does one operator stay as it is for an hour of churn and faults?

    python -m lab.bench.soak 300 [--minutes 60]

The world is that of `lab.bench.scale`: a process of its own with its ordinary settings, a real API server,
and fleets that no controller moves. Each minute some of them are removed with all that is theirs, and made
anew. Every five minutes some become sick, each of which must have a run that makes its first move, and one of
the faults below comes. It fails where memory, files or threads grow, or a sick fleet is not served.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import httpx

from lab.bench.scale import SPEC, Scale, say, world
from lab.bench.scale_fleets import HASH, SPARSE, ScaleFleet, create
from lab.bench.scale_runs import Place
from lab.cluster import usage
from lab.cluster.api import Api, ApiError, until

REPLICAS = 2
CHURN = 3
"""Fleets that are made anew in each minute."""
SICK = 5
"""One more than may have an open run at once."""
EVERY = 5
"""Minutes from one sickness to the next, and from one fault to the next."""
FAULT_AT = 2
"""Minutes after a sickness, while runs are open."""
COLD_SECONDS = 600.0
GONE_SECONDS = 60.0
"""For the operator to let go of a resource with an open run."""
GROWN = 1.05
"""Memory of the last minutes over that of the first: more is growth. Of 300 fleets it was 1.03 times."""
MORE_FILES = 5
"""Files and threads: connections come and go."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The operator's process at the end of one minute."""

    bytes: int
    files: int
    threads: int
    oldest: float
    """Seconds since the look that is longest ago."""
    failed: float
    """Looks that failed since the start."""


@dataclass
class Soak:
    """What happens to the fleets, and what was seen."""

    scale: Scale
    served: list[float] = field(default_factory=list)
    """Seconds until each sick fleet's first move."""
    unserved: int = 0
    samples: list[Sample] = field(default_factory=list)
    _sick_since: float | None = None

    def run(self, minutes: int) -> None:
        """Let all happen, and print a line a minute."""
        sick, calm = self._sick(), cycle(sorted(self.scale.fleets, key=SPARSE)[SICK:])
        faults = cycle(FAULTS.items())
        for minute in range(minutes):
            ends, event = time.monotonic() + 60, ""
            if minute % EVERY == 0:
                event = self._end_sickness(sick)
                self._begin_sickness(sick)
            if minute % EVERY == FAULT_AT:
                event, fault = next(faults)
                fault(self.scale)
            for fleet in islice(calm, CHURN):
                self._make_anew(fleet)
            time.sleep(max(0.0, ends - time.monotonic()))
            self._sample(minute, event)
        self._end_sickness(sick)

    def _sick(self) -> dict[Place, ScaleFleet]:
        return {(f.namespace, f.name): f for f in sorted(self.scale.fleets, key=SPARSE)[:SICK]}

    def _begin_sickness(self, sick: Mapping[Place, ScaleFleet]) -> None:
        for place in sick:
            self.scale.witness.opened.pop(place, None)
            self.scale.witness.moved.pop(place, None)
        self.scale.witness.lets_go = True
        self.scale.make_sick(SICK)
        self._sick_since = time.monotonic()

    def _end_sickness(self, sick: Mapping[Place, ScaleFleet]) -> str:
        """Count who was served, and make all of them anew, as calm as the others."""
        if self._sick_since is None:
            return ""
        moved = self.scale.witness.moved
        waits = [moved[place][0] - self._sick_since for place in sick if place in moved]
        self.served += waits
        self.unserved += SICK - len(waits)
        self.scale.make_sick(0)
        for fleet in sick.values():
            self._make_anew(fleet)
        return f"{len(waits)} of {SICK} served after {', '.join(f'{each:.0f}' for each in sorted(waits))} s"

    def _make_anew(self, fleet: ScaleFleet) -> None:
        """Remove a fleet with its resource and all that its controllers made, and write it again."""
        api, place = self.scale.cluster.api, fleet.namespace
        self.scale.witness.let_go((place, fleet.name))
        made = [("Pod", name) for name in fleet.pods()] + [("ReplicaSet", f"{fleet.name}-{HASH}")]
        made += [("Deployment", fleet.name), ("Service", fleet.name), ("EndpointSlice", f"{fleet.name}-x")]
        for kind, name in made:
            with suppress(ApiError):  # it is gone already
                # No kubelet runs that would end a pod.
                path, at_once = api.resource(kind).path(place, name), {"gracePeriodSeconds": 0}
                api.request("DELETE", path, params=at_once)
        # The operator takes its finalizer off, where it has one.
        until(lambda: _is_gone(api, fleet), GONE_SECONDS, f"{place}/{fleet.name} is gone")
        create(api, fleet, SPEC)

    def _sample(self, minute: int, event: str) -> None:
        pid = self.scale.operator.pid
        oldest = self.scale.own_metric("kvmedic_oldest_look_age_seconds") or 0.0
        failed = self.scale.own_metric("kvmedic_tick_failures_total") or 0.0
        files, threads = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task"))
        now = Sample(usage.resident_bytes(pid), files, threads, oldest, failed)
        self.samples.append(now)
        say(
            f"{minute + 1:3d} min: MB; files; threads; oldest look (s); failed",
            f"{now.bytes / 1e6:.0f}; {files}; {threads}; {oldest:.0f}; {failed:.0f}  {event}",
        )


def _go_without(scale: Scale, component: str, seconds: float) -> None:
    scale.cluster.stop_component(component)
    time.sleep(seconds)
    scale.cluster.start_component(component)


def _freeze(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


FAULTS: Mapping[str, Callable[[Scale], None]] = {
    "API server killed, away for 20 s": lambda scale: _go_without(scale, "kube-apiserver", 20),
    "source silent for 45 s": lambda scale: _freeze(scale.source.pid, 45),
    "operator frozen for 45 s, its Lease lost": lambda scale: _freeze(scale.operator.pid, 45),
    "etcd killed, away for 10 s": lambda scale: _go_without(scale, "etcd", 10),
}


def _is_gone(api: Api, fleet: ScaleFleet) -> bool:
    try:
        api.get("KVRemediation", fleet.name, fleet.namespace)
    except ApiError as error:
        return error.code == httpx.codes.NOT_FOUND
    return False


def verdict(soak: Soak) -> list[str]:
    """Print what was seen in all; return what should have been otherwise."""
    part = max(1, len(soak.samples) // 6)
    # The first sixth is the start: caches fill.
    first, last = soak.samples[part : 2 * part], soak.samples[-part:]
    sides = {
        name: tuple(median(getattr(each, name) for each in some) for some in (first, last))
        for name in ("bytes", "files", "threads")
    }
    for name, (before, after) in sides.items():
        unit = 1e6 if name == "bytes" else 1
        what = "MB" if name == "bytes" else name
        say(f"{what}: second sixth of the time, last sixth", f"{before / unit:.0f}, {after / unit:.0f}")
    waits = sorted(soak.served)
    say("sick fleets: served, not served", f"{len(waits)}, {soak.unserved}")
    if waits:
        say("  s until the first move: median, last", f"{median(waits):.0f}, {waits[-1]:.0f}")
    say("oldest look (s): median, most", _both([each.oldest for each in soak.samples]))
    missed = [] if soak.unserved == 0 else [f"{soak.unserved} sick fleets were not served"]
    if sides["bytes"][1] > GROWN * sides["bytes"][0]:
        missed.append("memory grew")
    missed += [
        f"{name} grew" for name in ("files", "threads") if sides[name][1] > sides[name][0] + MORE_FILES
    ]
    return missed


def _both(values: list[float]) -> str:
    return f"{median(values):.0f}, {max(values):.0f}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("fleets", type=int)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--log", type=Path, help="where the operator's log is kept")
    chosen = parser.parse_args()
    with world(chosen.fleets, REPLICAS, chosen.log) as scale:
        scale.start()
        looked = scale.wait(lambda seen: len(seen.looked_at) == chosen.fleets, COLD_SECONDS)
        if looked is None:
            raise TimeoutError(f"not all fleets were looked at within {COLD_SECONDS:.0f} s")
        soak = Soak(scale)
        soak.run(chosen.minutes)
        missed = verdict(soak)
    print("; ".join(missed) or "no growth, nothing unserved")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
