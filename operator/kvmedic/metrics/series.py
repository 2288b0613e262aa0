"""Series as a source returned them, by the replica that they belong to.

Anybody's page may name another's pod, and a replica may run several engines, each on a port of its own: what
counts is decided by where a series was scraped.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf, isfinite, isnan, nan
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

from kvmedic.model.evidence import Absence, Measured, Missing, Reading

LARGEST = 1e18
"""Largest value that is taken for a number: more than tokens, bytes or milliseconds ever come to, and below
what DCGM writes for "no number" (2^63 less a few)."""

Key = TypeVar("Key", bound=Hashable)


class PodKey(NamedTuple):
    """One pod."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Series:
    """One element of an instant vector. The value may be NaN or an infinity."""

    labels: Mapping[str, str]
    """All labels but `le`; the buckets of one histogram share them, as most of an answer is buckets."""
    value: float
    bound: float | None = None
    """The upper bound of a bucket (`le`); minus infinity, which no bucket has, where it is no number."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a source answered to one query."""

    by_pod: Mapping[PodKey, tuple[Series, ...]]
    unlabelled: int = 0
    """Series that name no pod."""

    def series_of(self, pod: PodKey) -> tuple[Series, ...]:
        """Return the series of a pod; none when the source has none."""
        return self.by_pod.get(pod, ())


class Excess(Enum):
    """What was too much of one query, so that the same about fewer replicas may be answered."""

    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A query without a complete answer."""

    trouble: str
    """Why, in words for a person; without secrets."""
    partial: bool = False
    """The source answered and said that data is missing, so nothing that it says now can be relied on."""
    excess: Excess | None = None
    """None: it is not for the query that there is no answer, or nobody knows."""
    is_apart: bool = False
    """Some replicas were asked about apart from all others: it is their answer alone."""


Reply: TypeAlias = Answer | Unanswered

NOTHING = Answer(MappingProxyType({}))
"""An answer without series."""


def series_of(labels: dict[str, str], value: float) -> Series:
    """Return an element of a vector, its bound apart from its other labels.

    A value that nothing measurable reaches is no number: sums and squares of such overflow.
    """
    number = value if abs(value) <= LARGEST else nan
    text = labels.pop("le", None)
    if text is None:
        return Series(labels, number)
    bound = -inf
    with suppress(ValueError):
        bound = float(text)
    return Series(labels, number, -inf if isnan(bound) else bound)


def vector_of(result: object) -> Iterable[Series]:
    """Yield an instant vector's elements; those without a plain value (native histograms) are left out.

    Raises:
        TypeError: it is something else.
        ValueError: a value is no number.
    """
    if not isinstance(result, list):
        raise TypeError("no vector")
    for one in result:
        match one:
            case {"metric": dict(labels), "value": [int() | float(), str(value)]}:
                if not all(isinstance(text, str) for text in labels.values()):
                    raise TypeError("a label is no text")
                yield series_of(labels, float(value))
            case {"metric": dict(), "histogram": list()}:
                pass
            case _:
                raise TypeError("no element of a vector")


_OFF_SECONDS = 0.002
"""How far a time may be from the one that was asked for: both are in milliseconds."""


def vectors_at(result: object, moments: Sequence[datetime]) -> Sequence[list[Series]]:
    """Return a range's elements as one vector per moment; nothing where it is about other moments.

    Raises:
        TypeError: it is something else.
        ValueError: a value is no number.
    """
    if not isinstance(result, list):
        raise TypeError("no matrix")
    first, step = moments[0].timestamp(), (moments[1] - moments[0]).total_seconds()
    found: tuple[list[Series], ...] = tuple([] for _ in moments)
    for one in result:
        for at, element in _elements(one):
            place = round((at - first) / step)
            if not 0 <= place < len(moments) or abs(first + place * step - at) > _OFF_SECONDS:
                return ()
            found[place].append(element)
    return found


def _elements(one: object) -> Iterator[tuple[float, Series]]:
    match one:
        case {"metric": dict(labels), "values": list(values)}:
            for value in values:
                (element,) = vector_of([{"metric": dict(labels), "value": value}])
                yield float(value[0]), element
        case {"metric": dict(), "histograms": list()}:
            pass
        case _:
            raise TypeError("no element of a matrix")


def by_pod(series: Iterable[Series], namespace_label: str, pod_label: str) -> Answer:
    """Return series by the pod that their labels name."""
    found: dict[PodKey, dict[tuple[int, float | None], Series]] = {}
    shared: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
    unlabelled = 0
    for one in series:
        pod = one.labels.get(pod_label)
        if not pod:
            unlabelled += 1
            continue
        labels = shared.setdefault(tuple(sorted(one.labels.items())), one.labels)
        many = found.setdefault(PodKey(labels.get(namespace_label, ""), pod), {})
        add_once(many, (id(labels), one.bound), Series(labels, one.value, one.bound))
    return Answer({pod: tuple(many.values()) for pod, many in found.items()}, unlabelled)


def add_once(found: dict[Key, Series], key: Key, one: Series) -> None:
    """Add a series; one that was reported already is no number where the two differ."""
    known = found.setdefault(key, one)
    if known.value != one.value:
        found[key] = Series(one.labels, nan, one.bound)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica is, and which of its ports are engines of their own."""

    address: str = ""
    """Empty: nobody knows it."""
    only_port: int | None = None
    """The engine's port, where other containers run engines too; 0: nobody knows it. None: no other does."""
    ports: frozenset[int] = frozenset()
    """Ports that are declared to lead to one engine each; fewer than two declare nothing."""


NOWHERE = Place()


def own_series(series: tuple[Series, ...], address: str) -> tuple[Series, ...]:
    """Return the series of a pod that its own targets reported: anybody's page may name another's pod.

    A source sets `instance` itself, to the address that it scraped. Where none of them is the pod's, those
    count whose `instance` is no address at all: an installation may have relabelled it.

    Args:
        address: of the pod; empty where nobody knows it, as of one that is gone: all count then, unless they
            are of several addresses, as a pod has but one.
    """
    if not series:
        return series
    if address and ":" not in address and all(_host_text(one) == address for one in series):
        return series
    hosts = [(one, _host(one.labels.get("instance", ""))) for one in series]
    if not address:
        return () if len({host for _, host in hosts if host is not None}) > 1 else series
    own = tuple(one for one, host in hosts if host == _host(address))
    return own or tuple(one for one, host in hosts if host is None)


def _host_text(series: Series) -> str:
    """Return what an `instance` has before its port, as it is written; empty where it has no port."""
    return series.labels.get("instance", "").rpartition(":")[0]


def foreign_instances(series: tuple[Series, ...], address: str) -> tuple[str, ...]:
    """Return the `instance` of each series that does not count beside a pod's own ones, sorted."""
    own = own_series(series, address)
    left = {one.labels.get("instance", "") for one in series if not any(one is each for each in own)}
    return tuple(sorted(left)) if address and own else ()


def engines_own(series: tuple[Series, ...], place: Place) -> tuple[Series, ...] | Missing:
    """Return the series of those ports of a replica that count, or why they cannot be distinguished.

    Where other containers run engines only one port counts. Of declared ports each must report something:
    figures of one rank are not those of a replica.
    """
    desired = place.ports if place.only_port is None else frozenset({place.only_port})
    if not series or (place.only_port is None and len(place.ports) < 2):
        return series
    found = {port_of_instance(one) for one in series}
    if None in found:
        return Missing(Absence.AMBIGUOUS)
    if not desired <= found:
        return Missing(Absence.NO_SERIES)
    return tuple(one for one in series if port_of_instance(one) in desired)


def port_of_instance(series: Series) -> int | None:
    """Return the port that a series was scraped at; None where its `instance` has none."""
    found = _PORT.search(series.labels.get("instance", ""))
    return int(found[1]) if found else None


_PORT = re.compile(r":(\d{1,5})$")


@lru_cache(maxsize=256)  # of each replica twenty series are asked one after the other
def _host(instance: str) -> IPv4Address | IPv6Address | None:
    """Return the address in `ADDRESS` or `ADDRESS:PORT`; None where there is none."""
    for text in (instance, instance.rpartition(":")[0].strip("[]")):
        with suppress(ValueError):
            return ip_address(text)
    return None


Scraper: TypeAlias = frozenset[tuple[str, str]]
"""Who scraped a series and from where: all labels that the engine did not set itself."""


def totals_of(
    pods: Iterable[PodKey], reply: Reply, at: datetime, places: Mapping[str, Place]
) -> dict[str, Reading[float]]:
    """Return what an answer reports for each replica, added over its engines, by pod name.

    Of several scrapers of one engine the one that saw most counts, so that no load is taken for less.
    """
    if isinstance(reply, Unanswered):
        return {pod.name: Missing(Absence.SOURCE_UNAVAILABLE) for pod in pods}
    found: dict[str, Reading[float]] = {}
    for pod in pods:
        place = places.get(pod.name, NOWHERE)
        own = engines_own(own_series(reply.series_of(pod), place.address), place)
        if isinstance(own, Missing):
            found[pod.name] = own
            continue
        known = [one for one in own if isfinite(one.value)]
        most: dict[int | None, float] = {}
        for one in known:
            port = port_of_instance(one) if len(place.ports) > 1 else None
            most[port] = max(one.value, most.get(port, one.value))
        why = Missing(Absence.NOT_A_NUMBER if own else Absence.NO_SERIES)
        found[pod.name] = Measured(sum(most.values()), at) if known else why
    return found
