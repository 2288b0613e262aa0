"""How a fleet fared before its KV cache was compressed: who is asked, once, and what is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from kvmedic.controller.evidence import AGAIN, Survey
from kvmedic.controller.evidence import HISTORY_REACH as HISTORY
from kvmedic.controller.ports import Senses
from kvmedic.controller.survey import survey
from kvmedic.model.compression import Figures
from kvmedic.model.devices import Device
from kvmedic.model.evidence import EVERY_SIGNAL, Absence, Look, Measured, Missing, Observation, Reading
from kvmedic.model.fleet import ReplicaSet, template_hash
from kvmedic.model.readings import Alone, Recalled
from kvmedic.model.reasons import Reason
from kvmedic.model.status import Record, Resource
from kvmedic.record.surveys import with_baseline
from kvmedic.runbooks.compression.savings import HELPFUL, NEEDED
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State, only, readings
from reconcile.asked import Asked, spec
from reconcile.world import deployment
from run_builder import NOW, a_fleet
from vitals_builder import a_device

MINUTE = timedelta(minutes=1)
LAST = NOW - 60 * MINUTE
NO_SERIES, UNAVAILABLE = Missing(Absence.NO_SERIES), Missing(Absence.SOURCE_UNAVAILABLE)
GIB = float(1 << 30)


def seen(state: State, at: datetime = LAST, signals: Any = EVERY_SIGNAL) -> Observation:
    """Return a look at two replicas of the revision before."""
    pods = {f"llm-6f-{end}": only(readings(state, at), signals) for end in ("aaaaa", "bbbbb")}
    return Observation(at, 60.0, 0.0, pods)


@dataclass
class Remembering(Asked):
    """Metrics that know the past."""

    last: Reading[datetime] = field(default_factory=lambda: Measured(LAST, LAST))
    then: Reading[Observation] = field(default_factory=lambda: Measured(seen(State.RECOVERED), LAST))
    gpus_then: Reading[tuple[Device, ...]] = NO_SERIES
    sought: list[tuple[str, str, Alone, datetime]] = field(default_factory=list)
    past_looks: list[tuple[str, str, str, datetime, Look]] = field(default_factory=list)

    async def last_alone(self, source: str, namespace: str, sought: Alone, at: datetime) -> Reading[datetime]:
        self.sought.append((source, namespace, sought, at))
        return self.last

    async def past(
        self, source: str, namespace: str, replica_set: str, at: datetime, look: Look
    ) -> Reading[Observation]:
        self.past_looks.append((source, namespace, replica_set, at, look))
        return self.then

    async def past_devices(
        self, source: str, namespace: str, pods: Iterable[str], at: datetime, window: timedelta
    ) -> dict[str, Reading[tuple[Device, ...]]]:
        assert (at, window) == (LAST, MINUTE)
        return dict.fromkeys(pods, self.gpus_then)


def template(**env: str) -> Any:
    made = deployment(3)["spec"]["template"]
    made["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return made


OFF, ON = template(), template(TRIATTN_RUNTIME_KV_BUDGET="512")


def view(before: Any = OFF, now: Any = ON) -> Any:
    """Return a target that was given the second of two templates after the first."""
    present = template_hash(now)
    sets = (
        ReplicaSet("llm-5b", "5b", 5, 0, 0, 0, observed=True),
        ReplicaSet("llm-6f", template_hash(before), 6, 0, 0, 0, observed=True),
        ReplicaSet("llm-7c", present, 7, 3, 3, 0, observed=True),
    )
    pods = tuple(replace(pod, revision=present) for pod in a_fleet().pods)
    fleet = a_fleet(revision=present, replica_sets=sets, pods=pods)
    return View(fleet=fleet, template=now, templates={"llm-5b": before, "llm-6f": before, "llm-7c": now})


BOTH = ["PreemptionThrash", "CompressionWithoutSavings"]


def resource(known: Recalled | None = None, **compression: Any) -> Resource:
    made = spec(runbooks=BOTH, **({"compression": compression} if compression else {}))
    return replace(made, record=Record(baseline=known))


async def looked(metrics: Asked, owner: Resource | None = None, target: Any = None) -> Survey:
    asked = owner or resource()
    return await survey(asked, asked.policy, target or view(), Senses(metrics, metrics, NOW))


def recalled(found: Survey) -> Recalled:
    assert found.evidence.compression.recalled is not None
    return found.evidence.compression.recalled


async def test_the_source_is_asked_for_the_fleet_right_before_the_method_was_turned_on() -> None:
    metrics = Remembering(State.THRASH)

    found = await looked(metrics)

    sought = Alone("llm-6f", ("llm-5b", "llm-7c"), MINUTE, HISTORY)
    assert metrics.sought == [("default", "serving", sought, NOW)]
    assert metrics.past_looks == [
        ("default", "serving", "llm-6f", LAST, Look(MINUTE, signals=NEEDED | HELPFUL))
    ]
    told = recalled(found)
    assert (told.method, told.revision, told.previous) == ("TriAttention", 7, 6)
    assert (told.template, told.seen_at, told.replicas) == (template_hash(ON), LAST, 2)
    assert told.trouble == ""


async def test_figures_of_then_are_those_of_all_replicas() -> None:
    used = Measured((a_device(memory_free=8 * 1024, memory_in_use=0.9),), LAST)

    found = await looked(Remembering(State.THRASH, gpus_then=used))

    figures = recalled(found).figures
    assert found.evidence.compression.without == figures
    assert figures.requests_per_second == pytest.approx(2 * 400 / 60)
    assert figures.tokens_per_second == pytest.approx(2 * 190 * 400 / 60)
    assert figures.device_memory == pytest.approx(72 * GIB)
    assert figures.e2e_p95 is not None


async def test_without_an_exporter_of_then_memory_is_not_known_and_the_rest_is() -> None:
    figures = recalled(await looked(Remembering(State.THRASH))).figures

    assert figures.device_memory is None
    assert figures.kv_cache_usage is not None


async def test_what_was_told_is_recorded_and_nobody_is_asked_again() -> None:
    first = await looked(Remembering(State.THRASH))
    record = with_baseline(Record(), first.evidence.compression)
    metrics = Remembering(State.THRASH)

    again = await looked(metrics, replace(resource(), record=record))

    assert record.baseline == recalled(first)
    assert again.evidence.compression == first.evidence.compression
    assert (metrics.sought, metrics.past_looks) == ([], [])


async def test_what_is_on_record_outlives_the_revisions_that_it_is_of() -> None:
    told = recalled(await looked(Remembering(State.THRASH)))
    target = view()
    target = replace(
        target,
        fleet=replace(target.fleet, replica_sets=target.fleet.replica_sets[2:]),
        templates={"llm-7c": ON},
    )

    found = await looked(Remembering(State.THRASH), resource(told), target)

    assert recalled(found) == told


def test_a_record_is_not_touched_where_nobody_asked() -> None:
    record = Record()

    assert with_baseline(record, None) is record


async def test_figures_of_then_speak_against_a_method_of_a_calm_fleet_and_the_message_says_whose() -> None:
    metrics = Remembering(State.RECOVERED)
    metrics.then = Measured(
        Observation(LAST, 60.0, 0.0, {f"llm-6f-{n}": readings(State.RECOVERED, LAST) for n in range(3)}), LAST
    )

    found = await looked(metrics)

    assert found.diagnosis.reason is Reason.COMPRESSION_UNPROVEN
    assert "before is revision 6, 3 replicas, before 2026-03-01T02:00:00Z" in found.diagnosis.line()


CALM_ONCE = [
    pytest.param(
        Remembering(State.RECOVERED, then=Measured(seen(State.FEWER_THRASH), LAST)), id="another load"
    ),
    pytest.param(Remembering(State.RECOVERED, last=NO_SERIES), id="nothing known"),
    pytest.param(Remembering(State.RECOVERED, last=UNAVAILABLE), id="no answer"),
]


@pytest.mark.parametrize("metrics", CALM_ONCE)
async def test_a_calm_fleet_is_looked_at_as_a_whole_once_and_glanced_at_from_then_on(
    metrics: Remembering,
) -> None:
    first = await looked(metrics)
    whole = len(metrics.looks)
    metrics.looks.clear()
    metrics.sought.clear()

    again = await looked(metrics, resource(recalled(first)))

    assert (whole, len(metrics.looks), metrics.sought) == (3, 1, [])
    assert again.diagnosis == first.diagnosis
    assert first.diagnosis.reason is Reason.HEALTHY


EVERYTHING = {
    "requestsPerSecond": 20.0,
    "tokensPerSecond": 3800.0,
    "preemptionsPerRequest": 0.1,
    "kvCacheUsage": 0.9,
    "kvCacheUsageDeviation": 0.05,
    "deviceMemory": "72Gi",
    "e2eP95": "20s",
}


@pytest.mark.parametrize(
    ("owner", "target"),
    [
        pytest.param(spec(), view(), id="another runbook"),
        pytest.param(resource(), view(now=OFF), id="no method is on"),
        pytest.param(resource(baseline=EVERYTHING), view(), id="the spec says all"),
        pytest.param(resource(), view(before=ON), id="history cannot tell"),
    ],
)
@pytest.mark.parametrize("state", [State.RECOVERED, State.THRASH])
async def test_nobody_is_asked_where_nobody_wants_to_know(owner: Resource, target: Any, state: State) -> None:
    metrics = Remembering(state)

    found = await looked(metrics, owner, target)

    assert metrics.sought == []
    assert found.evidence.compression is None or found.evidence.compression.recalled is None


async def test_what_the_spec_gives_counts() -> None:
    found = await looked(Remembering(State.THRASH), resource(baseline={"tokensPerSecond": 3800.0}))

    method = found.evidence.compression
    assert method.without == replace(
        recalled(found).figures, tokens_per_second=3800.0, replicas=None, requests_in_flight=None
    )
    assert method.without_from.startswith("spec.compression.baseline, the rest of revision 6, ")


LACKING = replace(seen(State.RECOVERED), pods={"llm-6f-aaaaa": readings(State.NAN, LAST)})
DOWN = replace(seen(State.RECOVERED), pods={"llm-6f-aaaaa": readings(State.DOWN, LAST)})
KEEPS = "the source knows no replica of revision 6 then: see how long it keeps samples"
SILENT = "the source did not answer completely about revision 6; asked again at 03:10Z"


@pytest.mark.parametrize(
    ("metrics", "trouble", "again_at"),
    [
        pytest.param(Remembering(State.THRASH, last=NO_SERIES), KEEPS, None, id="no sample of then"),
        pytest.param(Remembering(State.THRASH, then=NO_SERIES), KEEPS, None, id="no replica was seen then"),
        pytest.param(
            Remembering(State.THRASH, then=Measured(LACKING, LAST)),
            "of revision 6 the source lacks: llm-6f-aaaaa: ",
            None,
            id="NaN",
        ),
        pytest.param(Remembering(State.THRASH, last=UNAVAILABLE), SILENT, NOW + AGAIN, id="no answer"),
        pytest.param(Remembering(State.THRASH, then=UNAVAILABLE), SILENT, NOW + AGAIN, id="no look"),
        pytest.param(
            Remembering(State.THRASH, then=Measured(DOWN, LAST)), SILENT, NOW + AGAIN, id="half a look"
        ),
    ],
)
async def test_what_the_source_does_not_know_is_said_and_not_asked_for_ever(
    metrics: Remembering, trouble: str, again_at: datetime | None
) -> None:
    found = await looked(metrics)

    told = recalled(found)
    assert told.trouble.startswith(trouble)
    assert (told.figures, told.again_at) == (Figures(), again_at)
    assert found.evidence.compression.no_history == f"{told.trouble}; or give spec.compression.baseline"


async def test_a_source_that_did_not_answer_is_asked_again() -> None:
    silent = recalled(await looked(Remembering(State.THRASH, last=UNAVAILABLE)))
    metrics = Remembering(State.THRASH)

    found = await looked(metrics, resource(replace(silent, again_at=NOW)))

    assert recalled(found).trouble == ""
    assert len(metrics.sought) == 1


async def test_why_history_cannot_tell_is_said() -> None:
    found = await looked(Remembering(State.THRASH), target=view(before=ON))

    method = found.evidence.compression
    assert method.no_history == (
        "revision 4 is gone, and TriAttention is on in all that came after (revisionHistoryLimit); or give "
        "spec.compression.baseline"
    )
