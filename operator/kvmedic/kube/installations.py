"""One installation looks after a resource: two that would look after the same ones refuse each other.

An installation is a release in a namespace, with all of its processes and shards. It says what it looks
after by Leases named `kvmedic-serves`: one in each namespace that it watches, or one in its own for all.
Such a Lease names the installation, not a process, and is renewed by the first process that comes.

* Who comes anew *asks*: it writes its name without `acquireTime`, and looks once more. It *holds* only where
  nobody else asks or holds. Of two that ask at once at most one sees nobody, so never both go on.
* An installation of some namespaces cannot see one of the whole cluster. So it waits for `notice` after it
  asked; one of the whole cluster, which lists these Leases, meanwhile takes what came after itself.
* Who came second acts no more than a process without its Lease does: no election, no effect, not Ready.
* A Lease that nobody renewed for `GONE_SECONDS` is a leftover, and blocks nobody.

A Lease that somebody forges can keep an installation from beginning, and the message says what to delete.
It does not stop one that holds its own: that one takes it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from kvmedic.kube.errors import NOT_FOUND, ApiError, Conflict, NamespaceEnds, Refused
from kvmedic.kube.leadership import Leadership, boot_seconds, lease_time
from kvmedic.kube.objects import LEASES, JsonObject, Ref, moment, name_of, namespace_of, section, version_of

if TYPE_CHECKING:
    from kvmedic.kube.client import Client

SERVES = "kvmedic-serves"
"""Name of every Lease by which an installation says what it looks after."""
LOOK_SECONDS = 15.0
"""Between two looks at these Leases. Two of them fit into the usual notice (40 s)."""
ATTEMPT_SECONDS = 10.0
"""Until a look is given up."""
RENEW_SECONDS = 30.0
"""Age at which a Lease is renewed: two looks, so that one of several processes does it."""
WATCHED_SECONDS = 75.0
"""For how long a Lease must not have changed before its own time counts: two renewals and a look."""
GONE_SECONDS = 600.0
"""Without a renewal, after which an installation is gone. Longer than the 5 min 40 s for which Kubernetes
leaves a pod on a node that died."""
VALID_SECONDS = 300.0
"""How long the last look that ended counts, while others fail: well before anybody else takes over."""

LOG = logging.getLogger("kvmedic")
_NAME = re.compile(r"([a-z0-9][-a-z0-9]{0,62})/([a-z0-9][-a-z0-9.]{0,252})")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who an installation is, and what it looks after."""

    namespace: str
    release: str
    watched: tuple[str, ...]
    """Namespaces; empty: all."""
    notice_seconds: float = 40.0
    """How long one of some namespaces waits for one of the whole cluster to object, before it begins."""

    @property
    def full_name(self) -> str:
        """Return what its Leases say."""
        return f"{self.namespace}/{self.release}"

    @property
    def places(self) -> tuple[str, ...]:
        """Return the namespaces in which it must hold a Lease."""
        return self.watched or (self.namespace,)


@dataclass(slots=True)
class Installation:
    """This process as part of its installation: it takes part in the election where no other one serves."""

    client: Client
    identity: Identity
    leadership: Leadership
    retry_seconds: float = 2.0
    """Between two looks before the first that ended."""
    clock: Callable[[], float] = boot_seconds
    refusal: str = "no look yet at which installations there are"
    """Why this one does not act; empty where it may."""
    _valid_until: float = field(default=float("-inf"), init=False)
    _asked_at: float | None = field(default=None, init=False)
    _stands_back: bool = field(default=False, init=False)
    """Another one was found at the last look."""
    _seen: dict[str, tuple[JsonObject, float]] = field(default_factory=dict, init=False)
    """Each Lease's spec by its namespace, and when it was first seen like that."""

    def is_held(self) -> bool:
        """Return whether this process is the active one right now. Ask right before each effect."""
        return self.may_serve() and self.leadership.is_held()

    def is_over(self) -> bool:
        """Return whether nobody can lead any more, as the namespace of the Lease is being deleted."""
        return self.leadership.is_over()

    def may_serve(self) -> bool:
        """Return whether no other installation looks after the same resources."""
        return self.clock() < self._valid_until

    async def take_part(self) -> None:
        """Take part in the election while this installation may serve; until cancelled."""
        election: asyncio.Task[None] | None = None
        try:
            while True:
                await self.look()
                if self.may_serve():
                    election = election or asyncio.create_task(self.leadership.run())
                elif election is not None:
                    await _end_election(election)
                    election = None
                await asyncio.sleep(self._pause())
        finally:
            if election is not None:
                await _end_election(election)

    async def look(self) -> None:
        """Look once which installations there are, and renew, ask or stand back."""
        began, earlier, self._stands_back = self.clock(), self.refusal, False
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                self.refusal = await self._settle(await self._find_leases())
        except Conflict:
            return
        except (ApiError, TimeoutError) as error:
            if not self.may_serve():
                text = str(error) or f"no answer within {ATTEMPT_SECONDS:g} s"
                self.refusal = f"it is not known whether another installation serves the same: {text}"
        else:
            self._valid_until = float("-inf") if self.refusal else began + VALID_SECONDS
        if self.refusal != earlier:
            outcome = self.refusal or "no other one serves the same resources"
            LOG.log(
                logging.WARNING if self.refusal else logging.INFO,
                "installation=%s %s",
                self.identity.full_name,
                outcome,
            )

    def _pause(self) -> float:
        """Return seconds until the next look; two that stood back from each other look at different times."""
        if not self.may_serve() and not self._stands_back:
            return self.retry_seconds
        return LOOK_SECONDS * random.uniform(0.7, 1.0)  # noqa: S311 - spreads looks, hides nothing

    async def _find_leases(self) -> list[JsonObject]:
        """Return the Leases that matter: all of the cluster's, or those of the watched namespaces."""
        if self.identity.watched:
            refs = [Ref(LEASES, place, SERVES) for place in self.identity.watched]
            found = [lease for ref in refs if (lease := await self.client.get(ref)) is not None]
        else:
            listed = await self.client.list(LEASES, "", fields=f"metadata.name={SERVES}")
            found = [lease for lease in listed if name_of(lease) == SERVES]
        now, before = self.clock(), self._seen
        self._seen = {}
        for lease in found:
            place, spec = namespace_of(lease), section(lease, "spec")
            known = before.get(place)
            self._seen[place] = known if known is not None and known[0] == spec else (spec, now)
        return found

    async def _settle(self, found: list[JsonObject]) -> str:
        """Return why this installation does not act; empty where it holds what it looks after."""
        at = {namespace_of(lease): lease for lease in found}
        if all(self._is_held(at.get(place)) for place in self.identity.places):
            await self._renew(found)
            return ""
        if (other := self._find_other(found)) is not None:
            await self._stand_back(found)
            return self._refusal(other)
        asked = await self._ask_for_places(at)
        if all(self._is_held(lease) for lease in asked):
            await self._renew(found)
            return ""
        if (
            not self.identity.watched
            and (other := self._find_other(found := await self._find_leases())) is not None
        ):
            await self._stand_back(found)
            return self._refusal(other)
        self._asked_at = self.clock() if self._asked_at is None else self._asked_at
        if self.identity.watched and self.clock() < self._asked_at + self.identity.notice_seconds:
            return (
                f"waits {self.identity.notice_seconds:g} s for an installation of the whole cluster to object"
            )
        for lease in asked:
            if not self._is_held(lease):
                await self._write(lease, acquireTime=lease_time())
        self._asked_at = None
        return ""

    async def _renew(self, found: Iterable[JsonObject]) -> None:
        """Renew what is ours, and take what others wrote after us: they could not know."""
        now = self.clock()
        for lease in found:
            with suppress(Conflict):
                if self._holder_of(lease) != self.identity.full_name:
                    await self._write(lease, acquireTime=lease_time())
                elif now - self._seen[namespace_of(lease)][1] >= RENEW_SECONDS:
                    await self._write(lease)

    async def _ask_for_places(self, at: Mapping[str, JsonObject]) -> list[JsonObject]:
        """Return our Leases; those that were not ours ask now, and where none can be made none is needed."""
        asked = []
        for place in self.identity.places:
            lease = at.get(place, {})
            if self._holder_of(lease) == self.identity.full_name:
                asked.append(lease)
                continue
            new: JsonObject = {"metadata": {"name": SERVES, "namespace": place}}
            try:
                asked.append(await self._write(lease or new, acquireTime=None))
                self._asked_at = None
            except Refused as error:
                if not isinstance(error, NamespaceEnds) and error.code != NOT_FOUND:
                    raise
        return asked

    async def _stand_back(self, found: Iterable[JsonObject]) -> None:
        """Take back what was asked; what is held stays ours while we wait."""
        self._asked_at, self._stands_back = None, True
        for lease in found:
            if self._holder_of(lease) == self.identity.full_name and not self._is_held(lease):
                with suppress(Conflict):
                    await self._write(lease, holderIdentity="")

    async def _write(self, lease: JsonObject, **changes: str | None) -> JsonObject:
        """Write a Lease with us as who it names, but for what changes."""
        spec = {
            **section(lease, "spec"),
            "holderIdentity": self.identity.full_name,
            "leaseDurationSeconds": int(GONE_SECONDS),
            "renewTime": lease_time(),
            **changes,
        }
        labels = {**section(lease, "metadata", "labels"), "app.kubernetes.io/name": "kvmedic"}
        body = {**lease, "metadata": {**section(lease, "metadata"), "labels": labels}, "spec": spec}
        write = self.client.put if version_of(lease) else self.client.create
        return await write(Ref(LEASES, namespace_of(lease), SERVES), body)

    def _is_held(self, lease: JsonObject | None) -> bool:
        """Return whether a Lease is ours for good."""
        return self._holder_of(lease or {}) == self.identity.full_name and bool(
            section(lease or {}, "spec").get("acquireTime")
        )

    def _find_other(self, found: Iterable[JsonObject]) -> JsonObject | None:
        """Return a Lease of another installation that is not gone; None: there is none."""
        ours = ("", self.identity.full_name)
        return next(
            (each for each in found if self._holder_of(each) not in ours and not self._is_gone(each)), None
        )

    def _holder_of(self, lease: JsonObject) -> str:
        return str(section(lease, "spec").get("holderIdentity") or "")

    def _is_gone(self, lease: JsonObject) -> bool:
        """Return whether nobody renewed a Lease for long, as we saw, or as it says and we saw for a while."""
        spec, seen_at = self._seen[namespace_of(lease)]
        unchanged = self.clock() - seen_at
        if unchanged < WATCHED_SECONDS or unchanged >= GONE_SECONDS:
            return unchanged >= GONE_SECONDS
        renewed = _moment_of(spec.get("renewTime"))
        return renewed is None or (self.client.clock.now() - renewed).total_seconds() >= GONE_SECONDS

    def _refusal(self, lease: JsonObject) -> str:
        """Return whom we found, and what to type."""
        place, name = namespace_of(lease), self._holder_of(lease)
        known = _NAME.fullmatch(name)
        who = f"the installation {name}" if known else "an unknown installation"
        end = f" (helm -n {known[1]} uninstall {known[2]})" if known else ""
        what = f"namespace {place}" if self.identity.watched else "the same resources"
        return (
            f"reason=AnotherInstallation {who} looks after {what}, by its Lease {place}/{SERVES}: this one "
            f"stays idle. Uninstall one of them{end}, or give each its own namespaces by watchNamespaces. "
            f"If the other one is gone already: kubectl -n {place} delete lease {SERVES}; it does not count "
            f"any more after {GONE_SECONDS / 60:g} min without a renewal"
        )


async def _end_election(election: asyncio.Task[None]) -> None:
    election.cancel()
    await asyncio.gather(election, return_exceptions=True)


def _moment_of(text: object) -> datetime | None:
    """Return a time of a Lease; None where nobody can read it."""
    try:
        found = moment(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None
