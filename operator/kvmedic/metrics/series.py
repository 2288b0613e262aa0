"""Series as a source returned them, who scraped them when last, and when a ReplicaSet was last alone.

A ReplicaSet's age says when its template was first made, not when it was rolled out again. Only the source
knows which pods there were; a pod's name tells which ReplicaSet made it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf, isfinite, isnan, nan
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

from kvmedic.model.evidence import Absence, Missing, SignalTable

LARGEST = 1e18
"""Largest value that is taken for a number: more than tokens, bytes or milliseconds ever come to, and below
what DCGM writes for "no number" (2^63 less a few)."""


Key = TypeVar("Key", bound=Hashable)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A query without a complete answer."""

    trouble: str
    """Why, in words for a person; without secrets."""
    partial: bool = False
    """The source answered and said that data is missing, so nothing that it says now can be relied on."""


Reply: TypeAlias = Answer | Unanswered

NOTHING = Answer(MappingProxyType({}))
"""An answer without series."""


def series_of(labels: dict[str, str], value: float) -> Series:
    """Return an element of a vector, its bound apart from its other labels.

    A value that nothing measurable reaches is no number: sums and squares of such overflow.
    """
    bound = labels.pop("le", None)
    told = value if abs(value) <= LARGEST else nan
    return Series(labels, told, None if bound is None else _bound(bound))


def _bound(text: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        return -inf
    return -inf if isnan(bound) else bound


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
    """Add a series; one that was told already is no number where the two differ."""
    known = found.setdefault(key, one)
    if known.value != one.value:
        found[key] = Series(one.labels, nan, one.bound)


def own_series(series: tuple[Series, ...], address: str) -> tuple[Series, ...]:
    """Return the series of a pod that its own targets told of: anybody's page may name another's pod.

    A source sets `instance` itself, to the address that it scraped. Where none of them is the pod's, those
    count whose `instance` is no address at all: an installation may have relabelled it.

    Args:
        address: of the pod; empty where nobody knows it, as of one that is gone: all count then, unless they
            are of several addresses, as a pod has but one.
    """
    if not series:
        return series
    hosts = [(one, _host(one.labels.get("instance", ""))) for one in series]
    if not address:
        return () if len({host for _, host in hosts if host is not None}) > 1 else series
    own = tuple(one for one, host in hosts if host == _host(address))
    return own or tuple(one for one, host in hosts if host is None)


def foreign_instances(series: tuple[Series, ...], address: str) -> tuple[str, ...]:
    """Return the `instance` of each series that does not count beside a pod's own ones, sorted."""
    own = own_series(series, address)
    left = {one.labels.get("instance", "") for one in series if not any(one is each for each in own)}
    return tuple(sorted(left)) if address and own else ()


def _host(instance: str) -> IPv4Address | IPv6Address | None:
    """Return the address in `ADDRESS` or `ADDRESS:PORT`; None where there is none."""
    for text in (instance, instance.rpartition(":")[0].strip("[]")):
        with suppress(ValueError):
            return ip_address(text)
    return None


Scraper: TypeAlias = frozenset[tuple[str, str]]
"""Who scraped a series and from where: all labels that the engine did not set itself."""


@dataclass(frozen=True, slots=True)
class Presence:
    """One replica as its presence series show it."""

    at: datetime
    """Newest sample of the engine that was silent longest."""
    engines: frozenset[str]
    scrapers: Mapping[Scraper, datetime]
    """Those whose newest sample is fresh, with its time."""
    models: tuple[str, ...]

    def scraper_of(self, series: Series) -> Scraper | None:
        """Return the fresh scraper that a series comes from, or None when it comes from none."""
        items = series.labels.items()
        return max((s for s in self.scrapers if items >= s), key=len, default=None)


def presence_of(
    series: Iterable[Series], table: SignalTable, at: datetime, freshness: timedelta
) -> Presence | Missing:
    """Return a replica's presence by the times of its newest samples, or why there is none.

    Series that were last sampled longer ago than `freshness` do not count among the scrapers: a scrape job
    that was removed a minute ago still answers, with less and less of the window. A sample that is not of
    this time at all (milliseconds for seconds, times to come) makes the replica one that nobody can tell of.

    Args:
        series: whose values are the times (Unix seconds).
    """
    newest: dict[tuple[str, Scraper], datetime] = {}
    models = set()
    for one in series:
        if isfinite(one.value):
            if not 0 <= one.value <= (at + freshness).timestamp():
                return Missing(Absence.AMBIGUOUS)
            newest[one.labels.get(table.engine_label, ""), _scraper(one, table)] = _EPOCH + timedelta(
                seconds=one.value
            )
            models.add(one.labels.get(table.model_label, ""))
    if not newest:
        return Missing(Absence.NO_SERIES)
    engines = {engine for engine, _ in newest}
    seen = [max(time for (name, _), time in newest.items() if name == engine) for engine in engines]
    oldest = at - freshness
    fresh = {
        scraper: time for (_, scraper), time in sorted(newest.items(), key=itemgetter(1)) if time >= oldest
    }
    return Presence(min(seen), frozenset(engines), fresh, tuple(sorted(models - {""})))


def _scraper(series: Series, table: SignalTable) -> Scraper:
    return frozenset(
        item for item in series.labels.items() if item[0] not in table.own_labels and item[0] != "__name__"
    )


RANDOM_LENGTH = 5
"""Characters that the API server puts behind the name that a ReplicaSet gives its pods."""
PREFIX_LENGTH = 58
"""What it keeps of that name (apiserver, storage/names/generate.go: 63 less the random ones)."""


def is_made_by(replica_set: str, pod: str) -> bool:
    """Return whether a pod's name is one that a ReplicaSet of this name gives."""
    return re.fullmatch(_names(replica_set), pod) is not None


def _names(replica_set: str) -> str:
    """Return the pattern of the names of its pods; Prometheus anchors it at both ends."""
    prefix = re.escape(f"{replica_set}-"[:PREFIX_LENGTH])
    return rf"{prefix}[a-z0-9]{{{RANDOM_LENGTH}}}"
