"""The order of things: traffic, trouble, the operator's work, the end; and what is left of it as a result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.cluster.access import Access
from lab.cluster.api import until
from lab.cluster.progress import step

from .figures import Figures, Window, figures, lost
from .footprint import Footprint
from .goals import Result, misses
from .scenario import FLEET, Scenario
from .scene import Scene, scene, state_of
from .traffic import Traffic
from .view import View
from .witness import OWNERS, Replica, Said, Witness

TICK_SECONDS = 0.5
POD_NAME = re.compile(rf"{FLEET}-[0-9a-z]+-([0-9a-z]{{5}})\b")
"""A pod of the fleet; on the screen its last five letters do."""
ROUTED_SECONDS = 3.0
"""From the readiness of the last replica until the Service surely leads to it: kube-proxy writes its rules
once a second. Clients that start before all meet at one replica, and stay there."""
RAMP_SECONDS = 10.0
"""From the first request until the pools are full: 4 to 10 s were seen."""
THRASHING = 0.5
"""Preemptions per second and replica from which the view calls it thrashing: 1.3 to 3.2 were measured on one
replica that thrashed, 0 on a calm one."""
PHASES = {
    "": "the fleet is watched",
    "Pending": "a plan is made",
    "RollingOut": "one replica after the other is drained and swapped; the spare came first",
    "Verifying": "every replica runs the change; its effect is measured",
    "RollingBack": "the change is taken back",
    "Left": "the run ends",
}


WAITS = frozenset({"AwaitingCanary", "AwaitingReplica", "Draining", "DrainTimedOut", "Holding"})
"""Reasons of the condition Progressing that tell what a run waits for; the others pass within a second or
have an Event of their own."""


class Play:
    """One scenario on a stage that is set."""

    def __init__(self, scenario: Scenario, access: Access, url: str, view: View) -> None:
        self.scenario, self.view = scenario, view
        self.witness = Witness(access)
        self._url = url
        self._traffic: Traffic | None = None
        self._footprint = Footprint()
        self._started = time.time()
        self._states: dict[str, str] = {}
        self._progress = ""
        self._told: set[str] = set()
        self._run: dict[str, Any] = {}
        self._opened_at: float | None = None
        self._settled_at: float | None = None
        self._template: object = None

    def run(self, directory: Path) -> Result:
        """Play to the end; Ctrl-C and errors leave no client behind."""
        self.witness.start()
        try:
            self._await_fleet()
            self._traffic = Traffic(self._url, self.scenario.load, directory)
            self._act(self._traffic)
            return self._result(self._traffic)
        finally:
            if self._traffic is not None:
                self._traffic.kill()
            self.witness.stop()

    @property
    def elapsed(self) -> float:
        """Seconds since the first request."""
        return time.time() - self._started

    def _await_fleet(self) -> None:
        wanted, ready = self.scenario.fleet.replicas, self.scenario.limits.ready
        with step("waiting for the fleet and the operator"):
            until(
                lambda: len(self.witness.facts.in_rotation) == wanted,
                ready,
                f"{wanted} replicas in rotation",
            )
            until(self._is_watched, ready, "the operator's first diagnosis")
            time.sleep(ROUTED_SECONDS)
        self.witness.hear()
        self.witness.arm()
        self._template = _touchable(self.witness.deployment())
        self._footprint.start()

    def _is_watched(self) -> bool:
        """Return whether the operator has looked at the fleet; so young a one gives no evidence yet."""
        return bool(self.witness.resource().get("status", {}).get("diagnosis"))

    def _act(self, traffic: Traffic) -> None:
        scenario, limits = self.scenario, self.scenario.limits
        self._started = time.time()
        self._tell(
            "traffic",
            f"{scenario.load.clients} clients send to {scenario.fleet.replicas} replicas; "
            f"each may run {scenario.fleet.cap} requests at once",
        )
        traffic.start()
        if scenario.expected == "Healthy":
            self._watch(traffic, limits.calm, lambda: bool(self.witness.run()))
        elif self._watch(traffic, limits.diagnosis, lambda: self._opened_at is not None):
            self._watch(traffic, limits.run, lambda: bool(self.witness.closed_run()))
            self._watch(traffic, limits.measure, self._is_measured)
        self._tell("traffic", "no new requests; what is under way may end")
        traffic.end()
        self._look(traffic)

    def _is_measured(self) -> bool:
        since = self._settled_at or self._opened_at or self._started
        return time.time() - since >= self.scenario.limits.measure

    def _watch(self, traffic: Traffic, seconds: float, done: Callable[[], bool]) -> bool:
        """Show what happens until something is so; return whether it was before the time was up."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            traffic.require_alive()
            self._look(traffic)
            if done():
                return True
            time.sleep(TICK_SECONDS)
        return False

    def _look(self, traffic: Traffic) -> None:
        """Note and tell what changed since the last look."""
        self._note_run()
        for said in self.witness.hear():
            self._tell("WARNING" if said.warning else "operator", self._news(said))
        self._tell_progress()
        self._tell_replicas(self.witness.replicas())
        self.view.show(self._scene(traffic))

    def _note_run(self) -> None:
        run = self.witness.run()
        if not run:
            return
        self._run = run
        self._opened_at = self._opened_at or time.time()
        if self._settled_at is None and run["steps"][0].get("settledAt"):
            self._settled_at = time.time()

    def _tell_progress(self) -> None:
        """Tell what the open run waits for, when that is another thing than before."""
        conditions = self.witness.resource().get("status", {}).get("conditions", ())
        found = next((each for each in conditions if each["type"] == "Progressing"), None)
        if found is None or not self.witness.run() or found["reason"] not in WAITS:
            return
        text = f"{found['reason']}: {found['message']}"
        if text != self._progress:
            self._progress = text
            self._tell("run", text)

    def _tell_replicas(self, replicas: Sequence[Replica]) -> None:
        for each in replicas:
            state = state_of(each)
            if self._states.get(each.name) != state:
                if each.name in self._states or len(self._states) >= self.scenario.fleet.replicas:
                    self._tell("replica", f"{each.name} (cap {each.cap}): {state}")
                self._states[each.name] = state
        for gone in self._states.keys() - {each.name for each in replicas}:
            del self._states[gone]
            self._tell("replica", f"{gone}: gone")

    def _news(self, said: Said) -> str:
        """Return an Event in its own words, without the plan where that was told before."""
        note = said.note.removeprefix(f"{said.reason}: ")
        plan = str(self._run.get("message", ""))
        if plan and plan in note:
            note = note if plan not in self._told else note.partition(" Deployment/")[0]
            self._told.add(plan)
        return f"{said.reason}: {note}"

    def _tell(self, who: str, text: str) -> None:
        self.view.tell(self.elapsed, who, POD_NAME.sub(r"\1", text))

    def _scene(self, traffic: Traffic) -> Scene:
        now = scene("", self.elapsed, self.witness, traffic.records())
        run = self.witness.run()
        phase = PHASES.get(run["steps"][0]["state"] if run else "", "")
        if not run and now.preemptions_per_second >= THRASHING * self.scenario.fleet.replicas:
            phase = "the fleet thrashes: requests are preempted and start again from nothing"
        return scene(phase, self.elapsed, self.witness, traffic.records())

    def _result(self, traffic: Traffic) -> Result:
        records, facts = traffic.records(), self.witness.facts
        closed = self.witness.closed_run()
        failed = lost(records)
        plan = self.witness.resource().get("status", {}).get("plan") or {}
        before, after = self._figures(traffic)
        result = Result(
            scenario=self.scenario,
            seconds=self.elapsed,
            before=before,
            after=after,
            requests=len(records),
            failed_requests=len(failed),
            failures=[f"{each.outcome}: {each.detail}" for each in failed][:20],
            min_in_rotation=facts.fewest_in_rotation or 0,
            restarts_per_replica=self._restarts(),
            plan="; ".join(closed.get("steps", ()) or plan.get("steps", ())).partition(": ")[2],
            verdict=str(closed.get("outcome") or self._calm()),
            message=str(closed.get("message", "")),
            foreign_writers=sorted(facts.managers - OWNERS),
            rewritten=self.witness.rewritten(),
            template_changed=_touchable(self.witness.deployment()) != self._template,
            operator=self._footprint.measured(),
        )
        result.missed = misses(result)
        return result

    def _calm(self) -> str:
        diagnosis = self.witness.resource().get("status", {}).get("diagnosis") or {}
        return "" if self._run else str(diagnosis.get("reason", ""))

    def _figures(self, traffic: Traffic) -> tuple[Figures | None, Figures | None]:
        records, samples = traffic.records(), self.witness.scraper.samples()
        span = self.scenario.limits.measure
        turning = self._opened_at
        if turning is None:
            return None, None
        before = Window(max(self._started + RAMP_SECONDS, turning - span), turning)
        start = self._settled_at
        after = None if start is None else figures(Window(start, start + span), records, samples)
        return figures(before, records, samples), after

    def _restarts(self) -> float:
        """Return how often a replica was swapped or restarted, per replica.

        A canary that never served took nobody's place, so it does not count.
        """
        facts, replicas = self.witness.facts, self.scenario.fleet.replicas
        crashes = sum(facts.restarts.get(uid, 0) for uid in facts.served)
        return (len(facts.served) - replicas + crashes) / replicas


def _touchable(deployment: dict[str, Any]) -> object:
    """Return all of a Deployment that a person or an operator sets."""
    marks = deployment.get("metadata", {}).get("annotations", {})
    return deployment.get("spec"), {key for key in marks if key.startswith("kvmedic.io/")}
