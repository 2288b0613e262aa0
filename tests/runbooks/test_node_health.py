"""Node health: what is a fault, what is ordinary, and what unknown means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import CALM, NO_SERIES, NOT_A_NUMBER, NOW, SOURCE_UNAVAILABLE, THRASHING, an_evidence
from kvmedic.model.devices import APPLICATION_XIDS, CLOCK_FAULTS, NEEDED, SERIES, NodeHealth, Vital
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Measured, Missing
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Diagnosed, Diagnosis, Evidence, NoChange, Setting, diagnose
from worlds.vitals_builder import NODE, a_device, ill, required, with_vitals

THRASH = an_evidence(*[THRASHING] * 3)
SETTING = Setting(
    None, (LeverBound(Knob.MAX_NUM_SEQS), LeverBound(Knob.GPU_MEMORY_UTILIZATION, 0.8, step=0.02))
)


def diagnosis(evidence: Evidence) -> Diagnosis:
    return diagnose(RUNBOOKS["PreemptionThrash"], evidence)


@pytest.mark.parametrize("bit", range(9))
def test_four_clock_reasons_are_faults_and_no_other(bit: int) -> None:
    found = diagnosis(ill(THRASH, a_device(clock_reasons=1 << bit)))

    expected = Reason.THERMAL_EMERGENCY if 1 << bit in {0x08, 0x20, 0x40, 0x80} else Reason.FLEET_WIDE_DEMAND
    assert found.reason is expected


@pytest.mark.parametrize("xid", [0, 13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 999])
def test_an_xid_is_a_fault_unless_it_is_the_applications(xid: int) -> None:
    found = diagnosis(ill(THRASH, a_device(last_xid=xid)))

    ordinary = xid == 0 or xid in APPLICATION_XIDS
    assert found.reason is (Reason.FLEET_WIDE_DEMAND if ordinary else Reason.GPU_FAULT)


@pytest.mark.parametrize(
    ("device", "runbook", "fact"),
    [
        (a_device("GPU 3", last_xid=79), "GPU fault", "GPU 3: XID 79 (fallen off the bus)"),
        (a_device(last_xid=777), "GPU fault", "GPU 0: XID 777 (an error of the device or its node)"),
        (a_device(uncorrectable_errors=2), "GPU fault", "GPU 0: 2 uncorrectable memory errors"),
        (
            a_device(clock_reasons=0x48),
            "thermal emergency",
            "hardware slowdown (0x08), hardware thermal slowdown",
        ),
    ],
)
def test_nothing_is_changed_and_the_runbook_replica_and_node_are_named(
    device: object, runbook: str, fact: str
) -> None:
    evidence = ill(THRASH, device)
    found = diagnosis(evidence)
    assert isinstance(found, Diagnosed)
    assert found.branch.then is not None

    advice = found.branch.then(evidence, SETTING)

    assert isinstance(advice, NoChange)
    assert advice.reason is found.reason
    for text in (f"'{runbook}'", "llm-1", NODE, fact, "no setting of the workload is changed"):
        assert text in advice.message
    assert fact in found.line()


def test_of_many_faults_three_are_named_and_the_rest_is_counted() -> None:
    evidence = ill(THRASH, *(a_device(f"GPU {number}", last_xid=79) for number in range(8)))
    found = diagnosis(evidence)
    assert isinstance(found, Diagnosed)
    assert found.branch.then is not None

    advice = found.branch.then(evidence, SETTING)

    assert len(found.findings) == 8
    assert advice.message.count("XID") == 3
    assert "and 5 more" in advice.message


@pytest.mark.parametrize("vital", NEEDED)
@pytest.mark.parametrize(
    "why", [NO_SERIES, NOT_A_NUMBER, SOURCE_UNAVAILABLE], ids=lambda why: str(why.reason)
)
@pytest.mark.parametrize("health", NodeHealth)
def test_one_unknown_vital_of_one_gpu_holds_only_where_health_is_required(
    vital: Vital, why: Missing, health: NodeHealth
) -> None:
    half_known = a_device("GPU 1")
    half_known = replace(half_known, readings={**half_known.readings, vital: why})
    known = with_vitals(required(THRASH), "llm-2", devices=Measured((a_device(), half_known), NOW))

    found = diagnosis(replace(known, node_health=health))

    is_in_no_default_set = why == NO_SERIES and vital is not Vital.LAST_XID
    if health is NodeHealth.IF_AVAILABLE or is_in_no_default_set:
        assert found.reason is Reason.FLEET_WIDE_DEMAND
        return
    assert isinstance(found, Inconclusive)
    assert found.reason is Reason.NODE_HEALTH_UNKNOWN
    assert "llm-2" in found.message
    assert SERIES[vital][-1] in found.message
    others = {SERIES[other][-1] for other in NEEDED} - {SERIES[vital][-1]}
    assert not [name for name in others if name in found.message]
    assert "nodeHealth: IfAvailable" in found.message


def test_rows_that_cannot_be_remapped_need_not_be_known() -> None:
    older = Measured((a_device(row_remap_failed=NO_SERIES),), NOW)
    evidence = required(THRASH)
    for name in THRASH.burn.pods:
        evidence = with_vitals(evidence, name, devices=older)

    assert diagnosis(evidence).reason is Reason.FLEET_WIDE_DEMAND


@pytest.mark.parametrize("devices", [NO_SERIES, SOURCE_UNAVAILABLE, Measured((), NOW)], ids=str)
def test_a_replica_without_a_known_gpu_is_reported_as_such(devices: object) -> None:
    found = diagnosis(with_vitals(required(THRASH), "llm-0", devices=devices))

    assert isinstance(found, Inconclusive)
    assert f"llm-0 on node {NODE} is unknown" in found.message
    assert ("did not answer" in found.message) is (devices == SOURCE_UNAVAILABLE)


def test_of_many_replicas_three_are_named() -> None:
    found = diagnosis(replace(an_evidence(*[THRASHING] * 10), node_health=NodeHealth.REQUIRED))

    assert isinstance(found, Inconclusive)
    assert "llm-0, llm-1, llm-2 and 7 more" in found.message


def test_a_fault_fires_also_where_the_rest_is_unknown() -> None:
    evidence = replace(ill(THRASH, a_device(clock_reasons=0x40)), node_health=NodeHealth.REQUIRED)

    assert diagnosis(evidence).reason is Reason.THERMAL_EMERGENCY


def test_a_calm_fleet_is_healthy_whatever_is_known_of_its_nodes() -> None:
    evidence = replace(an_evidence(*[CALM] * 3), node_health=NodeHealth.REQUIRED)

    assert diagnosis(evidence).reason is Reason.HEALTHY


def test_ordinary_and_fatal_bits_share_nothing() -> None:
    assert sum(CLOCK_FAULTS) == 0xE8
