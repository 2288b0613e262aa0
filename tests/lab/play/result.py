"""All that is left of one play."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from lab.play.course import line
from lab.play.figures import Figures
from lab.play.schema import Scenario

Object = dict[str, Any]


@dataclass(slots=True)
class Result:
    """What was seen; `missed` is what should have been otherwise."""

    scenario: Scenario
    seconds: float = 0.0
    """From the start of the play to the end of its last request."""
    before: Figures | None = None
    after: Figures | None = None
    requests: int = 0
    failed_requests: int = 0
    failures: list[str] = field(default_factory=list)
    min_in_rotation: int = 0
    restarts_per_replica: float = 0.0
    branch: str = ""
    """Of the first run, else the one that was diagnosed at the end."""
    branches: list[str] = field(default_factory=list)
    """All that were diagnosed, in their order."""
    reasons: list[str] = field(default_factory=list)
    """Of all conditions at the end."""
    untold: list[str] = field(default_factory=list)
    """Reasons that a condition should have given at some time and did not."""
    planned: list[Object] = field(default_factory=list)
    """Steps of the plan that is shown at the end."""
    moves: list[Object] = field(default_factory=list)
    """Steps of all runs."""
    ended: list[str] = field(default_factory=list)
    """Steps of all closed runs as people read them, with what became of each."""
    verdicts: list[str] = field(default_factory=list)
    """How each run ended, oldest first."""
    message: str = ""
    """Of the last run, else why there was none."""
    unsaid: list[str] = field(default_factory=list)
    """Texts that should stand in the status and do not."""
    foreign_writers: list[str] = field(default_factory=list)
    """Field managers other than the owner's and Kubernetes' own on the Deployment or its pods."""
    rewritten: list[str] = field(default_factory=list)
    """The Deployment and those of its first pods that anybody wrote to, by name."""
    template_changed: bool = False
    operator: dict[str, float] = field(default_factory=dict)
    trouble: str = ""
    """Why it could not be played to its end."""
    missed: list[str] = field(default_factory=list)

    @property
    def plan(self) -> str:
        """Return what was done, or the plan that is shown, in one line."""
        return "; ".join(self.ended or (line(step) for step in self.moves or self.planned))

    @property
    def verdict(self) -> str:
        """Return how it ended in one or two words: the verdicts, else what keeps a run from being opened."""
        return ", ".join(self.verdicts) or str(self.scenario.expect.held or self.branch)

    def as_json(self) -> dict[str, Any]:
        """Return the content of a summary; NaN is null."""
        return {
            "scenario": self.scenario.name,
            "branch": self.branch,
            "branches": self.branches,
            "before": _plain(self.before),
            "after": _plain(self.after),
            "requests": self.requests,
            "failed_requests": self.failed_requests,
            "failures": self.failures,
            "min_in_rotation": self.min_in_rotation,
            "replicas": self.scenario.fleet.replicas,
            "restarts_per_replica": self.restarts_per_replica,
            "plan": self.plan,
            "moves": [line(step) for step in self.moves],
            "verdict": self.verdict,
            "reasons": self.reasons,
            "message": self.message,
            "writes_to_workloads": [*self.foreign_writers, *self.rewritten],
            "operator": self.operator,
            "trouble": self.trouble,
            "missed": self.missed,
            "seconds": round(self.seconds, 1),
        }


def _plain(seen: Figures | None) -> dict[str, float | None] | None:
    if seen is None:
        return None
    return {key: None if math.isnan(value) else round(value, 4) for key, value in asdict(seen).items()}
