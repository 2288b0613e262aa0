"""What a look at a target's metrics comes to: fresh, missing, or not answered."""

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.doctor.checks import Result, Topic, metrics_checks, names_of, node_health_check
from kvmedic.model.devices import NodeHealth, Vitals
from kvmedic.model.evidence import Absence, Inconclusive, Missing
from kvmedic.model.reasons import Reason
from run_builder import NOW, a_fleet
from worlds.asked import a_resource

NAMES = names_of(a_fleet())
FLEET, POLICY = a_fleet(), a_resource().policy
LONG_AGO = POLICY.windows.trigger + POLICY.windows.hold


@pytest.mark.parametrize(
    ("reason", "topic", "result"),
    [
        (Reason.METRICS_MISSING, Topic.METRICS, Result.FAIL),
        (Reason.METRICS_STALE, Topic.METRICS, Result.FAIL),
        (Reason.SIGNAL_UNSUPPORTED, Topic.METRICS, Result.FAIL),
        (Reason.SOURCE_UNAVAILABLE, Topic.METRICS, Result.UNKNOWN),
        (Reason.NODE_HEALTH_UNKNOWN, Topic.NODE_HEALTH, Result.FAIL),
        (Reason.TOO_FEW_REQUESTS, Topic.METRICS, Result.PASS),
    ],
)
def test_what_a_look_cannot_determine_fails_unless_a_source_may_answer_the_next_time(reason, topic, result):
    [found] = metrics_checks(Inconclusive(reason, "why"), FLEET, POLICY, NAMES, NOW)

    assert (found.name, found.result) == (topic, result)
    assert (found.saw == "why") is (result is not Result.PASS)


@pytest.mark.parametrize(
    ("age", "result"), [(LONG_AGO - timedelta(seconds=1), Result.UNKNOWN), (LONG_AGO, Result.FAIL)]
)
@pytest.mark.parametrize("reason", [Reason.METRICS_MISSING, Reason.SIGNAL_UNSUPPORTED])
def test_what_a_replica_lacks_that_is_younger_than_a_look_is_not_known_yet(reason, age, result):
    youngest = replace(FLEET.live[0], ready_at=NOW - age)
    fleet = replace(FLEET, pods=frozenset({youngest, *FLEET.live[1:]}))

    [found] = metrics_checks(Inconclusive(reason, "why"), fleet, POLICY, NAMES, NOW)

    assert found.result is result
    if result is Result.UNKNOWN:
        assert f"Ready for {age.total_seconds():.0f} s of the {LONG_AGO.total_seconds():.0f} s" in found.saw
        assert found.fix.startswith("after 03:01 UTC: kvmedic doctor deploy/")


@pytest.mark.parametrize(
    ("asked", "result"), [(NodeHealth.IF_AVAILABLE, Result.PASS), (NodeHealth.REQUIRED, Result.FAIL)]
)
def test_unknown_health_of_nodes_stops_only_who_requires_it(asked, result):
    unknown = Vitals(devices=Missing(Absence.NOTHING_FOUND))

    found = node_health_check({"a": unknown}, replace(POLICY, node_health=asked))

    assert (found.result, found.figures["known"]) == (result, 0)
    assert found.fix
