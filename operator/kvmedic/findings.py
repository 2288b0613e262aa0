"""What one look at a fleet found."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvmedic.core.diagnosis import COMPARED, Diagnosed, Diagnosis, Evidence, Goal, Inconclusive
from kvmedic.core.edge import least_free_mib, up_seconds
from kvmedic.core.evidence import Measured, Observation, Reading
from kvmedic.core.fleet import Pod
from kvmedic.core.hand_overs import HandOver
from kvmedic.core.plan import OnTrial, Plan, ReplaceStep, gives_back
from kvmedic.core.policy import Policy
from kvmedic.core.run import Outcome
from kvmedic.core.verdict import Baseline, baseline_of
from kvmedic.core.vitals import Device
from kvmedic.gathering import expected
from kvmedic.manifests.proposals import Proposal
from kvmedic.ports import View
from kvmedic.runbooks.planning import Fault, Workload
from kvmedic.versions import engine_of


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at a fleet found."""

    view: View
    evidence: Evidence
    diagnosis: Diagnosis
    runbook: str
    plan: Plan | None
    obstacle: Outcome | None
    """Why there is no plan although a branch applies, or why the plan cannot be carried out."""
    proposal: Proposal | None = None
    """What to give to the owner of the target, who makes the change instead of us."""
    outlook: str = ""
    """Whether the fleet would do with less, where something is there for a while and somebody asked."""
    hand_over: HandOver | None = None
    """One runbook leaves the fleet to the other at this look."""

    def engine(self, policy: Policy) -> Workload | Fault:
        """Return the engine of the target in the version that counts, or why it cannot be told."""
        return engine_of(self.view, policy, self.evidence.versions)

    @property
    def burn(self) -> Observation:
        """Return the look over the trigger's window."""
        return self.evidence.burn

    @property
    def judged(self) -> tuple[Pod, ...]:
        """Return the replicas that the fleet is judged on, by name."""
        return tuple(pod for pod in expected(self.view) if pod.name not in self.evidence.left_out)

    @property
    def goal(self) -> Goal:
        """Return by what a change would be judged."""
        steps = self.plan.steps if self.plan else ()
        if any(gives_back(step) for step in steps):
            return Goal.CALM
        if any(isinstance(step, OnTrial) for step in steps):
            return Goal.ANSWER
        return self.diagnosis.branch.goal if isinstance(self.diagnosis, Diagnosed) else Goal.RELIEF

    def baseline(self) -> Baseline | Inconclusive | None:
        """Return the fleet as it is now, to be compared with later; None where that is not needed.

        Restarts are those of the replicas that are still to be there then. Replicas that just restarted have
        no figures, and a change for them is not judged by figures.
        """
        return self.baseline_over(self.evidence.burn)

    def baseline_over(self, seen: Observation) -> Baseline | Inconclusive | None:
        """Return the same of another look at the same replicas."""
        steps = self.plan.steps if self.plan else ()
        going = {step.uid for step in steps if isinstance(step, ReplaceStep)}
        staying = [pod for pod in expected(self.view) if pod.uid not in going]
        found = baseline_of(seen, sum(pod.ends for pod in staying))
        if isinstance(found, Inconclusive):
            return found if self.goal in COMPARED else None
        return replace(
            found,
            memory_free_mib=least_free_mib(self._devices()),
            up_seconds=up_seconds(staying, seen.at),
            ended_at_memory_limit=any(
                pod.last_end is not None and pod.last_end.at_memory_limit for pod in staying
            ),
        )

    def _devices(self) -> tuple[Reading[tuple[Device, ...]], ...]:
        return tuple(vitals.devices for vitals in self.evidence.vitals.values())

    def blocks(self) -> int | None:
        """Return the smallest pool of the replicas (usable blocks), or None when one is not known."""
        pools = [readings.pool for readings in self.evidence.burn.pods.values()]
        known = [pool.value.blocks for pool in pools if isinstance(pool, Measured)]
        return min(known) if known and len(known) == len(pools) else None
