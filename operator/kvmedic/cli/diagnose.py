"""`kvmedic diagnose`: one look at one fleet, printed. Nothing is written anywhere."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from kvmedic.core.diagnosis import Inconclusive
from kvmedic.core.evidence import HISTOGRAMS, Measured, Missing, Observation, PodReadings, Stale
from kvmedic.core.plan import FlagStep
from kvmedic.core.resource import Resource
from kvmedic.kube.errors import ApiError
from kvmedic.kube.objects import Ref
from kvmedic.metrics.options import SourceOptions
from kvmedic.record.store import RESOURCES, resource_of
from kvmedic.settings import Settings, SettingsError, load
from kvmedic.survey import Survey, survey
from kvmedic.wiring import connected, target_of

FOUND, REFUSED, NOT_FOUND = 0, 3, 4


class Form(StrEnum):
    """How the diagnosis is printed."""

    TEXT = "text"
    JSON = "json"


class DiagnosisError(Exception):
    """The fleet cannot be looked at; the message says why and what to do."""


def command(
    name: Annotated[str, typer.Argument(help="The KVRemediation.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    prometheus: Annotated[
        str, typer.Option(help="Ask this Prometheus instead of the source that the resource names.")
    ] = "",
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print it.")] = Form.TEXT,
) -> None:
    """Look at a fleet once: evidence, diagnosis and the plan that would follow.

    Uses the current kubeconfig. Exit code 0: a diagnosis was made; 3: it cannot be made; 4: there is
    no such resource or target.
    """
    try:
        settings = load()
        found = asyncio.run(_look(settings, namespace, name, prometheus))
    except SettingsError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    except (DiagnosisError, ApiError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(NOT_FOUND) from None
    print(json.dumps(_as_json(found), indent=2) if output is Form.JSON else _as_text(found))
    raise typer.Exit(REFUSED if isinstance(found.diagnosis, Inconclusive) else FOUND)


async def _look(settings: Settings, namespace: str, name: str, prometheus: str) -> Survey:
    async with connected(_with_source(settings, prometheus)) as world:
        body = await world.client.get(Ref(RESOURCES, namespace, name))
        if body is None:
            raise DiagnosisError(f"KVRemediation {name} does not exist in namespace {namespace}")
        resource = resource_of(body)
        if resource.policy is None:
            raise DiagnosisError(_problem(resource))
        policy = resource.policy
        view = await target_of(world).look(namespace, policy)
        if view is None:
            raise DiagnosisError(f"Deployment {policy.target.name} does not exist in namespace {namespace}")
        return await survey(resource, policy, view, world.metrics)


def _with_source(settings: Settings, prometheus: str) -> Settings:
    """Return the settings with one Prometheus behind every name, where one was given."""
    if not prometheus:
        return settings
    source = SourceOptions.model_validate({"url": prometheus})
    names = {"default", *settings.sources}
    return settings.model_copy(update={"sources": dict.fromkeys(names, source)})


def _problem(resource: Resource) -> str:
    problem = resource.problem
    return f"{problem.reason}: {problem.message}" if problem else "the spec cannot be followed"


def _as_text(found: Survey) -> str:
    lines = [f"target     {found.view.fleet.namespace}/{found.view.fleet.name}"]
    for pod, readings in sorted(found.burn.pods.items()):
        values = ", ".join(f"{name}={value}" for name, value in _numbers(readings).items())
        lines.append(f"evidence   {pod}: {values}")
    lines.append(f"diagnosis  {found.diagnosis.line()}")
    if found.plan is not None:
        lines += [f"plan       {step.line()}" for step in found.plan.steps]
        lines.append(f"because    {found.plan.message}")
    if found.obstacle is not None:
        lines.append(f"but        {found.obstacle.reason}: {found.obstacle.message}")
    return "\n".join(lines)


def _as_json(found: Survey) -> dict[str, Any]:
    unknown = isinstance(found.diagnosis, Inconclusive)
    return {
        "target": {"namespace": found.view.fleet.namespace, "name": found.view.fleet.name},
        "runbook": found.runbook,
        "branch": None if unknown else str(found.diagnosis.reason),
        "reason": str(found.obstacle.reason if found.obstacle else found.diagnosis.reason),
        "message": found.diagnosis.line(),
        "obstacle": found.obstacle.message if found.obstacle else None,
        "plan": [_step(step) for step in found.plan.steps] if found.plan else [],
        "evidence": _evidence(found.burn),
    }


def _step(step: FlagStep) -> dict[str, Any]:
    return {"knob": str(step.knob), "before": step.before, "after": step.after, "object": step.target.name}


def _evidence(burn: Observation) -> dict[str, Any]:
    return {pod: _numbers(readings) for pod, readings in sorted(burn.pods.items())}


def _numbers(readings: PodReadings) -> dict[str, float | str]:
    """Return what is known of each number and of each histogram's mean; what is not known says so."""
    found: dict[str, float | str] = {}
    for signal, reading in readings.numbers.items():
        found[str(signal)] = round(reading.value, 4) if isinstance(reading, Measured) else _absence(reading)
    for signal in sorted(HISTOGRAMS):
        histogram = readings.histogram(signal)
        if isinstance(histogram, Measured) and histogram.value.count:
            found[f"{signal}Mean"] = round(histogram.value.mean, 4)
    return found


def _absence(reading: object) -> str:
    match reading:
        case Missing(reason):
            return f"missing ({reason})"
        case Stale(at):
            return f"stale since {at:%H:%M:%SZ}"
        case _:
            return "not exported"
