"""Which revision turned on the method that compresses the KV cache, and whether it did only that.

Told from the pod templates that a target's ReplicaSets keep. Nothing is guessed: a revision that is gone or
cannot be read ends the search. Templates may hold secrets; of them only numbers and what differs leave this
module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from kvmedic.manifests.refusal import Refusal
from kvmedic.model.config_edits import Difference, Revision, rolled_out
from kvmedic.model.evidence import Blocked, Inconclusive, Observation
from kvmedic.model.spec import Policy
from kvmedic.runbooks.branches import Compressed
from kvmedic.runbooks.compression.methods import compressed_of
from kvmedic.runbooks.revisions import RAISED, differences
from kvmedic.runbooks.workload import View, Workload

_NOBODY = Observation(datetime(1970, 1, 1, tzinfo=UTC), 0.0, 0.0, {})
"""No replica: what those of now say tells nothing of another revision."""


@dataclass(frozen=True, slots=True)
class Untold:
    """How the fleet was without the method cannot be told from its past."""

    message: str


@dataclass(frozen=True, slots=True)
class Enabled:
    """A revision turned the method on, and changed nothing else that the KV cache depends on."""

    now: Revision
    previous: Revision


@dataclass(frozen=True, slots=True)
class Run:
    """The unbroken run of revisions, up to the present one, in which a method is on."""

    on: tuple[Revision, ...]
    """The newest first; empty: the present template does not tell."""
    enabled: Enabled | Untold
    """The one that began it."""


_Side: TypeAlias = Workload | Untold


def run_of(view: View, policy: Policy, method: Compressed) -> Run:
    """Return the run of revisions in which a method is on, and the one that turned it on.

    A method that was turned off meanwhile began anew: the newest beginning counts.
    """
    on: list[Revision] = []
    newer: Workload | None = None
    for each in rolled_out(view.fleet):
        if on and each.number != on[-1].number - 1:
            break
        side = _workload(each, view, policy)
        if isinstance(side, Untold):
            return Run(tuple(on), side)
        if not _is_on(side, policy, method):
            return Run(tuple(on), _began(on, each, (side, newer), view, policy, method))
        on.append(each)
        newer = side
    return Run(tuple(on), _endless(on, method))


def _endless(on: list[Revision], method: Compressed) -> Untold:
    if not on:
        return Untold("the present pod template has no ReplicaSet yet")
    if on[-1].number == 1:
        return Untold(f"{method.name} is on since the first revision")
    text = f"revision {on[-1].number - 1} is gone, and {method.name} is on in all that came after"
    return Untold(f"{text} (revisionHistoryLimit)")


def _workload(revision: Revision, view: View, policy: Policy) -> _Side:
    """Return the engine of a revision's template."""
    if revision.replica_set not in view.templates:
        return Untold(f"the pod template of revision {revision.number} was not read")
    found = view.workload(policy.target, revision.replica_set)
    if isinstance(found, Blocked):
        return _unreadable(revision, found.message)
    return _unreadable(revision, found.file.message) if isinstance(found.file, Refusal) else found


def _unreadable(revision: Revision, why: str) -> Untold:
    return Untold(f"the pod template of revision {revision.number} cannot be read: {why}")


def _is_on(workload: Workload, policy: Policy, method: Compressed) -> bool:
    """Return whether a method is on, by the template alone."""
    found = compressed_of(workload, policy.compression, (), _NOBODY)
    return found is not None and found.name == method.name


def _began(
    on: list[Revision],
    before: Revision,
    sides: tuple[Workload, Workload | None],
    view: View,
    policy: Policy,
    method: Compressed,
) -> Enabled | Untold:
    """Return the revision that turned the method on, if its figures compare with those of the one before."""
    was, now = sides
    if now is None:
        return Untold(f"the pod template does not tell that {method.name} is on")
    began = on[-1]
    if _from_elsewhere(was) != _from_elsewhere(now):
        text = f"revision {before.number} takes other variables from elsewhere than revision {began.number}"
        return Untold(f"{text}: whether {method.name} was on is not known")
    target = replace(policy.target, container=str(now.container.get("name")))
    found = differences(view, target, before.replica_set, began.replica_set)
    if isinstance(found, Inconclusive):
        return Untold(f"what revision {began.number} changed cannot be read: {found.message}")
    others = [each.line() for each in found if not _is_own(each, method, now)]
    if others:
        text = f"revision {began.number} turned {method.name} on and changed more: {', '.join(others)}"
        return Untold(f"{text}; figures of before would not be of the method alone")
    return Enabled(began, before)


def _from_elsewhere(workload: Workload) -> tuple[object, list[dict[str, object]]]:
    """Return what fills variables whose values are not in the template."""
    variables = workload.container.get("env")
    listed = variables if isinstance(variables, list) else []
    foreign = [each for each in listed if isinstance(each, dict) and "valueFrom" in each]
    return workload.container.get("envFrom") or [], foreign


def _is_own(difference: Difference, method: Compressed, workload: Workload) -> bool:
    """Return whether a difference is one of the settings that turn the method on."""
    profile = workload.engine.profile
    flags = {str(knob): flag.dest for knob in RAISED if (flag := profile.flag(knob))}
    dest = flags.get(difference.what, difference.what)
    return any(each.flag.lstrip("-").replace("-", "_") == dest for each in method.settings)
