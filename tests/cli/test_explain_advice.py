"""What `kvmedic explain` says to type, by the reason for which nothing is done."""

from datetime import UTC, datetime

import pytest

from kvmedic.cli.explain import Place, explain_resource
from kvmedic.model.reasons import Reason
from kvmedic.model.sentences import LOOK
from kvmedic.model.status import Condition, ConditionType, Record, Resource, Truth, Wish

AT = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = Place("kvmedic-system", "kvmedic-stop")
NAMES = {"name": "chat", "namespace": "serving"}


def advice(condition: ConditionType, status: Truth, reason: Reason) -> list[str]:
    """Return the lines with something to type for a resource of which one condition is known."""
    record = Record(conditions=(Condition(condition, status, reason, "", AT, 1),))
    resource = Resource("serving", "chat", "1", "7", 1, Wish.NONE, False, None, None, record)
    return [line for line in explain_resource(resource, PLACE) if line.startswith("To ")]


ROWS = [
    (ConditionType.DIAGNOSED, Truth.UNKNOWN, Reason.METRICS_MISSING, "/serving/pods/POD:8000/proxy"),
    (ConditionType.PROGRESSING, Truth.FALSE, Reason.STOPPED, "-n kvmedic-system delete configmap"),
    (ConditionType.PROGRESSING, Truth.FALSE, Reason.OBSERVE_ONLY, """-p '{"spec":{"mode":"Auto"}}'"""),
    (ConditionType.ACTION_REQUIRED, Truth.TRUE, Reason.TARGET_SHARED, "-n serving delete kvr chat"),
]


@pytest.mark.parametrize(("condition", "status", "reason", "typed"), ROWS, ids=[str(row[2]) for row in ROWS])
def test_a_reason_comes_with_what_to_type(condition, status, reason, typed):
    first, last = advice(condition, status, reason)

    assert typed in first
    assert LOOK.typed(NAMES) in last


def test_a_remedy_that_is_a_look_is_said_once():
    assert len(advice(ConditionType.DIAGNOSED, Truth.UNKNOWN, Reason.PARTIAL_PRESSURE)) == 1


def test_a_condition_that_tells_nothing_asks_for_nothing():
    assert len(advice(ConditionType.DIAGNOSED, Truth.FALSE, Reason.HEALTHY)) == 1
