"""A model of LeaderWorkerSet's controller beside that of the StatefulSet of its leaders.

It follows LeaderWorkerSet 0.8 `pkg/controllers`: the partition of the leaders' StatefulSet is worked out from
the groups that are Ready and new (rollingUpdateParameters), and is never below the LeaderWorkerSet's own. The
StatefulSet's controller goes by the last assignment. A leader whose container restarts goes with its group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvmedic.model.fleet import LEADER_WORKER_SET, ROLLING, Fleet, Groups, RolloutFields
from kvmedic.rollout.moves import Cordon, DeletePod, Effect, Uncordon
from worlds.model_controller import StaleError
from worlds.model_set import OWN, SetModel, SetPod


@dataclass
class GroupModel(SetModel):
    """A LeaderWorkerSet by its leaders: `fields` and `revision` are its own, the rest its StatefulSet's."""

    leader_fields: RolloutFields = OWN
    """What was last assigned to the StatefulSet of the leaders: partition, and how many may be missing."""
    made_from: str = "old"
    """The template that was last assigned to it."""
    leader_replicas: int = 0
    is_old: bool = False
    """Its controller is from before there was a partition."""
    recreates: bool = True
    """A group of which a container ends is deleted; otherwise that container is started again alone."""
    is_away: bool = False
    """None of LeaderWorkerSet's processes runs. Its webhooks do not answer the API server: it lets no write
    to the LeaderWorkerSet through, and no pod of a group be made (seen with 0.8)."""
    followed: bool = True
    """The StatefulSet controller has seen what was assigned last."""

    @classmethod
    def healthy(cls, replicas: int, own: RolloutFields = OWN, **more: Any) -> GroupModel:
        model = super().healthy(replicas, own, **{**more, "in_order": False, "by_keys": False})
        assert isinstance(model, GroupModel)
        model.leader_replicas = replicas
        model.leader_fields = replace(OWN, partition=own.partition, max_unavailable=own.max_unavailable)
        return model

    def apply(self, effect: Effect) -> None:
        if self.is_away and not isinstance(effect, Cordon | Uncordon | DeletePod):
            raise StaleError
        super().apply(effect)

    def happen(self, act: int, which: int) -> None:
        if act == 0:
            self.lead()
        else:
            super().happen(act, which)

    def lead(self) -> None:
        """One look of LeaderWorkerSet's controller, which acts on what the StatefulSet shows."""
        if self.is_away:
            return
        own = 0 if self.is_old else self.fields.partition or 0
        partition = max(self._stepped(), own)
        last = self.leader_fields, self.made_from, self.leader_replicas
        fields = replace(OWN, partition=partition, max_unavailable=self.fields.max_unavailable)
        self.leader_fields, self.made_from, self.leader_replicas = fields, self.revision, self.replicas
        self.observed = True
        if last != (fields, self.revision, self.replicas):
            self.followed, self.wakes = False, True

    def _stepped(self) -> int:
        """The partition by its own reckoning; the fleet's surge is 0, or all is new."""
        now = self.leader_fields.partition or 0
        if self.revision != self.made_from:
            return min(self.replicas, self.leader_replicas)
        if now == 0 and self.leader_replicas == self.replicas:
            return 0
        if self.leader_replicas != self.replicas:
            return min(now, self.replicas)
        states = [self._state(ordinal) for ordinal in range(self.replicas)]
        new = 0
        for ready, updated in reversed(states):
            if not (ready and updated):
                break
            new += 1
        step = self.fields.max_unavailable
        assert isinstance(step, int)
        lowest = max(0, self.replicas - new - step)
        partition = lowest + sum(not ready for ready, _ in states[:lowest])
        for ordinal in range(min(partition, self.replicas - 1), lowest - 1, -1):
            ready, updated = states[ordinal]
            if ready and not updated:
                break
            partition = ordinal
        return min(partition, now)

    def _state(self, ordinal: int) -> tuple[bool, bool]:
        pod = next((pod for pod in self.pods if pod.ordinal == ordinal), None)
        is_ready = pod is not None and pod.ready and not pod.terminating
        return is_ready, pod is not None and pod.revision == self.made_from

    def controller(self) -> None:
        """One sync of the StatefulSet's controller, by what was assigned."""
        if self.is_away and sum(pod.owned for pod in self.pods) < self.leader_replicas:
            return
        kept = self.fields, self.revision, self.replicas, self.observed
        self.fields, self.revision, self.replicas = self.leader_fields, self.made_from, self.leader_replicas
        super().controller()
        self.fields, self.revision, self.replicas, self.observed = kept
        self.followed = True

    def kubelet(self, which: int) -> None:
        """As of any pod; but one whose container ends goes, as the whole group does."""
        pod: SetPod | None = self.pods[which % len(self.pods)] if self.pods else None
        if self.recreates and pod is not None and pod.broken and not pod.terminating:
            pod.terminating, self.wakes = True, True
            return
        super().kubelet(which)

    def fleet(self) -> Fleet:
        seen = super().fleet()
        pods = tuple(replace(pod, restarts=0, waiting_reason="") for pod in seen.pods)
        obeyed = self.leader_fields.partition if self.followed else None
        is_seen = obeyed is not None and (self.made_from, self.leader_replicas) == (
            self.revision,
            self.replicas,
        )
        return replace(
            seen,
            kind=LEADER_WORKER_SET,
            pods=pods if self.recreates else seen.pods,
            observed=is_seen and (obeyed or 0) >= (self.fields.partition or 0),
            strategy=ROLLING,
            is_complete=self.current == self.made_from,
            groups=Groups(obeyed, self.current),
        )
