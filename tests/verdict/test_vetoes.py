"""What overrules a verdict by a goal, and what must confirm a setting."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from builders import (
    CALM,
    NO_SERIES,
    NOW,
    SOURCE_UNAVAILABLE,
    THRASHING,
    TRIGGER,
    Replica,
    an_observation,
    spread,
    with_number,
    without,
)
from kvmedic.model.devices import Cause, ContainerEnd, Device, Instance
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Absence, Measured, Missing, Observation, PodReadings, Reading, Signal
from kvmedic.model.fleet import Pod
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives
from kvmedic.runbooks.preemption.levers import confirmation_of
from kvmedic.verdict.baseline import baseline_of
from kvmedic.verdict.comparison import Comparison
from kvmedic.verdict.goals import compare_for_relief, judge_relief
from kvmedic.verdict.vetoes import (
    LEAST_FREE_MIB,
    LEAST_HITS,
    VerdictInput,
    count_ends_against,
    has_ended_as_before,
    least_free_mib,
    name_ends,
    veto_cache_type,
    veto_memory,
    window_began_at,
)
from run_builder import BASELINE, NEW, a_pod
from worlds.vitals_builder import a_device, an_end

GOOD = Judged(Verdict.RECOVERED, Reason.RECOVERED, "2.0 -> 0.1", BASELINE)
BAD = Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, "2 restarts")
GIVEN = VerdictInput(None, an_observation(), Objectives(), TRIGGER)
ROOMY = replace(BASELINE, memory_free_mib=4000)
FULL = replace(BASELINE, memory_free_mib=LEAST_FREE_MIB - 1)


def devices(*free: float | Missing) -> Reading[tuple[Device, ...]]:
    return Measured(tuple(a_device(f"GPU {i}", memory_free=one) for i, one in enumerate(free)), NOW)


@pytest.mark.parametrize(
    ("replicas", "least"),
    [
        ((), None),
        ((NO_SERIES,), None),
        ((devices(NO_SERIES),), None),
        ((devices(900, 300), NO_SERIES, devices(500)), 300),
        ((devices(900, NO_SERIES),), 900),
        ((devices(0),), 0),
    ],
    ids=["nobody", "no exporter", "not exported", "the fullest of all", "one reports it", "nothing is left"],
)
def test_the_fullest_gpu_counts(
    replicas: tuple[Reading[tuple[Device, ...]], ...], least: float | None
) -> None:
    assert least_free_mib(replicas) == least


@pytest.mark.parametrize(
    ("free", "edge"),
    [(LEAST_FREE_MIB - 1, True), (LEAST_FREE_MIB, False), (LEAST_FREE_MIB + 1, False), (None, False)],
    ids=["below", "at", "above", "unknown"],
)
@pytest.mark.parametrize(
    ("before", "verdict"),
    [
        (ROOMY, Verdict.NOT_RECOVERED),
        (FULL, Verdict.IMPROVED),
        (BASELINE, Verdict.IMPROVED),
        (None, Verdict.IMPROVED),
    ],
    ids=["brought there by the change", "as before", "unknown before", "no figures before"],
)
def test_memory_at_the_edge_is_no_recovery(
    free: float | None, before: object, verdict: Verdict, *, edge: bool
) -> None:
    found = veto_memory(GOOD, replace(GIVEN, before=before, free_mib=free))

    if not edge:
        assert found is GOOD
        return
    assert (found.verdict, found.reason) == (verdict, Reason(verdict.value))
    assert found.message.startswith("a GPU has 149 MiB of memory left (limit 150)")
    assert found.message.endswith(GOOD.message)
    assert found.after == BASELINE


def test_engines_that_ended_are_named_with_why() -> None:
    found = name_ends(
        BAD, replace(GIVEN, ends={"b": an_end(Cause.HOST_MEMORY), "a": an_end(Cause.DEVICE_MEMORY)})
    )

    assert found.message == (
        "2 restarts; a (exit code 1): its GPU's memory ran out; "
        "b (exit code 137): it was ended at its container's memory limit"
    )
    assert name_ends(BAD, GIVEN) is BAD


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_its_words(cause: Cause) -> None:
    assert ": " in name_ends(BAD, replace(GIVEN, ends={"a": an_end(cause)})).message


MINUTE = timedelta(minutes=1)
BEGAN = NOW - 10 * MINUTE


def ended(name: str, minutes: float, times: int = 1, **changes: object) -> Pod:
    """A replica that serves, and whose engine ended so many minutes after the window began."""
    at = BEGAN + timedelta(minutes=minutes)
    end = ContainerEnd("vllm", 1, "Error", BEGAN - timedelta(hours=1), at, Instance.PREVIOUS)
    return a_pod(name, NEW, restarts=times, last_end=end, **changes)


LOOPS = {"ready_at": None, "unready_at": BEGAN, "waiting_reason": "CrashLoopBackOff"}
ENDS = [
    ("none ended", [a_pod("a", NEW), a_pod("b", NEW)], {}, 0),
    ("the host's memory once", [ended("a", 1)], {"a": Cause.HOST_MEMORY}, 1),
    ("a device's memory once", [ended("a", 1)], {"a": Cause.DEVICE_MEMORY}, 1),
    ("as the window began", [ended("a", 0)], {"a": Cause.DEVICE_MEMORY}, 1),
    ("before the window", [ended("a", -0.1, times=3)], {"a": Cause.DEVICE_MEMORY}, 0),
    ("another cause once", [ended("a", 1)], {"a": Cause.ANOTHER}, 0),
    ("an unknown cause once", [ended("a", 1)], {"a": Cause.UNKNOWN}, 0),
    ("another cause on two", [ended("a", 1), ended("b", 2)], {"a": Cause.ANOTHER, "b": Cause.UNKNOWN}, 2),
    ("another cause, again and again", [ended("a", 1, times=3, **LOOPS)], {"a": Cause.ANOTHER}, 2),
    (
        "another cause, and memory",
        [ended("a", 1), ended("b", 2)],
        {"a": Cause.ANOTHER, "b": Cause.HOST_MEMORY},
        1,
    ),
    ("nobody knows when, on two", [a_pod("a", NEW, restarts=1), a_pod("b", NEW, restarts=1)], {}, 2),
    ("nobody knows when, once", [a_pod("a", NEW, restarts=1)], {}, 0),
]


@pytest.mark.parametrize(
    ("pods", "causes", "against"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS]
)
def test_which_ends_speak_against_a_change(pods: list[Pod], causes: dict[str, Cause], against: int) -> None:
    ends = {name: an_end(cause) for name, cause in causes.items()}

    assert count_ends_against(pods, ends, BEGAN) == against


def restarted(times: int, hours: float = 1.0) -> Pod:
    """A replica that was made so many hours ago, and whose engine ended so often since."""
    return a_pod("a", NEW, restarts=times, created_at=NOW - timedelta(hours=hours))


@pytest.mark.parametrize(
    ("times", "restarts", "up_hours", "causes", "as_before"),
    [
        pytest.param(1, 24, 24.0, [], True, id="once an hour, as before"),
        pytest.param(3, 24, 24.0, [], True, id="thrice in an hour may be chance"),
        pytest.param(5, 24, 24.0, [], False, id="five times in an hour is not"),
        pytest.param(1, 1, 240.0, [], False, id="before it was one in ten days"),
        pytest.param(1, 0, 240.0, [], False, id="before it was none"),
        pytest.param(1, 24, None, [], False, id="nobody knows since when it was before"),
        pytest.param(1, 24, 24.0, [Cause.ANOTHER, Cause.UNKNOWN], True, id="for another cause"),
        pytest.param(1, 24, 24.0, [Cause.DEVICE_MEMORY], False, id="for want of a device's memory"),
        pytest.param(1, 24, 24.0, [Cause.HOST_MEMORY], False, id="at the memory limit"),
    ],
)
def test_ends_at_the_rate_of_before_are_not_the_changes(
    times: int, restarts: int, up_hours: float | None, causes: list[Cause], as_before: bool
) -> None:
    up = None if up_hours is None else up_hours * 3600
    before = replace(BASELINE, restarts=restarts, up_seconds=up)
    ends = {str(index): an_end(cause) for index, cause in enumerate(causes)}

    assert has_ended_as_before([restarted(times)], ends, before, NOW) is as_before


def test_an_end_at_the_memory_limit_is_no_news_where_replicas_ended_so_before() -> None:
    before = replace(BASELINE, restarts=24, up_seconds=24 * 3600.0, ended_at_memory_limit=True)

    assert has_ended_as_before([restarted(1)], {"a": an_end(Cause.HOST_MEMORY)}, before, NOW)
    assert not has_ended_as_before([restarted(9)], {"a": an_end(Cause.HOST_MEMORY)}, before, NOW)
    assert not has_ended_as_before([restarted(1)], {}, None, NOW)


@pytest.mark.parametrize(
    ("settled", "began"),
    [(BEGAN, BEGAN), (BEGAN + timedelta(minutes=11), BEGAN), (BEGAN - MINUTE, BEGAN - MINUTE)],
    ids=["clocks agree", "the operator's is ahead", "the operator's is behind"],
)
def test_the_window_begins_by_the_servers_clock(settled: datetime, began: datetime) -> None:
    pods = [a_pod("a", NEW, ready_at=BEGAN), a_pod("b", NEW, ready_at=BEGAN - MINUTE), ended("c", 1)]

    assert window_began_at(pods, settled) == began


def test_where_every_replica_ended_every_end_counts() -> None:
    assert window_began_at([ended("a", -60)], NOW) < BEGAN - timedelta(days=1)


@pytest.mark.parametrize("types", [set(), {"fp8"}, {"fp8_e4m3"}, {"auto", "int8_per_token_head"}])
def test_a_verdict_stands_where_a_new_replica_has_the_type_or_nobody_knows(types: set[str]) -> None:
    assert veto_cache_type(GOOD, replace(GIVEN, cache_types=types)) is GOOD


@pytest.mark.parametrize("types", [{"auto"}, {"bfloat16", "auto"}])
def test_a_new_replica_without_the_type_did_not_help(types: set[str]) -> None:
    found = veto_cache_type(GOOD, replace(GIVEN, cache_types=types))

    assert found.verdict is Verdict.NOT_RECOVERED
    assert "auto, too" in found.message or "auto, bfloat16, too" in found.message


PREFIXES, HOST, SWAP = Knob.PREFIX_CACHING, Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE
SMOOTH = replace(THRASHING, stalls=0)
"""It preempts as before, and nobody hangs any more."""
NO_OBJECTIVES = Objectives()


def figures(replica: Replica) -> Baseline:
    found = baseline_of(an_observation(replica, replica), 0)
    assert isinstance(found, Baseline)
    return found


BEFORE = figures(THRASHING)


def looked(*replicas: Replica | PodReadings) -> Observation:
    return an_observation(*replicas)


def verdict(knob: Knob, seen: Observation, before: Baseline = BEFORE) -> Judged:
    return judge_relief(
        VerdictInput(before, seen, NO_OBJECTIVES, TRIGGER, confirmed_by=confirmation_of(knob))
    )


def sharing(share: float, replica: Replica = CALM) -> Observation:
    one = replace(replica, prefix_hit_share=share)
    return looked(one, one)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.4, Verdict.RECOVERED), (LEAST_HITS, Verdict.RECOVERED), (LEAST_HITS - 0.001, Verdict.NOT_RECOVERED)],
    ids=["two in five", "just enough", "just too few"],
)
def test_a_calm_fleet_without_hits_was_not_helped_by_shared_prefixes(share: float, expected: Verdict) -> None:
    found = verdict(PREFIXES, sharing(share))

    assert found.verdict is expected
    assert f"{share:.0%} of the looked-up tokens" in found.message


def test_hits_alone_are_no_recovery() -> None:
    assert verdict(PREFIXES, sharing(0.6, THRASHING)).verdict is Verdict.NOT_RECOVERED


def test_the_replicas_count_together() -> None:
    most, none = replace(CALM, prefix_hit_share=0.2), replace(CALM, prefix_hit_share=0.0)

    assert verdict(PREFIXES, looked(most, none)).verdict is Verdict.RECOVERED


def test_without_a_query_nothing_was_found() -> None:
    silent = with_number(CALM.readings(), Signal.PREFIX_CACHE_QUERIES, 0.0)

    assert verdict(PREFIXES, looked(silent, silent)).verdict is Verdict.NOT_RECOVERED


@pytest.mark.parametrize("why", [NO_SERIES, SOURCE_UNAVAILABLE])
def test_hits_that_are_not_known_are_waited_for(why: Missing) -> None:
    blind = without(CALM.readings(), Signal.PREFIX_CACHE_HITS, why)

    assert verdict(PREFIXES, looked(CALM, blind)).verdict is Verdict.INCONCLUSIVE


def test_an_engine_that_counts_no_hits_is_judged_by_its_figures_and_says_so() -> None:
    old = CALM.readings()
    for signal in (Signal.PREFIX_CACHE_HITS, Signal.PREFIX_CACHE_QUERIES):
        old = without(old, signal, Missing(Absence.NOTHING_FOUND))

    found = verdict(PREFIXES, looked(old, old))

    assert found.verdict is Verdict.RECOVERED
    assert "counts no hits" in found.message


@pytest.mark.parametrize("knob", [HOST, SWAP])
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(SMOOTH, Verdict.IMPROVED, id="as many preemptions, no stalls"),
        pytest.param(CALM, Verdict.RECOVERED, id="calm and smooth"),
        pytest.param(THRASHING, Verdict.NOT_RECOVERED, id="nothing changed"),
        pytest.param(
            replace(THRASHING, preemptions=600), Verdict.NOT_RECOVERED, id="fewer preemptions, as many stalls"
        ),
        pytest.param(
            replace(SMOOTH, finished=700, in_flight_change=260),
            Verdict.NOT_RECOVERED,
            id="smooth, and much slower",
        ),
    ],
)
def test_host_memory_stays_for_smoother_answers_alone(knob: Knob, after: Replica, expected: Verdict) -> None:
    assert verdict(knob, looked(after, after)).verdict is expected


@pytest.mark.parametrize(
    ("stall_seconds", "factor", "expected"),
    [(6.0, 1.12, Verdict.IMPROVED), (6.0, 1.02, Verdict.NOT_RECOVERED), (9.0, 1.12, Verdict.NOT_RECOVERED)],
    ids=["shorter stalls, more served", "shorter stalls alone", "more served alone"],
)
def test_stalls_that_are_clearly_shorter_while_more_is_served_count(
    stall_seconds: float, factor: float, expected: Verdict
) -> None:
    before = figures(replace(THRASHING, stall_seconds=9.0))
    after = busier(factor, stall_seconds=stall_seconds)

    assert verdict(HOST, looked(after, after), before).verdict is expected


def test_where_hardly_anybody_hung_nothing_can_confirm_it() -> None:
    smooth = figures(SMOOTH)

    assert not Comparison(smooth, smooth, NO_OBJECTIVES, TRIGGER).is_smoother()
    assert verdict(HOST, looked(SMOOTH, SMOOTH), smooth).verdict is Verdict.NOT_RECOVERED


def test_a_breached_objective_is_no_smoother_answer() -> None:
    slow = replace(SMOOTH, e2e_seconds=28)

    assert Comparison(BEFORE, figures(slow), NO_OBJECTIVES, TRIGGER).is_smoother()
    assert not Comparison(BEFORE, figures(slow), Objectives(e2e_p95_seconds=15), TRIGGER).is_smoother()


@pytest.mark.parametrize("knob", [Knob.MAX_NUM_SEQS, Knob.WATERMARK, Knob.MAX_MODEL_LEN])
@pytest.mark.parametrize("after", [CALM, THRASHING, SMOOTH, replace(THRASHING, finished=1400)])
def test_other_settings_are_judged_by_figures_alone(knob: Knob, after: Replica) -> None:
    seen = looked(after, after)

    assert verdict(knob, seen) == compare_for_relief(
        Comparison(BEFORE, figures(after), NO_OBJECTIVES, TRIGGER)
    )


def busier(factor: float, **changes: float) -> Replica:
    """The same thrash on that many times the requests."""
    more = {name: factor * getattr(THRASHING, name) for name in ("finished", "preemptions", "stalls")}
    return replace(THRASHING, **{**more, **changes})


ROOM = [Knob.GPU_MEMORY_UTILIZATION, Knob.CHUNKED_PREFILL]


@pytest.mark.parametrize("knob", ROOM)
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(busier(1.12), Verdict.IMPROVED, id="clearly more"),
        pytest.param(busier(1.08), Verdict.NOT_RECOVERED, id="no more than windows differ by"),
        pytest.param(busier(1.6), Verdict.IMPROVED, id="so much more that the load looks like another"),
        pytest.param(busier(1.6, stall_seconds=8.0), Verdict.INCONCLUSIVE, id="more, and rougher"),
        pytest.param(CALM, Verdict.RECOVERED, id="calm"),
    ],
)
def test_room_in_the_cache_is_kept_where_more_is_served(
    knob: Knob, after: Replica, expected: Verdict
) -> None:
    assert verdict(knob, looked(after, after)).verdict is expected


@pytest.mark.parametrize("outputs", [100, 250], ids=["shorter answers", "longer answers"])
def test_more_of_other_requests_is_not_more(outputs: float) -> None:
    other = busier(1.6, outputs=spread(outputs))  # type: ignore[arg-type]

    assert verdict(Knob.GPU_MEMORY_UTILIZATION, looked(other, other)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("share", "expected"), [(0.3, Verdict.IMPROVED), (0.0, Verdict.NOT_RECOVERED)])
def test_shared_prefixes_that_serve_more_stay_if_hits_say_so(share: float, expected: Verdict) -> None:
    assert verdict(PREFIXES, sharing(share, busier(1.6))).verdict is expected


@pytest.mark.parametrize("knob", [HOST, SWAP])
def test_host_memory_is_not_kept_for_serving_more_alone(knob: Knob) -> None:
    after = busier(1.12)

    assert verdict(knob, looked(after, after)).verdict is Verdict.NOT_RECOVERED


@pytest.mark.parametrize("knob", [PREFIXES, HOST])
def test_an_inconclusive_window_stays_one(knob: Knob) -> None:
    few = replace(SMOOTH, finished=10, preemptions=1)

    assert verdict(knob, looked(few, few)).verdict is Verdict.INCONCLUSIVE
