"""Which replicas a fleet is judged on, so that one that cannot be judged does not hide all others.

One that is not Ready, younger than the window or not scraped says nothing of the fleet's setting. It is left
out and named where the others are most of the fleet, or where everybody knows why it says nothing; otherwise
it counts like the others, and what is missing of it is missing of the fleet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kvmedic.model.evidence import Measured, Missing, Observation, PodReadings, Signal, Unsupported
from kvmedic.model.fleet import Pod

SHARE = 0.8
"""Share of the replicas that must be judged where nobody knows why the others say nothing. A choice: of five
replicas one may be silent, of four none."""
APART = 0.5
"""Part of the window by which a young replica is younger than the oldest one. Of a fleet that was started as
one the first replicas are not set against the last while those are a little under the window."""
NAMED = 3
"""Replicas that a message names; the rest is counted."""
STARTING = timedelta(minutes=1)
"""A replica that has not been Ready since so short a time after it was made has never been: it starts."""

_TRIGGER = Signal.PREEMPTIONS_PER_REQUEST_HELD


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A replica that the fleet is not judged on. Nothing rests on it: it carries no load, either."""

    why: str
    is_explained: bool
    """It is young, or not Ready for a known reason; otherwise it should say something, and does not."""
    readings: PodReadings
    """What is known of it all the same, over the trigger's window."""


def left_out(pods: Sequence[Pod], seen: Observation, at: datetime) -> Mapping[str, LeftOut]:
    """Return the replicas that the fleet is not judged on, by name; none where too few would be left.

    A young replica that tells something is left out where most that are Ready are older: a fleet of which
    most were just started is judged as it is, and never on the few that were not.

    Args:
        pods: every replica that should serve.
        seen: the look over the trigger's window.
        at: the moment of the look.
    """
    window = timedelta(seconds=seen.window_seconds)
    ages = {pod.name: at - pod.ready_at for pod in pods if pod.ready_at is not None}
    oldest = max(ages.values(), default=window)
    young = {name for name, age in ages.items() if age < min(window, oldest - APART * window)}
    counts = 2 * len(young) < len(ages)
    found = {
        pod.name: out
        for pod in pods
        if (out := _left_out(pod, seen.pods[pod.name], is_young=pod.name in young, counts=counts))
    }
    judged = len(pods) - len(found)
    explained = all(one.is_explained for one in found.values())
    return found if judged and (explained or judged >= SHARE * len(pods)) else {}


def is_quorate(pods: Sequence[Pod]) -> bool:
    """Return whether those that are not Ready keep no change from the others: few, or all explained."""
    down = [pod for pod in pods if not pod.ready]
    ready = len(pods) - len(down)
    return ready > 0 and (ready >= SHARE * len(pods) or all(_down(pod) for pod in down))


def judged_part(
    pods: Sequence[Pod], seen: Observation, down_before: int, added: Collection[str] = ()
) -> tuple[Observation, str]:
    """Return the look at those replicas that a change is judged on, and who is left out, for a person.

    Args:
        pods: every replica that runs the change.
        seen: the look over the sustained window.
        down_before: replicas that took no requests before the change. Where more are not Ready after it, that
            may be the change's doing: nobody is left out then.
        added: names of replicas that the change made beside others. Where one of them says nothing, little is
            known of the change: nobody is left out then either.
    """
    out = left_out(pods, seen, seen.at)
    if not out or out.keys() & set(added) or sum(not pod.ready for pod in pods) > max(0, down_before):
        return seen, ""
    kept = {name: readings for name, readings in seen.pods.items() if name not in out}
    return replace(seen, pods=kept), f"{quorum_line(len(kept), out)}; "


def quorum_line(judged: int, out: Mapping[str, LeftOut]) -> str:
    """Return who is left out and why, as one clause for a person; the same for as long as that holds."""
    named = ", ".join(f"{name} ({out[name].why})" for name in sorted(out)[:NAMED])
    rest = f" and {len(out) - NAMED} more" if len(out) > NAMED else ""
    return f"judged on {judged} of {judged + len(out)} replicas, without {named}{rest}"


def _left_out(pod: Pod, readings: PodReadings, *, is_young: bool, counts: bool) -> LeftOut | None:
    if not pod.ready:
        why = _down(pod)
        return LeftOut(f"not Ready: {why or 'nobody says why'}", bool(why), readings)
    silence = _silence(readings)
    if is_young and (counts or silence):
        return LeftOut("Ready for less than the trigger's window", is_explained=True, readings=readings)
    return LeftOut(silence, is_explained=False, readings=readings) if silence else None


def _down(pod: Pod) -> str:
    """Return why a replica is not Ready; empty where nobody says."""
    if pod.unschedulable:
        return "it cannot be scheduled"
    if pod.waiting_reason:
        return pod.waiting_reason
    if pod.is_down:
        return "its engine ended"
    is_new = pod.unready_at is None or pod.unready_at - pod.created_at < STARTING
    return "it starts" if is_new and not pod.restarts else ""


def _silence(readings: PodReadings) -> str:
    """Return why a replica that serves says nothing; empty where it does, or was not asked."""
    asked = (_TRIGGER,) if _TRIGGER in readings.numbers else tuple(readings.numbers)
    told = [readings.number(signal) for signal in asked]
    if not told or any(isinstance(one, Measured | Unsupported) for one in told):
        return ""
    return f"no metrics: {told[0].reason}" if isinstance(told[0], Missing) else "its metrics are stale"
