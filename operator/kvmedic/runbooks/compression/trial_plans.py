"""A trial pod that computes each prompt in one step: only then memory shows how it grows with the prompt.

Computed in chunks, the scores of a long prompt are those of one chunk against all that came before, and a
square looks like a line. The target keeps its setting; only the trial pod has another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvmedic.manifests.engine_file import Configuration
from kvmedic.manifests.flags import AlreadySet, edit, may_chunk, setting_of, taken_off
from kvmedic.manifests.refusal import Refusal
from kvmedic.model.edits import BundleEdit, BundlePart, container_at
from kvmedic.model.engine import Flag, Knob, OptionName
from kvmedic.model.fleet import Fleet, template_hash
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.trial import GateStep, Question, TrialStep
from kvmedic.runbooks.branches import Evaluate, Try
from kvmedic.runbooks.compression.bundle import edit_settings
from kvmedic.runbooks.fleet_plans import plan_for
from kvmedic.runbooks.planning import Fault, Workload, with_template

ROOM = 64
"""Tokens that a request may have beside the longest prompt."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one knob should be on the trial pod."""

    flag: Flag
    value: int | bool | None
    """None: not given."""


def whole_prompts(workload: Workload, longest: int) -> BundleEdit | Fault | None:
    """Return what has to differ on a trial pod that computes prompts whole, None where nothing has to.

    Args:
        workload: the target's engine.
        longest: tokens of the longest prompt.
    """
    template, parts = workload.template, list[BundlePart]()
    for wish in _wishes(workload, longest):
        if why := _why_overruled(workload, wish.flag):
            return _impossible(why)
        made = _edits_of_wish(workload, template, wish)
        if isinstance(made, Refusal):
            return _impossible(f"prompts cannot be computed whole: {made.message}")
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


def _impossible(message: str) -> Fault:
    return Fault(Reason.TRIAL_IMPOSSIBLE, message)


def _wishes(workload: Workload, longest: int) -> Iterator[_Wish]:
    """Yield what should be set, in this order.

    A step must hold the longest request there may be, so that one is cut to what is asked; where nobody
    knows how long it is, the engine sizes its steps by itself.
    """
    profile, limit = workload.engine.profile, _whole(workload, Knob.MAX_MODEL_LEN)
    length, chunks, steps = (
        profile.flag(knob) for knob in (Knob.MAX_MODEL_LEN, Knob.CHUNKED_PREFILL, Knob.MAX_NUM_BATCHED_TOKENS)
    )
    if length is not None and limit is not None and limit > longest + ROOM:
        limit = longest + ROOM
        yield _Wish(length, limit)
    if chunks is not None and may_chunk(workload.template, str(workload.container.get("name")), profile):
        yield _Wish(chunks, value=False)
    budget = _whole(workload, Knob.MAX_NUM_BATCHED_TOKENS)
    if steps is None or budget is None or (limit is not None and budget >= limit):
        return
    yield _Wish(steps, None if limit is None else max(limit, _sequences(workload)))


def _sequences(workload: Workload) -> int:
    """Return the most sequences that a step may have; it may never have fewer tokens than these."""
    flag = workload.engine.profile.flag(Knob.MAX_NUM_SEQS)
    default = flag.most if flag is not None else None
    return _whole(workload, Knob.MAX_NUM_SEQS) or default or 0


def _whole(workload: Workload, knob: Knob) -> int | None:
    given = workload.given(knob)
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None


def _edits_of_wish(
    workload: Workload, template: Mapping[str, object], wish: _Wish
) -> tuple[BundlePart, ...] | Refusal:
    """Return the edits of a pod template that fulfil a wish; none where it is so already."""
    index, engine = workload.container_index, workload.engine
    container = container_at(template, index) or {}
    if wish.value is None:
        return taken_off(container, index, OptionName(wish.flag.name, wish.flag.dest), engine)
    wanted = setting_of(wish.flag, wish.value, engine)
    if isinstance(wanted, Refusal):
        return wanted
    file = workload.file
    read = file.read.parsed if isinstance(file, Configuration) else None
    change = edit(container, index, wanted, engine, read)
    if isinstance(change, Refusal):
        return change
    return () if isinstance(change, AlreadySet) else (change,)


def trial_plan(
    workload: Workload | Fault, fleet: Fleet, source: str, advice: Try, generation: int
) -> Plan | Fault:
    """Return the plan that asks a trial pod of a setting, or why it cannot be carried out.

    Args:
        workload: the target's engine.
        fleet: as it is.
        source: the metrics source that tells of its devices.
        advice: what is asked.
        generation: of the spec.
    """
    if isinstance(workload, Fault):
        return workload
    of_prompts = advice.question is Question.PROMPTS
    change = _on_trial(workload, advice)
    if isinstance(change, Fault):
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
        source=source if of_prompts else "",
        without=bool(advice.off),
    )
    return plan_for(fleet, step, advice, generation)


def _on_trial(workload: Workload, advice: Try) -> BundleEdit | Fault | None:
    """Return what differs on a trial pod; None: nothing."""
    change = advice.change
    if advice.off:
        off = edit_settings(workload, advice.off[::-1])
        if isinstance(off, Fault):
            text = f"{advice.method} cannot be turned off as a whole, on a trial pod either: {off.message}"
            other = "; or give spec.compression.baseline.blocks" if advice.question is Question.START else ""
            return Fault(off.reason, text + other)
        if off is None:
            return Fault(Reason.TRIAL_IMPOSSIBLE, f"{advice.method} is off already, by all of its settings")
        change = off.change
    if advice.question is not Question.PROMPTS:
        return change
    subject = with_template(workload, change.apply(workload.template)) if change else workload
    whole = subject if isinstance(subject, Fault) else whole_prompts(subject, advice.tokens)
    if isinstance(whole, Fault) or whole is None:
        return whole or change
    return BundleEdit((*(change.parts if change else ()), *whole.parts))


def gate_plan(workload: Workload | Fault, fleet: Fleet, advice: Evaluate, generation: int) -> Plan | Fault:
    """Return the plan that lets a team's Job evaluate a trial pod, or why it cannot be carried out."""
    if isinstance(workload, Fault):
        return workload
    step = GateStep(
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
