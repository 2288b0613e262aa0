"""Back to another revision: what keeps it from beginning, and that it walks like every change."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.model.config_edits import Revision, TemplateSwap
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, Owner, ReplicaSet, freeze_fields
from kvmedic.model.reasons import Reason
from kvmedic.model.run import DrainingPod
from kvmedic.rollout.draining import Drain
from kvmedic.rollout.frozen_rollout import Order
from kvmedic.rollout.moves import (
    Cordon,
    Failed,
    Freeze,
    Hold,
    Move,
    Restore,
    Retarget,
    Revert,
    Settled,
    Wait,
)
from kvmedic.rollout.preconditions import find_rollback_blocker, find_start_blocker
from kvmedic.rollout.revision_rollback import next_rollback_move
from run_builder import NEW, NOW, OLD, a_fleet, a_pod
from worlds.model_controller import OWN_FIELDS, START, Model, ModelSet

SWAP = TemplateSwap(Revision(7, "llm-new", NEW), Revision(6, "llm-old", OLD))
ORDER = Order(
    away=NEW,
    toward=OLD,
    edit=SWAP,
    recorded=OWN_FIELDS,
    draining_pods=(),
    drains={},
    start_limit=timedelta(minutes=10),
    spare_limit=timedelta(minutes=10),
)
KEPT = ReplicaSet("llm-old", OLD, 6, 0, 0, 0, observed=True)
RUNNING = ReplicaSet("llm-new", NEW, 7, 3, 3, 0, observed=True)


def deployed(*sets: ReplicaSet) -> Fleet:
    """Return a settled fleet on the newer revision, with these ReplicaSets beside its own."""
    pods = tuple(replace(pod, revision=NEW) for pod in a_fleet().pods)
    return a_fleet(revision=NEW, pods=pods, replica_sets=(RUNNING, *sets))


def test_it_begins_as_every_change_does() -> None:
    move = next_rollback_move(deployed(KEPT), ORDER, SWAP.after, NOW)

    assert isinstance(move, Freeze)
    assert move.edit == SWAP


@pytest.mark.parametrize(
    ("fleet", "reason", "words"),
    [
        pytest.param(
            deployed(), Reason.REVISION_GONE, "llm-old does not keep pod template aaaa", id="it is gone"
        ),
        pytest.param(
            deployed(replace(KEPT, revision="edited")),
            Reason.REVISION_GONE,
            "does not keep pod template",
            id="edited",
        ),
        pytest.param(
            deployed(replace(KEPT, reachable=False)),
            Reason.REVISION_UNREACHABLE,
            "llm would not lead requests to them",
            id="no Service would select its replicas",
        ),
    ],
)
def test_what_cannot_be_put_is_refused_before_and_failed_after_the_first_intent(
    fleet: Fleet, reason: Reason, words: str
) -> None:
    before = next_rollback_move(fleet, ORDER, SWAP.after, NOW)
    after = next_rollback_move(fleet, replace(ORDER, pulsed_at=NOW), SWAP.after, NOW)

    assert isinstance(before, Blocked)
    assert isinstance(after, Failed)
    assert before.reason is after.reason is reason
    assert words in before.message


def test_a_fleet_that_is_there_already_needs_no_keeper() -> None:
    assert next_rollback_move(a_fleet(), ORDER, SWAP.after, NOW) == Settled()


def test_another_replica_set_of_the_same_template_is_not_the_named_one() -> None:
    other = replace(KEPT, name="llm-other")

    assert find_rollback_blocker(deployed(other, KEPT), SWAP.after) is None
    refused = find_rollback_blocker(deployed(other), SWAP.after)
    assert refused.reason is Reason.REVISION_GONE


def test_the_inverse_of_a_swap_puts_the_other_back() -> None:
    assert SWAP.inverse() == TemplateSwap(SWAP.after, SWAP.before)
    assert SWAP.inverse().inverse() == SWAP


MODELLED = TemplateSwap(Revision(7, "llm-old", "old"), Revision(6, "llm-new", "new"))
"""The model names its two templates by their order in time: the fleet runs "old", and "new" was before."""


class Walk:
    """The reconcile loop in small, on the model of the controllers."""

    def __init__(self, replicas: int, swap: TemplateSwap) -> None:
        self.model = Model.healthy(replicas)
        self.model.sets["new"] = ModelSet("new")
        self.desired = swap.after
        self.order = replace(ORDER, away="old", toward="new", edit=swap, recorded=self.model.fields)
        self.moves: list[str] = []

    def step(self) -> Move:
        fleet = self.model.fleet()
        draining_pod = next(iter(self.order.draining_pods), None)
        pod = next((p for p in fleet.pods if draining_pod and p.uid == draining_pod.uid), None)
        gone_quiet = pod is not None and not next(p.busy for p in self.model.pods if p.name == pod.name)
        idle = pod is not None and pod.cordoned and not pod.in_rotation and gone_quiet
        drain = Drain.IDLE if idle else Drain.BUSY
        order = replace(self.order, drains={each.uid: drain for each in self.order.draining_pods})
        move = next_rollback_move(fleet, order, self.desired, self.model.now)
        self.moves.append(type(move).__name__)
        if isinstance(move, Cordon):
            self.order = replace(
                self.order, draining_pods=(DrainingPod(move.pod.name, move.pod.uid, self.model.now),)
            )
        if not isinstance(move, Wait | Settled | Failed | Blocked):
            self.model.apply(move)
            if not isinstance(move, Cordon):
                self.order = replace(self.order, pulsed_at=self.model.now)
        return move

    def act(self, which: int) -> None:
        """One act of somebody in the cluster."""
        acts: tuple[Any, ...] = (
            self.model.deployment_controller,
            lambda: self.model.replica_set_controller("old"),
            lambda: self.model.replica_set_controller("new"),
            lambda: self.model.kubelet(which),
            self.model.endpoints,
            self.model.requests_end,
            lambda: self.model.pass_time(1),
        )
        acts[which % len(acts)]()

    def settle(self) -> Move:
        for _ in range(2000):
            for which in range(7 * max(1, len(self.model.pods))):
                self.act(which)
            if isinstance(move := self.step(), Settled | Failed | Blocked):
                return move
            for pod in self.model.pods:
                # What a person's own `minReadySeconds` asks for passes, in the end.
                pod.soaked = pod.soaked or (pod.ready and not self.model.fields.is_frozen)
        raise AssertionError(self.moves[-20:])


@settings(max_examples=40, deadline=None)
@given(replicas=st.integers(1, 4), acts=st.lists(st.integers(0, 40), max_size=120), turns=st.booleans())
def test_in_whatever_order_things_happen_no_replica_goes_with_its_requests(
    replicas: int, acts: list[int], turns: bool
) -> None:
    walk = Walk(replicas, MODELLED)
    for which in acts:
        walk.act(which)
        if which % 3 == 0:
            walk.step()
    if turns:
        order = walk.order
        walk.order = replace(
            order,
            away=order.toward,
            toward=order.away,
            edit=MODELLED.inverse(),
            draining_pods=(),
            repairs=True,
        )
        walk.desired = MODELLED.before

    ended = walk.settle()

    assert ended == Settled(), walk.moves[-20:]
    assert walk.model.revision == walk.order.toward
    assert {pod.revision for pod in walk.model.pods} == {walk.order.toward}
    assert walk.model.fields == OWN_FIELDS
    assert walk.model.lost_in_rotation == []
    assert walk.model.fewest >= replicas
    assert walk.model.now >= START


def test_a_whole_walk_is_a_frozen_rollout() -> None:
    walk = Walk(2, MODELLED)

    walk.settle()

    effects = [name for name in walk.moves if name not in ("Wait", "Settled")]
    assert effects == ["Freeze", "Pause", "Cordon", "Pulse", "Pause", "Cordon", "Pulse", "Pause", "Restore"]
    assert {Retarget.__name__, Revert.__name__}.isdisjoint(effects)
    assert Restore.__name__ == effects[-1]


def half_deployed(replicas: int, kept: int, soak_seconds: int = 900) -> Walk:
    """Return a fleet in the middle of a deploy, with one replica more than asked for.

    In the model a soak never ends, so that the controller does not go on by itself; that of the replicas of
    before is behind them.
    """
    walk = Walk(replicas, MODELLED)
    model = walk.model
    model.fields = replace(OWN_FIELDS, max_surge=1, max_unavailable=0, min_ready_seconds=soak_seconds)
    for name, count in (("old", replicas + 1 - kept), ("new", kept)):
        available = count if name == "new" or not soak_seconds else 0
        model.sets[name] = ModelSet(name, count, soak_seconds, count, available)
    model.pods.clear()
    for place in range(replicas + 1):
        pod = model._pod("new" if place < kept else "old")
        pod.ready = pod.in_rotation = pod.busy = True
        pod.soaked = pod.revision == "new"
    walk.order = replace(walk.order, recorded=model.fields)
    return walk


@settings(max_examples=40, deadline=None)
@given(data=st.data(), replicas=st.integers(1, 5), acts=st.lists(st.integers(0, 40), max_size=120))
def test_whatever_becomes_of_a_deploy_that_was_turned_no_replica_goes_with_its_requests(
    data: st.DataObject, replicas: int, acts: list[int]
) -> None:
    kept = data.draw(st.integers(1, replicas))
    walk = half_deployed(replicas, kept, soak_seconds=0)
    recorded = walk.model.fields
    if isinstance(walk.step(), Blocked):
        assert kept == 1, "their rollout is all but complete, and stays theirs"
        return
    for which in acts:
        walk.act(which)
        if which % 3 == 0:
            walk.step()
    order = walk.order
    walk.order = replace(
        order, away=order.toward, toward=order.away, edit=MODELLED.inverse(), draining_pods=(), repairs=True
    )
    walk.desired = MODELLED.before

    ended = walk.settle()

    assert ended == Settled(), walk.moves[-20:]
    assert {pod.revision for pod in walk.model.pods} == {"old"}
    assert walk.model.fields == recorded
    assert walk.model.lost_in_rotation == []
    assert walk.model.fewest >= replicas


@settings(max_examples=40, deadline=None)
@given(data=st.data(), replicas=st.integers(1, 5), acts=st.lists(st.integers(0, 40), max_size=120))
def test_a_deploy_that_is_under_way_is_turned_and_its_earlier_replicas_are_kept(
    data: st.DataObject, replicas: int, acts: list[int]
) -> None:
    kept = data.draw(st.integers(1, replicas))
    walk = half_deployed(replicas, kept)
    recorded, before = walk.model.fields, {pod.name for pod in walk.model.pods if pod.revision == "new"}
    for which in acts:
        walk.act(which)
        if which % 3 == 0:
            walk.step()

    ended = walk.settle()

    after = {pod.name for pod in walk.model.pods}
    assert ended == Settled(), walk.moves[-20:]
    assert {pod.revision for pod in walk.model.pods} == {"new"}
    assert before <= after, "Ready replicas of the earlier revision stay"
    assert len(after - before) == replicas - kept, "and only the missing ones are made"
    assert walk.model.fields == recorded
    assert walk.model.lost_in_rotation == []
    assert walk.model.fewest >= replicas


def test_a_deploy_under_way_is_held_and_turned_in_one_patch() -> None:
    move = half_deployed(3, 2).step()

    assert move == Freeze(MODELLED, freeze_fields(max_unavailable=0, paused=True))


def test_where_the_desired_revision_is_whole_the_other_replica_is_drained_before_the_template_turns() -> None:
    walk = half_deployed(3, 3)

    assert walk.step() == Hold(MODELLED, freeze_fields(max_unavailable=0, paused=True))
    ended = walk.settle()

    effects = [move for move in walk.moves if move != "Wait"]
    assert ended == Settled()
    assert effects == ["Hold", "Cordon", "Revert", "Settled"]
    assert walk.model.lost_in_rotation == []


@pytest.mark.parametrize(("count", "goes"), [(3, "new"), (2, "old")], ids=["a desired one", "the spare"])
def test_where_one_went_in_the_moment_the_rollout_was_held_another_is_made_first(
    count: int, goes: str
) -> None:
    walk = half_deployed(3, count)
    walk.step()
    gone = next(pod for pod in walk.model.pods if pod.revision == goes)
    gone.in_rotation = gone.busy = False
    walk.model.pods.remove(gone)
    walk.model.sets[goes].desired -= 1

    spares = [len(walk.model.pods) - 3]
    while "Cordon" not in walk.moves:
        for which in range(28):
            walk.act(which)
        spares.append(sum(pod.ready for pod in walk.model.pods) - 3)
        walk.step()
    ended = walk.settle()

    assert (spares[0], spares[-1]) == (0, 1), "none, and then one"
    assert ended == Settled()
    assert walk.model.lost_in_rotation == []
    assert walk.model.fewest >= 3


HALFWAY = replace(
    deployed(replace(KEPT, desired=2)),
    replica_sets=(replace(RUNNING, desired=2, available=2), replace(KEPT, desired=2)),
    pods=(a_pod("a", NEW), a_pod("b", NEW), a_pod("c", OLD), a_pod("d", OLD)),
)


def with_fourth(revision: str = OLD, **changes: Any) -> Fleet:
    return replace(HALFWAY, pods=(*HALFWAY.pods[:3], a_pod("d", revision, **changes)))


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        pytest.param(replace(HALFWAY, observed=False), "has not seen", id="the controller lags"),
        pytest.param(replace(HALFWAY, replicas=4), "4 replicas exist", id="no spare is there"),
        pytest.param(replace(HALFWAY, replicas=2), "4 replicas exist", id="two are there"),
        pytest.param(with_fourth(ready_at=None), "3 of 4", id="not Ready"),
        pytest.param(with_fourth(terminating=True), "terminating", id="one goes"),
        pytest.param(with_fourth("c" * 16), "third revision", id="a third one"),
        pytest.param(with_fourth(cordoned=True), "draining", id="cordoned"),
        pytest.param(with_fourth(in_rotation=False), "EndpointSlices", id="out of rotation"),
    ],
)
def test_a_deploy_that_moves_is_not_turned(fleet: Fleet, words: str) -> None:
    refused = find_start_blocker(fleet, SWAP.after)
    move = next_rollback_move(fleet, ORDER, SWAP.after, NOW)

    assert refused.reason is Reason.TARGET_NOT_SETTLED
    assert words in refused.message
    assert move == refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fields": replace(OWN_FIELDS, paused=True)}, Reason.TARGET_PAUSED),
        ({"strategy": "Recreate"}, Reason.STRATEGY_UNSUPPORTED),
        ({"owner": Owner(Reason.MANAGED_BY_GITOPS, "Argo CD")}, Reason.MANAGED_BY_GITOPS),
    ],
)
def test_what_forbids_every_change_forbids_turning_a_deploy(changes: dict[str, Any], reason: Reason) -> None:
    refused = find_start_blocker(replace(HALFWAY, **changes), SWAP.after)

    assert refused.reason is reason


def test_a_fleet_that_can_be_turned_is_not_refused() -> None:
    assert find_start_blocker(HALFWAY, SWAP.after) is None
    assert find_start_blocker(deployed(KEPT), SWAP.after) is None
