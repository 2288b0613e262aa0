"""Events in, wake-ups out: the only module that knows kopf.

kopf carries the watch of resources and the frame of the process. It changes nothing: no
handler here patches an object, so kopf's own bookkeeping never touches a resource. All mutation is
in the reconcile loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from typing import Any

import kopf

from kvmedic.controller.finalizer import let_go
from kvmedic.controller.orphans import StandIns
from kvmedic.controller.ports import Ports
from kvmedic.controller.reconcile import reconcile
from kvmedic.kube.backoff import Backoff
from kvmedic.kube.client import PAGE
from kvmedic.kube.errors import Conflict, Refused, Unavailable
from kvmedic.kube.objects import JsonObject, is_every_namespace_ours, name_of, namespace_of
from kvmedic.kube.watches import DELETED
from kvmedic.loop import Loop
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import place_of
from kvmedic.model.status import Key
from kvmedic.record.store import Known, peer_of
from kvmedic.record.telemetry import Telemetry
from kvmedic.rollout.gates.one_resource_per_target import Roster
from kvmedic.watchdog import Watchdog

LOG = logging.getLogger("kvmedic")
STUCK = timedelta(minutes=5)
"""A loop that looked at nothing for so long, or for three idle periods, is stuck: one look is bounded by
the time-outs of its calls, about two minutes in all."""
GROUP, VERSION, PLURAL = "kvmedic.io", "v1alpha1", "kvremediations"


def utc_now() -> datetime:
    """Return the time, with its zone."""
    return datetime.now(UTC)


@dataclass(slots=True)
class Operator:
    """One operator process: the loop, and what kopf reports to it."""

    ports: Ports
    telemetry: Telemetry
    backoff: Backoff
    workers: int
    forget: Callable[[str], None]
    """Drop what is remembered of a resource that is gone, by its uid."""
    roster: Roster
    stand_ins: StandIns
    known: Known = field(default_factory=Known)
    """The resources as the watch reports them."""
    holds: Callable[[str], bool] = is_every_namespace_ours
    """Whether the resources and workloads of a namespace are ours."""
    clock: Callable[[], datetime] = utc_now
    """What the time is, for what is stored; what a run waits for is counted by `ports.watch`."""
    loop: Loop = field(init=False)
    report_error: Callable[[Key], Awaitable[None]] = field(init=False)
    """Set Ready to Unknown after an unexpected error, if the API lets us."""
    _worked_at: float | None = None
    _leads: bool = False

    def __post_init__(self) -> None:
        """Make the loop whose every tick is guarded."""
        self.loop = Loop(self.tick, self.workers, self.roster.has_open_run, self.is_parked)
        self.report_error = self._report_error

    async def tick(self, key: Key) -> float | None:
        """Look at one resource, if this process is the one that acts; never raises.

        Tests that it began end where it is not: a drained replica may be back in rotation already.
        """
        self._worked_at = time.monotonic()
        if not self.ports.leader.is_held():
            self._forget_what_it_saw()
            if self.ports.leader.is_over():
                return await self._guard_look(key, let_go(key, self.ports))
            return self.ports.pace.replica.total_seconds()
        with self.telemetry.tick_seconds.time():
            return await self._guard_look(key, reconcile(key, self.ports, self.clock()))

    def is_parked(self) -> bool:
        """Return whether nothing is looked at now, as another process leads."""
        leads = self.ports.leader.is_held()
        if self._leads and not leads:
            self._forget_what_it_saw()
        self._leads = leads
        if leads or self.ports.leader.is_over():
            return False
        self._worked_at = time.monotonic()
        return True

    def oldest_look_seconds(self) -> float:
        """Return for how long the resource that waits longest was not looked at; 0 while another leads."""
        return self.loop.oldest_look_seconds(time.monotonic()) if self._leads else 0.0

    def _forget_what_it_saw(self) -> None:
        """End what only the one who leads may go on with."""
        self.ports.probes.forget_all()
        self.ports.watch.forget_all()
        self.stand_ins.dismiss_all()

    def note_workload(self, kind: str, event_type: str, body: JsonObject) -> None:
        """Have the resources of a workload looked at as soon as somebody, or a controller, moves it."""
        namespace, name = namespace_of(body), name_of(body)
        if not self.holds(namespace):
            return
        self.stand_ins.note(namespace, ObjectRef(kind, name), body, is_deleted=event_type == DELETED)
        for key in self.roster.of_target(namespace, place_of(kind, name)):
            self.loop.wake(key)

    async def _guard_look(self, key: Key, look: Awaitable[timedelta | None]) -> float | None:
        try:
            delay = await look
        except Conflict as error:
            return self._log_failure(key, error, at_once=True)
        except (Unavailable, Refused) as error:
            return self._log_failure(key, error)
        except Exception as error:  # the one broad except: whatever it is, the fleet stands still
            LOG.exception("resource=%s/%s reason=%s", key.namespace, key.name, Reason.INTERNAL_ERROR)
            await self.report_error(key)
            return self._log_failure(key, error)
        self.backoff.forget(key)
        if delay is None:
            self.forget(key.uid)
            self.ports.examiner.forget(key.uid)
            return None
        return delay.total_seconds()

    def _log_failure(self, key: Key, error: Exception, *, at_once: bool = False) -> float:
        """Log and count a failed look; return the delay before the next try."""
        self.telemetry.failures.labels(kind=type(error).__name__).inc()
        delay = self.backoff.delay_after_failure(key, at_once=at_once).total_seconds()
        LOG.warning(
            "resource=%s/%s kind=%s next_try_seconds=%.1f error=%s",
            key.namespace,
            key.name,
            type(error).__name__,
            delay,
            error,
        )
        return delay

    async def _report_error(self, key: Key) -> None:
        """Set Ready to Unknown after an unexpected error, if the API lets us."""
        with suppress(Conflict, Unavailable, Refused):
            resource = await self.ports.store.load(key)
            if resource is not None:
                problem = Blocked(Reason.INTERNAL_ERROR, Reason.INTERNAL_ERROR.sentence)
                records = await self.ports.store.report_problem(resource, problem)
                if records is not None:
                    await self.ports.reporter.report_changes(resource, *records)

    def explain_lost_work(self, now: float) -> str:
        """Return that the loop looks at nothing although there is something; empty where it works.

        `now`: monotonic.
        """
        if not self.loop.keys() or self._worked_at is None:
            return ""
        limit = max(STUCK, 3 * self.ports.pace.idle).total_seconds()
        idle = now - self._worked_at
        return "" if idle < limit else f"nothing was looked at for {idle:.0f} s, at most {limit:.0f} s"


def registry(operator: Operator) -> kopf.OperatorRegistry:
    """Return kopf's handlers for one operator."""
    made = kopf.OperatorRegistry()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=made)  # type: ignore[arg-type]
    async def resource(event: kopf.RawEvent, namespace: str, name: str, uid: str, **_: Any) -> None:
        key = Key(namespace, name, uid)
        if not operator.holds(namespace):
            return
        if event["type"] == DELETED:
            operator.loop.forget(key)
            operator.roster.forget(key)
            operator.forget(uid)
        else:
            body = dict(event["object"])
            operator.known.take_over(body)
            operator.roster.note(key, peer_of(body))
            operator.loop.wake(key)
        operator.telemetry.resources.set(len(operator.loop.keys()))

    @kopf.on.login(registry=made)
    async def login(**kwargs: Any) -> Any:
        return _credentials(**kwargs)

    return made


def _credentials(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Return how kopf reaches the API server: in a pod by the address in its environment.

    kopf's own login asks for kubernetes.default.svc (1.45.2, piggybacking.py), and so needs a cluster
    DNS that answers; the pod's environment does without, as for our other client.
    """
    found = kopf.login_with_service_account(**kwargs)
    if found is None:
        return kopf.login_with_kubeconfig(**kwargs)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return found
    return replace(found, server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")


class Patience:
    """Seconds between the tries of a watch, without an end.

    kopf's own back-offs end after 54 s, and the process with them (1.45.2, measured): Kubernetes would
    then wait up to five minutes before the next one, long after the API server has come back.
    """

    def __iter__(self) -> Iterator[float]:
        """Return the back-offs from the first."""
        return chain((1, 1, 2, 3, 5), repeat(8))


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings.

    Time-outs are bounded: kopf's own defaults let one request hang for 300 s, nine times over (kopf
    1.45.2, measured). How long an API server may be broken is not.
    """
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 20
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = Patience()
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 5
    settings.watching.chunk_size = PAGE
    # For so long kopf keeps an object after its last event, unpacked: all that were listed, with its 5 s.
    settings.queueing.idle_timeout = 0.1
    settings.process.ultimate_exiting_timeout = 10
    settings.persistence.finalizer = "kvmedic.io/never-used"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="kopf.kvmedic.io")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="kopf.kvmedic.io")
    return settings


@dataclass(frozen=True, slots=True)
class Frame:
    """Where and how the process runs."""

    namespaces: tuple[str, ...]
    """Namespaces to watch; empty: all."""
    liveness: str | None
    """Address of the liveness endpoint, such as `http://0.0.0.0:8080/healthz`."""
    refusal: Callable[[], str] = str
    """Returns why the process may not act, for the readiness endpoint; empty where it may."""


async def serve(operator: Operator, frame: Frame, companions: tuple[Awaitable[None], ...]) -> None:
    """Run until SIGTERM: kopf's watch, the reconcile loop, and what must run beside them."""
    watchdog = Watchdog(lambda: operator.explain_lost_work(time.monotonic()), refusal=frame.refusal)
    operator.telemetry.observe_loop_lag(watchdog.lag_seconds)
    server = watchdog.answer_at(frame.liveness) if frame.liveness else None
    tasks = [asyncio.ensure_future(each) for each in (operator.loop.run(), watchdog.beat(), *companions)]
    handlers = registry(operator)

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Otherwise kopf waits 5 s for what our tasks began (1.45.2): until then we would act, and hold the Lease.
    @kopf.on.cleanup(registry=handlers)
    async def clean_up(**_: Any) -> None:
        await end()

    try:
        await kopf.operator(
            registry=handlers,
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not frame.namespaces,
            namespaces=frame.namespaces,
        )
    finally:
        await end()
        if server is not None:
            server.shutdown()
            server.server_close()
