"""What the operator said about one resource over a play, from its status alone."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvmedic.api.status import record_from_wire
from kvmedic.model.trial import Answer, GateStep, TrialStep

Object = dict[str, Any]
TRIALS = frozenset({TrialStep.__name__, GateStep.__name__})
"""The kinds of step that change nothing of a fleet."""


@dataclass(slots=True)
class Chronicle:
    """Kept current by `learn`, which is called with each state of the status in its order."""

    status: Object = field(default_factory=dict)
    """As it is now."""
    branches: list[str] = field(default_factory=list)
    """Reasons of the diagnosis, each once per time that it was found anew since `begin`."""
    opened: dict[str, Object] = field(default_factory=dict)
    """Every run that was ever open, by id, as it was last recorded."""
    ever: set[str] = field(default_factory=set)
    """Reasons that a condition ever gave."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, status: Mapping[str, Any]) -> None:
        """Take the next state."""
        with self._lock:
            before = self.reason
            self.status = dict(status)
            self.ever |= self.reasons
            if self.reason not in ("", before):
                self.branches.append(self.reason)
            if run := self.run:
                self.opened[str(run["id"])] = run

    def begin(self) -> None:
        """Forget the branches of before: what is found of a fleet without traffic shows nothing of the play.

        The one that stands now is not found anew by going on to stand. A fleet that has just come up has
        no series over a whole look yet.
        """
        with self._lock:
            self.branches.clear()

    @property
    def reason(self) -> str:
        """Return the present diagnosis; empty: none yet."""
        return str((self.status.get("diagnosis") or {}).get("reason", ""))

    @property
    def found(self) -> str:
        """Return the branch that counts: that of the first run, else the present one."""
        first = next(iter(self.opened.values()), None)
        return str(first["reason"]) if first else self.reason

    @property
    def run(self) -> Object:
        """Return the open run as it is recorded; empty when there is none."""
        return dict(self.status.get("run") or {})

    @property
    def closed(self) -> list[Object]:
        return [dict(run) for run in reversed(self.status.get("history") or ())]

    @property
    def moves(self) -> list[Object]:
        """Return the steps of every run that was opened, as the status writes them."""
        return [dict(each["step"]) for run in self.opened.values() for each in run["steps"]]

    @property
    def plan(self) -> Object:
        """Return the plan that is shown; empty when there is none."""
        return dict(self.status.get("plan") or {})

    @property
    def planned(self) -> list[Object]:
        """Return the steps of the plan that is shown, as the status writes them."""
        return [dict(step) for step in (self.plan.get("exact") or {}).get("steps", ())]

    @property
    def changes_something(self) -> bool:
        """Return whether a plan is shown, or a run was opened, that is not only a trial."""
        steps = [*self.moves, *self.planned]
        is_trial = bool(steps) and all(step.get("kind") in TRIALS for step in steps)
        return bool(self.opened or self.plan) and not is_trial

    @property
    def is_trying(self) -> bool:
        return any(each["step"].get("kind") in TRIALS for each in self.run.get("steps", ()))

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return what trials showed, the oldest first."""
        wire = {"answers": self.status.get("answers") or []}
        return tuple(reversed(record_from_wire(wire).answers))

    @property
    def has_settled(self) -> bool:
        """Return whether every replica ran what the first step of some run changed."""
        return self.settled > 0

    @property
    def settled(self) -> int:
        """Return of how many runs every replica ran what the first step changed."""
        return sum(bool(run["steps"][0].get("settledAt")) for run in self.opened.values())

    @property
    def reasons(self) -> set[str]:
        return {str(each["reason"]) for each in self.status.get("conditions", ())}

    def condition(self, kind: str) -> Object:
        """Return a condition by its type; empty when it was never written."""
        found = (each for each in self.status.get("conditions", ()) if each["type"] == kind)
        return next(found, {})

    def says(self, text: str) -> bool:
        """Return whether a text stands in a condition, the plan, the diagnosis, or a run, open or closed."""
        parts = ("conditions", "plan", "diagnosis", "history")
        told = json.dumps([*(self.status.get(part) for part in parts), self.opened], ensure_ascii=False)
        return json.dumps(text, ensure_ascii=False)[1:-1] in told


def line(step: Mapping[str, Any]) -> str:
    """Return a step, as the status writes it, in a few words for a table."""
    kind = str(step.get("kind", "?")).removesuffix("Step")
    if "knob" in step:
        return f"{step['knob']} {step.get('before') or 'default'} -> {step.get('after') or 'default'}"
    after = step.get("after") or ""
    became = after["number"] if isinstance(after, Mapping) else after
    return f"{kind} {step.get('pod') or became}".strip().lower()
