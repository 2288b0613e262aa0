"""Incidents with names: for each branch of a runbook one that fires it and a near twin that must not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from builders import (
    CALM,
    IDLE,
    NO_SERIES,
    NOW,
    SOURCE_UNAVAILABLE,
    THRASHING,
    Replica,
    an_evidence,
    an_observation,
    spread,
    without,
)
from deploy_builder import CAP_RAISED, LENGTH_RAISED, a_deploy, a_past, deployed
from kvmedic.model.config_edits import Deploy, Difference, NoDeploy
from kvmedic.model.devices import Cause, NodeHealth
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline
from kvmedic.model.spec import Objectives
from kvmedic.model.status import CapChange, SizedCap
from kvmedic.runbooks.branches import Evidence, Probation, Spent
from kvmedic.verdict.baseline import baseline_of
from runbooks.incident import Incident
from worlds.vitals_builder import a_device, an_end, ill, required, restarted, without_metrics

AT_THE_TRIGGER = replace(THRASHING, preemptions=0.5 * THRASHING.finished, stalls=0.05 * THRASHING.finished)
OVER_THE_TRIGGER = replace(AT_THE_TRIGGER, preemptions=0.5 * THRASHING.finished + 1)
HANGING = replace(AT_THE_TRIGGER, stalls=0.05 * THRASHING.finished + 1)
BEHIND_A_LOW_CAP = replace(
    THRASHING,
    preemptions=0,
    stalls=0,
    running_mean=12,
    running_max=12,
    usage_mean=0.58,
    waiting_mean=41,
    in_flight_change=12,
)
"""Twelve may run and twenty-one would fit."""
BEHIND_A_RIGHT_CAP = replace(BEHIND_A_LOW_CAP, running_mean=17, running_max=17, usage_mean=0.84)
BEHIND_A_FULL_CACHE = replace(BEHIND_A_LOW_CAP, running_mean=20.5, running_max=24, usage_mean=0.96)
BEHIND_SOMETHING_ELSE = replace(BEHIND_A_LOW_CAP, running_mean=9, running_max=14, usage_mean=0.44)
BUSY_AND_WELL_CAPPED = Replica(
    finished=1000,
    preemptions=400,
    running_mean=18.7,
    running_max=19,
    waiting_mean=40,
    usage_mean=0.97,
    stalls=10,
)
HALF = frozenset({"llm-2", "llm-3"})
SHORTER = replace(CALM, outputs=spread(140))
"""Requests that are by a quarter shorter."""
SLOWER = replace(CALM, finished=0.75 * THRASHING.finished)
"""Requests that come more seldom than at five in today's seven."""
FASTER = replace(CALM, finished=1.5 * THRASHING.finished)
THRASH = an_evidence(*[THRASHING] * 3)
ROOM_FOR_MORE = Spent("the cap is what the cache holds", may_scale=True)
NOTHING_LEFT = Spent("the cap is what the cache holds; scaleOut is not in spec.levers", may_scale=False)
QUIET = an_evidence(*[CALM] * 3)


def since(*replicas: Replica) -> Deploy:
    """Return a deploy with these replicas before it."""
    return a_deploy(before=a_past(*replicas))


def spent(evidence: Evidence, how: Spent) -> Evidence:
    """Return evidence after every lever was asked."""
    return replace(evidence, spent=how)


STARVING = replace(BEHIND_A_LOW_CAP, first_token_seconds=70, in_flight_change=0)
"""First tokens come after more than a minute."""
SERVED_BEFORE = replace(CALM, stalls=48)
"""Before a cap: one answer in twenty hangs, and nobody waits."""


def starving(before: Replica) -> Evidence:
    """Return replicas that keep users waiting under a cap of ours, and did otherwise before it."""
    figures = baseline_of(an_observation(*[before] * 3), 0)
    assert isinstance(figures, Baseline)
    cap = SizedCap("rev", "12", NOW - timedelta(hours=5), figures=figures)
    cap = replace(cap, changes=(CapChange("64", "12", cap.at),))
    hour = an_observation(*[STARVING] * 3)
    return replace(an_evidence(*[STARVING] * 3), probation=Probation(cap, hour, Objectives()))


INCIDENTS: dict[Reason, tuple[Incident, ...]] = {
    Reason.HEALTHY: (
        Incident("nobody sends anything", an_evidence(IDLE, IDLE, IDLE), fires=True),
        Incident("a calm day", an_evidence(CALM, CALM, CALM), fires=True),
        Incident("full, capped right, requests wait", an_evidence(*[BUSY_AND_WELL_CAPPED] * 3), fires=False),
        Incident(
            "full, capped right, a few wait",
            an_evidence(*[replace(BUSY_AND_WELL_CAPPED, waiting_mean=16)] * 3),
            fires=True,
        ),
        Incident("answers hang", an_evidence(*[HANGING] * 3), fires=False),
        Incident("at the trigger", an_evidence(*[AT_THE_TRIGGER] * 3), fires=True),
        Incident(
            "calm, and a restart for another reason", restarted(QUIET, an_end(Cause.ANOTHER)), fires=True
        ),
        Incident("calm, and nobody knows why it ended", restarted(QUIET, an_end(Cause.UNKNOWN)), fires=False),
        Incident(
            "one of a hundred over the trigger", an_evidence(*[CALM] * 99, OVER_THE_TRIGGER), fires=False
        ),
        Incident("the fleet thrashes", an_evidence(*[THRASHING] * 3), fires=False),
    ),
    Reason.GPU_FAULT: (
        Incident("a GPU fell off the bus", ill(THRASH, a_device(last_xid=79)), fires=True),
        Incident("a GPU has broken memory", ill(THRASH, a_device(uncorrectable_errors=1)), fires=True),
        Incident("a GPU has no rows left", ill(THRASH, a_device(row_remap_failed=1)), fires=True),
        Incident(
            "the second of its GPUs", ill(THRASH, a_device(), a_device("GPU 1", last_xid=48)), fires=True
        ),
        Incident("a GPU is hot as well", ill(THRASH, a_device(last_xid=79, clock_reasons=0x40)), fires=True),
        Incident("the program's own fault", ill(THRASH, a_device(last_xid=13)), fires=False),
        Incident("a page fault of the program", ill(THRASH, a_device(last_xid=31)), fires=False),
        Incident("all is well with the GPUs", ill(THRASH, a_device()), fires=False),
        Incident(
            "a GPU fell off a calm fleet", ill(an_evidence(*[CALM] * 3), a_device(last_xid=79)), fires=False
        ),
        Incident("nobody reports the GPUs", THRASH, fires=False),
    ),
    Reason.THERMAL_EMERGENCY: (
        Incident("hardware slowdown", ill(THRASH, a_device(clock_reasons=0x08)), fires=True),
        Incident("too hot, by the driver", ill(THRASH, a_device(clock_reasons=0x20)), fires=True),
        Incident("too hot, by the hardware", ill(THRASH, a_device(clock_reasons=0x40)), fires=True),
        Incident("power brake", ill(THRASH, a_device(clock_reasons=0x80)), fires=True),
        Incident("hot at the power cap", ill(THRASH, a_device(clock_reasons=0x44)), fires=True),
        Incident("idle", ill(THRASH, a_device(clock_reasons=0x1)), fires=False),
        Incident("at the power cap under full load", ill(THRASH, a_device(clock_reasons=0x4)), fires=False),
        Incident("set clocks, boost, displays", ill(THRASH, a_device(clock_reasons=0x112)), fires=False),
        Incident("broken as well", ill(THRASH, a_device(last_xid=79, clock_reasons=0x40)), fires=False),
        Incident("hot and calm", ill(an_evidence(*[CALM] * 3), a_device(clock_reasons=0x40)), fires=False),
    ),
    Reason.HOST_OUT_OF_MEMORY: (
        Incident("killed at its limit, calm", restarted(QUIET, an_end(Cause.HOST_MEMORY)), fires=True),
        Incident("killed at its limit, thrashing", restarted(THRASH, an_end(Cause.HOST_MEMORY)), fires=True),
        Incident("its GPU's memory ran out", restarted(QUIET, an_end(Cause.DEVICE_MEMORY)), fires=False),
        Incident("ended for another reason", restarted(QUIET, an_end(Cause.ANOTHER)), fires=False),
        Incident("nobody knows why it ended", restarted(QUIET, an_end(Cause.UNKNOWN)), fires=False),
    ),
    Reason.CUDA_OUT_OF_MEMORY: (
        Incident("a calm replica", restarted(QUIET, an_end(Cause.DEVICE_MEMORY)), fires=True),
        Incident(
            "a replica of a thrashing fleet", restarted(THRASH, an_end(Cause.DEVICE_MEMORY)), fires=True
        ),
        Incident(
            "at start, so without metrics",
            restarted(an_evidence(without_metrics(), CALM, CALM), an_end(Cause.DEVICE_MEMORY)),
            fires=True,
        ),
        Incident(
            "node health unknown, and not required",
            replace(restarted(QUIET, an_end(Cause.DEVICE_MEMORY)), node_health=NodeHealth.IF_AVAILABLE),
            fires=True,
        ),
        Incident(
            "node health unknown, and required",
            replace(restarted(QUIET, an_end(Cause.DEVICE_MEMORY)), node_health=NodeHealth.REQUIRED),
            fires=False,
        ),
        Incident("killed at its limit", restarted(QUIET, an_end(Cause.HOST_MEMORY)), fires=False),
        Incident("exit code 1 without the mark", restarted(QUIET, an_end(Cause.ANOTHER)), fires=False),
        Incident("nobody knows why it ended", restarted(QUIET, an_end(Cause.UNKNOWN)), fires=False),
        Incident(
            "on a broken GPU",
            ill(restarted(THRASH, an_end(Cause.DEVICE_MEMORY)), a_device(last_xid=79)),
            fires=False,
        ),
    ),
    Reason.DEPLOY_CORRELATED: (
        Incident("a raised cap, calm before", deployed(THRASH), fires=True),
        Incident("a raised length, calm before", deployed(THRASH, a_deploy(LENGTH_RAISED)), fires=True),
        Incident(
            "another type of the cache",
            deployed(THRASH, a_deploy(Difference("kv_cache_dtype", "fp8", None))),
            fires=True,
        ),
        Incident("another image", deployed(THRASH, a_deploy(Difference("image", "v1", "v2"))), fires=True),
        Incident("two of three pressured", deployed(an_evidence(THRASHING, THRASHING, CALM)), fires=True),
        Incident("a single replica", deployed(an_evidence(THRASHING)), fires=True),
        Incident("busy and well capped before", deployed(THRASH, since(BUSY_AND_WELL_CAPPED)), fires=True),
        Incident("at the trigger before", deployed(THRASH, since(AT_THE_TRIGGER)), fires=True),
        Incident(
            "longer requests, which only this revision takes",
            deployed(THRASH, a_deploy(CAP_RAISED, LENGTH_RAISED, before=a_past(SHORTER))),
            fires=True,
        ),
        Incident("fewer requests than before", deployed(THRASH, since(FASTER)), fires=True),
        Incident(
            "two of four run it, and both are pressured",
            deployed(an_evidence(CALM, CALM, THRASHING, THRASHING), a_deploy(pods=HALF)),
            fires=True,
        ),
        Incident(
            "two of four run it, and one of the others is pressured",
            deployed(an_evidence(CALM, THRASHING, THRASHING, THRASHING), a_deploy(pods=HALF)),
            fires=False,
        ),
        Incident(
            "two of four run it, and one of them is pressured",
            deployed(an_evidence(CALM, CALM, CALM, THRASHING), a_deploy(pods=HALF)),
            fires=False,
        ),
        Incident("pressured before too", deployed(THRASH, since(THRASHING)), fires=False),
        Incident(
            "one replica pressured before", deployed(THRASH, since(CALM, OVER_THE_TRIGGER)), fires=False
        ),
        Incident("nobody sent anything before", deployed(THRASH, since(IDLE)), fires=False),
        Incident("far fewer requests before", deployed(THRASH, since(SLOWER)), fires=False),
        Incident("far shorter requests before", deployed(THRASH, since(SHORTER)), fires=False),
        Incident("no revision of interest came", deployed(THRASH, NoDeploy()), fires=False),
        Incident("a raised cap, and calm", deployed(QUIET), fires=False),
        Incident(
            "a raised cap, one of three pressured", deployed(an_evidence(THRASHING, CALM, CALM)), fires=False
        ),
        Incident(
            "the source knows nothing of then", deployed(THRASH, a_deploy(before=NO_SERIES)), fires=False
        ),
        Incident(
            "the source does not answer", deployed(THRASH, a_deploy(before=SOURCE_UNAVAILABLE)), fires=False
        ),
        Incident(
            "one signal of then is missing",
            deployed(
                THRASH,
                a_deploy(before=a_past(without(CALM.readings(), Signal.PREEMPTIONS, NO_SERIES), CALM)),
            ),
            fires=False,
        ),
        Incident(
            "what it changed cannot be read",
            deployed(THRASH, Inconclusive(Reason.REVISION_UNREADABLE, "a file")),
            fires=False,
        ),
        Incident(
            "node health unknown, and required",
            replace(deployed(THRASH), node_health=NodeHealth.REQUIRED),
            fires=False,
        ),
        Incident("a broken GPU as well", ill(deployed(THRASH), a_device(last_xid=79)), fires=False),
    ),
    Reason.CAP_HARMS: (
        Incident("users wait as they did not before it", starving(SERVED_BEFORE), fires=True),
        Incident("they waited as long before it", starving(STARVING), fires=False),
        Incident("half as many came before it", starving(replace(SERVED_BEFORE, finished=480)), fires=False),
        Incident("no cap of ours", an_evidence(*[STARVING] * 3), fires=False),
        Incident("calm", replace(starving(SERVED_BEFORE), burn=QUIET.burn), fires=False),
        Incident("on a broken GPU", ill(starving(SERVED_BEFORE), a_device(last_xid=79)), fires=False),
    ),
    Reason.ONE_REPLICA_PRESSURED: (
        Incident("one of two", an_evidence(THRASHING, CALM), fires=True),
        Incident("one of three", an_evidence(CALM, CALM, THRASHING), fires=True),
        Incident("one of a hundred", an_evidence(*[CALM] * 99, THRASHING), fires=True),
        Incident("two of three", an_evidence(THRASHING, THRASHING, CALM), fires=False),
        Incident("half of four", an_evidence(THRASHING, THRASHING, CALM, CALM), fires=False),
        Incident("the fleet thrashes", an_evidence(*[THRASHING] * 3), fires=False),
        Incident("a single replica thrashes", an_evidence(THRASHING), fires=False),
        Incident("its peers get no requests", an_evidence(THRASHING, IDLE, IDLE), fires=False),
        Incident("its peers are just under the trigger", an_evidence(THRASHING, AT_THE_TRIGGER), fires=False),
    ),
    Reason.FLEET_WIDE_DEMAND: (
        Incident("the fleet thrashes", an_evidence(*[THRASHING] * 3), fires=True),
        Incident("a single replica thrashes", an_evidence(THRASHING), fires=True),
        Incident(
            "two of three, the third near it", an_evidence(THRASHING, THRASHING, AT_THE_TRIGGER), fires=True
        ),
        Incident("answers hang", an_evidence(*[HANGING] * 3), fires=True),
        Incident("requests wait, and nothing preempts", an_evidence(*[BEHIND_A_LOW_CAP] * 3), fires=False),
        Incident("one preemption over the trigger", an_evidence(*[OVER_THE_TRIGGER] * 3), fires=True),
        Incident("at the trigger", an_evidence(*[AT_THE_TRIGGER] * 3), fires=False),
        Incident("one of two", an_evidence(THRASHING, CALM), fires=False),
        Incident("the program's own fault on a GPU", ill(THRASH, a_device(last_xid=43)), fires=True),
        Incident("node health unknown, and not required", THRASH, fires=True),
        Incident(
            "node health unknown, and required", replace(THRASH, node_health=NodeHealth.REQUIRED), fires=False
        ),
        Incident("node health known, and required", required(THRASH), fires=True),
        Incident("one of three", an_evidence(THRASHING, CALM, CALM), fires=False),
        Incident("half of four", an_evidence(THRASHING, THRASHING, CALM, CALM), fires=True),
        Incident("two of eight", an_evidence(*[THRASHING] * 2, *[CALM] * 6), fires=True),
        Incident("two of nine", an_evidence(*[THRASHING] * 2, *[CALM] * 7), fires=False),
        Incident("full, capped right, requests wait", an_evidence(*[BUSY_AND_WELL_CAPPED] * 3), fires=False),
    ),
    Reason.CAP_TOO_LOW: (
        Incident("twelve may run and twenty-one fit", an_evidence(*[BEHIND_A_LOW_CAP] * 3), fires=True),
        Incident("a single replica", an_evidence(BEHIND_A_LOW_CAP), fires=True),
        Incident("the third has no queue", an_evidence(*[BEHIND_A_LOW_CAP] * 2, CALM), fires=True),
        Incident("one of three has a queue", an_evidence(BEHIND_A_LOW_CAP, CALM, CALM), fires=False),
        Incident("about as many may run as fit", an_evidence(*[BEHIND_A_RIGHT_CAP] * 3), fires=False),
        Incident("the cache is full", an_evidence(*[BEHIND_A_FULL_CACHE] * 3), fires=False),
        Incident("nothing is full", an_evidence(*[BEHIND_SOMETHING_ELSE] * 3), fires=False),
        Incident("answers hang too", an_evidence(*[replace(BEHIND_A_LOW_CAP, stalls=100)] * 3), fires=False),
        Incident("it preempts", an_evidence(*[replace(BEHIND_A_LOW_CAP, preemptions=48)] * 3), fires=False),
        Incident("it may not be raised", spent(an_evidence(BEHIND_A_LOW_CAP), NOTHING_LEFT), fires=False),
        Incident("on a broken GPU", ill(an_evidence(BEHIND_A_LOW_CAP), a_device(last_xid=79)), fires=False),
    ),
    Reason.CAPACITY_SHORT: (
        Incident("requests wait for a full cache", an_evidence(*[BEHIND_A_FULL_CACHE] * 3), fires=True),
        Incident("requests wait behind a right cap", an_evidence(*[BEHIND_A_RIGHT_CAP] * 3), fires=True),
        Incident("full, capped right, requests wait", an_evidence(*[BUSY_AND_WELL_CAPPED] * 3), fires=True),
        Incident("requests wait for something else", an_evidence(BEHIND_SOMETHING_ELSE), fires=False),
        Incident("they wait on one of three", an_evidence(BEHIND_A_FULL_CACHE, CALM, CALM), fires=False),
        Incident("the cap is not raised", spent(an_evidence(BEHIND_A_LOW_CAP), ROOM_FOR_MORE), fires=True),
        Incident("no setting is left, replicas may be added", spent(THRASH, ROOM_FOR_MORE), fires=True),
        Incident("a single replica", replace(an_evidence(THRASHING), spent=ROOM_FOR_MORE), fires=True),
        Incident("nobody asked the levers yet", THRASH, fires=False),
        Incident("replicas may not be added", spent(THRASH, NOTHING_LEFT), fires=False),
        Incident("calm", spent(QUIET, ROOM_FOR_MORE), fires=False),
        Incident("one of three", spent(an_evidence(THRASHING, CALM, CALM), ROOM_FOR_MORE), fires=False),
        Incident("half of four", spent(an_evidence(*[THRASHING, CALM] * 2), ROOM_FOR_MORE), fires=False),
        Incident("at the trigger", spent(an_evidence(*[AT_THE_TRIGGER] * 3), ROOM_FOR_MORE), fires=False),
        Incident("on a broken GPU", spent(ill(THRASH, a_device(last_xid=79)), ROOM_FOR_MORE), fires=False),
    ),
    Reason.CAPACITY_EXHAUSTED: (
        Incident("no lever is left", spent(THRASH, NOTHING_LEFT), fires=True),
        Incident("nobody asked the levers yet", THRASH, fires=False),
        Incident("replicas may be added", spent(THRASH, ROOM_FOR_MORE), fires=False),
        Incident("calm", spent(QUIET, NOTHING_LEFT), fires=False),
        Incident("one of three", spent(an_evidence(THRASHING, CALM, CALM), NOTHING_LEFT), fires=False),
    ),
}
"""By the reason of the branch."""
