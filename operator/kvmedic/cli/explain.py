"""`kvmedic explain`: what the operator sees, why it does or does not act, and what to type next.

Everything is read from the resource, as the operator last wrote it. No metrics are asked. Where it remembers
a trial or a score, the Deployment is read too: both tell of the pod template that they were made of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kvmedic.cli.fixes import ShownFixes, fixes_of
from kvmedic.cli.hand_overs import hand_over_as_json, hand_over_as_text
from kvmedic.cli.live import (
    Context,
    Kubeconfig,
    Namespace,
    finished,
    load_resource,
    name_in,
    settings_with,
    template_of,
)
from kvmedic.cli.terminal import Form
from kvmedic.cli.trials import ShownTrial, trial_of
from kvmedic.core.calm import Temporary
from kvmedic.core.footprint import Footprint
from kvmedic.core.loan import Borrowed
from kvmedic.core.reasons import Reason
from kvmedic.core.record import Condition, ConditionType, Record, Truth
from kvmedic.core.remedies import LOOK, REMEDIES, Remedy
from kvmedic.core.resource import Resource
from kvmedic.core.run import Run, StepState
from kvmedic.core.sentences import SENTENCES
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.wiring import connected

_BACK = Remedy(
    "to take the open change back",
    "kubectl -n $namespace annotate kvr $name kvmedic.io/rollback=$run",
)
_KEEP = Remedy(
    "to let the open change stay without a verdict",
    "kubectl -n $namespace annotate kvr $name kvmedic.io/keep=$run",
)
_NOBODY = Remedy("to see whether the operator runs", "kubectl -n $operator logs deployment/kvmedic")


@dataclass(frozen=True, slots=True)
class Place:
    """The operator's own names, for what to type."""

    namespace: str
    stop: str


def command(
    name: Annotated[str, typer.Argument(help="The KVRemediation.")],
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print it.")] = Form.TEXT,
) -> None:
    """Explain a resource in sentences: what it sees, why it does or does not act, what to type next.

    What a trial showed is drawn as a picture, or told in a table; JSON has its readings instead. Of the fix
    after a method of compression it tells what was turned off, what failed, and each score on record; of the
    runbooks, which of them left the fleet to the other last.

    Nothing is written and no metrics are asked. Exit code 0: it was told; 2: wrong usage or
    configuration; 4: there is no such resource.
    """
    settings, cluster = settings_with(), ClusterChoice(kubeconfig, context)
    which = name_in(cluster, namespace, name)

    async def look() -> tuple[Resource, str]:
        async with connected(settings, cluster) as world:
            resource = await load_resource(world, which)
            record = resource.record
            asked = record is not None and bool(record.answers or record.scores)
            return resource, await template_of(world, resource) if asked else ""

    place = Place(settings.process.namespace, settings.process.stop)
    resource, template = finished(look())
    trial = trial_of(resource.record, template)
    fixes = fixes_of(resource.record, template, resource.generation)
    if output is Form.JSON:
        print(json.dumps(as_json(resource, place, trial, fixes), indent=2))
    else:
        tried = (*(trial.as_text() if trial else ()), *fixes.as_text())
        print("\n".join(explained(resource, place, tried)))


def as_json(resource: Resource, place: Place, trial: ShownTrial | None, fixes: ShownFixes) -> dict[str, Any]:
    """Return what there is to say for a program: sentences, the trial's readings, scores, the hand-over."""
    told = (*((trial.sentence(),) if trial else ()), *fixes.as_text())
    return {
        "namespace": resource.namespace,
        "name": resource.name,
        "sentences": list(explained(resource, place, told)),
        "trial": trial.as_json() if trial else None,
        "turnedOff": fixes.turned_off_as_json(),
        "scores": fixes.scores_as_json(),
        "handOver": hand_over_as_json(resource.record),
    }


def explained(resource: Resource, place: Place, tried: Iterable[str] = ()) -> Iterator[str]:
    """Yield what there is to say about a resource, one paragraph a line.

    Args:
        resource: as it was loaded.
        place: the operator's own names.
        tried: what there is to say about trials and the fix after the method, line by line.
    """
    yield _task(resource)
    record = resource.record
    if resource.problem is not None:
        yield f"It does nothing: {resource.problem.reason}: {resource.problem.message}."
    if record is not None:
        yield from _seen(record)
        yield from hand_over_as_text(record)
        yield from tried
        yield from _run(record.run) if record.run else _idle(record)
        yield from _memory(record)
    yield from _next(resource, place)


def _task(resource: Resource) -> str:
    policy = resource.policy
    if policy is None:
        return f"KVRemediation {resource.namespace}/{resource.name} cannot be followed."
    allowed = [str(lever.knob) for lever in policy.levers]
    allowed += ["scaleOut"] * (policy.scale_out is not None)
    allowed += ["revisionRollback"] * policy.rollback.is_allowed
    levers = ", ".join(allowed) or "none"
    held = " It is suspended." if policy.suspended else ""
    return (
        f"KVRemediation {resource.namespace}/{resource.name} looks after {policy.target.kind} "
        f"{policy.target.name} in mode {policy.mode}; it may turn: {levers}.{held}"
    )


def _seen(record: Record) -> Iterator[str]:
    shown = record.diagnosis
    if shown is None:
        yield "Nobody has looked at the fleet yet."
        return
    yield f"It sees {shown.reason} ({shown.at:%Y-%m-%dT%H:%M:%SZ}, {shown.runbook}): {shown.message}"
    if record.urgency is not None:
        urgent = record.urgency
        yield f"That is a {urgent.severity} since {urgent.since:%Y-%m-%dT%H:%M:%SZ}: {urgent.message}."
    if record.aside is not None and record.aside.is_active:
        yield f"Since {record.aside.since:%Y-%m-%dT%H:%M:%SZ} {record.aside.line()}."
    metrics = record.condition(ConditionType.METRICS_AVAILABLE)
    if metrics is not None and metrics.status is not Truth.TRUE:
        yield f"Metrics are not complete: {metrics.reason}: {metrics.message}"


def _run(run: Run) -> Iterator[str]:
    yield f"Run {run.id} is open since {run.started_at:%Y-%m-%dT%H:%M:%SZ} ({run.reason}): {run.message}."
    for record in run.steps:
        judged = f", judged {record.verdict}" if record.verdict else ""
        yield f"  {record.step.line()}: {record.state}{judged}. {record.message}".rstrip()
    if run.ending is not None:
        yield f"It ends as {run.ending.reason}: {run.ending.message}"


def _idle(record: Record) -> Iterator[str]:
    yield "No run is open."
    if record.plan is not None:
        steps = "; ".join(record.plan.steps)
        yield f"It would do: {steps} (digest {record.plan.digest}), because {record.plan.message}."
    why = _why(record)
    if why is not None:
        yield f"It does not act: {why.reason}: {why.message}"


def _why(record: Record) -> Condition | None:
    """Return the condition that tells why nothing is done, or None where there is nothing to do."""
    found = record.condition(ConditionType.PROGRESSING)
    if found is None or found.reason in (Reason.NO_RUN, Reason.NOTHING_TO_DO):
        return None
    return found


def _held(held: Footprint) -> Iterator[str]:
    """Yield what was added for a while, and what it waits for."""
    yield f"For a while it holds {held.line()}; {_calm(held)}."
    if held.outlook and held.looked_at:
        yield f"  Would fewer do ({held.looked_at:%Y-%m-%dT%H:%M:%SZ})? {held.outlook}."


def _lent(lent: Borrowed) -> Iterator[str]:
    """Yield what was lent for a while, and what it waits for."""
    yield f"For a while it lends {lent.line()}; {_calm(lent)}."
    if lent.in_vain is not None:
        yield (
            f"  Giving it back did not hold ({lent.in_vain.at:%Y-%m-%dT%H:%M:%SZ}); it waits for a clearly "
            "lighter load, other lengths or another template."
        )
    if lent.outlook and lent.looked_at:
        yield f"  Would the fleet do without ({lent.looked_at:%Y-%m-%dT%H:%M:%SZ})? {lent.outlook}."


def _calm(held: Temporary) -> str:
    return f"calm since {held.calm_since:%Y-%m-%dT%H:%M:%SZ}" if held.calm_since else "not calm yet"


def _memory(record: Record) -> Iterator[str]:
    yield from _tried(record)
    yield from _kept(record)
    if record.history:
        last = record.history[0]
        steps = "; ".join(last.steps)
        yield f"The last run {last.id} ended {last.ended_at:%Y-%m-%dT%H:%M:%SZ} as {last.outcome}: {steps}."
        yield f"  {SENTENCES[last.outcome]} {last.message}".rstrip()
    if record.summary is not None:
        yield f"What run {record.summary.run} came to: {record.summary.sentence}"


def _tried(record: Record) -> Iterator[str]:
    """Yield what is not tried again."""
    for tried in record.levers:
        yield (
            f"{tried.knob} was tried ({tried.at:%Y-%m-%dT%H:%M:%SZ}): {tried.verdict}; "
            "not tried again on this template, these lengths and this pool."
        )
    for share in record.outgrown:
        yield (
            f"A GPU ran out of memory at a share of {share.share:g} ({share.at:%Y-%m-%dT%H:%M:%SZ}); it is "
            "not raised to there again with this image, these devices and volumes."
        )
    for one in record.replacements:
        yield (
            f"Replica {one.pod} was replaced ({one.at:%Y-%m-%dT%H:%M:%SZ}): {one.verdict}; no other of "
            f"{one.replicas} replicas with this template is."
        )
    for back in record.rollbacks:
        yield (
            f"Pod template {back.revision} was rolled back to {back.toward} ({back.at:%Y-%m-%dT%H:%M:%SZ}): "
            f"{back.outcome}; not tried again from this template."
        )
    for off in record.bundles:
        yield (
            f"{off.method} was turned off on pod template {off.revision} ({off.at:%Y-%m-%dT%H:%M:%SZ}): "
            f"{off.outcome}; not tried again on this template."
        )
    for scaling in record.scalings:
        yield (
            f"Replicas {scaling.before} -> {scaling.after} was tried ({scaling.at:%Y-%m-%dT%H:%M:%SZ}): "
            f"{scaling.verdict}; not tried again from {scaling.before} with this template."
        )


def _kept(record: Record) -> Iterator[str]:
    """Yield what is there for a time and goes again."""
    if record.footprint is not None:
        yield from _held(record.footprint)
    for lent in record.borrowed:
        yield from _lent(lent)
    for copy in record.copies:
        yield f"ConfigMap {copy.name} is a copy of ours; it is removed once nothing refers to it any more."


def _next(resource: Resource, place: Place) -> Iterator[str]:
    """Yield what a person may type."""
    record = resource.record
    run = record.run if record else None
    names = {
        "namespace": resource.namespace,
        "name": resource.name,
        "run": run.id if run else "",
        "digest": record.plan.digest if record and record.plan else "",
        "target": resource.policy.target.name if resource.policy else "",
        "operator": place.namespace,
        "stop": place.stop,
    }
    for remedy in dict.fromkeys(_advice(resource, record)):
        yield f"{remedy.purpose[0].upper()}{remedy.purpose[1:]}:  {remedy.typed(names)}"


def _advice(resource: Resource, record: Record | None) -> Iterator[Remedy]:
    if record is not None and record.run is not None:
        yield _BACK
        if record.run.current.state is StepState.VERIFYING:
            yield _KEEP
    reasons = [resource.problem.reason] if resource.problem else []
    if record is not None:
        reasons += [why.reason] if (why := _why(record)) else []
        action = record.condition(ConditionType.ACTION_REQUIRED)
        reasons += [action.reason] if action and action.status is Truth.TRUE else []
        diagnosed = record.condition(ConditionType.DIAGNOSED)
        reasons += [diagnosed.reason] if diagnosed and diagnosed.status is Truth.UNKNOWN else []
        if not record.conditions:
            yield _NOBODY
    yield from (REMEDIES[reason] for reason in dict.fromkeys(reasons) if reason in REMEDIES)
    yield LOOK
