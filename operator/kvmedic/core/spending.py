"""What a run costs while it goes: replicas beyond the recorded number, and replicas that start anew.

Counted from what is observed at each look and stored with whatever else is written, so that a run that
was left alone for an hour, by a crash for instance, is charged for that hour. Between two writes the
number that was stored counts; every move of a run is a write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kvmedic.core.edit import containers_of
from kvmedic.core.fleet import Fleet
from kvmedic.core.plan import Step
from kvmedic.core.quantity import whole_amount

WHOLE_DEVICE = "nvidia.com/gpu"
"""The extended resource of NVIDIA's device plugin. Parts of a GPU have other names (`nvidia.com/mig-…`), or
this one too, where every GPU of a node is cut into equal parts."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What a run has cost up to a moment."""

    at: datetime
    above: int
    """Replicas beyond the recorded number then; terminating ones count, as they hold their GPUs."""
    replica_seconds: float
    """Seconds of such replicas up to then."""
    most_changed: int
    """Most replicas seen that began with the change."""
    fewest_unchanged: int
    """Fewest replicas seen that run as before it."""


@dataclass(frozen=True, slots=True)
class Footing:
    """What a run's spending is counted against."""

    step: Step
    replicas: int
    """Of the fleet before the first effect."""
    started_at: datetime


def spent(before: Spending | None, footing: Footing, fleet: Fleet, now: datetime) -> Spending:
    """Return a run's spending up to now; looking twice at one moment changes nothing.

    Args:
        before: the spending as stored; None: nothing is.
        footing: what it is counted against.
        fleet: the fleet as it is now.
        now: the time.
    """
    known = before or Spending(footing.started_at, 0, 0.0, 0, footing.replicas)
    seconds = max(0.0, (now - known.at).total_seconds())
    above = max(0, len(fleet.pods) - footing.replicas)
    return Spending(
        at=max(now, known.at),
        above=above,
        replica_seconds=known.replica_seconds + known.above * seconds,
        most_changed=max(known.most_changed, _changed(footing, fleet)),
        fewest_unchanged=min(known.fewest_unchanged, _unchanged(footing, fleet)),
    )


def _changed(footing: Footing, fleet: Fleet) -> int:
    step = footing.step
    if step.before_template == step.after_template:
        return max(0, len(fleet.live) - footing.replicas)
    return len(fleet.serving(step.after_template))


def _unchanged(footing: Footing, fleet: Fleet) -> int:
    return min(footing.replicas, len(fleet.serving(footing.step.before_template)))


def devices_of(template: Mapping[str, object]) -> int | None:
    """Return how many GPUs a replica of a pod template holds; None where it names none.

    Whole devices (`nvidia.com/gpu`, `amd.com/gpu`) and parts of one (`nvidia.com/mig-…`) count alike:
    both are extended resources, whose limits are whole numbers.
    """
    return sum(_devices(container) for container in containers_of(template)) or None


def whole_devices_of(container: Mapping[str, object]) -> int:
    """Return how many whole NVIDIA GPUs a container is given; 0 where it names none, or parts of one."""
    return sum(whole_amount(amount) or 0 for name, amount in _limits(container) if name == WHOLE_DEVICE)


def _devices(container: Mapping[str, object]) -> int:
    return sum(whole_amount(amount) or 0 for name, amount in _limits(container) if _is_device(name))


def _limits(container: Mapping[str, object]) -> list[tuple[str, object]]:
    resources = container.get("resources")
    return _items(resources.get("limits") if isinstance(resources, Mapping) else None)


def _items(limits: object) -> list[tuple[str, object]]:
    return [(str(name), amount) for name, amount in limits.items()] if isinstance(limits, Mapping) else []


def _is_device(name: str) -> bool:
    return name.endswith("/gpu") or "/mig-" in name
