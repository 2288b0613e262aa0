"""What a person should hear of a play: Events, replicas, what a run waits for, each in one line and once."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvmedic.model.trial import Answer
from kvmedic.runbooks.compression.probes import picture_of, trace_of
from lab.loadgen.record import Record, percentile
from lab.play.figures import Sample, lost, rate, risen
from lab.play.schema import FLEET
from lab.play.witness import WORKLOADS, Replica, Said, Witness

RECENT_SECONDS = 15.0
"""What counts as now for rates and percentiles: several scrapes, and over a hundred requests of the demo."""


@dataclass(frozen=True, slots=True)
class ReplicaLine:
    """One replica."""

    name: str
    cap: str
    state: str
    """In rotation, draining, starting …"""
    running: int
    waiting: int
    usage: float
    """KV-cache usage, ratio 0 to 1."""
    preemptions_per_second: float
    answers: bool
    """Its engine answered within the last seconds."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is on the screen."""

    elapsed: float
    phase: str
    replicas: tuple[ReplicaLine, ...]
    in_rotation: int
    longest_gap_p95: float
    """Of the requests that ended within the last 15 s; NaN when none did."""
    tokens_per_second: float
    answered: int
    lost: int
    device_mib: Mapping[str, float] = field(default_factory=dict)
    """Of each pod's GPU that is reported, in use: what a dashboard of the GPUs shows."""

    @property
    def preemptions_per_second(self) -> float:
        """Of the whole fleet."""
        return sum(each.preemptions_per_second for each in self.replicas)


def state_of(replica: Replica) -> str:
    if replica.terminating:
        return "leaving"
    if replica.trouble:
        return replica.trouble
    if replica.in_rotation:
        return "in rotation"
    return "draining" if replica.cordoned else "starting"


def _line(replica: Replica, kept: list[Sample], now: float) -> ReplicaLine:
    last = kept[-1] if kept and now - kept[-1].at < RECENT_SECONDS else None
    return ReplicaLine(
        name=replica.name.rpartition("-")[2],
        cap=str(replica.cap or "-"),
        state=state_of(replica),
        running=int(last.running) if last else 0,
        waiting=int(last.waiting) if last else 0,
        usage=last.usage if last else 0.0,
        preemptions_per_second=rate(kept, RECENT_SECONDS) if last else 0.0,
        answers=last is not None,
    )


def _generated(samples: dict[str, list[Sample]], now: float) -> float:
    """Return tokens per second of all replicas over the last seconds."""
    total = 0.0
    for kept in samples.values():
        recent = [each for each in kept if each.at >= now - RECENT_SECONDS]
        if len(recent) > 1:
            total += risen([each.generated for each in recent]) / (recent[-1].at - recent[0].at)
    return total


class View(Protocol):
    """One reader of the story."""

    def add_line(self, elapsed: float, who: str, text: str) -> None:
        """Add one line to the story; `who` is one word."""

    def draw(self, elapsed: float, who: str, lines: Sequence[str]) -> None:
        """Add a picture to the story; each character keeps its place."""

    def show(self, scene: Scene) -> None:
        """Show the present moment."""

    def close(self) -> None:
        """Give the terminal back."""


class Notes:
    """Keeps the story, for a file beside the requests of a play."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add_line(self, elapsed: float, who: str, text: str) -> None:
        self.lines.append(f"{elapsed:7.1f}  {who:<9} {text}")

    def draw(self, elapsed: float, who: str, lines: Sequence[str]) -> None:
        for line in lines:
            self.add_line(elapsed, who, line)

    def show(self, scene: Scene) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is held."""


POD_NAME = re.compile(rf"{FLEET}-[0-9a-z]+-([0-9a-z]{{5}})\b")
"""A pod of the fleet; on the screen its last five letters do."""
TRIAL_POD = re.compile(rf"{FLEET}-trial-\d+-\d+")
WORKLOAD = re.compile(rf" (?:{'|'.join(WORKLOADS)})/")
"""Where a plan begins in an Event."""
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
TRYING = "a trial pod, to which nobody leads requests, shows what becomes of blocks"
WAITS = frozenset(
    {
        "AwaitingCanary",
        "AwaitingReplica",
        "Draining",
        "DrainTimedOut",
        "RequestsStillArrive",
        "Holding",
        "TrialRunning",
    }
)
"""Reasons of the condition Progressing that say what a run waits for; the others pass within a second or
have an Event of their own."""


class Story:
    """Reports to a view what changed since it looked last."""

    def __init__(self, witness: Witness, view: View, replicas: int) -> None:
        self._witness, self._view, self._replicas = witness, view, replicas
        self._states: dict[str, str] = {}
        self._progress = ""
        self._reported_plans: set[str] = set()
        self._drawn: set[Answer] = set()

    def begin(self, spec: Mapping[str, Any]) -> None:
        """Report what is special about the fleet, as the spec of its resource says it."""
        method = spec.get("compression") or {}
        if "keepRatio" in method:
            share = 100 * (1 - float(method["keepRatio"]))
            self.add_line(
                0, "engine", f"{method.get('method', 'a method')} evicts {share:.0f} % of all tokens"
            )

    def add_line(self, elapsed: float, who: str, text: str) -> None:
        self._view.add_line(elapsed, who, shortened(text))

    def go_on(self, elapsed: float) -> None:
        for said in self._witness.hear():
            self.add_line(elapsed, "WARNING" if said.warning else "operator", self._news(said))
        self._report_progress(elapsed)
        self._draw_trials(elapsed)
        self._report_replicas(elapsed, self._witness.replicas())

    def show(self, now: Scene) -> None:
        self._view.show(now)

    def scene(self, elapsed: float, records: Sequence[Record], memory: Mapping[str, float]) -> Scene:
        """Return the present moment, with its phase in words."""
        now, samples, seen = time.time(), self._witness.scraper.samples(), self._witness.replicas()
        recent = [each for each in records if each.ended_at >= now - RECENT_SECONDS]
        lines = tuple(_line(each, samples.get(each.name, []), now) for each in seen)
        return Scene(
            elapsed=elapsed,
            phase=self._phase(sum(each.preemptions_per_second for each in lines)),
            replicas=lines,
            in_rotation=sum(each.in_rotation for each in seen),
            longest_gap_p95=percentile(
                sorted(each.longest_gap_seconds for each in recent if each.tokens), 0.95
            ),
            tokens_per_second=_generated(samples, now),
            answered=len(records),
            lost=len(lost(records)),
            device_mib={shortened(pod): mib for pod, mib in sorted(memory.items())},
        )

    def _phase(self, preemptions_per_second: float) -> str:
        chronicle = self._witness.chronicle
        if chronicle.is_trying:
            return TRYING
        if chronicle.run:
            return PHASES.get(chronicle.run["steps"][0]["state"], "")
        if preemptions_per_second >= THRASHING * self._replicas:
            return "the fleet thrashes: requests are preempted and start again from nothing"
        return PHASES[""]

    def _report_progress(self, elapsed: float) -> None:
        """Report what the open run waits for, when that is another thing than before."""
        chronicle = self._witness.chronicle
        found = chronicle.condition("Progressing")
        if not found or not chronicle.run or found["reason"] not in WAITS:
            return
        text = f"{found['reason']}: {found['message']}"
        if text != self._progress:
            self._progress = text
            self.add_line(elapsed, "run", text)

    def _draw_trials(self, elapsed: float) -> None:
        for answer in self._witness.chronicle.answers:
            trace = trace_of(answer)
            if trace is not None and answer not in self._drawn:
                self._drawn.add(answer)
                self._view.draw(elapsed, "trial", picture_of(trace))

    def _report_replicas(self, elapsed: float, replicas: Sequence[Replica]) -> None:
        for each in replicas:
            state = state_of(each)
            if self._states.get(each.name) != state:
                if each.name in self._states or len(self._states) >= self._replicas:
                    self.add_line(elapsed, "replica", f"{each.name} (cap {each.cap}): {state}")
                self._states[each.name] = state
        for gone in self._states.keys() - {each.name for each in replicas}:
            del self._states[gone]
            self.add_line(elapsed, "replica", f"{gone}: gone")

    def _news(self, said: Said) -> str:
        """Return an Event in its own words, without the plan where that was reported before."""
        note = said.note.removeprefix(f"{said.reason}: ")
        plan = str(self._witness.chronicle.run.get("message", ""))
        if plan and plan in note:
            note = note if plan not in self._reported_plans else WORKLOAD.split(note, maxsplit=1)[0]
            self._reported_plans.add(plan)
        return f"{said.reason}: {note}"


def shortened(text: str) -> str:
    return POD_NAME.sub(r"\1", TRIAL_POD.sub("trial pod", text))
