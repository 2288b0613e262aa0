"""Runbook "KV compression enabled, no memory savings": does it save, and what to do where it does not.

What counts is how many blocks become free, not how many tokens are evicted. Three layers are never mixed up:
a device's memory, which an engine takes when it starts and never gives back; how much of the pool is in use;
and blocks that are free. A device's memory that stays as it is says nothing against a method.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.model.compression import MethodClass
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.plan import Goal
from kvmedic.model.readings import Complete, gather_values, pools
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Fix
from kvmedic.model.trial import Growth, Reclaim
from kvmedic.runbooks.branches import (
    GIVEN,
    Advice,
    Branch,
    Compressed,
    Evidence,
    Finding,
    NoChange,
    Relief,
    Setting,
)
from kvmedic.runbooks.compression.methods import (
    explain_unknown_types,
    find_stale_replicas,
    find_untyped_pods,
    stored_type,
    too_few_tokens,
)
from kvmedic.runbooks.compression.savings import (
    ASKED,
    EVICTING,
    NEEDED,
    Brought,
    Worth,
    fact,
    figures_of,
    report_unanswered_trial,
    weigh_gain,
    where_nodes_are_known,
)
from kvmedic.runbooks.compression.trial_plans import fix_next, probe_first, probe_prompts, turn_off
from kvmedic.runbooks.node_health import gpu_fault, is_of_interest, thermal_emergency

DASHBOARD = (
    "device memory is taken when an engine starts and stays as it is: watch the pool instead; its free "
    "blocks are num_gpu_blocks * (1 - kv_cache_usage_perc)"
)
"""What a person who looks at a device's memory is to look at."""


def no_compression(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Nothing shows a method that compresses the KV cache, and none is to come in its place."""
    is_next = evidence.fix is not None and not _is_of_another_kind(evidence)
    return () if evidence.compression is None and not is_next else None


def saves(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Usage or preemptions fell against the fleet without the method, and throughput held, at comparable
    load.

    That a device's memory stays as it is speaks for nothing and against nothing.
    """
    method, found = evidence.compression, gather_values(evidence.burn, NEEDED)
    if method is None or _is_of_another_kind(evidence):
        return None
    if isinstance(found, Inconclusive):
        return found
    if _is_pressured(found, evidence) or find_untyped_pods(method, evidence):
        return None
    worth = weigh_gain(method, evidence)
    if worth.worth is not Worth.SAVES:
        return None
    return (fact(f"{method.name}: {worth.message}"), fact(DASHBOARD))


def nothing_speaks_against(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Nobody preempts beyond the trigger, and no figure speaks against the method.

    Where a trial showed that blocks come back, it is no reproach that usage is as it was: requests may be too
    short for it.

    A replica whose GPU is ill, or that ran out of memory, is a matter of the other runbook.
    """
    method, found = evidence.compression, gather_values(evidence.burn, NEEDED)
    if method is None:
        return None
    worth = weigh_gain(method, evidence).worth
    if _is_of_another_kind(evidence):
        return None if worth is Worth.COSTS_MEMORY or method.is_unfused else ()
    if isinstance(found, Inconclusive):
        return found
    if _is_pressured(found, evidence) or find_untyped_pods(method, evidence):
        return None
    if worth is Worth.NOTHING and method.answer is not None and _frees(method):
        text = f"{method.name} frees blocks, and requests of now hardly need it: {method.answer.message}"
        return (fact(text),)
    return None if worth in _SPEAKS_AGAINST else ()


def find_unapplied_method(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """The pod template asks for a type of fewer bits, and a running engine stores in another; or for any
    method, and the log of the running engine says that it does not run.
    """
    method = evidence.compression
    if method is not None and method.denied:
        text = (
            f"settings ask for {method.name} ({method.known_by}), and the start-up log says: {method.denied}"
        )
        return where_nodes_are_known(evidence, fact(text))
    if method is None or method.method_class is not MethodClass.QUANTIZATION:
        return None
    found = pools(evidence.burn)
    if isinstance(found, Inconclusive):
        return found
    if not find_untyped_pods(method, evidence):
        return too_few_tokens(method, evidence, found) or None
    if not method.asks_for_type and evidence.fix is not None:
        return None
    stale = find_stale_replicas(method, evidence)
    if not stale:
        return Inconclusive(Reason.LOG_UNREADABLE, explain_unknown_types(method, evidence))
    asked = f"the template asks for {method.asks_for_type}" if method.asks_for_type else "the spec says so"
    stored = {name: stored_type(found[name], evidence.started.get(name)) for name in stale}
    findings = (Finding(name, None, None, None, f"{text}; {asked}") for name, text in stored.items())
    return where_nodes_are_known(evidence, *findings)


def replace_stale(evidence: Evidence, setting: Setting) -> Advice:
    """Return that a replica which started before its configuration was edited is replaced, or what to do."""
    method = evidence.compression
    stale = find_stale_replicas(method, evidence) if method else ()
    if method is not None and method.denied:
        text = (
            f"{method.name} does not run in these replicas, whatever their settings ask for: see why the "
            "plugin says so, or take its settings off"
        )
    elif method is None or not stale:
        text = (
            "the type is in effect and the pool is hardly larger: see whether a number of blocks, a smaller "
            "share of the memory, layers that are left out or scales for each head take what it saves"
        )
    elif not method.asks_for_type:
        text = (
            f"spec.compression says {method.name}, and neither the command line nor its file asks for it: "
            "add the setting, or correct spec.compression"
        )
    elif method.type_is_in_file and not setting.replacing_failed:
        text = (
            f"{stale[0]} started before its configuration file asked for {method.asks_for_type}; a new "
            "replica reads it as it is now"
        )
        return Relief(stale[0], Reason.COMPRESSION_NOT_APPLIED, text)
    else:
        text = (
            f"{method.asks_for_type}, which the pod template gives, is ignored by {', '.join(stale)} and "
            "would be by a new replica: see whether a wrapper changes it on the way, and what the start-up "
            "log says"
        )
    return NoChange(Reason.COMPRESSION_NOT_APPLIED, text)


def fix_waits(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A method saved nothing, the next fix cannot go on, and replicas preempt beyond the trigger."""
    if not isinstance(evidence.fix, NoChange):
        return None
    found = gather_values(evidence.burn, NEEDED)
    if isinstance(found, Inconclusive):
        return found
    return (fact(evidence.fix.message),) if _is_pressured(found, evidence) else None


def fix_due(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A method saved nothing, and the spec allows something in its place."""
    if evidence.fix is None:
        return None
    return where_nodes_are_known(evidence, fact(evidence.fix.message))


def page_selection(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """The method reads a part of the pages in each step and keeps all of them: no block becomes free."""
    method = evidence.compression
    if method is None or method.method_class is not MethodClass.PAGE_SELECTION:
        return None
    return (fact(f"{method.name}: {MethodClass.PAGE_SELECTION.frees}"),)


def blocks_not_freed(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A long generation on a trial pod showed that few blocks come back, or none."""
    method = evidence.compression
    answer = method.answer if method else None
    if method is None or answer is None or method.shown in (None, Reclaim.RECLAIMS):
        return None
    shown = f"{method.name}, {answer.reclaim}: {answer.message}"
    if answer.reclaim is Reclaim.NONE:
        shown += _IS_ON if method.is_confirmed else _MAY_BE_OFF
    return where_nodes_are_known(evidence, fact(shown))


def pressed_though_compressed(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Blocks come back, or there are more from the start on, and replicas preempt beyond the trigger.

    Of fewer bits that is said once the tokens of the pool were compared with those without.
    """
    method, found = evidence.compression, gather_values(evidence.burn, NEEDED)
    if method is None or isinstance(found, Inconclusive):
        return found if isinstance(found, Inconclusive) else None
    is_compared = method.method_class is MethodClass.QUANTIZATION and not is_start_due(method)
    works = is_compared or _frees(method)
    if not _is_pressured(found, evidence) or not (works or weigh_gain(method, evidence).worth is Worth.SAVES):
        return None
    shown = method.answer.message if method.answer else weigh_gain(method, evidence).message
    return (fact(f"{method.name} does what it can: {shown}"),)


def find_unproven_method(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Something asks whether there are more blocks by a method, and no trial has answered yet.

    The table's last branch: where a trial would not answer what is asked, it says what is missing.
    """
    method = evidence.compression
    if method is None:
        return ()
    worth = weigh_gain(method, evidence)
    if doubt := _why_not_asked(method, worth):
        return doubt
    found = pools(evidence.burn)
    if isinstance(found, Inconclusive):
        reason = Reason.POOL_NOT_PAGED if found.reason is Reason.SIGNAL_UNSUPPORTED else found.reason
        return Inconclusive(reason, found.message)
    asks = worth.message if worth.worth in _SPEAKS_AGAINST else "replicas preempt beyond the trigger"
    return (fact(f"{method.name} ({method.known_by}): {asks}"),)


def _why_not_asked(method: Compressed, worth: Brought) -> Inconclusive | None:
    """Return why a trial would not answer what is asked of a method, or None where it would."""
    answer = method.answer
    if method.method_class is None:
        text = f"what {method.name} does to blocks is not known: say it in spec.compression.class"
        return Inconclusive(Reason.METHOD_UNKNOWN, text)
    if answer is not None and answer.reclaim is None:
        return report_unanswered_trial(answer)
    if answer is not None and method.shown is None:
        return Inconclusive(
            Reason.TRIAL_UNANSWERED, f"{method.name}, {answer.reclaim}: {answer.message}; {_CHECK}"
        )
    if (method.method_class in EVICTING and answer is None) or is_start_due(method):
        return None
    return report_unexplained(method, worth)


_CHECK = (
    "that rests on spec.compression.keepTokens or keepRatio, and on nothing that the engine says: set there "
    "what the method really keeps, and a trial asks anew"
)
_IS_ON = "; the engine itself says that it is on, so each head keeps tokens of its own"
_MAY_BE_OFF = (
    "; each head keeps tokens of its own, or nothing is evicted at all: no start-up log says that it is on"
)
"""No block comes back either way; what an engine says of itself distinguishes them."""
_SPEAKS_AGAINST = frozenset({Worth.COSTS_MEMORY, Worth.COSTS_TIME, Worth.NOTHING})


def _is_pressured(found: Mapping[str, Complete], evidence: Evidence) -> bool:
    limit = evidence.trigger.preemptions_per_request
    return any(one.numbers[Signal.PREEMPTIONS_PER_REQUEST_HELD] > limit for one in found.values())


def _is_of_another_kind(evidence: Evidence) -> bool:
    ill = gpu_fault(evidence) or isinstance(thermal_emergency(evidence), tuple)
    return bool(ill) or is_of_interest(evidence)


def _frees(method: Compressed) -> bool:
    """Return whether a trial showed that blocks come back."""
    return method.answer is not None and method.answer.reclaim is Reclaim.RECLAIMS


def attention_uncompared(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """A trial showed that device memory grows with the square of the prompt, and none yet how it is without.

    Where it grows so without the method too, turning that off would not help. A comparison that showed
    nothing keeps nobody from it: the first half is proof that attention is not fused.
    """
    method = evidence.compression
    if method is None or not method.is_unfused or method.grown is None or not method.settings:
        return None
    if method.grown_without is not None or Fix.REVERT_BUNDLE not in method.policy.fixes:
        return None
    return where_nodes_are_known(evidence, fact(f"{method.name}: {method.grown.message}"))


def message_without(method: Compressed) -> str:
    """Return what is known of attention without the method, for a person; empty: nothing."""
    given = method.policy.attention_backend
    backend = f"attention without {method.name} by {given} ({GIVEN}.attentionBackend)" if given else ""
    return "; ".join(filter(None, (method.grown_without.message if method.grown_without else "", backend)))


def is_start_due(method: Compressed) -> bool:
    """Return whether a start without a type of fewer bits is to show how many blocks there are then.

    Where the command line sizes the pool they show nothing.
    """
    is_known = method.blocks_without is not None or method.start_without is not None
    is_type = method.method_class is MethodClass.QUANTIZATION
    return is_type and bool(method.settings) and not (is_known or method.pool_is_fixed)


def report_unexplained(method: Compressed, worth: Brought) -> Inconclusive:
    """Return that figures speak against a method and no trial would show more, with what would."""
    start, grown = method.start_without, method.grown
    if start is not None and start.blocks is None:
        return report_unanswered_trial(start)
    compared = f"; {start.message}" if start is not None else ""
    if grown is not None and grown.growth is Growth.SQUARE:
        why = (
            f"attention is not fused, and without {method.name} it is not either, so that turning it off "
            f"would not help: {grown.message}; {message_without(method)}"
        )
    elif grown is not None and grown.growth is not None:
        why = (
            f"attention did not fall back: {grown.message}; what else differs from the fleet of before is "
            "for a person"
        )
    else:
        why = (
            "whether attention fell back to a kernel that is not fused shows in device memory: give that of "
            "the fleet without the method in spec.compression.baseline.deviceMemory, and let the source have "
            "the DCGM exporter's series"
        )
    return Inconclusive(Reason.BASELINE_MISSING, f"{method.name}: {worth.message}{compared}; {why}")


def eager_fallback(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Throughput fell and device memory rose against the fleet without the method, at comparable load.

    Or a trial showed that device memory grows with the square of the prompt, which no fused kernel does. The
    name of the attention backend decides nothing: one fused kernel may take the place of another, and an
    unchanged line acquits nobody.
    """
    method = evidence.compression
    if method is None:
        return None
    if method.is_unfused and method.grown is not None:
        shown = f"{method.name}, {method.grown.growth}: {method.grown.message}"
        return where_nodes_are_known(
            evidence, *(fact(each) for each in (shown, message_without(method)) if each)
        )
    worth = weigh_gain(method, evidence)
    if worth.worth is not Worth.COSTS_MEMORY:
        return None
    return where_nodes_are_known(evidence, fact(f"{method.name}: {worth.message}"))


def attention_unproven(evidence: Evidence) -> tuple[Finding, ...] | Inconclusive | None:
    """Throughput fell or answers take longer, and nobody knows the device memory of before.

    Blocks are asked about first where they are in doubt. Where the source has no device memory of now, a
    trial could not be read either.
    """
    method = evidence.compression
    if method is None or (method.method_class in EVICTING and method.answer is None):
        return None
    worth = weigh_gain(method, evidence)
    is_compared = method.without.device_memory is not None or figures_of(evidence).device_memory is None
    if worth.worth is not Worth.COSTS_TIME or is_compared:
        return None
    if method.grown is None:
        return (fact(f"{method.name} ({method.known_by}): {worth.message}"),)
    return report_unanswered_trial(method.grown) if method.grown.growth is None else None


COMPRESSION_BRANCHES = (
    Branch(Reason.NO_COMPRESSION, no_compression, None, "Runbook 2, symptoms", ASKED),
    Branch(Reason.COMPRESSION_SAVES, saves, None, "Runbook 2: it works, the dashboard misleads", ASKED),
    Branch(Reason.COMPRESSION_UNDOUBTED, nothing_speaks_against, None, "Runbook 2, symptoms", ASKED),
    Branch(
        Reason.COMPRESSION_NOT_APPLIED,
        find_unapplied_method,
        replace_stale,
        "Runbook 2: configured, not applied",
        ASKED,
    ),
    Branch(
        Reason.ATTENTION_UNCOMPARED,
        attention_uncompared,
        probe_prompts,
        "Runbook 2, wall 1: prompt probe with the method off",
        ASKED,
        goal=Goal.ANSWER,
    ),
    Branch(
        Reason.EAGER_FALLBACK,
        eager_fallback,
        turn_off,
        "Runbook 2, wall 1: attention falls back to an eager kernel",
        ASKED,
        goal=Goal.NO_WORSE,
    ),
    Branch(Reason.FIX_WAITS, fix_waits, None, "Runbook 2: the fix after the method", ASKED),
    Branch(
        Reason.FIX_DUE, fix_due, fix_next, "Runbook 2: the fix after the method", ASKED, goal=Goal.NO_WORSE
    ),
    Branch(
        Reason.BLOCKS_NOT_FREED,
        blocks_not_freed,
        turn_off,
        "Runbook 2, wall 2: scattered survivors",
        ASKED,
        goal=Goal.NO_WORSE,
    ),
    Branch(
        Reason.PRESSED_THOUGH_COMPRESSED,
        pressed_though_compressed,
        None,
        "Runbook 2: it works, still pressured",
        ASKED,
    ),
    Branch(
        Reason.ATTENTION_UNPROVEN,
        attention_unproven,
        probe_prompts,
        "Runbook 2, wall 1: prompt probe",
        ASKED,
        goal=Goal.ANSWER,
    ),
    Branch(Reason.PAGE_SELECTION, page_selection, None, "Runbook 2: page selection", ASKED),
    Branch(
        Reason.COMPRESSION_UNPROVEN,
        find_unproven_method,
        probe_first,
        "Runbook 2, wall 2: reclamation probe",
        ASKED,
        goal=Goal.ANSWER,
    ),
)
"""First match wins. Those that ask for no change leave the fleet to the next runbook of the spec."""
