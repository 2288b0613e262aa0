"""What is done about KV compression: ask a trial pod, or turn the method off again.

Turning it off comes before anything else is turned on, and nothing is ever stacked on a method that does not
work.

What a method that was turned on as a fix is to do for the sequences of a fleet, and what proved it.

Which replica serves for a test where no node takes a trial pod, and the spec allows a dip; pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvmedic.engines.kv_methods import method_named
from kvmedic.model.compression import PASS_TOKENS, Compacted, Keep, MethodClass, parse_count
from kvmedic.model.edits import BundleStep, container_at
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy, Fix, ProbePolicy
from kvmedic.model.trial import Answer, Question, Reclaim
from kvmedic.runbooks.branches import GIVEN, Advice, Compressed, Evidence, NoChange, Setting, Try, TurnOff
from kvmedic.runbooks.compression.attention import LEAST_LONGEST
from kvmedic.runbooks.compression.methods import answer_for, replacement_of, variables_of
from kvmedic.runbooks.compression.reclamation import BUDGETS
from kvmedic.runbooks.compression.savings import rests_on_spec_alone
from kvmedic.verdict.blocks_reclaimed import Passes, Promise

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
    why = _what_speaks_against(evidence)
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
        method.name, method.keep, method.policy.probe, method.longest_request, _what_speaks_against(evidence)
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


def _what_speaks_against(evidence: Evidence) -> str:
    method = evidence.compression
    if method is not None and method.is_unfused and method.grown is not None:
        return method.grown.message
    answer = method.answer if method else None
    return answer.message if answer is not None else "nobody knows yet whether blocks become free"


def promise_of(
    step: BundleStep, policy: CompressionPolicy, answers: Sequence[Answer], template: Mapping[str, object]
) -> Promise | None:
    """Return what is to be seen of a bundle on the fleet; None where it turned on no method that compacts.

    What was tried on the very pod template counts before what the spec says by now.

    Args:
        step: the change.
        policy: what the spec says.
        answers: of trials.
        template: the target's pod template, with the change.
    """
    if step.fix is not Fix.COMPACTING_METHOD or step.undoes is not None:
        return None
    answer = answer_for(answers, step.after_template, Question.RECLAMATION)
    keep = _keep(step.method, policy, answer)
    passes = Passes(keep, Compacted(), _every(step, template, answer)) if keep else None
    return Promise(step.method, passes, answer.message if answer else "", policy.probe.tokens)


def _keep(method: str, policy: CompressionPolicy, answer: Answer | None) -> Keep | None:
    if answer is not None and answer.keep is not None:
        return answer.keep
    wanted = replacement_of(policy)
    return wanted.keep if wanted is not None and wanted.name == method else None


def _every(step: BundleStep, template: Mapping[str, object], answer: Answer | None) -> int:
    """Return the tokens from one pass of a method to the next, by its variable or by what was seen of it."""
    known = method_named(step.method)
    container = container_at(template, step.edit.parts[0].container_index)
    given = variables_of(container or {}).get(known.every, "").strip() if known else ""
    return parse_count(given) or _seen_between(answer)


def _seen_between(answer: Answer | None) -> int:
    """Return by how many tokens one request on a trial pod outgrew what is kept, `PASS_TOKENS` at least.

    It rises from what is kept to that and one pass more, so the highest of some readings is near the pass.
    Taken for too long a pass makes live traffic tell less, never a method that works look like none.
    """
    if answer is None or answer.keep is None or answer.block_tokens is None or not answer.seen:
        return PASS_TOKENS
    keep, size = answer.keep, answer.block_tokens
    late = [each for each in answer.seen if 2 * each.tokens >= answer.seen[-1].tokens]
    return max(PASS_TOKENS, *(round(each.used * size) - keep.of(each.tokens) for each in late))
