"""Which method of KV compression a workload has on, and what is known of it.

The spec's word, variables, flags, labels and start-up logs name the method; trials and records show what it
brought. A label names the type that the command line asks for. Where that asks for none the checkpoint may
bring one, and only the engine's start-up log shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime

from kvmedic.engines.engine_log import MODELS_OWN, Start, Started, Unread
from kvmedic.engines.kv_methods import CACHE_TYPE_PREFIXES as CACHE_TYPES
from kvmedic.engines.kv_methods import METHODS, expected_ratio, find_method
from kvmedic.manifests.engine_file import Configuration
from kvmedic.model.compression import (
    PATTERNS,
    Figures,
    Keep,
    MethodClass,
    MethodSigns,
    Recognised,
    TokenEviction,
    find_off_switch,
    recognise_methods,
    token_eviction,
)
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Measured, Observation, Pool
from kvmedic.model.fleet import template_hash
from kvmedic.model.readings import NAMED_GAPS, pools
from kvmedic.model.spec import CompressionPolicy, Fix
from kvmedic.model.status import MethodBaseline
from kvmedic.model.trial import AGAIN, Answer, Question, Reclaim
from kvmedic.runbooks.branches import Compressed, Evidence, Finding
from kvmedic.runbooks.compression.bundle import is_off, is_on
from kvmedic.runbooks.workload import Workload


def standing_answers(answers: Sequence[Answer], generation: int, now: datetime) -> tuple[Answer, ...]:
    """Return the answers that count under a spec of some generation: what showed nothing only for a time."""
    return tuple(
        each
        for each in answers
        if each.is_conclusive or (each.generation == generation and now - each.at < AGAIN)
    )


def answer_for(answers: Sequence[Answer], template: str, question: Question | None = None) -> Answer | None:
    """Return what the newest trial of a question on a pod template showed; None where there was none.

    Without a question the newest of all counts.
    """
    found = [each for each in answers if each.template == template and question in (None, each.question)]
    return max(found, key=lambda each: each.at, default=None)


def answer_beside(answers: Sequence[Answer], template: str, question: Question) -> Answer | None:
    """Return what the newest trial of a question on a pod template showed with the method off."""
    return answer_for([replace(each, template=each.beside) for each in answers], template, question)


def with_known_baseline(method: Compressed, known: MethodBaseline) -> Compressed:
    """Return a method with the fleet without it as it is on record; what the spec gives counts first."""
    given = {
        each.name: getattr(method.without, each.name)
        for each in fields(Figures)
        if getattr(method.without, each.name) is not None
    }
    without = replace(known.figures, **given)
    if "tokens_per_second" in given and method.without.replicas is None:
        # Rates that the spec gives are of as many replicas as it says, not of those on record.
        without = replace(without, replicas=None, requests_in_flight=None)
    return replace(method, without=without, baseline=known)


BLOCK_SIZES = frozenset({1, 8, 16, 32, 64, 128, 256})
"""What vLLM takes for `--block-size` (config/cache.py), and its backends choose by themselves."""
DECLARED = "spec.compression"


def eviction_of(workload: Workload, log: Sequence[str] = ()) -> TokenEviction | None:
    """Return the method that evicts tokens while sequences run; None where none is known of.

    Only variables with a value of their own are read: one that comes from elsewhere says nothing. Phrases of
    start-up logs count too.
    """
    return token_eviction(recognise_methods(METHODS, MethodSigns(variables_of(workload.container), "", log)))


def eviction_by(method: Compressed) -> TokenEviction | None:
    """Return how a method evicts tokens while sequences run; None where it does not, or nobody knows how."""
    pattern = PATTERNS.get(method.method_class) if method.method_class else None
    if pattern is None:
        return None
    return TokenEviction(method.name, pattern, method.keep.budget if method.keep else None)


def compressed_of(
    workload: Workload | None,
    policy: CompressionPolicy,
    answers: Sequence[Answer],
    seen: Observation,
    log: Sequence[str] = (),
) -> Compressed | None:
    """Return the method that compresses the KV cache, with what is known of it; None where none is on.

    The spec's word counts before what settings and engines say, as long as the settings that it lists do not
    say that the method is off and the engines do not say that it is on. So does the replacement that it
    names, once that is on.

    Args:
        workload: None: nobody knows the engine's flags and variables.
        answers: of trials.
        seen: the replicas, with the types in which they store keys and values.
        log: phrases of methods in start-up logs.
    """
    environment, asked = (variables_of(workload.container), asked_type(workload)) if workload else ({}, "")
    reported = {pod.pool.value.cache_dtype for pod in seen.pods.values() if isinstance(pod.pool, Measured)}
    label = next((each for each in sorted(reported) if each.startswith(CACHE_TYPES)), "")
    found = recognise_methods(METHODS, MethodSigns(environment, label, log, asked))
    is_declared = bool(policy.method or policy.method_class or policy.settings)
    declared = _declared_method(policy, found) if is_declared else None
    came = _in_its_place(workload, policy, declared) if workload else None
    for method in filter(None, (came or declared, _recognised_method(found))):
        blocks = None if _has_odd_blocks(seen) else policy.blocks
        known = replace(method, without=policy.baseline, blocks_without=blocks, policy=policy)
        on = known if workload is None else _configured_method(known, workload, answers)
        if on is not None:
            return on
    return None


def replacement_of(policy: CompressionPolicy) -> Compressed | None:
    """Return the method that is to come in the place of one that saves nothing; None where none is named."""
    desired = policy.replacement
    if desired is None:
        return None
    known = find_method(desired.method)
    keep = Keep(desired.keep_tokens, desired.keep_share)
    settings = desired.settings
    if known is not None and all(each.env in known.demands for each in settings):
        # What only the installation can say is enough: the rest of the bundle is known.
        settings = (*settings, *known.settings)
    if keep == Keep() and known is not None:
        keep = Keep(known.default_budget)
    return Compressed(
        name=known.name if known else desired.method,
        method_class=known.method_class if known else MethodClass.COMPACTING_EVICTION,
        known_by=f"{DECLARED}.replacement",
        keep=None if keep == Keep() else keep,
        settings=settings,
        fix=Fix.COMPACTING_METHOD,
    )


def _in_its_place(
    workload: Workload, policy: CompressionPolicy, declared: Compressed | None
) -> Compressed | None:
    """Return the replacement where all of its settings are on, and not all of the declared method's."""
    came = replacement_of(policy) if Fix.COMPACTING_METHOD in policy.fixes else None
    if came is None or not is_on(workload, came.settings):
        return None
    return None if declared is not None and is_on(workload, declared.settings) else came


def _configured_method(
    method: Compressed, workload: Workload, answers: Sequence[Answer]
) -> Compressed | None:
    """Return a method with what a workload's settings say of it; None where they say that it is off."""
    known = find_method(method.name)
    # Its switch says that it is off, whatever its other settings are.
    off = find_off_switch(known, variables_of(workload.container)) if known is not None else ""
    if not method.is_confirmed and (off or is_off(workload, method.settings)):
        return None
    asked, template = asked_type(workload), template_hash(workload.template) if answers else ""
    start, is_fixed = answer_beside(answers, template, Question.START), bool(workload.fixes_the_pool())
    asks = asked if method.cache_types and asked.startswith(method.cache_types) else ""
    answer = answer_for(answers, template, Question.RECLAMATION)
    # A ratio to a number of kept tokens that is another one now says nothing.
    is_of_another_keep = answer and answer.reclaim is Reclaim.IN_PART and answer.keep != method.keep
    comes_by_itself = bool(method.cache_types) and not asks and not method.policy.settings
    return replace(
        method,
        asks_for_type=asks,
        type_is_in_file=_is_in_file(workload),
        blocks_without=None if is_fixed else method.blocks_without or (start.blocks if start else None),
        block_tokens_without=start.block_tokens if start and not method.blocks_without else None,
        pool_is_fixed=is_fixed,
        settings=() if comes_by_itself else method.settings,
        answer=None if is_of_another_keep else answer,
        grown=answer_for(answers, template, Question.PROMPTS),
        grown_without=answer_beside(answers, template, Question.PROMPTS),
        start_without=start,
        longest_request=workload.longest_request(),
    )


def variables_of(container: Mapping[str, object]) -> dict[str, str]:
    """Return the variables of a container that have a value of their own."""
    variables = container.get("env")
    return {
        str(each["name"]): each["value"]
        for each in (variables if isinstance(variables, list) else ())
        if isinstance(each, dict) and "name" in each and isinstance(each.get("value"), str)
    }


def asked_type(workload: Workload) -> str:
    """Return the type in which the pod template asks to store keys and values; empty where it does not."""
    given = workload.value_of(Knob.KV_CACHE_DTYPE)
    return given if isinstance(given, str) else ""


def _has_odd_blocks(seen: Observation) -> bool:
    """Return whether a replica's blocks hold a number of tokens that nobody asks for, as hybrid models' do.

    Their size follows from the type of the cache: with fewer bits a block holds more, and there are as many.
    So a number of blocks without the method says nothing.
    """
    pools = [pod.pool.value for pod in seen.pods.values() if isinstance(pod.pool, Measured)]
    return any(pool.block_tokens not in BLOCK_SIZES for pool in pools)


def _declared_method(policy: CompressionPolicy, found: Sequence[Recognised]) -> Compressed:
    known = find_method(policy.method)
    seen = next((each for each in found if known is not None and each.method is known), None)
    name = known.name if known else policy.method or "the declared method"
    kept, read = Keep(policy.keep_tokens, policy.keep_share), Keep(seen.budget if seen else None)
    if kept == Keep():
        kept = read if seen else Keep(known.default_budget if known else None)
    return Compressed(
        name=name,
        method_class=policy.method_class or (known.method_class if known else None),
        known_by=f"{DECLARED}; {seen.by}" if seen and ", although " in seen.by else DECLARED,
        is_confirmed=seen is not None and seen.is_confirmed,
        denied=seen.denied if seen else "",
        keep=None if kept == Keep() else kept,
        keep_is_read=kept == read,
        cache_types=known.cache_dtypes if known else (),
        settings=policy.settings or (known.settings if known else ()),
    )


def _recognised_method(found: Sequence[Recognised]) -> Compressed | None:
    """Return the method that is looked at of those that are on: one that is to free blocks before others."""
    ordered = sorted(found, key=lambda each: each.method.method_class is MethodClass.QUANTIZATION)
    if not ordered:
        return None
    first, known = ordered[0], ordered[0].method
    return Compressed(
        name=known.name,
        method_class=known.method_class,
        known_by=first.by,
        is_confirmed=first.is_confirmed,
        denied=first.denied,
        keep=None if first.budget is None else Keep(first.budget),
        cache_types=known.cache_dtypes,
        # What its settings beside its switch were before nobody knows, and without it they do nothing.
        settings=tuple(each for each in known.settings if known.switch and each.env == known.switch)
        or known.settings,
    )


def _is_in_file(workload: Workload) -> bool:
    """Return whether the type of the cache stands in a file: one that may be edited while engines run."""
    flag, file = workload.engine.profile.flag(Knob.KV_CACHE_DTYPE), workload.file
    return bool(flag and isinstance(file, Configuration) and file.read.decides(flag, workload.line))


UNNAMED_RATIO = 2.0
"""How many times as many tokens a method of fewer bits promises that names no type: 8 bits instead of 16."""
LEAST_SHARE = 0.5
"""Of the tokens that a type adds by its bits, how much must be there for it to be in effect: of fp8 1.5 times
as many tokens as without."""


def logs_to_read(method: Compressed | None, seen: Observation) -> tuple[str, ...]:
    """Return the replicas whose start-up logs would show what settings and labels leave open, by name.

    Args:
        method: as settings and labels name it; None: they name none.
    """
    if method is None:
        return tuple(sorted(seen.pods))
    # No block came back on a trial pod, which is so where nothing is evicted at all, too; or only settings
    # name a method so far, and its log may say that it does not run.
    may_not_run = method.answer is not None and method.answer.reclaim is Reclaim.NONE
    known = find_method(method.name)
    is_deniable = known is not None and known.denial and not method.is_confirmed and method.answer is None
    if may_not_run or is_deniable:
        return tuple(sorted(seen.pods))
    if not _is_type(method):
        return ()
    reported = {name: pod.pool.value for name, pod in seen.pods.items() if isinstance(pod.pool, Measured)}
    return tuple(sorted(name for name, pool in reported.items() if pool.cache_dtype == MODELS_OWN))


def find_untyped_pods(method: Compressed, evidence: Evidence) -> tuple[str, ...]:
    """Return the replicas that are not known to store keys and values as the method is to, by name.

    Where nothing asks for a type none is missing. What a checkpoint brings to one replica it brings also to
    those whose logs are gone.
    """
    is_asked = bool(method.asks_for_type) or method.known_by == DECLARED
    found = pools(evidence.burn) if _is_type(method) and is_asked else {}
    if isinstance(found, Inconclusive):
        return ()
    starts = evidence.started
    return tuple(
        name
        for name, pool in found.items()
        if not _has_type(method, pool, starts.get(name))
        and not (method.is_confirmed and _is_open(method, pool, starts.get(name)))
    )


def find_stale_replicas(method: Compressed, evidence: Evidence) -> tuple[str, ...]:
    """Return those of which it is known that they store them otherwise."""
    found = pools(evidence.burn)
    if isinstance(found, Inconclusive):
        return ()
    starts = evidence.started
    names = find_untyped_pods(method, evidence)
    return tuple(name for name in names if not _is_open(method, found[name], starts.get(name)))


def explain_unknown_types(method: Compressed, evidence: Evidence) -> str:
    """Return of which replicas the type is not known, why, and what would show it."""
    gaps = [f"{name}: {_gap(evidence.started.get(name))}" for name in find_untyped_pods(method, evidence)]
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


def _is_type(method: Compressed) -> bool:
    return method.method_class is MethodClass.QUANTIZATION and bool(method.cache_types)


def _is_open(method: Compressed, pool: Pool, start: Start | None) -> bool:
    """Return whether nothing shows the type of a replica.

    A label that is left at the model's own shows it where the template asks for another: the process does not
    do as it is asked. Else the checkpoint may bring one, and a log must be whole to deny it.
    """
    return not method.asks_for_type and pool.cache_dtype == MODELS_OWN and not _is_whole(start)


def _has_type(method: Compressed, pool: Pool, start: Start | None) -> bool:
    if pool.cache_dtype != MODELS_OWN or not isinstance(start, Started):
        return pool.cache_dtype.startswith(method.cache_types)
    return start.cache_type.startswith(method.cache_types)


def _is_whole(start: Start | None) -> bool:
    return isinstance(start, Started) and start.is_whole


def _gap(start: Start | None) -> str:
    """Return why a log does not show it."""
    if isinstance(start, Unread):
        return f"its start-up log cannot be read ({start.why})"
    return "the beginning of its log is gone" if start else "its start-up log was not read"
