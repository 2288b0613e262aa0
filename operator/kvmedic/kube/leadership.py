"""One active operator at a time, by a `coordination.k8s.io` Lease.

The holder counts its time from before it sent a renewal that succeeded; everybody else counts from
after they saw the Lease change last. Nobody compares clocks of two machines, and the holder's time is
over a margin before anybody may take the Lease. A process that was stopped and goes on finds its time
over in the very first `is_held`, because the clock ran on.

Why not a library: of `kubernetes` 37.0.2, `aio` let two leaders live through a connection reset and
cannot create its Lease, and the synchronous one compares wall clocks, cannot be cancelled and never
releases. This one is still no lock: a request sent in time may arrive late, so every effect tests what
it was decided on besides.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvmedic.kube.errors import ApiError, Conflict, NamespaceEnds
from kvmedic.kube.objects import LEASES, JsonObject, Ref, section

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

LONGEST_SECONDS = 300
"""How long a Lease that does not change is left alone, whatever it says of itself: one that says 68 years, by
a slip of the hand or by malice, would end all healing. Five times what components of Kubernetes ask for."""

LOG = logging.getLogger("kvmedic")


def boot_seconds() -> float:
    """Return seconds of a clock that never goes back and, on Linux, also counts while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def fresh_identity() -> str:
    """Return a name that no other process has, and no later one of the same pod."""
    return f"{os.uname().nodename}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The times of the election. The defaults are client-go's (leaderelection.go: 15, 10 and 2 s)."""

    duration_seconds: int = 15
    """How long others leave a Lease alone that does not change."""
    margin_seconds: float = 5.0
    """How much earlier its holder stops to act: longer than a write takes to arrive."""
    retry_seconds: float = 2.0
    """Between two renewals, and between two looks of who waits."""
    attempt_seconds: float = 4.0
    """Until one attempt is given up."""

    def __post_init__(self) -> None:
        """Refuse times by which a holder would lose a Lease through one failed renewal.

        Raises:
            ValueError: the times do not fit into each other.
        """
        if self.retry_seconds + self.attempt_seconds >= self.duration_seconds - self.margin_seconds:
            raise ValueError(
                "leaseRetry + leaseAttempt must be less than leaseDuration - leaseMargin, got "
                f"{self.retry_seconds} + {self.attempt_seconds} and "
                f"{self.duration_seconds} - {self.margin_seconds}"
            )


class Leadership:
    """This process' part in the election. `run` takes part until it is cancelled."""

    def __init__(
        self,
        client: Client,
        lease: Ref,
        times: LeaseTimes,
        identity: str,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """Take no part yet.

        Args:
            identity: what no other process calls itself; see `fresh_identity`.
            clock: seconds that never go back and do not stop while the process is stopped.
        """
        if lease.resource != LEASES:
            raise ValueError(f"{lease.path} is not a Lease")
        self._client, self._ref, self._times = client, lease, times
        self._identity, self._clock = identity, clock
        self._renewed_at: float | None = None
        self._own: JsonObject | None = None
        self._seen: JsonObject | None = None
        self._seen_at = 0.0
        self._problem = ""
        self._is_over = False

    def is_over(self) -> bool:
        """Return whether nobody can lead any more: the Lease is gone, and its namespace is being deleted."""
        return self._is_over

    def is_held(self) -> bool:
        """Return whether this process is the active one right now. Ask right before each effect."""
        if self._renewed_at is None:
            return False
        limit = self._times.duration_seconds - self._times.margin_seconds
        return self._clock() - self._renewed_at < limit

    async def run(self) -> None:
        """Take part in the election until cancelled, then give the Lease back.

        Cancel it after everything that acts has ended: it gives the Lease back at once.
        """
        try:
            while True:
                await self._attempt()
                await asyncio.sleep(self._times.retry_seconds)
        finally:
            await self._release()

    async def _attempt(self) -> None:
        """Take or keep the Lease, or look who has it. Whatever fails is tried again next time."""
        held = self.is_held()
        problem = ""
        try:
            async with asyncio.timeout(self._times.attempt_seconds):
                await self._renew_or_apply()
                self._is_over = False
        except TimeoutError:
            problem = f"no answer within {self._times.attempt_seconds:g} s"
        except ApiError as error:
            problem, self._is_over = str(error), isinstance(error, NamespaceEnds)
        self._log_change(held, problem)

    async def _renew_or_apply(self) -> None:
        """Renew the Lease as we wrote it last; where somebody wrote it since, start from nothing."""
        if self._own is not None:
            with suppress(Conflict):
                spec = {**section(self._own, "spec"), "renewTime": lease_time()}
                return await self._write({**self._own, "spec": spec})
            # It may have been a renewal of ours whose answer was lost: the next look shows it.
            self._own = self._renewed_at = None
        return await self._apply()

    async def _apply(self) -> None:
        """Look at the Lease, and take it when nobody holds it."""
        found = await self._client.get(self._ref)
        if found is None:
            body = {"metadata": {"name": self._ref.name}, "spec": self._claim_spec({})}
            await self._write(body)
            return
        spec = section(found, "spec")
        if spec != self._seen:
            self._seen, self._seen_at = spec, self._clock()
        if spec.get("holderIdentity") == self._identity or self._is_free(spec):
            await self._write({**found, "spec": self._claim_spec(spec)})

    async def _write(self, lease: JsonObject) -> None:
        """Write the Lease; it is ours from before that was sent."""
        started = self._clock()
        write = self._client.put if "resourceVersion" in section(lease, "metadata") else self._client.create
        self._own, self._renewed_at = await write(self._ref, lease), started

    def _is_free(self, spec: JsonObject) -> bool:
        """Return whether the Lease was given back, or did not change for as long as its holder said."""
        if not spec.get("holderIdentity"):
            return True
        term = spec.get("leaseDurationSeconds") or self._times.duration_seconds
        return self._clock() - self._seen_at > min(term, max(LONGEST_SECONDS, self._times.duration_seconds))

    def _claim_spec(self, spec: JsonObject) -> JsonObject:
        """Return the Lease's spec with us as its holder."""
        now = lease_time()
        mine = spec.get("holderIdentity") == self._identity
        return {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._times.duration_seconds,
            "acquireTime": spec.get("acquireTime") if mine else now,
            "renewTime": now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if mine else 1),
        }

    async def _release(self) -> None:
        """Give the Lease back, so that the next process need not wait; failing that, it runs out."""
        own, self._own, self._renewed_at = self._own, None, None
        if own is None:
            return
        spec = {
            **section(own, "spec"),
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": lease_time(),
        }
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self._times.attempt_seconds):
                await self._client.put(self._ref, {**own, "spec": spec})

    def _log_change(self, held: bool, problem: str) -> None:  # noqa: FBT001 - what was, not how
        """Log what differs from before."""
        if held != self.is_held():
            LOG.info("lease=%s identity=%s held=%s", self._ref.path, self._identity, self.is_held())
        if problem and problem != self._problem:
            LOG.warning("lease=%s identity=%s error=%s", self._ref.path, self._identity, problem)
        self._problem = problem


def lease_time() -> str:
    """Return the time as a Lease spells it (metav1.MicroTime). For people: nobody computes with it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
