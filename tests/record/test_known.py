"""What is remembered of resources: the latest that was reported, and nothing that is not sure."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pytest

from api.records import full_record
from kvmedic.api.status import record_to_wire
from kvmedic.kube.objects import JsonObject
from kvmedic.record.store import Known, resource_of
from worlds.world import remediation


def a_body(version: str, mode: str = "Auto") -> JsonObject:
    body = remediation(mode=mode)
    body["metadata"] |= {"namespace": "serving", "uid": "uid-1", "resourceVersion": version}
    return body


def mode_of(known: Known) -> str:
    resource = known.find("uid-1")
    return resource.policy.mode.value if resource and resource.policy else ""


def test_the_latest_that_was_reported_counts() -> None:
    known = Known()
    known.take_over(a_body("7"))
    known.take_over(a_body("8", "Observe"))

    assert mode_of(known) == "Observe"
    assert known.find("uid-1") == known.remember(a_body("8", "Observe"))


def test_each_look_is_given_a_resource_as_it_was_read() -> None:
    known, body = Known(), a_body("7")
    body["status"] = record_to_wire(full_record(), "RollingOut")
    known.take_over(body)

    found = [known.find("uid-1") for _ in range(3)]

    assert found == [resource_of(body)] * 3
    assert found[0] is not None
    assert found[0].record is not None
    assert found[0].record.run == full_record().run


def test_of_who_edited_a_resource_nothing_is_kept() -> None:
    plain, noted = Known(), Known()
    body = a_body("7")
    plain.take_over(body)
    body["metadata"] |= {
        "managedFields": [{"manager": "kubectl", "fieldsV1": {f"f:{each}": {} for each in range(500)}}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(body)},
    }

    noted.take_over(body)

    assert noted.find("uid-1") == plain.find("uid-1")
    assert len(pickle.dumps(noted)) < len(pickle.dumps(plain)) + 50
    assert len(body["metadata"]["managedFields"]) == 1


@pytest.mark.parametrize("way", [Known.take_over, Known.remember])
def test_an_earlier_version_makes_what_is_known_unsure(way: Callable[..., object]) -> None:
    """A watch that lags behind our own write, or an etcd that was restored from a snapshot."""
    known = Known()
    known.take_over(a_body("9"))

    way(known, a_body("8", "Observe"))
    unsure = known.find("uid-1")
    way(known, a_body("8", "Observe"))

    assert unsure is None
    assert mode_of(known) == "Observe"


def test_what_is_gone_is_forgotten() -> None:
    known = Known()
    known.remember(a_body("9"))

    known.forget("uid-1")

    assert known.find("uid-1") is None
