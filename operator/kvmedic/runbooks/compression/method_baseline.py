"""How a fleet was without the method that compresses its KV cache: its last healthy look before that came.

The look is in the status (`lastGood`); it becomes the baseline when the pod template turns the method on and
changes nothing else. Nothing is guessed: where the template of before is gone, or more changed, a person has
to give the figures. Templates may hold secrets; of them only numbers and what differs leave this module.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from kvmedic.manifests.refusal import Refusal
from kvmedic.model.compression import Figures
from kvmedic.model.config_edits import Difference
from kvmedic.model.evidence import Blocked, Inconclusive, Observation
from kvmedic.model.spec import Policy, Runbook, TargetRef
from kvmedic.model.status import LastGood, MethodBaseline, Record
from kvmedic.runbooks.branches import GIVEN, Compressed
from kvmedic.runbooks.compression.methods import compressed_of, with_known_baseline
from kvmedic.runbooks.revisions import RAISED, differences
from kvmedic.runbooks.workload import View, Workload

_NOBODY = Observation(datetime(1970, 1, 1, tzinfo=UTC), 0.0, 0.0, {})
"""No replica: what those of now say tells nothing of another revision."""


def with_baseline_on_record(
    method: Compressed | None, record: Record, policy: Policy, view: View
) -> Compressed | None:
    """Return a method with how the fleet was without it, or why that is not known."""
    if method is None:
        return None
    known = find_baseline(method, record, policy, view)
    if method.without.is_complete or Runbook.COMPRESSION_WITHOUT_SAVINGS not in policy.runbooks:
        return replace(method, baseline=known)
    if known is not None and not known.doubt:
        return with_known_baseline(method, known)
    why = known.doubt if known else f"no healthy look at the fleet without {method.name} is on record"
    return replace(method, baseline=known, no_baseline=f"{why}; or give {GIVEN}")


def find_baseline(method: Compressed, record: Record, policy: Policy, view: View) -> MethodBaseline | None:
    """Return the fleet without a method: of its last good look where that had none, else as recorded."""
    good, known = record.last_good, record.baseline
    if known is not None and known.method != method.name:
        known = None
    if good is None or good.method or good.revision == view.fleet.revision:
        return known
    # Decided when the method came: what changes later is no part of the comparison.
    if known is not None and not known.doubt and known.seen_at == good.recorded_at:
        return known
    doubt = _doubt_of(good, method, policy, view)
    return MethodBaseline(method.name, good.revision, good.figures or Figures(), good.recorded_at, doubt)


def _doubt_of(good: LastGood, method: Compressed, policy: Policy, view: View) -> str:
    """Return why figures of a revision are not the present one's without the method; empty: they are."""
    if good.figures is None or good.figures == Figures():
        return f"at the last healthy look without {method.name} not every figure was known"
    was, now = (_workload(revision, policy, view) for revision in (good.revision, view.fleet.revision))
    if isinstance(was, str):
        return was
    if isinstance(now, str):
        return now
    if not _is_on(now, policy, method):
        return f"the pod template does not tell that {method.name} is on"
    if _is_on(was, policy, method):
        return f"{method.name} was on at the last healthy look, too"
    names = _replica_set(good.revision, view), _replica_set(view.fleet.revision, view)
    return _other_changes(was, now, names, policy.target, view, method)


def _workload(revision: str, policy: Policy, view: View) -> Workload | str:
    """Return the engine of a revision's template, or why it cannot be told."""
    name = _replica_set(revision, view)
    if name not in view.templates:
        return f"pod template {revision} is gone (revisionHistoryLimit)"
    found = view.workload(policy.target, name)
    why = found if isinstance(found, Blocked) else found.file
    if isinstance(why, Blocked | Refusal):
        return f"pod template {revision} cannot be read: {why.message}"
    return found if isinstance(found, Workload) else ""


def _replica_set(revision: str, view: View) -> str:
    return next((each.name for each in view.fleet.replica_sets if each.revision == revision), "")


def _is_on(workload: Workload, policy: Policy, method: Compressed) -> bool:
    """Return whether a method is on, by the template alone."""
    found = compressed_of(workload, policy.compression, (), _NOBODY)
    return found is not None and found.name == method.name


def _other_changes(
    was: Workload, now: Workload, names: tuple[str, str], target: TargetRef, view: View, method: Compressed
) -> str:
    """Return what else changed than the method; empty where nothing did that the KV cache depends on."""
    if _from_elsewhere(was) != _from_elsewhere(now):
        return f"variables come from elsewhere than before: whether {method.name} was on is not known"
    found = differences(view, replace(target, container=str(now.container.get("name"))), *names)
    if isinstance(found, Inconclusive):
        return f"what changed with {method.name} cannot be read: {found.message}"
    others = [each.line() for each in found if not _is_own(each, method, now)]
    if not others:
        return ""
    text = f"more changed than {method.name} since the last healthy look without it: {', '.join(others)}"
    return f"{text}; figures of before would not be of the method alone"


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
