"""A target as it was at a moment of the past, as far as its objects of today and a source of metrics show.

Which replicas there were, the source shows; which pod template they ran, the ReplicaSets that are left. What
nobody keeps is taken as it is in a fleet at rest: every replica that had samples was Ready and led to. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from kvmedic.metrics.history import Life
from kvmedic.metrics.readings import is_made_by
from kvmedic.model.fleet import Fleet, Pod, ReplicaSet, RolloutFields
from kvmedic.runbooks.workload import View

_UNFROZEN = RolloutFields(False, "25%", "25%", 0, 600)
"""What the API server fills in (apps/v1): a rollout that is frozen today does not show what it had then."""

_GONE = (
    "the ReplicaSet of the replicas of that time is gone (revisionHistoryLimit), so that their command line "
    "is not known"
)


@dataclass(frozen=True, slots=True)
class PastView:
    """A target as it was."""

    view: View
    unknown: str
    """Why it is not known with which command line its replicas ran; empty where it is."""


def view_at(view: View, lives: Mapping[str, Life], at: datetime) -> PastView | None:
    """Return a target as it was at a moment, or None where it had no replica that anybody knows.

    A replica that a source knew before and after is one that was silent; it is missed, as it would have been.

    Args:
        view: the target today.
        lives: of its pods, by name, as the source reports.
        at: the moment.
    """
    today = {pod.name: pod for pod in view.fleet.live}
    there = {name: life for name, life in lives.items() if life.first <= at <= life.last or name in today}
    began = {name: life.first for name, life in there.items()}
    for name, pod in today.items():
        if pod.ready_at is not None:
            began[name] = min(pod.ready_at, began.get(name, pod.ready_at))
    began = {name: first for name, first in began.items() if first <= at}
    if not began:
        return None
    makers = {name: _maker(view.fleet, name) for name in began}
    newest = makers[max(began, key=lambda name: (began[name], name))]
    pods = tuple(_pod(name, began[name], at, today.get(name), makers[name]) for name in sorted(began))
    if view.fleet.live:
        ports = {each: getattr(view.fleet.live[0], each) for each in ("engine_ports", "only_port")}
        pods = tuple(pod if pod.name in today else replace(pod, **ports) for pod in pods)
    unknown = "" if newest else _GONE
    template = view.templates[newest.name] if newest else {}
    fleet = _fleet(view.fleet, pods, newest.revision if newest else "", at)
    return PastView(replace(view, fleet=fleet, template=template), unknown)


def _maker(fleet: Fleet, pod: str) -> ReplicaSet | None:
    return next((each for each in fleet.replica_sets if is_made_by(each.name, pod)), None)


def _pod(name: str, began: datetime, at: datetime, today: Pod | None, maker: ReplicaSet | None) -> Pod:
    """Return a replica as it was: Ready since it was first seen, or since the moment that is known."""
    revision = maker.revision if maker else ""
    if today is None:
        return Pod(
            name=name,
            uid=name,
            resource_version="",
            revision=revision,
            address="",
            created_at=began,
            ready_at=began,
            terminating=False,
            unschedulable=False,
            in_rotation=True,
            cordoned=False,
            restarts=0,
            waiting_reason="",
        )
    is_known = today.ready_at is not None and today.ready_at <= at
    return replace(
        today,
        revision=revision,
        ready_at=today.ready_at if is_known else began,
        unready_at=None,
        in_rotation=True,
        cordoned=False,
        half_cordoned=False,
        is_stand_in=False,
        waiting_reason="",
        is_stopped=False,
        last_end=today.last_end if today.last_end and today.last_end.ended_at <= at else None,
        runs_since=today.runs_since if today.runs_since and today.runs_since <= at else None,
    )


def _fleet(fleet: Fleet, pods: tuple[Pod, ...], revision: str, at: datetime) -> Fleet:
    """Return a Deployment as it was with some pods: at rest where all of them run its template.

    A ReplicaSet is numbered by its first rollout: which one was rolled out again, and when, nobody keeps.
    """
    counts = {each.name: sum(is_made_by(each.name, pod.name) for pod in pods) for each in fleet.replica_sets}
    sets = (
        replace(
            each,
            number=each.first_number,
            earlier_numbers=(),
            desired=counts[each.name],
            available=counts[each.name],
            observed=True,
            failure="",
        )
        for each in fleet.replica_sets
        if each.created_at is None or each.created_at <= at
    )
    fields = _UNFROZEN if fleet.fields.is_frozen else replace(fleet.fields, paused=False)
    return replace(
        fleet,
        observed=True,
        replicas=len(pods),
        fields=fields,
        revision=revision,
        status_replicas=len(pods),
        updated_replicas=sum(pod.revision == revision for pod in pods),
        fence="",
        replica_sets=tuple(sets),
        pods=pods,
        recorded={},
        editor="",
        minimum=None,
        edits={},
        orphans=(),
        looked_at=at,
        kept_by=(),
    )
