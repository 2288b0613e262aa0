"""What a report shows of GPUs and of ends."""

from builders import NO_SERIES, NOW, STALE, UNSUPPORTED
from kvmedic.cli.report import absence, vitals_as_json, vitals_as_text
from kvmedic.model.devices import Cause, Vitals
from kvmedic.model.evidence import Measured
from vitals_builder import a_device, an_end

SEEN = {
    "llm-1": Vitals(
        "gpu-7", Measured((a_device("GPU 3", last_xid=79, clock_reasons=NO_SERIES, memory_free=812),), NOW)
    ),
    "llm-0": Vitals("", NO_SERIES, an_end(Cause.DEVICE_MEMORY)),
    "llm-2": Vitals("gpu-8"),
}


def test_what_was_looked_at_is_shown_a_line_each():
    assert list(vitals_as_text(SEEN)) == [
        "llm-0: GPUs missing (NoSeries); ended 02:58:00Z with exit code 1, cause DeviceMemory, "
        "3 restarts so far",
        "llm-1 on gpu-7: GPU 3 clockReasons=missing (NoSeries) lastXid=79 uncorrectableErrors=0 "
        "rowRemapFailed=0 memoryFreeMiB=812",
    ]


def test_the_same_for_a_program():
    end = {"cause": "DeviceMemory", "exitCode": 1, "at": "2026-03-01T02:58:00Z", "restarts": 3}
    gpu = {
        "clockReasons": "missing (NoSeries)",
        "lastXid": 79,
        "uncorrectableErrors": 0,
        "rowRemapFailed": 0,
        "memoryFreeMiB": 812,
    }

    assert vitals_as_json(SEEN) == {
        "llm-0": {"node": None, "devices": "missing (NoSeries)", "ended": end},
        "llm-1": {"node": "gpu-7", "devices": {"GPU 3": gpu}, "ended": None},
    }


def test_memory_in_use_is_shown_where_it_is_known():
    seen = {"llm-0": Vitals("gpu-7", Measured((a_device(memory_in_use=0.93751),), NOW))}

    assert "memoryInUse=0.938" in next(vitals_as_text(seen))
    assert vitals_as_json(seen)["llm-0"]["devices"]["GPU 0"]["memoryInUse"] == 0.938


def test_every_absence_has_words():
    assert [absence(each) for each in (NO_SERIES, STALE, UNSUPPORTED)] == [
        "missing (NoSeries)",
        "stale since 02:55:00Z",
        "not known",
    ]
