"""`kvmedic plan` shows the open run or what would be planned; `kvmedic approve` approves the plan that waits.

What is approved is the plan that the resource shows, as the operator last wrote it; no metrics are asked. The
approval is made in the name of who runs the command: the API server decides whether they may, and its
audit log says who it was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from pydantic import ValidationError

from kvmedic.api.crd import yaml_text
from kvmedic.api.resource import APPROVAL_PLURAL, approval_manifest
from kvmedic.cli.access import Name, NotThere, finish_look, load_resource, name_in
from kvmedic.cli.app import NOT_FOUND, REFUSED, USAGE, Form, end_command, show_text
from kvmedic.cli.report import Change, Report, change_of, report_of_survey
from kvmedic.cluster.stateful.groups import as_workload
from kvmedic.cluster.switches import APPROVALS
from kvmedic.cluster.trial_pods import Evaluations
from kvmedic.controller.blockers import check_ownership, propose_to_owner
from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.spares import check_spare
from kvmedic.controller.survey import examine
from kvmedic.controller.temporary import with_holder
from kvmedic.kube.errors import Refused
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.kube.objects import WORKLOADS, JsonObject, Ref, section
from kvmedic.manifests.proposals import Proposal
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.fleet import template_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Mode
from kvmedic.model.status import ConditionType, Record, Resource, ShownPlan
from kvmedic.settings import Settings, SettingsError, SourceOptions, load_settings
from kvmedic.wiring import Connected, open_connections, target_of


def settings_with(prometheus: str = "") -> Settings:
    """Return the settings, with one Prometheus behind every name where one is given.

    Settings that cannot be used end the command.
    """
    try:
        return with_source(load_settings(), prometheus)
    except SettingsError as error:
        end_command(error, USAGE)


def hint_at_source(reason: str, prometheus: str) -> None:
    """Say how to name a source that is in reach from here: the operator's own is often inside the cluster."""
    if reason == Reason.SOURCE_UNAVAILABLE and not prometheus:
        hint = "the operator's own may be out of reach from here: kubectl -n MONITORING port-forward "
        hint += "svc/prometheus 9090, then --prometheus http://localhost:9090"
        print(f"next       {hint}", file=sys.stderr)


async def template_of(world: Connected, resource: Resource) -> str:
    """Return the hash of the present pod template of a resource's target; empty where it is not known."""
    if resource.policy is None:
        return ""
    target = resource.policy.target
    try:
        found = await world.client.get(Ref(WORKLOADS[target.kind], resource.namespace, target.name))
    except Refused as error:
        print(f"the present pod template is not known: {error}", file=sys.stderr)
        return ""
    return template_hash(section(as_workload(found), "spec", "template")) if found else ""


async def survey_target(world: Connected, resource: Resource) -> Survey:
    """Return what a look at a resource's target finds; it is reported to nobody else.

    Who may not read autoscalers and disruption budgets is shown the rest all the same.

    Raises:
        NotThere: the target does not exist, or the spec cannot be followed.
    """
    policy, problem = resource.policy, resource.problem
    if policy is None:
        raise NotThere(f"{problem.reason}: {problem.message}" if problem else "the spec cannot be followed")
    target = target_of(world)
    seen = await target.look(resource.namespace, policy)
    if seen is None:
        place = f"namespace {resource.namespace}"
        raise NotThere(f"{policy.target.kind} {policy.target.name} does not exist in {place}")
    view = await with_holder(seen, resource.record.added_replicas if resource.record else None, target)
    # A look at an evaluation makes none, so it needs no more than the person's own rights.
    inputs = SurveyInput(world.metrics, target, drivers=world.drivers, evaluations=Evaluations(world.client))
    found = await examine(resource, policy, view, inputs)
    try:
        found = await check_ownership(found, resource, policy, target)
    except Refused as error:
        print(f"autoscalers and disruption budgets were left out: {error}", file=sys.stderr)
        return propose_to_owner(found, resource, policy)
    return await check_spare(found, resource, policy, target)


def report_live(cluster: tuple[str, str], namespace: str, name: str, prometheus: str) -> Report:
    """Return the report on a fleet of a cluster, which is named by kubeconfig and context."""
    chosen, settings = ClusterChoice(*cluster), settings_with(prometheus)
    which = name_in(chosen, namespace, name)

    async def look() -> Report:
        async with open_connections(settings, chosen) as world:
            return report_of_survey(await survey_target(world, await load_resource(world.client, which)))

    return finish_look(look())


def with_source(settings: Settings, prometheus: str) -> Settings:
    """Return the settings with one Prometheus behind every name, where one was given.

    Raises:
        SettingsError: it is no URL of a Prometheus.
    """
    if not prometheus:
        return settings
    try:
        source = SourceOptions.model_validate({"url": prometheus})
    except ValidationError as error:
        why = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
        raise SettingsError(f"--prometheus: {why}") from None
    names = {"default", *settings.sources}
    return settings.model_copy(update={"sources": dict.fromkeys(names, source)})


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
    keeping: Proposal | None = None
    """What to give to the owner of the target, so that the operator's change stays."""

    def render_plan(self, form: Form) -> str:
        """Return the whole plan."""
        return json.dumps(self._json(), indent=2) if form is Form.JSON else self._text()

    def _json(self) -> dict[str, Any]:
        shown = self.shown
        return {
            "run": self.run,
            "digest": self.digest,
            "reason": self.reason,
            "message": self.message,
            "plan": [{**change.as_json(), "state": state or None} for change, state in self.changes],
            "waitsFor": self.waits_for or None,
            "proposal": _as_json(self.proposal),
            "toKeep": _as_json(self.keeping),
            "recorded": shown and {"digest": shown.digest, "steps": shown.steps},
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
        if self.keeping is not None:
            lines.append(f"to keep it {self.keeping}")
        if self.waits_for:
            lines.append(f"waits for  {self.waits_for}")
        if self.shown is not None and self.shown.digest != self.digest:
            steps = "; ".join(self.shown.steps)
            lines.append(f"recorded   {self.shown.digest} at {self.shown.at:%Y-%m-%dT%H:%M:%SZ}: {steps}")
        return "\n".join(lines)


def command(name: str, namespace: str, context: str, kubeconfig: str, prometheus: str, output: Form) -> None:
    """Print the open run, or the plan of a look."""
    settings, cluster = settings_with(prometheus), ClusterChoice(kubeconfig, context)
    which = name_in(cluster, namespace, name)

    async def look() -> Planned:
        async with open_connections(settings, cluster) as world:
            resource = await load_resource(world.client, which)
            run = resource.record.run if resource.record else None
            if run is None:
                return _of_survey(resource, await survey_target(world, resource))
            changes = tuple((change_of(step.step), str(step.state)) for step in run.steps)
            return Planned(run.id, run.digest, str(run.reason), run.message, changes, "", None)

    found = finish_look(look())
    if output is Form.JSON:
        print(found.render_plan(output))
    else:
        show_text([found.render_plan(output)])
    hint_at_source(found.reason, prometheus)
    raise typer.Exit(REFUSED if found.is_inconclusive else 0)


def _of_survey(resource: Resource, found: Survey) -> Planned:
    record = resource.record or Record()
    progressing, waits = record.condition(ConditionType.PROGRESSING), ""
    if found.plan is not None:
        waits = "the operator has not looked at this resource yet"
        waits = f"{progressing.reason}: {progressing.message}" if progressing else waits
    why = found.blocked
    message = why.message if why else found.plan.message if found.plan else found.diagnosis.line()
    return Planned(
        run=None,
        digest=found.plan.digest if found.plan else None,
        reason=str(why.reason if why else found.diagnosis.reason),
        message=message,
        changes=tuple((change_of(step), "") for step in found.plan.steps) if found.plan else (),
        waits_for=waits,
        shown=record.plan,
        is_inconclusive=isinstance(found.diagnosis, Inconclusive),
        proposal=found.proposal if why else None,
        keeping=None if why else found.proposal,
    )


def _as_json(given: Proposal | None) -> dict[str, str] | None:
    return None if given is None else {"owner": str(given.owner), "how": given.how, "change": given.text}


class NothingWaits(Exception):  # noqa: N818 - the name says what is wrong
    """The resource has no plan that an approval could be for, or not this one; the message says why."""


def approve_plan(
    name: str, namespace: str, context: str, kubeconfig: str, digest: str, only_print: bool
) -> None:
    """Show the plan that waits, and create its approval."""
    settings, cluster = settings_with(), ClusterChoice(kubeconfig, context)
    which = name_in(cluster, namespace, name)

    async def look() -> Resource:
        async with open_connections(settings, cluster) as world:
            return await load_resource(world.client, which)

    async def create(manifest: JsonObject) -> JsonObject:
        async with open_connections(settings, cluster) as world:
            return await _create_approval(world, which, manifest)

    resource = finish_look(look())
    try:
        plan = waiting_plan(resource, digest)
    except NothingWaits as error:
        end_command(error, REFUSED)
    print("\n".join(_describe_plan(resource, plan)), file=sys.stderr if only_print else sys.stdout)
    if not digest:
        _ask(name)
    manifest = approval_manifest(name, resource.uid, which.namespace, plan.digest)
    if only_print:
        sys.stdout.write(yaml_text(manifest))
        return
    made = finish_look(create(manifest))
    print(f"approved   KVApproval {section(made, 'metadata')['name']}; it counts for one run")


def waiting_plan(resource: Resource, digest: str) -> ShownPlan:
    """Return the plan that a resource waits with.

    Args:
        digest: the plan that somebody looked at; empty: whichever is shown.

    Raises:
        NothingWaits: the mode asks for no approval, no plan is shown, or it is another one.
    """
    who = f"KVRemediation {resource.namespace}/{resource.name}"
    if resource.policy is None:
        why = resource.problem.message if resource.problem else "its spec cannot be followed"
        raise NothingWaits(f"{who} does nothing: {why}")
    if resource.policy.mode is not Mode.APPROVE:
        raise NothingWaits(f"{who} needs no approval: spec.mode is {resource.policy.mode}, not Approve")
    record = resource.record or Record()
    if record.run is not None:
        raise NothingWaits(f"{who} waits for nothing: run {record.run.id} is open")
    if record.plan is None:
        raise NothingWaits(
            f"{who} shows no plan to approve; see why: "
            f"kvmedic explain {resource.name} -n {resource.namespace}"
        )
    if digest and digest != record.plan.digest:
        raise NothingWaits(
            f"the plan is {record.plan.digest} now, not {digest}; nothing was approved. Look at it first: "
            f"kvmedic explain {resource.name} -n {resource.namespace}"
        )
    return record.plan


def _describe_plan(resource: Resource, plan: ShownPlan) -> Iterator[str]:
    """Yield the plan as a person reads it before saying yes."""
    yield f"resource   {resource.namespace}/{resource.name}"
    yield f"digest     {plan.digest}, shown since {plan.at:%Y-%m-%dT%H:%M:%SZ}"
    yield from (f"plan       {step}" for step in plan.steps)
    yield f"because    {plan.reason}: {plan.message}"
    record = resource.record or Record()
    waits = record.condition(ConditionType.PROGRESSING)
    if waits is not None:
        yield f"waits for  {waits.reason}: {waits.message}"


def _ask(name: str) -> None:
    """Ask whether the plan is approved; anything but yes ends the command."""
    if not sys.stdin.isatty():
        end_command(
            f"nothing was approved: give --digest with the digest of the plan of {name} to approve", USAGE
        )
    if not typer.confirm("Approve this plan?", err=True):
        end_command("nothing was approved", REFUSED)


async def _create_approval(world: Connected, which: Name, manifest: JsonObject) -> JsonObject:
    """Return the approval as the API server made it; that it may not be made ends the command."""
    try:
        return await world.client.create(Ref(APPROVALS, which.namespace, which.name), manifest)
    except Refused as error:
        hint = f"bind the ClusterRole kvmedic-approver to the approver; {APPROVAL_PLURAL} must be installed"
        end_command(f"nothing was approved: {error}; {hint}", NOT_FOUND)
