"""What replicas' own GPU drivers say, asked by `nvidia-smi` in their containers; off unless allowed.

It is asked seldom and of few replicas at once, because every answer costs a process in a tenant's container,
and one that hangs stays there. What is remembered of it only spares asking again: a process that starts
anew asks anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from kvmedic.kube.client import Client
from kvmedic.kube.errors import FORBIDDEN, ApiError
from kvmedic.kube.objects import PODS, Ref
from kvmedic.kube.pods import (
    Bounds,
    Broken,
    Ending,
    Finished,
    Flooded,
    NotStarted,
    TimedOut,
    run_command,
)
from kvmedic.model.devices import CLOCK_FIELDS, Answer, Silence, devices_told, nvidia_smi_query
from kvmedic.model.fleet import Pod

LIMIT_BYTES = 64 << 10
"""What is read of one answer: a line is under 100 bytes, and a node has 16 GPUs at most."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited, and how soon somebody is asked again."""

    seconds: float = 10.0
    """For one answer. Without persistence mode the driver wakes each GPU first, which takes seconds."""
    at_once: int = 8
    """Replicas that are asked side by side: a choice, so that a large fleet does not take all connections."""
    look_seconds: float = 30.0
    """After which nobody else's turn comes in one look: as long as one idle tick (`pace.idle`)."""
    fresh_seconds: float = 120.0
    """How long an answer counts: as old as a metrics source's newest sample may be (`sources.freshness`)."""
    hung_seconds: float = 600.0
    """How long nobody is asked whose command did not end. Each try may leave another process that nobody can
    end, so a fleet that hangs for a day is left with at most 144 per replica and operator: a choice."""


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: Answer
    until: float


class NvidiaSmi:
    """The drivers under the replicas of one cluster."""

    def __init__(self, client: Client, patience: Patience = Patience()) -> None:
        self._client, self._patience = client, patience
        self._bounds = Bounds(patience.seconds, LIMIT_BYTES)
        self._turns = asyncio.Semaphore(patience.at_once)
        self._kept: dict[str, _Kept] = {}

    async def ask(self, namespace: str, pods: Sequence[Pod], container: str) -> Mapping[str, Answer]:
        """Return what the driver under each replica says, by pod name; a fresh answer serves again."""
        now = _time()
        self._kept = {uid: kept for uid, kept in self._kept.items() if kept.until > now}
        due = [pod for pod in pods if pod.uid not in self._kept]
        last_turn = now + self._patience.look_seconds
        await asyncio.gather(*(self._in_turn(namespace, pod, container, last_turn) for pod in due))
        kept = self._kept
        return {pod.name: kept[pod.uid].answer if pod.uid in kept else Silence.NO_TURN for pod in pods}

    async def _in_turn(self, namespace: str, pod: Pod, container: str, last_turn: float) -> None:
        async with self._turns:
            if _time() >= last_turn:
                return
            answer = await self._ask_by_newest_names(Ref(PODS, namespace, pod.name), container)
            hung = answer is Silence.TIMED_OUT
            lasts = self._patience.hung_seconds if hung else self._patience.fresh_seconds
            self._kept[pod.uid] = _Kept(answer, _time() + lasts)

    async def _ask_by_newest_names(self, pod: Ref, container: str) -> Answer:
        """Ask by the newest names of the fields first; an older driver is asked once more."""
        answer: Answer = Silence.UNKNOWN_FIELD
        for field in CLOCK_FIELDS:
            answer = await self._once(pod, container, field)
            if answer is not Silence.UNKNOWN_FIELD:
                break
        return answer

    async def _once(self, pod: Ref, container: str, field: str) -> Answer:
        at = self._client.clock.now()
        try:
            ending = await run_command(self._client, pod, container, nvidia_smi_query(field), self._bounds)
        except ApiError as error:
            return Silence.FORBIDDEN if error.code == FORBIDDEN else Silence.UNREACHABLE
        return _parse_answer(ending, at)


def _parse_answer(ending: Ending, at: datetime) -> Answer:
    match ending:
        case Finished(exit_code, text):
            return devices_told(exit_code, text, at)
        case NotStarted():
            return Silence.NOT_STARTED
        case TimedOut():
            return Silence.TIMED_OUT
        case Flooded():
            return Silence.TOO_LONG
        case Broken():
            return Silence.UNREACHABLE
        case _:
            assert_never(ending)


def _time() -> float:
    return asyncio.get_running_loop().time()
