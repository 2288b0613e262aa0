"""Walks of changes to the number of replicas against a model of the controllers, in any order of events."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from worlds.model_controller import Model
from worlds.model_walk import Walk

ACTS = 6
UNREADY = 7
"""The act after which a pod is not Ready any more; no part of `EVENTS`."""
EVENTS = st.lists(st.tuples(st.integers(0, ACTS), st.integers(0, 7)), max_size=100)
EVENTS_WITH_UNREADY = st.lists(st.tuples(st.integers(0, UNREADY), st.integers(0, 7)), max_size=80)
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class NumberWalk(Walk):
    """The operator's side of a change to the number of replicas of one revision."""

    ACTS = ACTS

    def happen(self, act: int, which: int) -> None:
        match act:
            case 0:
                self.model.deployment_controller()
            case 1:
                self.model.replica_set_controller("old")
            case 2:
                self.model.kubelet(which)
            case 3:
                self.model.endpoints()
            case 4:
                self.model.requests_end()
            case 7:
                pod = self.model.pods[which % len(self.model.pods)]
                pod.ready = pod.in_rotation = pod.busy = False
            case _:
                # Controllers act within a second.
                self.model.deployment_controller()
                self.model.replica_set_controller("old")
                self.model.pass_time(1)

    def come_to_rest(self) -> None:
        """Let the controllers do what is left, without the operator."""
        for number in range(3):
            for act in range(ACTS):
                self.happen(act, number)


def names(model: Model) -> set[str]:
    return {pod.name for pod in model.pods}
