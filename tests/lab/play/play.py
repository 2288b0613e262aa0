"""The order of things: a whole fleet, traffic, what happens meanwhile, the end; and what is left of it."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from lab.cluster.api import until
from lab.cluster.machine import step
from lab.loadgen.record import ConnectionMode, Record
from lab.play.course import Course, Window
from lab.play.figures import figures, lost
from lab.play.manifests import PORT
from lab.play.result import Footprint, Result, misses
from lab.play.schema import Apply, Incident, Route, Scenario
from lab.play.story import Story, View
from lab.play.traffic import Traffic
from lab.play.unhealed import can_be_replayed, tokens_in_time
from lab.play.witness import OWNERS, Witness

TICK_SECONDS = 0.5
ROUTED_SECONDS = 3.0
"""From the readiness of the last replica until the Service surely leads to it: kube-proxy writes its rules
once a second. Clients that start before all meet at one replica, and stay there."""
RAMP_SECONDS = 10.0
"""From the first request until the pools are full: 4 to 10 s were seen."""


class Others(Protocol):
    """Everybody but the operator, as `lab.play.hands` has them."""

    def meet(self, pods: list[str]) -> None:
        """Note the replicas by age."""

    def add_devices(self, pods: list[str]) -> None:
        """Give each pod's GPU its series."""

    def device_memory(self) -> Mapping[str, float]:
        """Return the MiB that each pod's GPU has in use, by its name; empty where nobody measures."""

    def carry_out(self, incident: Incident, digest: str) -> str:
        """Make something happen; return it in one line."""


class Play:
    """One scenario in a place that is set."""

    def __init__(self, scenario: Scenario, witness: Witness, others: Others, url: str, view: View) -> None:
        self.scenario, self.witness = scenario, witness
        self._others, self._url = others, url
        self._story = Story(witness, view, scenario.fleet.replicas)
        self._course = Course(scenario, witness.chronicle)
        self._footprint = Footprint()
        self._started = time.time()
        self._template: object = None

    def run(
        self, directory: Path, forbidden: frozenset[str] = frozenset(), stopped: Event | None = None
    ) -> Result:
        """Play to the end; Ctrl-C and errors leave no client behind.

        Raises:
            RuntimeError: it was stopped, or its clients broke off.
        """
        traffic = Traffic(directory, picks=self.witness.picker is not None)
        self.witness.start()
        try:
            self._await_fleet()
            self._act(traffic, stopped or Event())
            result = self._result(traffic)
        finally:
            traffic.kill()
            self.witness.stop()
        result.missed = misses(result, forbidden)
        return result

    @property
    def elapsed(self) -> float:
        return time.time() - self._started

    def _await_fleet(self) -> None:
        replicas, ready = self.scenario.fleet.replicas, self.scenario.limits.ready
        with step(f"{self.scenario.name}: waiting for the fleet and the operator"):
            until(lambda: len(self.witness.pods()) == replicas, ready, f"{replicas} pods")
            self._others.add_devices(self.witness.pods())
            if self.scenario.fleet.serves:
                until(
                    lambda: len(self.witness.facts.in_rotation) == replicas,
                    ready,
                    f"{replicas} replicas in rotation",
                )
                time.sleep(ROUTED_SECONDS)
            until(self._is_watched, ready, "the operator's first word")
        self.witness.hear()
        self.witness.arm()
        self._others.meet(self.witness.pods())
        self._template = _touchable(self.witness.workload())
        self._footprint.start()

    def _is_watched(self) -> bool:
        """Return whether the operator has looked at the fleet; so young a one gives no evidence yet."""
        return bool(self.witness.chronicle.status.get("conditions"))

    def _act(self, traffic: Traffic, stopped: Event) -> None:
        fleet = self.scenario.fleet
        self._started = time.time()
        self.witness.chronicle.begin()
        what = " and ".join(str(each) for each in self.scenario.load if not each.is_burst)
        text = f"{what} go to {fleet.replicas} replicas; each may run {fleet.cap} requests at once"
        self._story.add_line(0, "traffic", text)
        self._story.begin(self.scenario.remediation)
        while not self._course.is_over(self.elapsed):
            self._tick(traffic)
            if stopped.wait(TICK_SECONDS):
                raise RuntimeError("it was stopped")
        if self.scenario.expect.moves:
            self._story.add_line(self.elapsed, "traffic", "no new requests; what is under way may end")
            traffic.finish()
        self._look(traffic)

    def _tick(self, traffic: Traffic) -> None:
        self._course.look(self.elapsed, self.witness.facts.cues)
        serving = (each for each in self.witness.replicas() if each.in_rotation)
        ports = self.witness.picker.ports if self.witness.picker else (PORT,)
        traffic.lead([f"http://{each.address}:{port}" for each in serving for port in ports])
        for number, stream in self._course.starting(self.elapsed):
            traffic.start(number, stream, self._urls())
            if stream.is_burst:
                self._story.add_line(self.elapsed, "traffic", f"a burst: {stream}")
        for number in self._course.ending(self.elapsed):
            traffic.stop(number)
        for incident in self._course.due(self.elapsed):
            digest = str(self.witness.chronicle.plan.get("digest", ""))
            self._story.add_line(self.elapsed, "incident", self._others.carry_out(incident, digest))
        self._others.add_devices(self.witness.pods())
        traffic.require_alive()
        self._look(traffic)

    def _urls(self) -> dict[Route, tuple[str, ...]]:
        addresses = self.witness.addresses()
        first = next(
            (f"http://{addresses[pod]}:{PORT}" for pod in self.witness.pods() if pod in addresses), ""
        )
        return {
            Route.SERVICE: (self._url,),
            Route.STICKY: (self._url,),
            Route.REPLICA: (first,),
            Route.REPLICA_FIRST: (first, self._url),
        }

    def _look(self, traffic: Traffic) -> None:
        """Report what changed since the last look."""
        self._story.go_on(self.elapsed)
        memory = self._others.device_memory()
        self._story.show(self._story.scene(self.elapsed, traffic.records(), memory))

    def _result(self, traffic: Traffic) -> Result:
        records, facts, chronicle = traffic.records(), self.witness.facts, self.witness.chronicle
        failed, cut = (lost(records, each) for each in (ConnectionMode.FRESH, ConnectionMode.KEEP_ALIVE))
        windows = {
            name: (self._started + since, self._started + until)
            for name, (since, until) in self._course.windows(RAMP_SECONDS).items()
        }
        samples, limit = self.witness.scraper.samples(), self.scenario.first_token_limit
        seen = {name: figures(window, records, samples, limit) for name, window in windows.items()}
        reasons = {*chronicle.reasons, chronicle.reason}
        return Result(
            scenario=self.scenario,
            seconds=self.elapsed,
            before=seen.get("before"),
            during=seen.get("during"),
            after=seen.get("after"),
            unhealed=self._unhealed(records, windows),
            requests=len(records),
            failed_requests=len(failed),
            kept_requests=sum(each.connection is ConnectionMode.KEEP_ALIVE for each in records),
            failed_kept_requests=len(cut),
            failures=[f"{each.outcome}: {each.detail}" for each in (*failed, *cut)][:20],
            min_in_rotation=facts.fewest_in_rotation or 0,
            most_pods=facts.most_pods,
            expired=len(facts.expired),
            restarts_per_replica=self._restarts(),
            branch=chronicle.found,
            branches=list(chronicle.branches),
            reasons=sorted(reasons - {""}),
            missing_reasons=self._course.missing_reasons,
            planned=chronicle.planned,
            moves=chronicle.moves,
            ended=[step.partition(": ")[2] for run in chronicle.closed for step in run.get("steps", ())],
            verdicts=[str(run["outcome"]) for run in chronicle.closed],
            message=self._message(),
            unsaid=[text for text in self.scenario.expect.says if not chronicle.says(text)],
            foreign_writers=sorted(facts.managers - OWNERS - self._appliers()),
            rewritten=self.witness.rewritten(),
            template_changed=_touchable(self.witness.workload()) != self._template,
            operator=self._footprint.measured(),
        )

    def _appliers(self) -> set[str]:
        return {each.manager for each in self.scenario.incidents if isinstance(each, Apply)}

    def _message(self) -> str:
        """Return what the last run says, else why there is none."""
        chronicle = self.witness.chronicle
        last = chronicle.closed[-1] if chronicle.closed else None
        diagnosis = chronicle.status.get("diagnosis") or {}
        return str((last or chronicle.condition("ActionRequired") or diagnosis).get("message", ""))

    def _unhealed(self, records: Sequence[Record], windows: Mapping[str, Window]) -> dict[str, float]:
        """Return what the fleet as it was would have served in time, where that can be simulated."""
        if "after" not in windows or not can_be_replayed(self.scenario):
            return {}
        with step(f"{self.scenario.name}: simulating the same arrivals at the fleet as it was"):
            found = tokens_in_time(self.scenario, records, list(windows.values()))
        return dict(zip(windows, found, strict=True))

    def _restarts(self) -> float:
        """Return how often a replica was swapped or restarted, per replica.

        A canary that never served took nobody's place, so it does not count.
        """
        facts, replicas = self.witness.facts, self.scenario.fleet.replicas
        crashes = sum(facts.restarts.get(uid, 0) for uid in facts.served)
        return (len(facts.served) - replicas + crashes) / replicas


def _touchable(workload: dict[str, Any]) -> object:
    """Return all of a workload that a person or an operator sets."""
    marks = workload.get("metadata", {}).get("annotations", {})
    return workload.get("spec"), {key for key in marks if key.startswith("kvmedic.io/")}
