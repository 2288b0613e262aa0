"""What one operator costs that looks after N fleets, and how soon it heals those that are sick.

    python -m lab.bench.scale 1000 [--replicas 2] [--seconds 90] [--limit 600] [--operator DIRECTORY]
    python -m lab.bench.scale 400 --poison 50

The operator runs as a process of its own with its ordinary settings, against a real API server with N fleets
that stand still (`scale_fleets.py`), and a source that answers for all of them (`scale_source.py`). CPU
seconds, bytes and requests are what counts: walls are those of the machine, which others may use too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from lab.bench.scale_fleets import SPARSE, ScaleFleet, fleets, populate
from lab.bench.scale_poison import BOUND, SETTLING_SECONDS, Reaction, poisoned, react, write_workloads
from lab.bench.scale_runs import Witness, open_runs
from lab.cluster import usage
from lab.cluster.api import Api
from lab.cluster.light import LightCluster
from lab.cluster.machine import free_ports, step
from lab.cluster.process import REAPER
from worlds.world import define

ROUND_SECONDS = 30.0
"""Pace of fleets without a run (`pace.idle`)."""
SPEC: dict[str, Any] = {
    "mode": "Auto",
    "nodeHealth": "IfAvailable",
    "levers": [{"name": "maxNumSeqs", "min": 8}],
    "trigger": {"window": "2m", "for": "1m"},
}
"""Held for a minute, which is over at once: the source reports a sick fleet as if it had always been so. So
what is measured is the reaction beyond `for`."""
REACTION_GOAL_SECONDS = ROUND_SECONDS + 2
"""From the threshold's crossing to the first move, beyond `for`: the pace and 2 s. A scrape, of which this
source has none, may take its time on top."""
SOURCE_TIMEOUT = "1m"
"""Longer than usual: the source takes long for a question that it was never asked, which is none of ours."""
BUDGET = 4
"""Runs that may be open at once (`budgets.runs`)."""
SICK = BUDGET
"""Fleets that become sick beside poison."""
POISON_TIMES = 3
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent up to a moment."""

    wall: float
    cpu: float
    looks: float
    queries: int
    received: int
    requests: Counter[str]

    def since(self, earlier: Spent) -> Spent:
        requests = Counter(self.requests)
        requests.subtract(earlier.requests)
        return Spent(
            self.wall - earlier.wall,
            self.cpu - earlier.cpu,
            self.looks - earlier.looks,
            self.queries - earlier.queries,
            self.received - earlier.received,
            requests,
        )


@dataclass
class Scale:
    """The world of one measurement."""

    cluster: LightCluster
    fleets: list[ScaleFleet]
    directory: Path
    log: Path
    witness: Witness
    package: Path | None = None
    """Directory of another version's `kvmedic` package, which is measured in place of this one."""
    operator: subprocess.Popen[bytes] = field(init=False)
    source: subprocess.Popen[bytes] = field(init=False)
    ports: list[int] = field(default_factory=lambda: free_ports(2))
    sick: int = 0
    """Fleets that thrash, as `SPARSE` orders them; the resources of those that had a run are gone."""

    def start(self) -> None:
        """Start the operator."""
        self.operator = self.start_process(self.ports[1], self.log)

    def start_process(self, telemetry_port: int, log: Path) -> subprocess.Popen[bytes]:
        """Start one process of the operator, which waits where another one leads."""
        config = self.directory / f"{telemetry_port}.yaml"
        sources = {"default": {"url": f"http://127.0.0.1:{self.ports[0]}", "timeout": SOURCE_TIMEOUT}}
        process = {"namespace": "kvmedic-system", "liveness": "", "telemetryPort": telemetry_port}
        config.write_text(yaml.safe_dump({"sources": sources, "process": process}))
        env = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "KVMEDIC_CONFIG": str(config)}
        # As in the image, whose modules are compiled: one that compiles them takes 5 MB more.
        env |= {"PYTHONPYCACHEPREFIX": str(self.directory / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
        if self.package is not None:
            env["PYTHONPATH"] = str(self.package)
        argv = [sys.executable, "-m", "kvmedic", "run"]
        usage_of = subprocess.run([*argv, "--help"], env=env, capture_output=True, text=True, check=True)
        # Versions that asked nothing before they ran in a person's name had no such option.
        if "--yes" in usage_of.stdout:
            argv.append("--yes")
        with log.open("wb") as output:
            return _start(argv, env=env, stdout=output, stderr=subprocess.STDOUT)

    def make_sick(self, count: int) -> None:
        """Let some fleets thrash; the answers that the source then needs are its own cost."""
        self.sick = count
        _post(f"http://127.0.0.1:{self.ports[0]}/sick?count={count}")

    def next_sick(self, count: int) -> list[ScaleFleet]:
        """Return the fleets that become sick where that many more do."""
        return sorted(self.fleets, key=SPARSE)[self.sick : self.sick + count]

    def wake(self, some: list[ScaleFleet]) -> None:
        """Have fleets looked at now: their next look is a round later."""
        for fleet in some:
            # An annotation would be a new generation, which a controller would have to see.
            woken = {"metadata": {"labels": {"lab/woken": f"{time.monotonic():.0f}"}}}
            self.cluster.api.patch("Deployment", fleet.name, woken, fleet.namespace)

    def memory(self) -> str:
        """Return what the operator holds, and the most that it held (MB)."""
        held = (usage.resident_bytes(self.operator.pid), usage.peak_bytes(self.operator.pid))
        return " / ".join(f"{each / 1e6:.0f}" for each in held)

    def cpu_seconds(self) -> float:
        return usage.cpu_seconds(self.operator.pid)

    def own_metric(self, name: str) -> float | None:
        """Return a number of the operator's own metrics, None where it has no such."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}/metrics", timeout=60) as answer:
            found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", answer.read().decode(), re.MULTILINE)
        return sum(map(float, found)) if found else None

    def spent(self) -> Spent:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[0]}/spent", timeout=60) as answer:
            sent = json.load(answer)
        looks = self.own_metric("kvmedic_tick_seconds_count") or 0.0
        page = self.cluster.api.http.get("/metrics", timeout=60).text
        return Spent(
            time.monotonic(), self.cpu_seconds(), looks, sent["queries"], sent["bytes"], requests_of(page)
        )

    def let_all_go(self, limit: float) -> None:
        """Abandon and delete each resource that has an open run, and wait until they are gone."""
        for place in tuple(self.witness.open_now):
            self.witness.let_go(place)
        self.wait(lambda seen: not seen.open_now, limit)

    def wait(self, holds: Callable[[Witness], bool], limit: float) -> float | None:
        """Return after how many seconds something was seen, None where it was not in time."""
        began = time.monotonic()
        held = self.witness.wait(holds, limit)
        if self.operator.poll() is not None:
            raise RuntimeError(f"the operator ended: {self.log.read_text()[-2000:]}")
        return time.monotonic() - began if held else None


def requests_of(page: str) -> Counter[str]:
    """Return how many requests of each kind an API server answered. What has no resource is ours."""
    found: Counter[str] = Counter()
    for labels, count in _REQUESTS.findall(page):
        parts = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if parts["resource"]:
            below = "/" if parts["subresource"] else ""
            found[f"{parts['verb']} {parts['resource']}{below}{parts['subresource']}"] += int(float(count))
    return found


def _post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"), timeout=600):
        """The answer says nothing."""


@contextmanager
def populated(all_fleets: list[ScaleFleet]) -> Iterator[LightCluster]:
    """Yield a cluster in which all fleets stand, with their resources."""
    with LightCluster() as cluster:
        cluster.api.close()
        cluster.api = Api(cluster.access, timeout_seconds=120)
        define(cluster)
        with step(f"{len(all_fleets)} fleets of {all_fleets[0].replicas} replicas are written"):
            populate(cluster.api, all_fleets, SPEC)
        yield cluster


@contextmanager
def world(count: int, replicas: int, log: Path | None, package: Path | None = None) -> Iterator[Scale]:
    """Yield a cluster with all fleets, and a source; the operator is not started."""
    all_fleets = fleets(count, replicas)
    with populated(all_fleets) as cluster, tempfile.TemporaryDirectory() as directory:
        log = log or Path(directory) / "operator.log"
        scale = Scale(cluster, all_fleets, Path(directory), log, Witness(cluster.api), package)
        numbers = {"fleets": count, "replicas": replicas, "port": scale.ports[0]}
        argv = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
        scale.source = _start([sys.executable, "-m", "lab.bench.scale_source", *argv])
        try:
            with step("the source has its series"):
                _await_source(scale.ports[0])
            with scale.witness:
                yield scale
        finally:
            for process in (scale.source, getattr(scale, "operator", scale.source)):
                process.kill()
                process.wait()


def _start(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, however that ends."""
    process = subprocess.Popen(argv, process_group=0, **options)
    REAPER.watch(process.pid)
    return process


def _await_source(port: int) -> None:
    for _ in range(600):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/spent", timeout=60).close()
        except OSError:
            time.sleep(0.2)
    raise TimeoutError("the source of metrics does not answer")


def say(what: str, figure: str) -> None:
    print(f"{what:<58} {figure}", flush=True)


@dataclass(frozen=True, slots=True)
class Calm:
    """What fleets cost while nothing happens."""

    spent: Spent
    """Over `spent.wall` seconds."""
    requests: Mapping[str, int]
    """To the API server, but for those of this benchmark."""

    @property
    def rounds(self) -> float:
        """Return how many rounds of looks the time would hold."""
        return self.spent.wall / ROUND_SECONDS

    @property
    def cpu_per_look(self) -> float:
        """Return CPU seconds for each look, with all that is done beside looks."""
        return self.spent.cpu / max(self.spent.looks, 1)

    @property
    def writes(self) -> int:
        """Return the requests that wrote anything but a Lease; a review asks, and nothing of it is stored."""
        return sum(
            n
            for what, n in self.requests.items()
            if what.split()[0] in ("POST", "PUT", "PATCH", "APPLY")
            and not ("leases" in what or what.endswith("reviews"))
        )


QUIET_SECONDS, MOST_WRITING_SECONDS = 2.0, 60.0
"""For how long nobody writes once the first looks are over, and how long that may take on a busy machine."""


def watch_calm(scale: Scale, seconds: float) -> Calm:
    """Return what all cost for some time, from when Events of the looks before it have been sent."""
    begun = time.monotonic()
    while _cost(scale, QUIET_SECONDS).writes and time.monotonic() - begun < MOST_WRITING_SECONDS:
        pass
    return _cost(scale, seconds)


def _cost(scale: Scale, seconds: float) -> Calm:
    before = scale.spent()
    time.sleep(seconds)
    spent = scale.spent().since(before)
    return Calm(spent, {what: n for what, n in spent.requests.items() if n})


def measure_calm(scale: Scale, seconds: float) -> None:
    """Print what calm fleets cost."""
    calm, count = watch_calm(scale, seconds), len(scale.fleets)
    spent, per_look = calm.spent, calm.cpu_per_look
    say("RSS, steady / peak since the start (MB)", scale.memory())
    say("cores used (CPU seconds over wall)", f"{spent.cpu / spent.wall:.3f}")
    say(
        "looks; seconds until each fleet's next one",
        f"{spent.looks:.0f}; {count * spent.wall / max(spent.looks, 1):.1f}",
    )
    say(
        "CPU ms a look; cores needed for a look every 30 s",
        f"{1e3 * per_look:.2f}; {per_look * count / ROUND_SECONDS:.3f}",
    )
    say("queries per round of 30 s", f"{spent.queries / calm.rounds:.1f}")
    say("MB received per minute", f"{spent.received / 1e6 / spent.wall * 60:.2f}")
    oldest = scale.own_metric("kvmedic_oldest_look_age_seconds")
    say("age of the oldest look (s)", "not reported" if oldest is None else f"{oldest:.1f}")
    requests = sorted(calm.requests.items(), key=lambda item: -item[1])
    rate = "; ".join(f"{what} {n / spent.wall:.2f}" for what, n in requests)
    say("API requests per second", f"{sum(n for _, n in requests) / spent.wall:.2f}: {rate}")
    say("writes while healthy, the Lease apart", str(calm.writes))


def measure_standby(scale: Scale, seconds: float) -> None:
    """Print what a second process costs that waits until the first one ends."""
    standby = scale.start_process(free_ports(1)[0], scale.directory / "standby.log")
    try:
        time.sleep(ROUND_SECONDS)
        before = usage.cpu_seconds(standby.pid)
        time.sleep(seconds)
        spent, held = usage.cpu_seconds(standby.pid) - before, usage.resident_bytes(standby.pid)
        say("standby: cores used; RSS (MB)", f"{spent / seconds:.4f}; {held / 1e6:.0f}")
    finally:
        standby.kill()
        standby.wait()


def measure_restart(scale: Scale, limit: float) -> None:
    """Print how soon the next process has looked at all fleets, which have records already."""
    scale.operator.terminate()
    scale.operator.wait()
    scale.start()
    began, seconds = time.monotonic(), None
    while seconds is None and time.monotonic() - began < limit:
        time.sleep(1)
        with suppress(OSError):  # it does not listen yet
            looks, waiting = map(
                scale.own_metric, ("kvmedic_tick_seconds_count", "kvmedic_waiting_resources")
            )
            if (looks or 0) >= len(scale.fleets) and not waiting:
                seconds = time.monotonic() - began
    say(
        "restart: s until all are looked at; CPU s", f"{_or_never(seconds, limit)}; {scale.cpu_seconds():.1f}"
    )


def measure_one(scale: Scale, seconds: float, limit: float) -> None:
    """Print how soon one sick fleet has a run, and how often that is looked at, while all others are calm."""
    before = scale.spent()
    runs = open_runs(scale.witness, lambda: scale.make_sick(1), 1, BUDGET, limit)
    say(
        "1 sick: s until its run is open; until its first move", _both(runs.first_run, runs.first_move, limit)
    )
    say(
        "1 sick: s beyond `for` until its first move; goal",
        f"{_or_never(runs.first_move, limit)}; {REACTION_GOAL_SECONDS:.0f}",
    )
    if runs.first_move is None:
        say("  why not", why_not(scale, 0))
    else:
        gap = seconds_between_looks(scale, max(seconds / 3, 10))
        say("1 open run: s from one of its looks to the next", f"{gap:.2f}")
    say_spent(scale, "1 sick", before)
    scale.let_all_go(limit)


def seconds_between_looks(scale: Scale, seconds: float) -> float:
    """Return how long it takes from one look at the only open run to the next."""
    held = scale.spent()
    time.sleep(seconds)
    since = scale.spent().since(held)
    # Of calm resources none is read from the API server.
    return since.wall / max(since.requests["GET kvremediations"], 1)


def measure_many(scale: Scale, sick: int, limit: float) -> None:
    """Print whether many that are sick at once are all served."""
    before = scale.spent()
    # The one that was sick before is gone.
    runs = open_runs(scale.witness, lambda: scale.make_sick(1 + sick), sick, BUDGET, limit)
    say(
        f"{sick} sick: s until a run is open; until its first move",
        _both(runs.first_run, runs.first_move, limit),
    )
    say(
        f"{sick} sick: s until {BUDGET} runs are open; until all were served",
        _both(runs.budget_full, runs.all_moved, limit),
    )
    rounds = "never" if runs.budget_full is None else f"{runs.budget_full / ROUND_SECONDS:.1f}"
    say(f"{sick} sick: rounds beyond `for` until {BUDGET} runs are open", rounds)
    waits = sorted(runs.waits)
    if waits:
        say(
            f"{sick} sick: served; s until then, median and last",
            f"{len(waits)}; {waits[len(waits) // 2]:.0f}, {waits[-1]:.0f}",
        )
    if runs.all_moved is None:
        say("  why not the others", why_not(scale, sick))
    say(f"{sick} sick: runs open at once, at most (budget {BUDGET})", str(runs.most_open))
    say_spent(scale, f"{sick} sick", before)


def measure_poison(scale: Scale, poisonous: int, limit: float) -> None:
    """Print how soon fleets react without and beside the poison of another tenant, each several times."""
    poison = write_workloads(scale, poisonous)
    alone: list[Reaction] = []
    beside: list[Reaction] = []
    for number in range(POISON_TIMES):
        alone += _say_reaction(scale, f"{number + 1}: {SICK} sick, without poison", limit)
        with poisoned(scale, poison, SPEC):
            time.sleep(SETTLING_SECONDS)
            beside += _say_reaction(scale, f"{number + 1}: {SICK} sick, beside {poisonous} of poison", limit)
    if len(alone) == len(beside) == POISON_TIMES:
        without, with_poison = (median(each.seconds for each in some) for some in (alone, beside))
        say(
            f"poison: s until the first move, without and with {poisonous}",
            f"{without:.1f}; {with_poison:.1f}",
        )
        cores = (median(each.cores for each in some) for some in (alone, beside))
        say("poison: cores used until then, without and with", "; ".join(f"{each:.3f}" for each in cores))
        spent = (median(each.cpu_seconds for each in some) for some in (alone, beside))
        say("poison: CPU s until then, without and with", "; ".join(f"{each:.1f}" for each in spent))
        say(f"poison: ratio of reactions (goal: < {BOUND})", f"{with_poison / without:.2f}")


def _say_reaction(scale: Scale, what: str, limit: float) -> list[Reaction]:
    reaction = react(scale, SICK, limit)
    if reaction is None:
        say(f"{what}: s until the first move", f"> {limit:.0f}")
        return []
    say(
        f"{what}: s; CPU s; cores",
        f"{reaction.seconds:.1f}; {reaction.cpu_seconds:.1f}; {reaction.cores:.3f}",
    )
    return [reaction]


def why_not(scale: Scale, sick: int) -> str:
    """Say what the resources of sick fleets report that were not served."""
    api, moved = scale.cluster.api, scale.witness.moved
    names = [(f.namespace, f.name) for f in sorted(scale.fleets, key=SPARSE)[: 1 + sick]]
    found: Counter[str] = Counter()
    for namespace, name in (each for each in names if each not in moved):
        by_type = {c["type"]: c for c in api.get("KVRemediation", name, namespace)["status"]["conditions"]}
        kinds = [by_type[kind] for kind in ("Ready", "Diagnosed", "Progressing") if kind in by_type]
        found["; ".join(f"{each['type']} {each['reason']}" for each in kinds)] += 1
    return " | ".join(f"{n}: {text}" for text, n in found.most_common())


def measure_outage(scale: Scale, outage: float, limit: float) -> None:
    """Print how soon all are looked at again after the API server was away, and what that asks of it."""
    scale.cluster.stop_component("kube-apiserver")
    before = scale.cpu_seconds()
    time.sleep(outage)
    say(f"API server away for {outage:.0f} s: cores used", f"{(scale.cpu_seconds() - before) / outage:.3f}")
    scale.cluster.start_component("kube-apiserver")
    back, cpu = time.monotonic(), scale.cpu_seconds()
    failures = scale.own_metric("kvmedic_tick_failures_total") or 0.0
    seconds: float | None = None
    while seconds is None and time.monotonic() - back < limit:
        time.sleep(1)
        age = scale.own_metric("kvmedic_oldest_look_age_seconds") or 0.0
        # Until the loop goes on it is 0, for a moment after the Lease is held.
        if 0 < age < time.monotonic() - back:
            seconds = time.monotonic() - back
    failed = (scale.own_metric("kvmedic_tick_failures_total") or 0.0) - failures
    say("  s until all were looked at again; looks that failed", f"{_or_never(seconds, limit)}; {failed:.0f}")
    page = scale.cluster.api.http.get("/metrics", timeout=60).text
    # It counts from its start on; what it asks itself while it starts is among them.
    asked = sum(requests_of(page).values()) / (time.monotonic() - back)
    say("  API requests per second until then; CPU s", f"{asked:.0f}; {scale.cpu_seconds() - cpu:.1f}")


def say_spent(scale: Scale, what: str, before: Spent) -> None:
    """Print what the operator spent since a moment."""
    spent = scale.spent().since(before)
    rounds = spent.wall / ROUND_SECONDS
    say(
        f"{what}: queries per round; MB per round",
        f"{spent.queries / rounds:.0f}; {spent.received / 1e6 / rounds:.2f}",
    )
    say(
        f"{what}: cores used; looks a second", f"{spent.cpu / spent.wall:.3f}; {spent.looks / spent.wall:.1f}"
    )
    say(f"{what}: RSS, now / peak (MB)", scale.memory())


def _both(first: float | None, second: float | None, limit: float) -> str:
    return f"{_or_never(first, limit)}; {_or_never(second, limit)}"


def _or_never(seconds: float | None, limit: float) -> str:
    return f"> {limit:.0f}" if seconds is None else f"{seconds:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fleets", type=int)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--outage", type=float, default=0.0, help="s for which the API server is away, last")
    parser.add_argument("--poison", type=int, default=0, help="fleets of a tenant who makes his looks dear")
    parser.add_argument("--log", type=Path, help="where the operator's log is kept")
    parser.add_argument("--operator", type=Path, help="directory of another version's kvmedic package")
    chosen = parser.parse_args()
    count, limit = chosen.fleets, chosen.limit
    with world(count, chosen.replicas, chosen.log, chosen.operator) as scale:
        say("fleets; replicas of each", f"{count}; {chosen.replicas}")
        scale.start()
        looked = scale.wait(lambda seen: len(seen.looked_at) == count, limit)
        say("cold start: s until all are looked at", _or_never(looked, limit))
        if looked is None:
            say("  looked at by then", str(len(scale.witness.looked_at)))
        say("cold start: CPU s; RSS, now / peak (MB)", f"{scale.cpu_seconds():.1f}; {scale.memory()}")
        time.sleep(ROUND_SECONDS if chosen.seconds > ROUND_SECONDS else 0)
        if chosen.poison:
            measure_poison(scale, chosen.poison, limit)
            return
        measure_calm(scale, chosen.seconds)
        measure_standby(scale, chosen.seconds)
        measure_restart(scale, limit)
        measure_one(scale, chosen.seconds, limit)
        if count > 1:
            measure_many(scale, min(50, count - 1), limit)
        if chosen.outage:
            measure_outage(scale, chosen.outage, limit)


if __name__ == "__main__":
    main()
