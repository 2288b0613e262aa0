"""The devices of each replica by NVIDIA's DCGM exporter: one query per vital for all replicas.

The exporter names the pod that uses a device in labels of its own, which Prometheus may rename; the queries
settle that. It speaks for the GPUs of its own node: where some series of a pod's GPU name the pod's node,
those of other nodes, or of none, do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from kvmedic.metrics.promql import Span, duration_text
from kvmedic.metrics.series import PodKey, Reply, Series, Unanswered
from kvmedic.model.devices import CLOCK_FAULTS, MEMORY_SERIES, NO_NUMBER, SERIES, Device, Vital
from kvmedic.model.evidence import Absence, Measured, Missing, Reading, as_reading
from kvmedic.settings import Labels

_OWN_POD = ("pod", "pod_name", "exported_pod")
_OWN_NAMESPACE = ("namespace", "pod_namespace", "exported_namespace")
"""Labels that may name the pod that uses a device; a later one wins, as it exists only where the earlier
one is the exporter's own."""
_IDENTITY = ("UUID", "uuid", "gpu")
"""Labels that distinguish the devices of one pod. Parts of one device (MIG) share its health."""
XID_LOOKBACK = timedelta(days=1)
"""How far back an XID that came while its user had the device still counts. A choice: a device that served on
for a day is as good as before, and a source keeps far more."""
_OWN_NODE = ("Hostname", "kubernetes_node", "node")
"""Labels that may name the exporter's node; a later one wins, as Prometheus sets it, not the exporter's page.
`Hostname` is the node's name or that of the exporter's pod, by version, so that none may name the node."""
_FOLD = {Vital.MEMORY_FREE: "min"}
"""Which of several values is the worst: the largest, but for what there should be much of."""
_POD, _NAMESPACE, _NODE = "kvmedic_pod", "kvmedic_namespace", "kvmedic_node"
NO_NODES: Mapping[str, str] = {}
"""Of no pod is it known where it runs."""


def device_queries(span: Span, labels: Labels) -> dict[Vital, str]:
    """Return the query of each vital of devices; every one answers with one series per device and pod.

    Several exporters of one device, or several pods of one exporter one after the other, count as one:
    the worst value does.
    """
    found = {vital: _by_user(_expression(vital, span), labels, "max") for vital in SERIES}
    found[Vital.LAST_XID] = _limit_to_recent(found[Vital.LAST_XID], span, labels)
    window, recent = duration_text(span.window), duration_text(span.freshness)
    grid = f"[{window}:{duration_text(span.resolution)}]"
    # The least memory that was free in the window (MiB).
    free = (
        f"((min_over_time({one.free}[{window}]) < {one.no_number}) / {one.per_mib} "
        f"and last_over_time({one.free}[{recent}]))"
        for one in MEMORY_SERIES
    )
    # The largest share that was in use at any moment of the grid: used over used and free; nothing where one
    # of them is no number, or both are 0.
    sides = (
        (one, f"({one.used} < {one.no_number})", f"({one.free} < {one.no_number})") for one in MEMORY_SERIES
    )
    in_use = (
        f"(max_over_time(({used} / ({used} + {left} > 0)){grid}) and last_over_time({one.used}[{recent}]))"
        for one, used, left in sides
    )
    memory = {Vital.MEMORY_FREE: " or ".join(free), Vital.MEMORY_IN_USE: " or ".join(in_use)}
    return found | {vital: _by_user(text, labels, _FOLD.get(vital, "max")) for vital, text in memory.items()}


def devices_of(
    pods: Iterable[PodKey], replies: Mapping[Vital, Reply], at: datetime, nodes: Mapping[str, str] = NO_NODES
) -> dict[str, Reading[tuple[Device, ...]]]:
    """Return the devices of each pod that was asked for, by its name; without a series it says so."""
    return {pod.name: _devices_of_pod(pod, replies, at, nodes.get(pod.name, "")) for pod in pods}


def nodes_that_do_not_count(pod: PodKey, replies: Mapping[Vital, Reply], node: str) -> tuple[str, ...]:
    """Return which other nodes' exporters speak of a pod's GPUs beside those of its own, sorted.

    Empty: none does, or nobody names the pod's node, so that all that is said counts.
    """
    named = _named_nodes(pod, replies)
    return tuple(sorted(named - {node, ""})) if node in named else ()


def _expression(vital: Vital, span: Span) -> str:
    names = SERIES[vital]
    recent = duration_text(span.freshness)
    if vital is Vital.CLOCK_REASONS:
        grid = f"[{duration_text(span.window)}:{duration_text(span.resolution)}]"
        # The bits that are faults and were set at any moment of the grid, as one number: ordinary bits come
        # and go beside them, so the largest mask of the window would say nothing.
        return " or ".join(
            f"(({' + '.join(_was_set(name, bit, grid) for bit in CLOCK_FAULTS)}) "
            f"and last_over_time({name}[{recent}]))"
            for name in names
        )
    return " or ".join(f"last_over_time({name}[{recent}]) < {NO_NUMBER}" for name in names)


def _was_set(name: str, bit: int, grid: str) -> str:
    return f"{bit} * max_over_time((floor(({name} < {NO_NUMBER}) / {bit}) % 2){grid})"


def _limit_to_recent(last: str, span: Span, labels: Labels) -> str:
    """Return the last XID of each device and user; 0 where it is of long ago, as the gauge keeps it for ever.

    It counts where it changed within the window, under any user of the device, or while this user had it, and
    where nobody knows what it was before the window. An exporter that starts anew has other labels, so the
    series of one user and device are taken together.
    """
    on = f"({', '.join(_IDENTITY)})"
    low, high = _extremes(f"[{duration_text(XID_LOOKBACK)}]")
    mine = f"({_by_user(high, labels, 'max', ())} > {_by_user(low, labels, 'min', ())})"
    low, high = _extremes(f"[{duration_text(span.window + span.freshness)}]")
    anybodys = f"(max by {on} ({high}) > min by {on} ({low}))"
    earlier, _ = _extremes(f"[{duration_text(span.freshness)}] offset {duration_text(span.window)}")
    user = f"({', '.join((labels.namespace, labels.pod, *_IDENTITY))})"
    theirs = f"{last} and on {user} {mine}"
    of_late = f"({theirs}) or ({last} and on {on} {anybodys}) or ({last} unless on {on} ({earlier}))"
    return f"{of_late} or (0 * {last})"


def _extremes(selected: str) -> tuple[str, str]:
    """Return the least and the largest XID that the gauge held."""
    low, high = (
        " or ".join(f"{fold}_over_time({name}{selected})" for name in SERIES[Vital.LAST_XID])
        for fold in ("min", "max")
    )
    return low, high


def _by_user(expression: str, labels: Labels, fold: str, nodes: tuple[str, ...] = _OWN_NODE) -> str:
    """Return the series of an expression under the labels of the pod that uses the device.

    Args:
        nodes: labels that name the exporter's node; series of several nodes stay apart. Empty: they do not.
    """
    named = _copy_label(expression, _POD, _by_weight(labels.pod, _OWN_POD))
    named = _copy_label(named, _NAMESPACE, _by_weight(labels.namespace, _OWN_NAMESPACE))
    named = _copy_label(named, _NODE, nodes)
    kept = f"{fold} by ({', '.join((_NAMESPACE, _POD, *((_NODE,) if nodes else ()), *_IDENTITY))}) ({named})"
    return _copy_label(_copy_label(kept, labels.pod, (_POD,)), labels.namespace, (_NAMESPACE,))


def _by_weight(configured: str, own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels that may name the pod, the weightiest last; a source's own names the scraped pod."""
    return own if configured in own else (configured, *own)


def _copy_label(expression: str, target: str, sources: tuple[str, ...]) -> str:
    """Return an expression with a label set to the last of some others that is not empty."""
    for source in sources:
        expression = f'label_replace({expression}, "{target}", "$1", "{source}", "(.+)")'
    return expression


def _named_nodes(pod: PodKey, replies: Mapping[Vital, Reply]) -> set[str]:
    """Return the nodes that series of a pod's GPUs name; with "" where one names none."""
    return {
        one.labels.get(_NODE, "")
        for reply in replies.values()
        if not isinstance(reply, Unanswered)
        for one in reply.series_of(pod)
    }


def _devices_of_pod(
    pod: PodKey, replies: Mapping[Vital, Reply], at: datetime, node: str
) -> Reading[tuple[Device, ...]]:
    believed = node if node in _named_nodes(pod, replies) else ""
    found: dict[str, dict[Vital, Reading[float]]] = {}
    identities: dict[str, str] = {}
    for vital, reply in replies.items():
        for one in () if isinstance(reply, Unanswered) else reply.series_of(pod):
            if believed and one.labels.get(_NODE) != believed:
                continue
            readings = found.setdefault(_name(one), {})
            identities[_name(one)] = one.labels.get("UUID") or one.labels.get("uuid") or ""
            readings[vital] = _worse(vital, readings.get(vital), as_reading(one.value, at))
    unanswered = [vital for vital, reply in replies.items() if isinstance(reply, Unanswered)]
    if not found:
        return Missing(Absence.SOURCE_UNAVAILABLE if unanswered else Absence.NO_SERIES)
    down = dict.fromkeys(unanswered, Missing(Absence.SOURCE_UNAVAILABLE))
    devices = (Device(name, {**down, **found[name]}, identities[name]) for name in sorted(found))
    return Measured(tuple(devices), at)


def _name(series: Series) -> str:
    """Return what a device is called by people: its number on the node, else its identity."""
    number = series.labels.get("gpu", "")
    return f"GPU {number}" if number else series.labels.get("UUID") or series.labels.get("uuid") or "GPU"


def _worse(vital: Vital, known: Reading[float] | None, other: Reading[float]) -> Reading[float]:
    """Return the worse of two numbers that were reported for one device."""
    if not isinstance(known, Measured) or not isinstance(other, Measured):
        return known if isinstance(known, Measured) else other
    is_worse = known.value <= other.value if vital in _FOLD else known.value >= other.value
    return known if is_worse else other
