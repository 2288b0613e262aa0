"""What the real API server makes of specs, good and bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from api.bad_specs import MINIMAL, ROWS, Row
from api.conftest import Resources
from api.good_specs import GOOD
from api.records import (
    approved_record,
    baseline_record,
    doubtful_record,
    full_record,
    holding_record,
    urgent_record,
)
from api.rules_of import causes
from kvmedic.api.resource import spec_from_wire
from kvmedic.api.spec import KVRemediationSpec
from kvmedic.api.status import record_from_wire, record_to_wire
from kvmedic.model.status import Record

EXAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim)
def test_a_bad_spec_is_refused_with_the_field_and_the_fix(row: Row, resources: Resources) -> None:
    response = resources.create(row.whole())

    assert response.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert [at for at, message in causes(response) if at == row.field and row.says in message], causes(
        response
    )
    assert f"{row.field}: " in response.json()["message"]


@pytest.mark.parametrize("missing", [{}, None], ids=["empty", "absent"])
def test_a_spec_needs_a_target(missing: Any, resources: Resources) -> None:
    response = resources.create(missing)

    assert response.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    [(field, _), *_] = causes(response)
    assert field == ("spec" if missing is None else "spec.targetRef")


@pytest.mark.parametrize("spec", GOOD.values(), ids=GOOD)
def test_bounds_are_inside(spec: dict[str, Any], resources: Resources) -> None:
    response = resources.create(spec)

    assert response.is_success, response.text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_accepted(path: Path, resources: Resources) -> None:
    manifest = yaml.safe_load(path.read_text())

    response = resources.create(manifest["spec"])

    assert response.is_success, response.text


def test_the_api_server_and_python_fill_in_the_same_defaults(resources: Resources) -> None:
    stored = resources.created(MINIMAL)["spec"]

    assert stored == spec_from_wire(MINIMAL).model_dump(mode="json", by_alias=True, exclude_none=True)


def test_a_default_is_filled_in_beside_what_was_given(resources: Resources) -> None:
    stored = resources.created({**MINIMAL, "trigger": {"window": "2m"}})["spec"]

    assert stored["trigger"] == {
        "preemptionsPerRequest": 0.5,
        "stallsPerRequest": 0.05,
        "kvCacheUsage": 0.85,
        "window": "2m",
        "for": "2m",
    }


UNKNOWN = {
    "spec.colour": {"colour": "red"},
    "spec.trigger.windows": {"trigger": {"windows": "5m"}},
    "spec.levers[0].minimum": {"levers": [{"name": "maxNumSeqs", "minimum": 16}]},
    "spec.metrics.url": {"metrics": {"url": "http://10.0.0.1"}},
}


@pytest.mark.parametrize(("field", "spec"), UNKNOWN.items(), ids=UNKNOWN)
def test_an_unknown_field_is_refused_by_name_as_kubectl_asks(
    field: str, spec: dict[str, Any], resources: Resources
) -> None:
    response = resources.create({**MINIMAL, **spec})

    assert response.status_code == httpx.codes.BAD_REQUEST
    assert f'unknown field "{field}"' in response.json()["message"]


@pytest.mark.parametrize(("field", "spec"), UNKNOWN.items(), ids=UNKNOWN)
def test_an_unknown_field_is_dropped_otherwise(
    field: str, spec: dict[str, Any], resources: Resources
) -> None:
    stored = resources.created({**MINIMAL, **spec}, strict=False)["spec"]

    assert isinstance(spec_from_wire(stored), KVRemediationSpec)
    assert field.rpartition(".")[2] not in str(stored)


TARGETS = {
    "another workload": {"name": "other"},
    "a container": {"container": "vllm"},
}


@pytest.mark.parametrize("change", TARGETS.values(), ids=TARGETS)
def test_the_target_never_changes(change: dict[str, Any], resources: Resources) -> None:
    name = resources.created(MINIMAL)["metadata"]["name"]

    response = resources.patch(name, {"targetRef": change})

    assert response.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    [(field, message)] = causes(response)
    assert field == "spec.targetRef"
    assert "delete this KVRemediation and create a new one" in message


def test_anything_else_may_change(resources: Resources) -> None:
    name = resources.created(MINIMAL)["metadata"]["name"]

    response = resources.patch(name, {"mode": "Auto", "suspend": True})

    assert response.is_success, response.text
    assert response.json()["metadata"]["generation"] == 2


def test_a_write_of_the_resource_leaves_the_status_alone(resources: Resources) -> None:
    resource = resources.created(MINIMAL, status={"phase": "Watching"})

    assert "status" not in resource
    resource["status"] = {"phase": "Healed"}
    assert "status" not in resources.put(resource).json()


def test_a_write_of_the_status_leaves_the_spec_alone(resources: Resources) -> None:
    resource = resources.created(MINIMAL)
    resource["spec"]["mode"] = "Auto"
    resource["status"] = {"phase": "Watching"}

    stored = resources.put(resource, "/status").json()

    assert stored["spec"]["mode"] == "Observe"
    assert stored["status"] == {"phase": "Watching"}
    assert stored["metadata"]["generation"] == 1


def test_a_status_is_written_only_on_the_version_that_was_read(resources: Resources) -> None:
    read = resources.created(MINIMAL)
    resources.put({**read, "status": {"phase": "Watching"}}, "/status")

    late = resources.put({**read, "status": {"phase": "Planned"}}, "/status")

    assert late.status_code == httpx.codes.CONFLICT


@pytest.mark.parametrize(
    "record",
    [
        full_record(),
        approved_record(),
        holding_record(),
        urgent_record(),
        baseline_record(),
        doubtful_record(),
    ],
    ids=["full", "approved", "holding", "urgent", "with a baseline", "with a doubtful one"],
)
def test_a_record_survives_the_api_server(record: Record, resources: Resources) -> None:
    resource = resources.created(MINIMAL)
    resource["status"] = record_to_wire(record, "RollingOut")

    stored = resources.put(resource, "/status").json()["status"]

    assert stored == resource["status"]
    assert record_from_wire(stored) == record


def test_what_an_older_definition_does_not_know_of_a_run_is_kept(resources: Resources) -> None:
    resource = resources.created(MINIMAL)
    resource["status"] = record_to_wire(full_record(), "RollingOut")
    resource["status"]["run"] |= {"mood": "good"}
    resource["status"]["run"]["reason"] = "FutureReason"
    resource["status"]["plan"]["exact"] = {"steps": [{"kind": "FutureStep", "by": 2}]}

    stored = resources.put(resource, "/status").json()["status"]

    assert stored["run"] == resource["status"]["run"]
    assert stored["plan"] == resource["status"]["plan"]


def test_one_line_says_what_was_done_and_why(resources: Resources) -> None:
    resource = resources.created({**MINIMAL, "mode": "Auto"})
    resource["status"] = record_to_wire(full_record(), "RollingOut")
    resources.put(resource, "/status")

    name = resource["metadata"]["name"]
    lines = resources.cluster.kubectl("get", "kvr", name, "-n", resources.namespace).splitlines()

    assert lines[0].split() == [
        "NAME",
        "TARGET",
        "MODE",
        "READY",
        "ELIGIBLE",
        "PHASE",
        "DIAGNOSIS",
        "CHANGE",
        "OUTCOME",
        "AGE",
    ]
    row = " ".join(lines[1].split())
    assert "inference-llm Auto True RollingOut FleetWideDemand maxNumSeqs 64 -> 16" in row


@pytest.mark.parametrize("name", ["all", "kvmedic", "kvr", "kvremediation", "kvremediations.kvmedic.io"])
def test_the_resource_is_found_by_every_name(name: str, resources: Resources) -> None:
    created = resources.created(MINIMAL)["metadata"]["name"]

    assert created in resources.cluster.kubectl("get", name, "-n", resources.namespace, "-o", "name")


def test_explain_shows_the_reason_for_a_default(resources: Resources) -> None:
    assert "because two readings at least 5s apart confirm idleness" in " ".join(
        resources.cluster.kubectl("explain", "kvr.spec.rollout.drainTimeout").split()
    )


def test_kubectl_applies_an_example_and_refuses_a_typo(resources: Resources, tmp_path: Path) -> None:
    example = EXAMPLES[0].read_text()
    typo = tmp_path / "typo.yaml"
    typo.write_text(example.replace("mode: Auto", "mod: Auto"))

    applied = resources.cluster.kubectl("apply", "-n", resources.namespace, "-f", str(EXAMPLES[0]))

    assert "created" in applied
    with pytest.raises(Exception, match="returned non-zero"):
        resources.cluster.kubectl("apply", "-n", resources.namespace, "-f", str(typo))
