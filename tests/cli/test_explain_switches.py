"""What `kvmedic explain` tells of the turns of the two runbooks."""

import json
from dataclasses import replace

from api.records import switched_record
from cli.test_trials import PLACE, a_resource
from kvmedic.cli.explain import as_json, explain_resource, fixes_of
from kvmedic.model.status import Record

RECORD = replace(switched_record(), run=None)
LINE = (
    "CompressionWithoutSavings left the fleet to PreemptionThrash (2026-03-01T03:00:00Z, pod "
    "template 0123456789abcdef): blocks come back; PreemptionThrash goes on: FleetWideDemand."
)


def facts(record: Record) -> object:
    found = json.loads(json.dumps(as_json(a_resource(record), PLACE, None, fixes_of(record, "", 1))))
    return found["runbookSwitch"]


def test_the_newest_switch_is_told_after_the_diagnosis():
    newer, older = RECORD.runbook_switches[0], replace(RECORD.runbook_switches[0], template="0" * 16)

    said = list(explain_resource(a_resource(replace(RECORD, runbook_switches=(newer, older))), PLACE))

    assert said[1].startswith("It sees FleetWideDemand")
    assert [line for line in said if "left the fleet" in line] == [LINE]
    assert said[2] == LINE


def test_a_program_gets_the_same_facts():
    assert facts(RECORD) == {
        "from": "CompressionWithoutSavings",
        "to": "PreemptionThrash",
        "reason": "PressedThoughCompressed",
        "template": "0123456789abcdef",
        "generation": 3,
        "at": "2026-03-01T03:00:00Z",
        "message": "blocks come back; PreemptionThrash goes on: FleetWideDemand",
    }


def test_where_no_runbook_left_the_fleet_nothing_is_told():
    assert facts(Record()) is None
    assert not [line for line in explain_resource(a_resource(Record()), PLACE) if "left the fleet" in line]
