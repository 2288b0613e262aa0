"""What is done about KV compression: ask a trial pod, or turn the method off again.

Turning it off comes before anything else is turned on, and nothing is ever stacked on a method that does
not work. What a method that was turned on as a fix is to do for the fleet's sequences is what its trial
proved.

A trial of prompts computes each one in one step: only then memory shows how it grows with the prompt. In
chunks the scores of a long prompt are those of one chunk against all that came before, and a square looks
like a line. The target keeps its setting; only the trial pod has another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kvmedic.engines.kv_methods import find_method
from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.flags import AlreadySet, edit, line_may_chunk, remove_option, setting_of
from kvmedic.model.compression import PASS_TOKENS, BundleSetting, Compacted, Keep, MethodClass, parse_count
from kvmedic.model.edits import BundleEdit, BundlePart, container_at
from kvmedic.model.engine import Flag, Knob, Scalar
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import Fleet, template_hash
from kvmedic.model.plan import BundleStep, EvaluationStep, Plan, TrialStep
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy, Fix, ProbePolicy
from kvmedic.model.trial import Answer, Question, Reclaim
from kvmedic.runbooks.branches import (
    GIVEN,
    Advice,
    Compressed,
    Evaluate,
    Evidence,
    NoChange,
    Setting,
    Try,
    TurnOff,
)
from kvmedic.runbooks.compression.bundle import edit_settings
from kvmedic.runbooks.compression.methods import answer_for, replacement_of, variables_of
from kvmedic.runbooks.compression.probes import BUDGETS, LEAST_LONGEST
from kvmedic.runbooks.compression.savings import rests_on_spec_alone
from kvmedic.runbooks.planning import plan_for
from kvmedic.runbooks.workload import Workload, with_template
from kvmedic.verdict.blocks_reclaimed import Expectation
from kvmedic.verdict.occupancy import Passes

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
            Reason.FIXES_EXHAUSTED,
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

    Of a method of fewer bits a start without it shows it; of one that evicts tokens a long generation.
    """
    method = evidence.compression
    if method is not None and method.method_class is MethodClass.QUANTIZATION:
        text = "a trial pod starts without it, beside the fleet; its blocks are not known yet"
        return _trial_of(method, Question.START, 1, text, off=method.settings)
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
        Reason.TRIAL_RUNNING,
        f"{method}: one request of {tokens} tokens on a trial pod beside the fleet; {why}",
    )


def _trial_of(
    method: Compressed, question: Question, tokens: int, text: str, off: tuple[BundleSetting, ...] = ()
) -> Try:
    limit, message = method.policy.probe.timeout, f"{method.name}: {text}"
    return Try(question, method.name, tokens, Keep(), limit, Reason.TRIAL_RUNNING, message, off=off)


def probe_prompts(evidence: Evidence, _setting: Setting) -> Advice:
    """Return that prompts of rising length on a trial pod are to show whether attention is still fused.

    Where they showed that it is not, the same is asked with the method off.
    """
    found, method = _prompts(evidence), evidence.compression
    if not isinstance(found, Try) or method is None or method.grown is None:
        return found
    text = f"the same prompts on a trial pod without it; {method.grown.message}"
    return _trial_of(method, Question.PROMPTS, found.tokens, text, off=method.settings)


def confirm_before_turning_off(evidence: Evidence, advice: TurnOff) -> TurnOff | Try | NoChange:
    """Return the advice to turn a method off, or what has to be shown before nobody but the spec says so.

    Figures that the spec declares decide where a person approves the plan. Where nobody does, the record must
    show the same, or a trial.
    """
    method = evidence.compression
    shown = method.shown if method else None
    is_proven = shown not in (None, Reclaim.RECLAIMS)
    if method is None or is_proven or not rests_on_spec_alone(method, evidence):
        return advice
    objection = f"{GIVEN} alone speaks against {method.name}, and in mode Auto that turns nothing off"
    if method.grown is None:
        asked = _prompts(evidence)
        return replace(asked, message=f"{objection}: {asked.message}")
    return NoChange(Reason.BASELINE_MISSING, f"{objection}: {method.grown.message}")


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
    text = (
        f"prompts of up to {longest} tokens on a trial pod beside the fleet; it is not known yet whether "
        "attention is still fused"
    )
    return _trial_of(method, Question.PROMPTS, longest, text)


def _what_speaks_against(evidence: Evidence) -> str:
    method = evidence.compression
    if method is not None and method.is_unfused and method.grown is not None:
        return method.grown.message
    answer = method.answer if method else None
    return answer.message if answer is not None else "it is not known yet whether blocks become free"


def expectation_of(
    step: BundleStep, policy: CompressionPolicy, answers: Sequence[Answer], template: Mapping[str, object]
) -> Expectation | None:
    """Return what is to be seen of a bundle on the fleet; None where it turned on no method that compacts.

    What was tried on the very pod template counts before what the spec says by now.

    Args:
        template: the target's pod template, with the change.
    """
    if step.fix is not Fix.COMPACTING_METHOD or step.undoes is not None:
        return None
    answer = answer_for(answers, step.after_template, Question.RECLAMATION)
    desired, known = replacement_of(policy), find_method(step.method)
    keep = desired.keep if desired is not None and desired.name == step.method else None
    keep = (answer.keep if answer else None) or keep
    container = container_at(template, step.edit.parts[0].container_index)
    given = variables_of(container or {}).get(known.every, "").strip() if known else ""
    every = parse_count(given) or _seen_between(answer)
    passes = Passes(keep, Compacted(), every) if keep else None
    return Expectation(step.method, passes, answer.message if answer else "", policy.probe.tokens)


def _seen_between(answer: Answer | None) -> int:
    """Return by how many tokens one request on a trial pod outgrew what is kept, `PASS_TOKENS` at least.

    It rises from what is kept to that and one pass more, so the highest of some readings is near the pass.
    Taken for too long a pass makes live traffic show less, never a method that works look like none.
    """
    if answer is None or answer.keep is None or answer.block_tokens is None or not answer.seen:
        return PASS_TOKENS
    keep, size = answer.keep, answer.block_tokens
    late = [each for each in answer.seen if 2 * each.tokens >= answer.seen[-1].tokens]
    return max(PASS_TOKENS, *(round(each.used * size) - keep.tokens_of(each.tokens) for each in late))


ROOM = 64
"""Tokens that a request may have beside the longest prompt."""


def whole_prompts(workload: Workload, longest: int) -> BundleEdit | Blocked | None:
    """Return what has to differ on a trial pod that computes prompts whole, None where nothing has to.

    Args:
        longest: tokens of the longest prompt.
    """
    template, parts = workload.template, list[BundlePart]()
    for flag, value in _wishes(workload, longest):
        if why := _why_overruled(workload, flag):
            return Blocked(Reason.TRIAL_IMPOSSIBLE, why)
        made = _edits_of_wish(workload, template, flag, value)
        if isinstance(made, ManifestError):
            return Blocked(Reason.TRIAL_IMPOSSIBLE, f"prompts cannot be computed whole: {made.message}")
        for part in made:
            template = part.apply(template)
        parts += made
    return BundleEdit(tuple(parts)) if parts else None


def _why_overruled(workload: Workload, flag: Flag) -> str:
    """Return why an engine may not heed what is given; empty where it does."""
    name, keeps = workload.engine.profile.name, workload.engine.keeps_on(flag)
    if keeps is None:
        return (
            f"some releases of {name} compute prompts in chunks whatever {flag.name} says: name the engine's "
            "version, in its image's tag (IMAGE:vVERSION@DIGEST)"
        )
    if keeps:
        return (
            f"{name} {workload.engine.version} computes prompts in chunks whatever {flag.name} says: try it "
            "on a pod template of your own with a newer one"
        )
    return ""


def _wishes(workload: Workload, longest: int) -> Iterator[tuple[Flag, Scalar]]:
    """Yield what should be set, in this order; None: not given.

    A step must hold the longest request there may be, so that one is cut to what is asked; where nobody
    knows how long it is, the engine sizes its steps by itself.
    """
    profile, limit = workload.engine.profile, _whole(workload, Knob.MAX_MODEL_LEN)
    length, chunks, steps = (
        profile.flag(knob) for knob in (Knob.MAX_MODEL_LEN, Knob.CHUNKED_PREFILL, Knob.MAX_NUM_BATCHED_TOKENS)
    )
    if length is not None and limit is not None and limit > longest + ROOM:
        limit = longest + ROOM
        yield length, limit
    if chunks is not None and line_may_chunk(workload.line, workload.engine):
        yield chunks, False
    budget = _whole(workload, Knob.MAX_NUM_BATCHED_TOKENS)
    if steps is None or budget is None or (limit is not None and budget >= limit):
        return
    # A step may never have fewer tokens than sequences.
    sequences = profile.flag(Knob.MAX_NUM_SEQS)
    most = _whole(workload, Knob.MAX_NUM_SEQS) or (sequences.most if sequences else None) or 0
    yield steps, None if limit is None else max(limit, most)


def _whole(workload: Workload, knob: Knob) -> int | None:
    given = workload.value_of(knob)
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None


def _edits_of_wish(
    workload: Workload, template: Mapping[str, object], flag: Flag, value: Scalar
) -> tuple[BundlePart, ...] | ManifestError:
    """Return the edits of a pod template that fulfil a wish; none where it is so already."""
    index, engine = workload.container_index, workload.engine
    container = container_at(template, index) or {}
    if value is None:
        return remove_option(container, index, flag, engine)
    desired = setting_of(flag, value, engine)
    if isinstance(desired, ManifestError):
        return desired
    change = edit(container, index, desired, engine, workload.in_file)
    if isinstance(change, ManifestError):
        return change
    return () if isinstance(change, AlreadySet) else (change,)


def trial_plan(
    workload: Workload | Blocked, fleet: Fleet, source: str, advice: Try, generation: int
) -> Plan | Blocked:
    """Return the plan that asks a trial pod of a setting, or why it cannot be carried out.

    Args:
        source: the metrics source for the fleet's devices.
        generation: of the spec.
    """
    if isinstance(workload, Blocked):
        return workload
    change = _on_trial(workload, advice)
    if isinstance(change, Blocked):
        return change
    step = TrialStep(
        target=workload.target,
        container=str(workload.container.get("name")),
        question=advice.question,
        method=advice.method,
        tokens=advice.tokens,
        keep=advice.keep,
        limit_seconds=int(advice.limit.total_seconds()),
        template=fleet.revision,
        reason=advice.reason,
        change=change,
        tried=template_hash(change.apply(workload.template)) if change else "",
        source=source if advice.question is Question.PROMPTS else "",
        without=bool(advice.off),
    )
    return plan_for(fleet, step, advice, generation)


def _on_trial(workload: Workload, advice: Try) -> BundleEdit | Blocked | None:
    """Return what differs on a trial pod; None: nothing."""
    change = advice.change
    if advice.off:
        off = edit_settings(workload, advice.off[::-1])
        if isinstance(off, Blocked):
            text = f"{advice.method} cannot be turned off as a whole, on a trial pod either: {off.message}"
            other = "; or give spec.compression.baseline.blocks" if advice.question is Question.START else ""
            return Blocked(off.reason, text + other)
        if off is None:
            return Blocked(Reason.TRIAL_IMPOSSIBLE, f"{advice.method} is off already, by all of its settings")
        change = off.change
    if advice.question is not Question.PROMPTS:
        return change
    subject = with_template(workload, change.apply(workload.template)) if change else workload
    whole = subject if isinstance(subject, Blocked) else whole_prompts(subject, advice.tokens)
    if isinstance(whole, Blocked) or whole is None:
        return whole or change
    return BundleEdit((*(change.parts if change else ()), *whole.parts))


def evaluation_plan(
    workload: Workload | Blocked, fleet: Fleet, advice: Evaluate, generation: int
) -> Plan | Blocked:
    """Return the plan that lets a team's Job evaluate a trial pod, or why it cannot be carried out."""
    if isinstance(workload, Blocked):
        return workload
    step = EvaluationStep(
        target=workload.target,
        container=str(workload.container.get("name")),
        subject=advice.subject,
        change=advice.change,
        tried=advice.tried,
        cron_job=advice.cron_job,
        evaluation=advice.evaluation,
        budget=advice.budget,
        cache_types=advice.cache_types,
        limit_seconds=int(advice.limit.total_seconds()),
        template=fleet.revision,
        reason=advice.reason,
    )
    return plan_for(fleet, step, advice, generation)
