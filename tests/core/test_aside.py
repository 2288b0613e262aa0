"""An ill replica out of rotation: recorded first, then its label; and back the same way."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.model.fleet import Fleet, frozen
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Terms
from kvmedic.model.spec import RotationLabel, TargetRef
from kvmedic.model.status import SetAside, Station
from kvmedic.rollout.moves import Cordon, Uncordon
from kvmedic.rollout.quarantine import BY_SOMEBODY, Gone, Next, disorder, follow_pod
from run_builder import NEW, NOW, a_fleet, a_pod

AWAY = SetAside(
    pod="a",
    uid="uid-a",
    node="gpu-7",
    reason=Reason.GPU_FAULT,
    message="GPU 0: XID 79 (fallen off the bus)",
    since=NOW,
    target=TargetRef("Deployment", "llm", None),
    terms=Terms(RotationLabel("serving", "draining"), timedelta(minutes=10)),
)
WELL = "its GPUs are well again"


def fleet(**a: Any) -> Fleet:
    """Return three replicas, of which the first is as told."""
    return a_fleet(pods=(a_pod("a", **a), a_pod("b"), a_pod("c")))


IN, OUT = fleet(), fleet(cordoned=True, in_rotation=False)


def at(station: Station, ended: str = "") -> SetAside:
    return replace(AWAY, station=station, ended=ended)


STEPS: dict[str, tuple[SetAside, Fleet, str, Next]] = {
    "recorded: its label is changed": (AWAY, IN, "", Cordon(IN.pods[0])),
    "its label is seen changed": (AWAY, OUT, "", at(Station.OUT)),
    "out: it stays": (at(Station.OUT), OUT, "", None),
    "out and well: that is recorded first": (at(Station.OUT), OUT, WELL, at(Station.RETURNING, WELL)),
    "well before it left": (AWAY, IN, WELL, at(Station.RETURNING, WELL)),
    "well while nobody knows whether it left": (AWAY, OUT, WELL, at(Station.RETURNING, WELL)),
    "its label goes back": (at(Station.RETURNING, WELL), OUT, WELL, Uncordon(OUT.pods[0])),
    "on its way back nothing holds it": (at(Station.RETURNING, WELL), OUT, "", Uncordon(OUT.pods[0])),
    "it is back": (at(Station.RETURNING, WELL), IN, "", at(Station.RETURNED, WELL)),
    "back: it stays": (at(Station.RETURNED), IN, "", None),
    "back and cordoned by somebody: theirs": (at(Station.RETURNED), OUT, "", None),
    "somebody put it back": (at(Station.OUT), IN, "", at(Station.RETURNED, BY_SOMEBODY)),
}


@pytest.mark.parametrize(("aside", "seen", "back", "coming"), STEPS.values(), ids=STEPS)
def test_what_comes_next(aside: SetAside, seen: Fleet, back: str, coming: Next) -> None:
    assert follow_pod(aside, seen, back) == coming


@pytest.mark.parametrize("station", Station)
@pytest.mark.parametrize(
    "seen",
    [a_fleet(pods=(a_pod("b"),)), fleet(terminating=True), fleet(uid="another")],
    ids=["no such pod", "terminating", "another of its name"],
)
def test_a_pod_that_is_gone_needs_nothing(station: Station, seen: Fleet) -> None:
    assert isinstance(follow_pod(at(station), seen, WELL), Gone)


def test_every_death_in_between_leads_to_the_same_end() -> None:
    """Whatever was committed before the record of it, the next look goes on from what is there."""
    for seen in (IN, OUT):
        coming = follow_pod(at(Station.RETURNING, WELL), seen, WELL)
        back = fleet() if isinstance(coming, Uncordon) else seen
        assert follow_pod(at(Station.RETURNING, WELL), back, "") == at(Station.RETURNED, WELL)


def test_only_one_that_is_back_needs_no_care() -> None:
    assert [station for station in Station if not at(station).is_active] == [Station.RETURNED]


def test_it_is_told_with_its_node_and_its_signs() -> None:
    assert AWAY.line() == (
        "replica a on node gpu-7 is out of rotation (GPU 0: XID 79 (fallen off the bus)) until its GPUs "
        "are known to be well"
    )
    assert replace(AWAY, node="").line().startswith("replica a is out of rotation")


DISORDER = {
    "a run moves the fleet": a_fleet(fields=frozen(max_unavailable=0, paused=True)),
    "a run moves the": a_fleet(fence="x/y/1"),
    "part of the Deployment's own selector": a_fleet(rotation=replace(a_fleet().rotation, in_selector=True)),
    "takes no replica out": a_fleet(rotation=replace(a_fleet().rotation, effective=False)),
    "2 of 3 replicas exist": a_fleet(pods=(a_pod("a"), a_pod("b"))),
    "4 of 3 replicas exist": a_fleet(pods=tuple(a_pod(name) for name in "abcd")),
    "not every": fleet(ready_at=None),
    "not every replica": fleet(in_rotation=False),
    "not every replica serves": fleet(cordoned=True),
    "every replica serves": fleet(terminating=True),
    "replica serves": fleet(revision=NEW),
}


@pytest.mark.parametrize(("told", "seen"), DISORDER.items(), ids=DISORDER)
def test_no_replica_is_spared_where_something_else_is_going_on(told: str, seen: Fleet) -> None:
    assert told in disorder(seen)


def test_a_fleet_in_order_can_spare_one() -> None:
    assert disorder(a_fleet()) == ""
