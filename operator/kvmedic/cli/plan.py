"""`kvmedic plan`: the open run of a resource, or what a look right now would plan. Read-only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kvmedic.cli.live import (
    Context,
    Kubeconfig,
    Namespace,
    finished,
    load_resource,
    name_in,
    settings_with,
    surveyed,
)
from kvmedic.cli.report import Change, change_of
from kvmedic.cli.terminal import REFUSED, Form
from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.record import ConditionType, Record, ShownPlan
from kvmedic.core.resource import Resource
from kvmedic.core.run import Run
from kvmedic.findings import Survey
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.manifests.proposals import Proposal
from kvmedic.wiring import connected


@dataclass(frozen=True, slots=True)
class Planned:
    """What is under way or would be done."""

    run: str | None
    """The open run; None where the plan is only one."""
    digest: str | None
    reason: str
    message: str
    changes: tuple[tuple[Change, str], ...]
    """Each with how far it got; empty where it is only planned."""
    waits_for: str
    """Why a plan is not carried out, as the operator last wrote it."""
    shown: ShownPlan | None
    """The plan that the operator last wrote."""
    is_inconclusive: bool = False
    proposal: Proposal | None = None
    """What to give to the owner of the target, who makes the change instead of the operator."""

    def printed(self, form: Form) -> str:
        """Return the whole plan."""
        return json.dumps(self._json(), indent=2) if form is Form.JSON else self._text()

    def _json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "digest": self.digest,
            "reason": self.reason,
            "message": self.message,
            "plan": [{**change.as_json(), "state": state or None} for change, state in self.changes],
            "waitsFor": self.waits_for or None,
            "proposal": None
            if self.proposal is None
            else {
                "owner": str(self.proposal.owner),
                "how": self.proposal.how,
                "change": self.proposal.text,
            },
            "recorded": None
            if self.shown is None
            else {"digest": self.shown.digest, "steps": self.shown.steps},
        }

    def _text(self) -> str:
        lines = [f"run        {self.run}"] if self.run else []
        if self.digest:
            lines.append(f"digest     {self.digest}")
        for change, state in self.changes:
            lines.append(f"plan       {change.line('(engine default)')}{f': {state}' if state else ''}")
        if not self.changes:
            lines.append("plan       nothing would be changed")
        lines.append(f"because    {self.reason}: {self.message}")
        if self.proposal is not None:
            lines.append(f"propose    {self.proposal}")
        if self.waits_for:
            lines.append(f"waits for  {self.waits_for}")
        if self.shown is not None and self.shown.digest != self.digest:
            steps = "; ".join(self.shown.steps)
            lines.append(f"recorded   {self.shown.digest} at {self.shown.at:%Y-%m-%dT%H:%M:%SZ}: {steps}")
        return "\n".join(lines)


def command(
    name: Annotated[str, typer.Argument(help="The KVRemediation.")],
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Ask this Prometheus instead of the configured source.")
    ] = "",
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print it.")] = Form.TEXT,
) -> None:
    """Show the open run, or what would be planned right now: before, after, digest.

    Nothing is written. Exit code 0: it was told, also that there is nothing to change; 2: wrong usage or
    configuration; 3: no diagnosis can be made; 4: there is no such resource or target.
    """
    settings, cluster = settings_with(prometheus), ClusterChoice(kubeconfig, context)
    which = name_in(cluster, namespace, name)

    async def look() -> Planned:
        async with connected(settings, cluster) as world:
            resource = await load_resource(world, which)
            run = resource.record.run if resource.record else None
            return _of_run(run) if run else _of_survey(resource, await surveyed(world, resource))

    found = finished(look())
    print(found.printed(output))
    raise typer.Exit(REFUSED if found.is_inconclusive else 0)


def _of_run(run: Run) -> Planned:
    changes = tuple((change_of(record.step), str(record.state)) for record in run.steps)
    return Planned(run.id, run.digest, str(run.reason), run.message, changes, "", None)


def _of_survey(resource: Resource, found: Survey) -> Planned:
    record = resource.record or Record()
    why = found.obstacle
    told = why.message if why else found.plan.message if found.plan else found.diagnosis.line()
    return Planned(
        run=None,
        digest=found.plan.digest if found.plan else None,
        reason=str(why.reason if why else found.diagnosis.reason),
        message=told,
        changes=tuple((change_of(step), "") for step in found.plan.steps) if found.plan else (),
        waits_for=_waits_for(record) if found.plan else "",
        shown=record.plan,
        is_inconclusive=isinstance(found.diagnosis, Inconclusive),
        proposal=found.proposal,
    )


def _waits_for(record: Record) -> str:
    progressing = record.condition(ConditionType.PROGRESSING)
    if progressing is None:
        return "the operator has not looked at this resource yet"
    return f"{progressing.reason}: {progressing.message}"
