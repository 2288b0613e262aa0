"""What is looked at anew now and then, whatever the watches told: which resources there are, and lost pods.

A watch that goes on from a version which an etcd restored from a snapshot has not reached yet is answered
with 200 and silence (Kubernetes 1.36). kopf goes on from its last version after each time-out, and lists anew
after 410 alone (1.45.2, controller/idle.py). A resource that was made meanwhile would never be seen, and
one that is gone never forgotten. So every resource is listed now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass

from kvmedic.controller.orphans import StandIns, free_unclaimed
from kvmedic.controller.ports import Ports
from kvmedic.controller.run_limits import Entry, Roster
from kvmedic.kube.errors import ApiError
from kvmedic.loop import Loop
from kvmedic.model.status import Key
from kvmedic.rollout.gates import Peer

LOG = logging.getLogger("kvmedic")


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one process."""

    ports: Ports
    loop: Loop
    roster: Roster
    forget: Callable[[str], None]
    census: Callable[[], Awaitable[Sequence[Peer]]]
    """Lists every resource as it is stored."""
    namespaces: tuple[str, ...]
    """Namespaces that are watched; empty: all."""
    stand_ins: StandIns

    async def run(self) -> None:
        """Make a round at the pace of resources without a run, until cancelled."""
        while True:
            try:
                await self.once()
            except ApiError as error:
                LOG.warning("reason=RoundFailed error=%s", error)
            await asyncio.sleep(self.ports.pace.idle.total_seconds())

    async def once(self) -> None:
        """Look once at every resource, at the pods that are out of rotation, and at fleets that stand frozen.

        Pods first: the resource whose run cordoned one of them is then among those that are listed.
        """
        # The loop forgets a resource whose look finds nothing; the roster still has it then.
        known = {*self.loop.keys(), *self.roster.keys()} - {*self.stand_ins.keys()}
        frozen = self.stand_ins.frozen()
        leads = self.ports.leader.is_held()
        places = self.namespaces or ("",)
        pods = (
            [pod for each in places for pod in await self.ports.target.left_cordoned(each)] if leads else []
        )
        peers = await self.census()
        self._heed(known, peers)
        if self.ports.leader.is_held():
            for key in self.stand_ins.appoint(frozen, peers):
                self.loop.wake(key)
            await free_unclaimed(self.ports.target, pods, (*peers, *self.stand_ins.peers()))

    def _heed(self, known: Set[Key], peers: Sequence[Peer]) -> None:
        """Have the loop and the roster know the resources that there are.

        Only one that was known before the list was asked for, and is not in it, is gone.
        """
        found = {Key(peer.namespace, peer.name, peer.uid): peer for peer in peers}
        for key in known:
            if key not in found:
                self.loop.forget(key)
                self.roster.forget(key)
                self.forget(key.uid)
        looked_at = self.loop.keys()
        for key, peer in found.items():
            self.roster.note(key, Entry(peer, peer.created_at))
            if key not in looked_at:
                self.loop.wake(key)
