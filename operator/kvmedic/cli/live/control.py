"""A person's commands to the operator: `stop` and `resume`, `suspend`, `keep`, `rollback`.

Each writes one field, annotation or ConfigMap that the operator honours already, and nothing else. It says
what it did, what happens next, and what to type then. A run is named by its id: no word reaches a later one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from kvmedic.cli.access import Name, NotThere, finish_look, load_body, name_in, open_client, own_settings
from kvmedic.cli.app import REFUSED, USAGE, end_command, show_text
from kvmedic.cluster.ownership import owner_of_spec
from kvmedic.kube.errors import Conflict, Refused
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.kube.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JsonObject,
    Preconditions,
    Ref,
    annotations_of,
    name_of,
    namespace_of,
    section,
    uid_of,
    version_of,
)
from kvmedic.model.redaction import without_controls
from kvmedic.model.run import Run, StepState
from kvmedic.model.status import Resource
from kvmedic.record.store import KEEP, RESOURCES, ROLL_BACK, resource_of
from kvmedic.rollout.gates.opening import Stop, forward_gate

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

OPERATOR = "app.kubernetes.io/name=kvmedic"
"""The labels of the operator's Deployment, in the chart and in deploy/."""
WHY = "why"
"""Key of the stop ConfigMap that people read; the operator reads none."""


NO_OPERATOR = f"no Deployment with the label {OPERATOR} is there, so no operator seems to run"


class Futile(Exception):  # noqa: N818 - the name says what is wrong
    """What was asked would change nothing; the message says why, and what to do instead."""


@dataclass(frozen=True, slots=True)
class CommandMessage:
    """What a command has to say."""

    done: str
    then: tuple[str, ...]
    """What happens next."""
    types: tuple[tuple[str, str], ...]
    """Commands, and what each is for."""

    def lines(self) -> Iterator[str]:
        """Yield it line by line."""
        yield f"done  {self.done}"
        yield from (f"next  {each}" for each in self.then)
        width = max((len(command) for command, _ in self.types), default=0)
        yield from (f"type  {command:<{width}}  # {purpose}" for command, purpose in self.types)


@dataclass(frozen=True, slots=True)
class Asked:
    """A resource of which something is asked."""

    body: JsonObject
    resource: Resource

    @property
    def place(self) -> str:
        """Return it as people write it."""
        return f"{self.resource.namespace}/{self.resource.name}"

    @property
    def present_run(self) -> Run | None:
        """Return its open run."""
        return self.resource.record.run if self.resource.record else None

    def as_command(self, verb: str) -> str:
        """Return a command about it."""
        return f"kvmedic {verb} {self.resource.name} -n {self.resource.namespace}"

    def open_run(self, run_id: str, what_else: str) -> Run:
        """Return the open run.

        Args:
            run_id: its id, as somebody looked at it; empty: whichever is open.
            what_else: what to do where none is open.

        Raises:
            Futile: none is open, it cannot be read, or it is another one.
        """
        if self.resource.record is None:
            why = self.resource.problem.message if self.resource.problem else "its status cannot be read"
            raise Futile(f"the run of {self.place} cannot be read: {why}")
        run = self.present_run
        if run is None:
            last = next(iter(self.resource.record.history), None)
            ended = f"; the last one, {last.id}, ended as {last.outcome}" if last else ""
            raise Futile(f"no run of {self.place} is open{ended}. {what_else}")
        if run_id and run_id != run.id:
            raise Futile(f"the open run of {self.place} is {run.id}, not {run_id}: look at it first")
        return run


async def _load_asked(client: Client, which: Name) -> Asked:
    body = await load_body(client, which)
    return Asked(body, resource_of(body))


def suspend_fleet(name: str, namespace: str, context: str, kubeconfig: str) -> None:
    """Set spec.suspend."""
    cluster = ClusterChoice(kubeconfig, context)

    async def act() -> CommandMessage:
        async with open_client(cluster) as client:
            asked = await _load_asked(client, name_in(cluster, namespace, name))
            await _set_suspended(client, asked, suspended=True)
            run = asked.present_run
            then = ["nothing is begun; looks and diagnoses go on"]
            if run is not None:
                then = [f"run {run.id} stands still with every replica in rotation; ways back go on"]
            types = [(asked.as_command("resume"), "to go on")]
            types += [(asked.as_command("rollback"), "to take the open change back")] * (run is not None)
            return CommandMessage(
                f"{asked.place} is suspended", (*then, *_owner_warning(asked)), tuple(types)
            )

    _carry_out(act)


def resume(
    name: str, namespace: str, operator_namespace: str, yes: bool, context: str, kubeconfig: str
) -> None:
    """Take back the suspension of one fleet; without a name the operator-wide stop."""
    cluster = ClusterChoice(kubeconfig, context)
    if name:
        _carry_out(lambda: _resume_fleet(cluster, name_in(cluster, namespace, name)))
    else:
        _lift_stop(cluster, operator_namespace, yes=yes)


async def _resume_fleet(cluster: ClusterChoice, which: Name) -> CommandMessage:
    async with open_client(cluster) as client:
        asked = await _load_asked(client, which)
        await _set_suspended(client, asked, suspended=False)
        held = await _gate_of(client, await _load_asked(client, which))
        run = asked.present_run
        then = f"run {run.id} goes on where it stood" if run else "a run may be opened at the next look"
        types = (
            (asked.as_command("watch"), "to see it happen"),
            (asked.as_command("explain"), "to know what it waits for"),
        )
        return CommandMessage(
            f"{asked.place} is not suspended any more", (held or then, *_owner_warning(asked)), types
        )


async def _set_suspended(client: Client, asked: Asked, *, suspended: bool) -> None:
    if (section(asked.body, "spec").get("suspend") is True) is not suspended:
        await client.merge_patch(_ref(asked), {"spec": {"suspend": suspended}})


def _owner_warning(asked: Asked) -> Iterator[str]:
    """Yield who may set a field of the spec back."""
    owner = owner_of_spec(asked.body)
    if owner is not None:
        yield f"{owner.name} applies this resource and may set spec.suspend back: change it there too"


async def _gate_of(client: Client, asked: Asked) -> str:
    """Return what else holds a fleet; empty: nothing."""
    policy, problem = asked.resource.policy, asked.resource.problem
    if policy is None:
        return (
            f"it does nothing all the same: {problem.message if problem else 'its spec cannot be followed'}"
        )
    places, notes = await _operators(client, "")
    stops = [each for each in places if await _read_stop_at(client, each) is not None]
    if not places:
        return notes[0]
    gate = forward_gate(policy, Stop.ON if stops else Stop.OFF)
    return f"it is still held: {gate.reason}: {gate.message}" if gate else ""


def roll_back(name: str, run: str, namespace: str, context: str, kubeconfig: str) -> None:
    """Ask for the open run to be taken back."""
    cluster = ClusterChoice(kubeconfig, context)

    async def act() -> CommandMessage:
        async with open_client(cluster) as client:
            asked = await _load_asked(client, name_in(cluster, namespace, name))
            found = asked.open_run(
                run,
                "A closed run is not reopened: change the setting back in your manifest "
                f"({asked.as_command('history')} shows what it was).",
            )
            then = what_a_rollback_does(found)
            await _annotate(client, asked, ROLL_BACK, found.id)
            types = (
                (asked.as_command("watch"), "to see it happen"),
                (asked.as_command("history"), "to see how it ended"),
            )
            return CommandMessage(
                f"asked the operator to take run {found.id} of {asked.place} back", (then,), types
            )

    _carry_out(act)


def what_a_rollback_does(run: Run) -> str:
    """Return what follows where a person asks for a rollback.

    Raises:
        Futile: the run ends already.
    """
    step = run.current
    if step.state is StepState.ROLLING_BACK:
        why = f" ({run.ending.reason})" if run.ending else ""
        return f"it is being taken back already{why}, one drained replica at a time"
    if run.ending is not None:
        raise Futile(f"run {run.id} is ending already, as {run.ending.reason}; look at how in a minute")
    if run.intent is None:
        return "nothing was changed yet, so the run is closed"
    if step.state is StepState.VERIFYING and not step.step.is_revocable:
        return "it was done already and nothing is left to take back, so the run is closed"
    return "the change goes back one drained replica at a time; neither stop nor suspension holds that"


def keep_change(name: str, run: str, namespace: str, context: str, kubeconfig: str) -> None:
    """Ask for the open change to stay without a verdict."""
    cluster = ClusterChoice(kubeconfig, context)

    async def act() -> CommandMessage:
        async with open_client(cluster) as client:
            asked = await _load_asked(client, name_in(cluster, namespace, name))
            found = asked.open_run(run, "What a closed run kept stays as it is.")
            if annotations_of(asked.body).get(ROLL_BACK) == found.id:
                raise Futile(f"a rollback of run {found.id} was asked for; that counts before keeping it")
            then = what_keeping_does(found)
            held = await _gate_of(client, asked) if found.current.state is not StepState.VERIFYING else ""
            await _annotate(client, asked, KEEP, found.id)
            types = (
                (asked.as_command("watch"), "to see it happen"),
                (asked.as_command("rollback"), "to take it back after all, while the run is open"),
            )
            following = (then, held) if held else (then,)
            return CommandMessage(
                f"asked the operator to keep the change of run {found.id} of {asked.place}", following, types
            )

    _carry_out(act)


def what_keeping_does(run: Run) -> str:
    """Return what follows where a person asks for a change to stay.

    Raises:
        Futile: it is being taken back, or the run ends already.
    """
    state = run.current.state
    if run.ending is not None or state is StepState.ROLLING_BACK:
        why = run.ending.reason if run.ending else state
        raise Futile(f"run {run.id} is ending already ({why}); keeping it does not change that")
    if state is StepState.VERIFYING:
        return "the change stays without a verdict, and the run is closed"
    return "the rollout waits for no comparison and goes on to every replica; then the run is closed"


async def _annotate(client: Client, asked: Asked, annotation: str, run: str) -> None:
    await client.merge_patch(_ref(asked), {"metadata": {"annotations": {annotation: run}}})


def stop_everything(why: str, operator_namespace: str, context: str, kubeconfig: str) -> None:
    """Make the stop ConfigMap in each operator's namespace."""
    cluster, name = ClusterChoice(kubeconfig, context), own_settings().process.stop

    async def act() -> CommandMessage:
        async with open_client(cluster) as client:
            places, notes = await _operators(client, operator_namespace)
            if not places:
                raise NotThere(f"{NO_OPERATOR}; name its namespace with --operator-namespace")
            for place in places:
                await _make_stop(client, Ref(CONFIG_MAPS, place, name), why)
            listed = ", ".join(f"{place}/{name}" for place in places)
            then = (
                "no operator makes a forward move; a step that has left already finishes",
                *await _open_runs(client),
                "ways back go on; to hold them too, scale the operator to zero",
            )
            types = (("kvmedic resume", "to go on"), ("kvmedic get -A", "to see every fleet"))
            return CommandMessage(f"the stop is on: ConfigMap {listed}", (*then, *notes), types)

    _carry_out(act)


async def _make_stop(client: Client, ref: Ref, why: str) -> None:
    body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ref.name}}
    if why:
        body["data"] = {WHY: why}
    try:
        await client.create(ref, body)
    except Conflict:
        print(f"note  ConfigMap {ref.namespace}/{ref.name} was there already", file=sys.stderr)


async def _open_runs(client: Client) -> tuple[str, ...]:
    """Return which runs stand still now; nothing where nobody may list them."""
    try:
        bodies = await client.list(RESOURCES, "")
    except Refused:
        return ()
    found = [f"{namespace_of(each)}/{name_of(each)}" for each in bodies if section(each, "status").get("run")]
    if not found:
        return ("no run is open",)
    shown = ", ".join(sorted(found)[:SHOWN]) + (
        f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    )
    return (f"{len(found)} open: {shown}; each stands still with every replica in rotation",)


SHOWN = 5
"""Fleets that one line names."""


def _lift_stop(cluster: ClusterChoice, operator_namespace: str, *, yes: bool) -> None:
    async def look() -> list[JsonObject]:
        async with open_client(cluster) as client:
            places, _ = await _operators(client, operator_namespace)
            found = [await _read_stop_at(client, place) for place in places]
            return [each for each in found if each is not None]

    async def act() -> CommandMessage:
        async with open_client(cluster) as client:
            for each in stops:
                ref = Ref(CONFIG_MAPS, namespace_of(each), name_of(each))
                await client.delete(ref, Preconditions(uid_of(each), version_of(each)))
            runs = await _open_runs(client)
            then = tuple(
                each.replace("stands still with every replica in rotation", "goes on") for each in runs
            )
            types = (("kvmedic watch -A", "to see it happen"), ("kvmedic stop", "to stop again"))
            return CommandMessage("the stop is off", then, types)

    stops = finish_look(look())
    if not stops:
        end_command("the stop is not on; to take back the suspension of one fleet, name it", REFUSED)
    for each in stops:
        said = without_controls(str(section(each, "data").get(WHY) or "nobody said why"))
        since = section(each, "metadata").get("creationTimestamp")
        print(f"stop  {namespace_of(each)}/{name_of(each)} since {since}: {said}")
    if not yes:
        confirm("Let every operator go on?", "nothing was changed")
    _carry_out(act)


def confirm(question: str, otherwise: str) -> None:
    """Ask a person; anything but yes, and no terminal, ends the command."""
    if not sys.stdin.isatty():
        end_command(f"{otherwise}: say --yes, as there is no terminal to ask", USAGE)
    if not typer.confirm(question, err=True):
        end_command(otherwise, REFUSED)


async def _read_stop_at(client: Client, place: str) -> JsonObject | None:
    return await client.get(Ref(CONFIG_MAPS, place, own_settings().process.stop))


async def _operators(client: Client, given: str) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the namespaces of operators, and what a person must know about them.

    A stop in a namespace without an operator would stop nothing, so it is looked for unless it is named.
    """
    if given:
        return (given,), ()
    own = own_settings().process.namespace
    try:
        found = await client.list(DEPLOYMENTS, "", OPERATOR)
    except Refused:
        return (own,), (f"whether the operator is in {own} is not known: Deployments may not be listed",)
    places = sorted({namespace_of(each) for each in found})
    return places, () if places else (NO_OPERATOR,)


def _carry_out(act: Callable[[], Coroutine[Any, Any, CommandMessage]]) -> None:
    """Do what was asked and say so; what would change nothing ends the command."""
    try:
        message = finish_look(act())
    except Futile as error:
        end_command(error, REFUSED)
    show_text(message.lines())


def _ref(asked: Asked) -> Ref:
    return Ref(RESOURCES, asked.resource.namespace, asked.resource.name)
