"""The round of calm fleets: one query about all replicas of a source, which answers with little.

A quick look asks for signals that stand at 0 on a calm replica. The source sends one series for each replica
that is *plain*, and one for each of its signals that is not 0. Plain is a replica that has one series per
signal, from one port: no scrapers have to agree, no engines are combined, and nobody else speaks for
it. Nothing is hidden by that: a replica that is not plain is not in the answer, and is asked about by its
name, series by series. How old the newest sample is comes along, so that one that fell silent is stale as
ever.

Pools are described by labels, which are long and hardly ever change: asked for once, then what is new since.
As seldom is asked whose series several pages write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar

from kvmedic.engines.signal_sources import PoolSource, SignalTable
from kvmedic.metrics.batches import Moment
from kvmedic.metrics.promql import (
    LOOKBACK,
    MARK,
    Span,
    duration_text,
    expression,
    make_narrow,
    mark_series,
    several_pages_query,
)
from kvmedic.metrics.series import Answer, PodKey, Series, Unanswered
from kvmedic.model.evidence import AT_REST, Look, Signal
from kvmedic.settings import Labels

_PRESENT = "present"
_PORT = "instance"
"""Label by which a source names the port that it scraped."""
POOLS_LAST = timedelta(minutes=10)
"""How long pools are known by what is new alone. A choice: then all are asked for again, which drops replicas
that are gone, and costs a hundredth of the round."""

SPARED = timedelta(minutes=2)
"""How long everybody is asked about by name after a round that was too much for the source, or for us. A
choice: one time-out (10 s) is a twelfth of it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CalmAnswers:
    """What one round reports about plain replicas."""

    presence: Answer
    """One series of each plain replica; nothing of any other."""
    signals: Mapping[Signal, Answer]
    """One of each plain replica, 0 where the source said nothing."""
    pools: Answer
    """Of plain replicas whose pool is known."""


@dataclass
class CalmRounds:
    """Asks one source about all replicas at once."""

    table: SignalTable
    labels: Labels
    _pools: Mapping[PodKey, tuple[Series, ...]] = field(default_factory=dict)
    _begun: datetime | None = None
    """When all pools were asked for."""
    _known: datetime | None = None
    """Up to when what is new of them was."""
    _spared: Mapping[str, tuple[datetime, Unanswered]] = field(default_factory=dict)
    """What was too much to be asked, and until when it is not asked again."""
    _query_of: Callable[[Span], str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ask = partial(round_query, table=self.table, labels=self.labels)
        self._query_of = lru_cache(maxsize=64)(ask)  # spans are a tenant's

    @property
    def lasts(self) -> timedelta:
        """For how long a round's answers serve: so long that a source gets no more than `MOST_QUERIES`."""
        queries = _count_parts(len(self._pools)) + 1  # of the pools one more
        return min(ROUND, ROUND * queries / MOST_QUERIES)

    async def answers_at(self, moment: Moment, span: Span) -> CalmAnswers | Unanswered:
        """Return the round of a moment, or why there is none."""
        pools = await self._ask_or_spare(moment, "pools", lambda: self._pools_at(moment, span))
        if isinstance(pools, Unanswered):
            return pools
        text = self._query_of(span)
        return await self._ask_or_spare(moment, f"round {text}", lambda: self._round_at(moment, text, pools))

    async def _ask_or_spare(
        self, moment: Moment, key: str, work: Callable[[], Coroutine[Any, Any, T | Unanswered]]
    ) -> T | Unanswered:
        """Return what is asked about everybody, but for a while after it was too much."""
        known = self._spared.get(key)
        if known is not None and known[0] - SPARED <= moment.at < known[0]:
            return known[1]
        found = await moment.once(key, work)
        if isinstance(found, Unanswered) and found.excess is not None:
            still = {each: entry for each, entry in self._spared.items() if moment.at < entry[0]}
            self._spared = still | {key: (moment.at + SPARED, found)}
        return found

    async def _round_at(self, moment: Moment, text: str, pools: Answer) -> CalmAnswers | Unanswered:
        """Return the answers to a round's query: of so many replicas at a time as the source has time for."""
        seen = await self._ask_in_parts(moment, text, len(pools.by_pod))
        return seen if isinstance(seen, Unanswered) else _sort_by_signal(seen, pools, self.table.model_label)

    async def _ask_in_parts(self, moment: Moment, text: str, replicas: int) -> Answer | Unanswered:
        parts = parts_of_pods(replicas, self.labels.pod)
        narrows = (make_narrow(matchers, moment.engine_names) for matchers in parts)
        replies = await asyncio.gather(*(moment.reply(narrow(text)) for narrow in narrows))
        by_pod: dict[PodKey, tuple[Series, ...]] = {}
        for reply in replies:
            if isinstance(reply, Unanswered):
                return reply
            by_pod |= reply.by_pod
        return Answer(by_pod)

    async def _pools_at(self, moment: Moment, span: Span) -> Answer | Unanswered:
        """Return the pools of all replicas: those that are known, and what is new since.

        A replica whose series several pages write has none, so that it is looked at closely.
        """
        at, since = moment.at, self._known
        if since is None or self._begun is None or not since < at < self._begun + POOLS_LAST:
            since = None
        reply = await moment.reply(
            pools_query(self.table, self.labels, None if since is None else at - since)
        )
        if isinstance(reply, Unanswered):
            return reply
        if since is None:
            target = (self.labels.namespace, self.labels.pod)
            found = several_pages_query(span, self.table, target, counts_requests=False)
            text = f"max by ({', '.join(target)}) ({found})"
            shared = await self._ask_in_parts(moment, text, HEAVIER * len(reply.by_pod))
            if isinstance(shared, Unanswered):
                return shared
            pools = {pod: many for pod, many in reply.by_pod.items() if not shared.series_of(pod)}
        else:
            pools = {**self._pools, **_replace_ports(self._pools, reply.by_pod)}
        # Where another moment was answered meanwhile, what is new since that one is not known.
        if since is None or self._known == since:
            self._pools, self._known = pools, at
            self._begun = at if since is None else self._begun
        return Answer(pools)


def _replace_ports(
    known: Mapping[PodKey, tuple[Series, ...]], new: Mapping[PodKey, tuple[Series, ...]]
) -> dict[PodKey, tuple[Series, ...]]:
    """Return the pools of those replicas of which something is new: of each port what was reported last."""
    found = {}
    for pod, series in new.items():
        ports = {one.labels.get(_PORT) for one in series}
        kept = (one for one in known.get(pod, ()) if one.labels.get(_PORT) not in ports)
        found[pod] = (*kept, *series)
    return found


MOST_OF_A_LABEL = 500
"""Characters of a label's value that a round returns. A choice: a model's name may be a path."""
MOST_AT_ONCE = 2000
"""Replicas in one query of a round. A source evaluates a query by one processor: Prometheus 2.42 took 1.8 ms
a replica, 3.6 of the usual 10 s of `timeout`."""
ROUND = timedelta(seconds=30)
"""In which each calm replica is looked at once."""
MOST_QUERIES = 8
"""About all calm replicas, in `ROUND`. A choice: at 10,000 replicas, of which six queries are a round, one is
asked every 22 s in place of every 10."""
HEAVIER = 4
"""Times a round's work that it takes to find whose series several pages write. A choice: its moments."""
MOST_PARTS = 9
"""Parts of a round, at most: each pod's last character is one part's, and a ReplicaSet draws it of 27."""
LAST_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789013aeiouy"
"""What a pod's name may end with: first those of which a ReplicaSet draws at random."""


def parts_of_pods(replicas: int, label: str) -> Sequence[Sequence[str]]:
    """Return matchers that divide the series of so many replicas into parts, each series in exactly one.

    A pod is one part's with all its series, by the last character of its name.
    """
    count = _count_parts(replicas)
    if count == 1:
        return ((),)
    classes = [LAST_CHARACTERS[part::count] for part in range(count - 1)]
    rest = f'{label}!~".*[{"".join(classes)}]"'
    return (*((f'{label}=~".*[{each}]"',) for each in classes), (rest,))


def _count_parts(replicas: int) -> int:
    return min(MOST_PARTS, max(1, -(-replicas // MOST_AT_ONCE)))


def _sort_by_signal(reply: Answer, pools: Answer, model: str) -> CalmAnswers:
    """Return the answer of a round by signal, for the replicas whose pools are known."""
    present: dict[PodKey, tuple[Series, ...]] = {}
    signals: dict[Signal, dict[PodKey, tuple[Series, ...]]] = {signal: {} for signal in AT_REST}
    for pod, series in reply.by_pod.items():
        newest = [one for one in series if one.labels.get(MARK) == _PRESENT]
        if len(newest) != 1:
            continue
        here = newest[0].labels.get(_PORT)
        if sum(one.labels.get(_PORT) == here for one in pools.series_of(pod)) != 1:
            continue
        present[pod] = (_without_mark(newest[0]),)
        risen = {one.labels.get(MARK): one for one in series if one.labels.get(_PORT) == here}
        port = {name: text for name, text in present[pod][0].labels.items() if name != model}
        at_rest = (Series(port, 0.0),)
        for signal, by_pod in signals.items():
            nonzero = risen.get(signal.value)
            by_pod[pod] = at_rest if nonzero is None else (Series(port, nonzero.value),)
    answers = {signal: Answer(by_pod) for signal, by_pod in signals.items()}
    return CalmAnswers(Answer(present), answers, pools)


def _without_mark(one: Series) -> Series:
    return Series({name: text for name, text in one.labels.items() if name != MARK}, one.value)


def is_quick_look(look: Look, table: SignalTable) -> bool:
    """Return whether a look asks for what stands at 0 on a calm replica now, and for little else.

    A look that leaves one of them out is about a run or the past, of few replicas; one that asks for how long
    is about those that are not calm now.
    """
    asked, known = look.signals, table.signals.keys()
    return not look.hold and asked >= AT_REST and known >= AT_REST and not asked >= known


def round_query(span: Span, table: SignalTable, labels: Labels) -> str:
    """Return the query of a round: when each plain replica was sampled last, and what is not 0.

    It is evaluated as a whole by one processor of the source, so nothing in it looks at several moments: a
    replica whose last scrape failed is not plain.
    """
    target, seen = (labels.namespace, labels.pod), table.presence
    port, replica = ", ".join((*target, _PORT)), ", ".join(target)
    signals = {signal: expression(table.signals[signal], span, table, target) for signal in sorted(AT_REST)}
    once = [mark_series(f"count by ({port}) ({text}) == 1", signal.value) for signal, text in signals.items()]
    once.append(mark_series(f"count by ({port}) ({table.pool.name}) == 1", "pool"))
    complete = f"count by ({port}) ({' or '.join(once)}) == {len(once)}"
    lately = f"last_over_time({seen}[{duration_text(max(span.window, LOOKBACK))}])"
    alone = f"count by ({replica}) ({lately}) == 1"
    newest = f"max by ({port}, {table.model_label}) (timestamp({seen}{_with_short([table.model_label])}))"
    present = mark_series(f"{newest} and on ({replica}) ({alone}) and on ({port}) ({complete})", _PRESENT)
    risen = (mark_series(f"max by ({port}) ({text}) != 0", signal.value) for signal, text in signals.items())
    # One series for each of them at most, whatever else names the replica.
    here = f"{lately} and on ({replica}) ({alone})"
    return f"{present} or ({' or '.join(risen)}) and on ({port}) ({here})"


def pools_query(table: SignalTable, labels: Labels, since: timedelta | None) -> str:
    """Return the query for the labels that describe pools: all of them, or those that were not so before.

    One series of each replica that has one: any other is not plain.

    Args:
        table: what engines export.
        labels: names of the labels of namespace and pod.
        since: how long ago all of them were known; None: nothing is.
    """
    source = table.pool
    replica, short = f"{labels.namespace}, {labels.pod}", _with_short(_labels_of(source))

    def series_before(offset: str) -> str:
        pools = f"max by ({replica}, {_PORT}, {', '.join(_labels_of(source))}) ({source.name}{short}{offset})"
        return f"({pools} and on ({replica}) (count by ({replica}) ({source.name}{offset}) == 1))"

    now = series_before("")
    return now if since is None else f"{now} unless {series_before(f' offset {duration_text(since)}')}"


def _with_short(names: Iterable[str]) -> str:
    """Return matchers that leave out series whose labels take much of an answer for everybody."""
    matchers = (f'{name}=~".{{0,{MOST_OF_A_LABEL}}}"' for name in names)
    return f"{{{', '.join(matchers)}}}"


def _labels_of(source: PoolSource) -> Sequence[str]:
    named = (source.blocks, *source.block_tokens, source.engine_tokens, source.cache_dtype)
    return tuple(filter(None, (*named, source.caches_prefixes, source.window)))
