"""In which type replicas store keys and values: what labels say, or start-up logs where these leave it open.

A label names the type that the command line asks for. Where that asks for none the checkpoint may bring one,
and only the engine's start-up log tells.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.engines.engine_log import MODELS_OWN, Start, Started, Unread
from kvmedic.engines.kv_methods import expected_ratio, method_named
from kvmedic.model.compression import MethodClass
from kvmedic.model.evidence import Inconclusive, Measured, Observation, Pool
from kvmedic.model.readings import NAMED_GAPS, pools
from kvmedic.model.trial import Reclaim
from kvmedic.runbooks.branches import Compressed, Evidence, Finding
from kvmedic.runbooks.compression.methods import DECLARED

UNNAMED_RATIO = 2.0
"""How many times as many tokens a method of fewer bits promises that names no type: 8 bits instead of 16."""
LEAST_SHARE = 0.5
"""Of the tokens that a type adds by its bits, how much must be there for it to be in effect: of fp8 1.5 times
as many tokens as without."""


def logs_that_tell(method: Compressed | None, seen: Observation) -> tuple[str, ...]:
    """Return the replicas whose start-up logs would tell what settings and labels leave open, by name.

    Args:
        method: as settings and labels tell; None: they tell of none.
        seen: the replicas.
    """
    if method is None or _may_not_run(method) or _may_be_denied(method):
        return tuple(sorted(seen.pods))
    if not _is_type(method):
        return ()
    told = {name: pod.pool.value for name, pod in seen.pods.items() if isinstance(pod.pool, Measured)}
    return tuple(sorted(name for name, pool in told.items() if pool.cache_dtype == MODELS_OWN))


def without_type(method: Compressed, evidence: Evidence) -> tuple[str, ...]:
    """Return the replicas that are not known to store keys and values as the method is to, by name.

    Where nothing asks for a type none is missing. What a checkpoint brings to one replica it brings also to
    those whose logs are gone.
    """
    found = pools(evidence.burn) if _is_type(method) and _is_wanted(method) else {}
    if isinstance(found, Inconclusive):
        return ()
    starts = evidence.started
    return tuple(
        name
        for name, pool in found.items()
        if not _has_type(method, pool, starts.get(name))
        and not (method.is_confirmed and _is_open(method, pool, starts.get(name)))
    )


def proven_without(method: Compressed, evidence: Evidence) -> tuple[str, ...]:
    """Return those of which it is known that they store them otherwise."""
    found = pools(evidence.burn)
    if isinstance(found, Inconclusive):
        return ()
    starts = evidence.started
    names = without_type(method, evidence)
    return tuple(name for name in names if not _is_open(method, found[name], starts.get(name)))


def untold(method: Compressed, evidence: Evidence) -> str:
    """Return of which replicas the type is not known, why, and what would tell it."""
    gaps = [f"{name}: {_gap(evidence.started.get(name))}" for name in without_type(method, evidence)]
    rest = f"; and {len(gaps) - NAMED_GAPS} more" if len(gaps) > NAMED_GAPS else ""
    return (
        f"{'; '.join(gaps[:NAMED_GAPS])}{rest}; the label leaves the type to the checkpoint: a replica that "
        "is started anew has a whole log, and a type on the command line shows in the label"
    )


def stored_type(pool: Pool, start: Start | None) -> str:
    """Return how a replica stores keys and values, and what its log says of it."""
    text = f"stores keys and values as {pool.cache_dtype}"
    if pool.cache_dtype != MODELS_OWN or start is None:
        return text
    return f"{text}, and its start-up log names no type" if _is_whole(start) else f"{text}; {_gap(start)}"


def too_few_tokens(method: Compressed, evidence: Evidence, pools: Mapping[str, Pool]) -> tuple[Finding, ...]:
    """Return that the smallest pool holds hardly more tokens than without the type; empty: it does, or
    nobody knows.

    Half of what the type promises is enough: layers that are left out, scales and state that is no cache take
    some of it.
    """
    blocks = method.blocks_without
    if blocks is None:
        return ()
    name, pool = min(pools.items(), key=lambda each: each[1].tokens)
    before = blocks * (method.block_tokens_without or pool.block_tokens)
    stored_as = _type_of(pool, evidence.started.get(name)) or method.asks_for_type
    ratio = expected_ratio(stored_as) if stored_as else UNNAMED_RATIO
    least = (1 + (ratio - 1) * LEAST_SHARE) * before
    if pool.tokens >= least:
        return ()
    text = (
        f"{method.name} is in effect{f' as {stored_as}' if stored_as else ''} and the pool holds "
        f"{pool.tokens} tokens, {before} "
        f"without it ({ratio:g} times as many are to be expected)"
    )
    return (Finding("fleet", None, pool.tokens, least, text),)


def _type_of(pool: Pool, start: Start | None) -> str:
    if pool.cache_dtype == MODELS_OWN and isinstance(start, Started) and start.cache_type:
        return start.cache_type
    return "" if pool.cache_dtype == MODELS_OWN else pool.cache_dtype


def _may_not_run(method: Compressed) -> bool:
    """Return whether no block came back on a trial pod, which is so where nothing is evicted at all, too."""
    return method.answer is not None and method.answer.reclaim is Reclaim.NONE


def _may_be_denied(method: Compressed) -> bool:
    """Return whether only settings tell of a method so far, and its log may say that it does not run."""
    known = method_named(method.name)
    is_open = not method.is_confirmed and method.answer is None
    return is_open and known is not None and known.denial != ""


def _is_type(method: Compressed) -> bool:
    return method.method_class is MethodClass.QUANTIZATION and bool(method.cache_types)


def _is_wanted(method: Compressed) -> bool:
    return bool(method.asks_for_type) or method.told_by == DECLARED


def _is_open(method: Compressed, pool: Pool, start: Start | None) -> bool:
    """Return whether nothing tells the type of a replica.

    A label that is left at the model's own tells it where the template asks for another: the process does not
    do as it is told. Else the checkpoint may bring one, and a log must be whole to deny it.
    """
    return not method.asks_for_type and pool.cache_dtype == MODELS_OWN and not _is_whole(start)


def _has_type(method: Compressed, pool: Pool, start: Start | None) -> bool:
    if pool.cache_dtype != MODELS_OWN or not isinstance(start, Started):
        return pool.cache_dtype.startswith(method.cache_types)
    return start.cache_type.startswith(method.cache_types)


def _is_whole(start: Start | None) -> bool:
    return isinstance(start, Started) and start.is_whole


def _gap(start: Start | None) -> str:
    """Return why a log does not tell."""
    if isinstance(start, Unread):
        return f"its start-up log cannot be read ({start.why})"
    return "the beginning of its log is gone" if start else "its start-up log was not read"
