"""What is done about KV compression: ask a trial pod, or turn the method off again.

Turning it off comes before anything else is turned on, and nothing is ever stacked on a method that does not
work.
"""

from __future__ import annotations

from dataclasses import replace

from kvmedic.core.blocks import Keep
from kvmedic.core.compressed import GIVEN, Compressed
from kvmedic.core.compression import MethodClass
from kvmedic.core.compression_policy import Fix, ProbePolicy
from kvmedic.core.diagnosis import Advice, Evidence, NoChange, Setting
from kvmedic.core.fixing import Try, TurnOff
from kvmedic.core.prompt_probe import LEAST_LONGEST
from kvmedic.core.reasons import Reason
from kvmedic.core.reclamation_probe import BUDGETS, Reclaim
from kvmedic.core.trialling import Question
from kvmedic.runbooks.compression_facts import rests_on_spec_alone

LONGEST_PROMPT = 16_384
"""Tokens of the longest prompt, at most: with 16 heads in four bytes its scores take 16 GiB, more than any
share of a device leaves free, so that nothing is gained beyond."""
PROMPT_ROOM = 64
"""Tokens that a request may have beside those that are generated: the probe's own prompt, and the end."""


def turn_off(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that the method is turned off with all of its settings, or why it is not."""
    method = evidence.compression
    if method is None:
        return NoChange(Reason.NO_COMPRESSION, "no method is known to be on")
    why = _why(evidence)
    if Fix.REVERT_BUNDLE not in method.policy.fixes:
        return NoChange(
            Reason.FIX_NOT_ALLOWED,
            f"{why}; to have {method.name} turned off, add {Fix.REVERT_BUNDLE} to "
            "spec.compression.allowedFixes",
        )
    if not method.settings:
        return NoChange(
            Reason.METHOD_UNKNOWN,
            f"{why}; how {method.name} is turned on is not known: list its flags and variables in "
            "spec.compression.settings, with the values from before",
        )
    text = f"{method.name} goes: {why}"
    return TurnOff(method.name, method.settings, Reason.COMPRESSION_REVERTED, text, method.fix)


def fix_next(evidence: Evidence, _setting: Setting) -> Advice:
    """Return what the next fix asks for: a trial, an evaluation, or that it is turned on."""
    return evidence.fix or NoChange(Reason.NO_COMPRESSION, "no fix is asked for")


def probe_first(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that a trial pod is to show whether there are more blocks, or why it cannot.

    Of a method of fewer bits a start without it tells; of one that evicts tokens a long generation.
    """
    method = evidence.compression
    if method is not None and method.method_class is MethodClass.QUANTIZATION:
        return _start_without(method)
    if method is None or method.keep is None:
        return NoChange(
            Reason.METHOD_UNKNOWN,
            "how many tokens the method keeps is not known, so no trial can be judged: say it in "
            "spec.compression.keepTokens or keepRatio",
        )
    return reclamation_of(
        method.name, method.keep, method.policy.probe, method.longest_request, _why(evidence)
    )


def reclamation_of(
    method: str, keep: Keep, probe: ProbePolicy, longest_request: int | None, why: str
) -> Try | NoChange:
    """Return that a trial pod is to show whether blocks of a method come back, or why it cannot.

    Args:
        method: its name.
        keep: what it keeps of a sequence.
        probe: what the spec says of the trial.
        longest_request: tokens of a request, at most, as the command line gives it; None: it does not.
        why: what asks for it.
    """
    tokens = max(probe.tokens, BUDGETS * (keep.budget or 0))
    if longest_request is not None and 0 < longest_request < tokens + PROMPT_ROOM:
        return NoChange(
            Reason.TRIAL_IMPOSSIBLE,
            f"a trial needs one request of {tokens + PROMPT_ROOM} tokens, and the engine takes "
            f"{longest_request}: try it on a pod template of your own with a longer limit",
        )
    return Try(
        Question.RECLAMATION,
        method,
        tokens,
        keep,
        probe.timeout,
        Reason.RECLAMATION_PROBED,
        f"{method}: one request of {tokens} tokens on a trial pod beside the fleet; {why}",
    )


def _start_without(method: Compressed) -> Advice:
    return Try(
        Question.START,
        method.name,
        1,
        Keep(),
        method.policy.probe.timeout,
        Reason.START_COMPARED,
        f"{method.name}: a trial pod starts without it, beside the fleet; nobody knows how many blocks there "
        "were before",
        off=method.settings,
    )


def probe_prompts(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that prompts of rising length on a trial pod are to show whether attention is still fused.

    Where they showed that it is not, the same is asked with the method off.
    """
    found, method = _prompts(evidence), evidence.compression
    if not isinstance(found, Try) or method is None or method.grown is None:
        return found
    return replace(
        found,
        reason=Reason.PROMPTS_COMPARED,
        message=f"{method.name}: the same prompts on a trial pod without it; {method.grown.message}",
        off=method.settings,
    )


def confirmed_first(evidence: Evidence, advice: TurnOff) -> TurnOff | Try | NoChange:
    """Return the advice to turn a method off, or what has to be shown before nobody but the spec says so.

    Figures that the spec declares decide where a person approves the plan. Where nobody does, history has to
    tell the same, or a trial.
    """
    method = evidence.compression
    shown = method.shown if method else None
    is_proven = shown not in (None, Reclaim.RECLAIMS)
    if method is None or is_proven or not rests_on_spec_alone(method, evidence):
        return advice
    told = f"{GIVEN} alone speaks against {method.name}, and in mode Auto that turns nothing off"
    if method.grown is None:
        asked = _prompts(evidence)
        return replace(asked, message=f"{told}: {asked.message}")
    return NoChange(Reason.BASELINE_MISSING, f"{told}: {method.grown.message}")


def _prompts(evidence: Evidence) -> Try | NoChange:
    method = evidence.compression
    if method is None:
        return NoChange(Reason.NO_COMPRESSION, "no method is known to be on")
    longest = min(LONGEST_PROMPT, (method.longest_request or LONGEST_PROMPT + 1) - 1)
    if longest < LEAST_LONGEST:
        return NoChange(
            Reason.TRIAL_IMPOSSIBLE,
            f"a trial needs prompts of up to {LEAST_LONGEST} tokens, and the engine takes requests of "
            f"{method.longest_request}: try it on a pod template of your own with a longer limit",
        )
    return Try(
        Question.PROMPTS,
        method.name,
        longest,
        Keep(),
        method.policy.probe.timeout,
        Reason.PROMPTS_PROBED,
        f"{method.name}: prompts of up to {longest} tokens on a trial pod beside the fleet; nobody knows yet "
        "whether attention is still fused",
    )


def _why(evidence: Evidence) -> str:
    method = evidence.compression
    if method is not None and method.is_unfused and method.grown is not None:
        return method.grown.message
    answer = method.answer if method else None
    return answer.message if answer is not None else "nobody knows yet whether blocks become free"
