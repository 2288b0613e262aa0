"""How soon sick fleets have a run among many that are calm, and whether all of them are served.

No controller runs, so a run gets no further than the new replica that it waits for. What a controller would
answer at once is answered here: that it has seen the Deployment. Where many are sick, each resource is let go
as soon as its run made its first move, so that the next one's turn comes; the order and the waiting are the
operator's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lab.cluster.api import Api, ApiError, Object
from lab.cluster.watch import Watches

CLAIM = "kvmedic.io/run"
"""Note on the target by which each effect of a run is recognised."""
Place = tuple[str, str]
"""Namespace and name: those of a fleet and of its resource are the same."""


def place_of(body: Object) -> Place:
    return body["metadata"]["namespace"], body["metadata"]["name"]


@dataclass
class Witness:
    """Sees what the operator writes as it writes it, and answers as a Deployment's controller."""

    api: Api
    lets_go: bool = False
    """Whether a resource is let go once its run made its first move."""
    looked_at: set[Place] = field(default_factory=set)
    opened: dict[Place, float] = field(default_factory=dict)
    """When each resource's run was seen first."""
    moved: dict[Place, list[float]] = field(default_factory=dict)
    """When each fleet's spec was changed."""
    open_now: set[Place] = field(default_factory=set)
    most_open: int = 0
    """Runs that were open at the same time, at most."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _watches: Watches | None = None
    _hands: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))

    def __enter__(self) -> Witness:
        handlers = {"Deployment": self._see_deployment, "KVRemediation": self._see_resource}
        paths = {self.api.resource(kind).path(None): handler for kind, handler in handlers.items()}
        self._watches = Watches(self.api.access, paths)
        self._watches.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watches is not None:
            self._watches.stop()
        self._hands.shutdown(wait=False, cancel_futures=True)

    def wait(self, holds: Callable[[Witness], bool], limit: float) -> bool:
        """Wait until something holds of what was seen; whether it did in time."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self), limit)

    def _see_resource(self, event: str, body: Object) -> None:
        place, status = place_of(body), body.get("status", {})
        with self._changed:
            if status.get("conditions"):
                self.looked_at.add(place)
            if status.get("run") and event != "DELETED":
                self.opened.setdefault(place, time.monotonic())
                self.open_now.add(place)
                self.most_open = max(self.most_open, len(self.open_now))
            else:
                self.open_now.discard(place)
            self._changed.notify_all()

    def _see_deployment(self, event: str, body: Object) -> None:
        if CLAIM not in body["metadata"].get("annotations", {}) or event == "DELETED":
            return
        place, now = place_of(body), time.monotonic()
        generation = body["metadata"]["generation"]
        with self._changed:
            if body["status"].get("observedGeneration") != generation:
                if place not in self.moved and self.lets_go:
                    self._hands.submit(self.let_go, place)
                self.moved.setdefault(place, []).append(now)
                self._hands.submit(self._answer, place, generation)
            self._changed.notify_all()

    def _answer(self, place: Place, generation: int) -> None:
        namespace, name = place
        self._patch("Deployment", name, {"status": {"observedGeneration": generation}}, namespace, "status")

    def begin_letting_go(self, but: set[Place]) -> None:
        """Let every resource go whose run made its first move, now and from now on."""
        with self._changed:
            self.lets_go = True
            for place in self.moved.keys() - but:
                self._hands.submit(self.let_go, place)

    def let_go(self, place: Place) -> None:
        """Abandon and delete a fleet's resource."""
        namespace, name = place
        abandon = {"metadata": {"annotations": {"kvmedic.io/abandon": "true"}}}
        self._patch("KVRemediation", name, abandon, namespace)
        with suppress(ApiError):
            self.api.delete("KVRemediation", name, namespace)

    def _patch(self, kind: str, name: str, patch: dict[str, Any], namespace: str, *subresource: str) -> None:
        with suppress(ApiError):
            self.api.patch(kind, name, patch, namespace, *subresource)


@dataclass(frozen=True, slots=True)
class Opened:
    """How soon sick fleets had their runs; seconds since they were sick; None: not in time."""

    first_run: float | None
    first_move: float | None
    budget_full: float | None
    all_moved: float | None
    waits: tuple[float, ...]
    """Of each fleet, until its first move."""
    most_open: int


def open_runs(
    witness: Witness, make_sick: Callable[[], None], count: int, budget: int, limit: float
) -> Opened:
    """Make fleets sick and wait until that many more of them were moved for the first time.

    Where there are more than the budget allows, none is let go before the budget is full.
    """
    opened, moved = set(witness.opened), set(witness.moved)
    witness.most_open, witness.lets_go = 0, False
    make_sick()
    began = time.monotonic()

    def until(holds: Callable[[Witness], bool]) -> float | None:
        held = witness.wait(holds, began + limit - time.monotonic())
        return time.monotonic() - began if held else None

    first_run = until(lambda seen: len(seen.opened) > len(opened))
    first_move = until(lambda seen: len(seen.moved) > len(moved))
    budget_full = until(lambda seen: seen.most_open >= min(count, budget))
    if count > 1:
        witness.begin_letting_go(moved)
    return Opened(
        first_run,
        first_move,
        budget_full,
        until(lambda seen: len(seen.moved) >= len(moved) + count),
        tuple(times[0] - began for place, times in witness.moved.items() if place not in moved),
        witness.most_open,
    )
