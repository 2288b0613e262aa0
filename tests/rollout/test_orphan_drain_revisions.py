"""Back to another revision without a label, out of somebody's own rollout as well: nobody goes undrained."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.model.config_edits import Revision, TemplateSwap
from kvmedic.model.evidence import Blocked
from kvmedic.rollout.moves import Move, Settled, Wait
from kvmedic.rollout.revision_rollback import next_rollback_move
from worlds.model_controller import OWN_FIELDS, ModelSet
from worlds.orphan_model import OrphanModel, OrphanWalk

EVENTS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=120)
MANY = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BACK = TemplateSwap(Revision(7, "llm-old", "old"), Revision(6, "llm-new", "new"))
"""The model names its two templates by their order in time: the fleet runs "old", and "new" was before."""


class Rollback(OrphanWalk):
    """The operator's side of a way back to a revision that a ReplicaSet keeps."""

    def move(self) -> Move:
        is_back = self.toward == "old"
        order = replace(self.order(), edit=BACK.inverse() if is_back else BACK, repairs=is_back)
        desired = BACK.before if is_back else BACK.after
        move = next_rollback_move(self.model.fleet(), order, desired, self.model.now)
        # A run that began asks again.
        return Wait(move.reason, move.message) if is_back and isinstance(move, Blocked) else move

    def another_life(self, toward: str) -> Rollback:
        other = Rollback(self.plain, toward)
        other.assigned_at, other.draining_pods = self.assigned_at, self.draining_pods
        return other

    def happen(self, act: int, which: int) -> None:
        """What a person's own `minReadySeconds` asks for passes while nothing is frozen, in the end."""
        super().happen(act, which)
        for pod in self.model.pods if self.toward == "old" or self.model.revision == "new" else ():
            pod.soaked = pod.soaked or (pod.ready and not self.model.fields.is_frozen)


def settled_fleet(replicas: int) -> OrphanModel:
    model = OrphanModel.healthy(replicas)
    model.sets["new"] = ModelSet("new")
    return model


def half_deployed(replicas: int, kept: int) -> OrphanModel:
    """A fleet in the middle of somebody's deploy, whose soak does not end by itself in the model."""
    model = settled_fleet(replicas)
    model.own = model.fields = replace(OWN_FIELDS, max_surge=1, max_unavailable=0, min_ready_seconds=900)
    for name, count in (("old", replicas + 1 - kept), ("new", kept)):
        model.sets[name] = ModelSet(name, count, 900, count, count if name == "new" else 0)
    model.pods.clear()
    for place in range(replicas + 1):
        pod = model._pod("new" if place < kept else "old")
        model.made_at[pod.name] = model.placed_at[pod.name] = model.now - timedelta(hours=1)
        pod.ready = pod.in_rotation = pod.busy = pod.served = pod.placed = True
        pod.soaked = pod.revision == "new"
    return model


def assert_whole(model: OrphanModel, revision: str, replicas: int) -> None:
    assert [pod.revision for pod in model.pods] == [revision] * replicas
    assert (model.orphans, model.fields) == ([], model.own)
    assert model.lost_in_rotation == []
    assert model.fewest >= replicas


@given(replicas=st.integers(1, 4), first=EVENTS, second=EVENTS, turns=st.booleans())
@MANY
def test_the_earlier_revision_comes_back_and_goes_again(replicas, first, second, turns) -> None:
    model = settled_fleet(replicas)
    walk = Rollback(model, "new")
    walk.take(first)
    next_life = walk.another_life("old" if turns else "new")

    next_life.run_to_end(second)

    assert isinstance(next_life.ended, Settled)
    assert_whole(model, "old" if turns else "new", replicas)


@given(data=st.data(), replicas=st.integers(1, 4), first=EVENTS, second=EVENTS, turns=st.booleans())
@MANY
def test_a_deploy_under_way_is_turned_and_goes_on_again(data, replicas, first, second, turns) -> None:
    model = half_deployed(replicas, data.draw(st.integers(1, replicas)))
    before = {pod.name for pod in model.pods if pod.revision == "new"}
    walk = Rollback(model, "new")
    walk.tick()
    if isinstance(walk.ended, Blocked):
        assert len(before) == 1, "it is all but complete, and stays theirs"
        return
    walk.take(first)
    next_life = walk.another_life("old" if turns else "new")

    next_life.run_to_end(second)

    assert isinstance(next_life.ended, Settled)
    assert_whole(model, "old" if turns else "new", replicas)
    assert turns or before <= {pod.name for pod in model.pods}, "those of the earlier revision stay"
