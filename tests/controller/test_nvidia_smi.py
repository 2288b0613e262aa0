"""Node health by nvidia-smi, from the command in the container to the diagnosis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.cli.explain import Place, explain_resource
from kvmedic.cli.report import vitals_as_json, vitals_as_text
from kvmedic.cluster.containers.nvidia_smi import NvidiaSmi, Patience
from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import Drivers, NotAllowed, SurveyInput
from kvmedic.controller.survey import survey
from kvmedic.kube.client import Client, Limits
from kvmedic.model.devices import NEEDED, NVIDIA_SMI_ERRORS, Device, NvidiaSmiError, Vital
from kvmedic.model.evidence import Absence, Measured, Missing, Reading
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Record
from kvmedic.record.surveys import record_diagnosis as recorded
from kvmedic.runbooks.workload import View
from lab.scripted.commands import NO_PROGRAM, Commands, hangs, prints, sends, serving
from lab.scripted.readings import State
from run_builder import NOW, a_fleet, a_pod
from worlds.asked import Asked, spec
from worlds.ending import has_event, touched
from worlds.vitals_builder import a_device
from worlds.world import deployment

UUID = "GPU-5a1f0c9e-30ba-9f6e-0000-0123456789ab"
SOURCE_UNAVAILABLE = Missing(Absence.SOURCE_UNAVAILABLE)


def gpu(ecc: str = "0", clocks: str = "0x4", uuid: str = UUID) -> str:
    return f"0, {uuid}, Disabled, {ecc}, {clocks}\n"


WELL = prints(gpu())
LOST = prints(gpu("[GPU is lost]", "[GPU is lost]"))


def fleet(**changes: object) -> Any:
    return a_fleet(pods=tuple(a_pod(name, node="gpu-7", **changes) for name in ("a", "b", "c")))


def view() -> View:
    return View(fleet=fleet(), template=deployment(3)["spec"]["template"])


@asynccontextmanager
async def drivers(commands: Commands) -> AsyncIterator[Drivers]:
    async with serving(commands) as port:
        configuration = Configuration(host=f"http://127.0.0.1:{port}")
        async with Client(configuration, Limits(per_second=1000)) as client:
            yield NvidiaSmi(client, Patience(seconds=_patience(commands)))


def _patience(commands: Commands) -> float:
    """Return seconds that a busy machine needs for an answer; few where a command hangs anyway."""
    return 2 if hangs in (commands.play, *commands.plays.values()) else 60


async def looked(commands: Commands, metrics: Asked | None = None, health: str = "Required") -> Survey:
    asked, resource = metrics or Asked(State.THRASH), spec(nodeHealth=health)
    async with drivers(commands) as made:
        return await survey(resource, resource.policy, view(), SurveyInput(asked, asked, drivers=made))


@pytest.mark.parametrize("health", ["Required", "IfAvailable"])
@pytest.mark.parametrize(
    ("play", "reason", "says"),
    [
        (LOST, Reason.GPU_FAULT, "it has fallen off the bus or cannot be reached (code 15)"),
        (prints("", code=15), Reason.GPU_FAULT, "it has fallen off the bus or cannot be reached (code 15)"),
        (prints(gpu(ecc="2")), Reason.GPU_FAULT, "2 uncorrectable memory errors since it was reset"),
        (prints(gpu(clocks="0x44")), Reason.THERMAL_EMERGENCY, "hardware thermal slowdown (0x40)"),
        (prints(gpu(clocks="0x80")), Reason.THERMAL_EMERGENCY, "hardware power brake (0x80)"),
    ],
    ids=["lost", "lost by its exit code", "memory errors", "hot", "braked"],
)
async def test_an_ill_gpu_diverts_and_names_the_reporter(play, reason, says, health):
    found = await looked(Commands(WELL, plays={"b": play}), health=health)

    assert (found.diagnosis.reason, found.plan) == (reason, None)
    assert f"{says} (reported by nvidia-smi)" in found.diagnosis.line()
    assert says in found.blocked.message
    assert "b" in found.blocked.message


async def test_gpus_that_are_well_let_the_fleet_be_healed_and_the_reporter_is_named():
    commands = Commands(WELL)

    found = await looked(commands)

    assert found.diagnosis.reason is Reason.FLEET_WIDE_DEMAND
    assert found.plan is not None
    assert "no series reports all of the GPUs of a, b, c: nvidia-smi in the container reported the rest" in (
        found.diagnosis.line()
    )
    assert sorted((pod, container) for pod, container, _ in commands.asked) == [
        (name, "vllm") for name in "abc"
    ]


SILENT: dict[NvidiaSmiError, Commands] = {
    NvidiaSmiError.TIMED_OUT: Commands(WELL, plays={"b": hangs}),
    NvidiaSmiError.NOT_STARTED: Commands(WELL, plays={"b": sends(NO_PROGRAM)}),
    NvidiaSmiError.FORBIDDEN: Commands(refusal=403),
    NvidiaSmiError.FAILED: Commands(WELL, plays={"b": prints("", code=9)}),
    NvidiaSmiError.INCOMPLETE: Commands(WELL, plays={"b": prints(gpu(ecc="ERR!"))}),
}


@pytest.mark.parametrize("health", ["Required", "IfAvailable"])
@pytest.mark.parametrize("nvidia_smi_error", SILENT)
async def test_a_driver_that_says_nothing_makes_health_unknown_and_says_what_to_do(nvidia_smi_error, health):
    found = await looked(SILENT[nvidia_smi_error], health=health)

    if health == "IfAvailable":
        assert found.plan is not None, "unknown health does not stop a change there"
        return
    assert (found.diagnosis.reason, found.plan) == (Reason.NODE_HEALTH_UNKNOWN, None)
    assert NVIDIA_SMI_ERRORS[nvidia_smi_error] in found.diagnosis.line()
    assert "b on node gpu-7" in found.diagnosis.line()


async def test_where_it_is_not_allowed_nobody_is_asked_and_nothing_is_said_of_it():
    asked, resource = Asked(State.THRASH), spec(nodeHealth="Required")

    found = await survey(resource, resource.policy, view(), SurveyInput(asked, asked))

    assert isinstance(SurveyInput(asked, asked).drivers, NotAllowed)
    assert found.diagnosis.reason is Reason.NODE_HEALTH_UNKNOWN
    assert "nvidia-smi in" not in found.diagnosis.line()


@pytest.mark.parametrize(
    ("metrics", "asked"),
    [
        (Asked(State.RECOVERED), 0),
        (Asked(State.MISSING), 0),
        (Asked(State.THRASH, gpus=Measured((a_device(),), NOW)), 0),
        (Asked(State.THRASH, gpus=SOURCE_UNAVAILABLE), 0),
        (Asked(State.THRASH), 3),
    ],
    ids=["a calm fleet", "a fleet that nobody sees", "DCGM reports all", "DCGM may know better", "pressure"],
)
async def test_it_is_asked_only_under_pressure_and_where_no_series_answers(metrics, asked):
    commands = Commands(LOST)

    found = await looked(commands, metrics)

    assert len(commands.asked) == asked
    if not asked:
        assert found.diagnosis.reason is not Reason.GPU_FAULT


def known(xid: int | Missing = 0, **others: Reading[float]) -> Measured[tuple[Device, ...]]:
    """One GPU of which the exporter's default set reports the last XID alone."""
    readings = {Vital.LAST_XID: xid if isinstance(xid, Missing) else Measured(float(xid), NOW)}
    return Measured((Device("GPU 3", {**readings, **{Vital(k): v for k, v in others.items()}}, UUID),), NOW)


async def test_it_fills_what_the_exporters_default_set_leaves_out():
    found = await looked(Commands(WELL), Asked(State.THRASH, gpus=known()))

    assert found.plan is not None
    (device,) = found.evidence.vitals["a"].devices.value  # type: ignore[union-attr]
    assert {vital: device.value(vital) for vital in NEEDED} == dict.fromkeys(NEEDED, 0)
    assert "toldBy=DCGM exporter and nvidia-smi" in next(vitals_as_text(found.evidence.vitals))


async def test_an_xid_that_a_series_reports_counts_whatever_the_driver_says():
    found = await looked(Commands(WELL), Asked(State.THRASH, gpus=known(74)))

    assert found.diagnosis.reason is Reason.GPU_FAULT


async def test_a_source_that_does_not_answer_in_part_is_not_replaced():
    """The XID that it reported a moment ago may be a fault, and no driver reports it."""
    commands = Commands(WELL)
    silent = {str(vital): SOURCE_UNAVAILABLE for vital in (Vital.CLOCK_REASONS, Vital.UNCORRECTABLE_ERRORS)}

    found = await looked(commands, Asked(State.THRASH, gpus=known(SOURCE_UNAVAILABLE, **silent)))

    assert (found.diagnosis.reason, commands.asked) == (Reason.NODE_HEALTH_UNKNOWN, [])


async def test_explain_and_the_report_show_where_the_health_came_from():
    found, silent = await looked(Commands(WELL)), await looked(Commands(WELL, plays={"b": hangs}))
    resource = replace(spec(), record=recorded(Record(), found.diagnosis, found.runbook, 1, NOW))

    said = "\n".join(explain_resource(resource, Place("kvmedic-system", "kvmedic-stop")))

    assert "nvidia-smi in the container reported the rest" in said
    device = vitals_as_json(found.evidence.vitals)["a"]["devices"]["GPU 0"]
    assert (device["toldBy"], device["clockReasons"], device["driverFault"]) == ("nvidia-smi", 0, 0)
    assert vitals_as_json(silent.evidence.vitals)["b"]["nvidiaSmi"] == "TimedOut"
    assert "nvidia-smi TimedOut: it did not end in time" in "\n".join(vitals_as_text(silent.evidence.vitals))


def health(timeout: str) -> dict[str, Any]:
    return {"health": {"nvidiaSmi": True, "timeout": timeout}}


@pytest.mark.parametrize(
    ("play", "reason", "says"),
    [
        (LOST, "GpuFault", "fallen off the bus"),
        (prints(gpu(clocks="0x40")), "ThermalEmergency", "hardware thermal slowdown"),
        (hangs, "NodeHealthUnknown", "it did not end in time"),
    ],
    ids=["lost", "hot", "it hangs"],
)
def test_the_operator_changes_nothing_where_a_driver_says_so_or_hangs(a_world, play, reason, says):
    world = a_world(spec={"nodeHealth": "Required"})
    world.settings = health("2s" if play is hangs else "30s")
    name = str(world.pods()[0]["metadata"]["name"])
    world.proxy.commands = Commands(WELL, plays={name: play})

    world.start()
    world.wait(lambda: world.condition("Diagnosed")[1] == reason, 60, f"the diagnosis is {reason}")

    assert touched(world) == []
    assert says in world.status()["diagnosis"]["message"]
    if reason != "NodeHealthUnknown":
        world.wait(lambda: has_event(world, reason, name, "nvidia-smi"), 20, "an Event names pod and tool")


def test_the_operator_heals_a_fleet_whose_drivers_say_that_all_is_well(a_world):
    world = a_world(spec={"nodeHealth": "Required"})
    world.settings = health("30s")
    world.proxy.commands = Commands(WELL)

    world.start()
    world.wait(world.is_closed, 120, "the run closes")

    assert world.outcomes() == ["Recovered"]
    asked = [pod for pod, _, _ in world.proxy.commands.asked]
    assert len(asked) == len(set(asked)), "each replica was asked once, whatever the number of looks"
