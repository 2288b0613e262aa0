"""What a person sees of KV compression where evidence is thin, of GPUs and of ends."""

from dataclasses import replace
from math import inf

from builders import NO_SERIES, NOW, STALE, UNSUPPORTED
from kvmedic.cli.report import WALLS, Account, absence, account_of, vitals_as_json, vitals_as_text
from kvmedic.engines.engine_log import Started, Unread
from kvmedic.model.compression import Keep
from kvmedic.model.devices import Cause, Vitals
from kvmedic.model.evidence import LoggedSize, Measured, SizeUnit
from kvmedic.model.spec import Runbook
from kvmedic.model.trial import Reclaim
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Evidence
from worlds.compression_incidents import CALM_FLEET as CALM
from worlds.compression_incidents import EVICTS, FEWER_BITS, PAGES, THRASH, answered, compressed
from worlds.vitals_builder import a_device, an_end


def text_of(evidence: Evidence) -> str:
    account = account_of(evidence)
    return "\n".join(account.lines())


def test_every_branch_about_a_method_says_which_wall_it_is():
    branches = {branch.reason for branch in RUNBOOKS[Runbook.COMPRESSION_WITHOUT_SAVINGS]}

    assert {str(reason) for reason in branches - set(WALLS)} == {"NoCompression"}


def test_nothing_is_said_where_nothing_shows_any_and_nobody_asked():
    assert account_of(CALM) is None


def test_a_log_that_could_not_be_read_says_why():
    unread = replace(CALM, started={"llm-0": Unread("forbidden")})

    account = account_of(unread)

    assert (
        text_of(unread)
        == "log        llm-0: could not be read (forbidden)\nmethod     none is known to be on"
    )
    assert isinstance(account, Account)
    assert account.wall == ""
    assert account.as_json()["startLogs"] == {"llm-0": {"unread": "forbidden"}}


def test_a_start_of_old_is_shown_in_blocks():
    start = Started(backends=("XFormers",), size=LoggedSize(1234, SizeUnit.BLOCKS))

    line = text_of(replace(CALM, started={"llm-0": start})).splitlines()[0]

    assert line.endswith(
        "attention backend XFormers (decides nothing by itself), pool of 1,234 blocks, not the whole start"
    )


def test_a_method_of_no_known_class_asks_for_its_class():
    shown = text_of(compressed(THRASH, replace(EVICTS, name="Mine", method_class=None)))

    assert "method     Mine, of no known class, known by TRIATTN_RUNTIME_KV_BUDGET, which no engine" in shown
    assert "\nblocks " not in shown
    assert "wall       unknown: what Mine does to blocks is not known" in shown
    assert "spec.compression.class" in shown


def test_pages_without_a_time_between_are_compared_with_nothing():
    timeless = replace(THRASH, burn=replace(THRASH.burn, window_seconds=inf))

    assert "missing    the time between the pages" in text_of(compressed(timeless))


def test_what_a_trial_showed_is_not_asked_for_again():
    tried = compressed(THRASH, replace(EVICTS, answer=answered(Reclaim.NONE), keep=Keep(2048)))

    assert "wall       wall 2: " in text_of(tried)
    assert "trial pod" not in "\n".join(
        line for line in text_of(tried).splitlines() if line.startswith("missing")
    )


def test_a_type_asks_for_the_blocks_of_before_and_pages_for_nothing_of_the_kind():
    bits, more = (compressed(CALM, each) for each in (FEWER_BITS, replace(FEWER_BITS, blocks_without=149)))

    assert "baseline.blocks" in text_of(bits)
    assert "baseline.blocks" not in text_of(more)
    assert "baseline.blocks" not in text_of(compressed(CALM, PAGES))


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
