"""`kvmedic explain`: what the operator does or why it does nothing, what it sees, and what to type next.

Everything is read from the resource, as the operator last wrote it; no metrics are asked. Where it remembers
a trial or a score, the Deployment is read too: both name the pod template that they were made of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvmedic.api.rules import format_duration
from kvmedic.cli.access import finish_look, load_resource, name_in
from kvmedic.cli.app import Form, show_text
from kvmedic.cli.live.rows import changed_replicas, state_of
from kvmedic.cli.plan import settings_with, template_of
from kvmedic.kube.kubeconfig import ClusterChoice
from kvmedic.model.devices import MIB
from kvmedic.model.reasons import LOOK, Reason, Remedy
from kvmedic.model.run import DrainingPod, Run, StepState
from kvmedic.model.status import (
    Attempt,
    Condition,
    ConditionType,
    FailedAttempt,
    Record,
    Resource,
    TemporaryChange,
    Truth,
    TurnedOff,
)
from kvmedic.model.trial import Answer, EvaluationResult, Prompt, Sample
from kvmedic.runbooks.compression.methods import answer_for
from kvmedic.runbooks.compression.probes import Trace, picture_of, trace_of
from kvmedic.wiring import open_connections


@dataclass(frozen=True, slots=True)
class ShownTrial:
    """The newest answer on record that says most of the fleet as it is."""

    answer: Answer
    is_of_present_template: bool
    without: Answer | None = None
    """What the same showed with the method off, or a start did; None: nothing was asked."""

    @property
    def trace(self) -> Trace | None:
        """Return what there is to draw; None of another pod template, or where no reading is on record."""
        return trace_of(self.answer) if self.is_of_present_template else None

    def sentence(self) -> str:
        """Return the answer with its numbers."""
        answer = self.answer
        whose = "this" if self.is_of_present_template else "another"
        verdict = answer.reclaim or answer.growth
        found = f"{verdict}: " if verdict else ""
        return f"Trial of {answer.at:%Y-%m-%dT%H:%M:%SZ} on {whose} pod template: {found}{answer.message}."

    def as_text(self) -> Iterator[str]:
        """Yield the answer line by line, with its picture or its table where there is one."""
        yield self.sentence()
        trace = self.trace
        yield from (f"  {line}" for line in (picture_of(trace) if trace else ()))
        if self.is_of_present_template:
            yield from (f"  {line}" for line in table_of(self.answer))
        if self.without is not None:
            yield f"With the method off, at {self.without.at:%Y-%m-%dT%H:%M:%SZ}: {self.without.message}."
            yield from (f"  {line}" for line in table_of(self.without))

    def as_json(self) -> dict[str, Any]:
        """Return the answer for a program, with every reading on record."""
        answer, trace = self.answer, trace_of(self.answer)
        return _describe_half(answer) | {
            "isOfPresentTemplate": self.is_of_present_template,
            "reclaim": str(answer.reclaim) if answer.reclaim else None,
            "blockTokens": answer.block_tokens,
            "readings": [_describe_reading(trace, each) for each in trace.seen] if trace else [],
            "without": _describe_half(self.without) | {"cacheType": self.without.cache_type}
            if self.without
            else None,
        }


def trial_of(record: Record | None, template: str) -> ShownTrial | None:
    """Return the newest trial on a pod template, else the newest of all; None where there was none."""
    answers = record.answers if record else ()
    of_present = answer_for(answers, template)
    half = max((one for one in answers if one.beside == template), key=lambda one: one.at, default=None)
    if of_present is not None:
        return ShownTrial(of_present, is_of_present_template=True, without=half)
    if half is not None:
        return ShownTrial(half, is_of_present_template=False)
    newest = max(answers, key=lambda each: each.at, default=None)
    return ShownTrial(newest, is_of_present_template=False) if newest is not None else None


def table_of(answer: Answer) -> Iterator[str]:
    """Yield the device memory after each prompt, line by line; nothing where no prompt is on record."""
    before = answer.memory_before
    if before is None or not answer.prompts:
        return
    yield f"{'prompt tokens':>13} {'device memory, MiB':>18} {'more than before':>16}"
    for each in (Prompt(0, before), *answer.prompts):
        yield f"{each.tokens:>13} {each.used / MIB:>18.0f} {(each.used - before) / MIB:>16.0f}"


def _describe_half(answer: Answer) -> dict[str, Any]:
    """Return what either half of a comparison shows."""
    return {
        "question": str(answer.question),
        "at": f"{answer.at:%Y-%m-%dT%H:%M:%SZ}",
        "template": answer.template,
        "growth": str(answer.growth) if answer.growth else None,
        "message": answer.message,
        "memoryBefore": answer.memory_before,
        "prompts": [{"tokens": each.tokens, "deviceMemory": each.used} for each in answer.prompts],
        "blocks": answer.blocks,
        "backends": list(answer.backends),
    }


def _describe_reading(trace: Trace, sample: Sample) -> dict[str, Any]:
    predicted = trace.predict_freed(max(1, sample.tokens))
    return {
        "tokens": sample.tokens,
        "usedBlocks": sample.used,
        "blocksThatCameBack": round(trace.count_freed(sample), 2),
        "predicted": {str(reclaim): round(blocks, 2) for reclaim, blocks in predicted.items()},
    }


@dataclass(frozen=True, slots=True)
class ShownFixes:
    """The record of the fix after the method, as far as there is one."""

    turned_off: TurnedOff | None
    failed: tuple[FailedAttempt, ...]
    """Fixes that were tried in its place since."""
    scores: tuple[EvaluationResult, ...]
    template: str
    """Hash of the target's present pod template; empty: not known."""
    generation: int
    """Of the spec as it is now."""

    def as_text(self) -> Iterator[str]:
        """Yield it line by line; nothing where nothing is on record."""
        yield from self.turned_off_as_text()
        yield from (self._score(each) for each in self.scores)

    def turned_off_as_text(self) -> Iterator[str]:
        """Yield what was turned off and the fixes that failed since, line by line."""
        off = self.turned_off
        if off is not None:
            yield f"{off.method} was turned off ({_moment_text(off.at)}): {off.wall}: {off.wall.sentence}"
            yield from (f"  {self._failure(each)}" for each in self.failed)

    def turned_off_as_json(self) -> dict[str, Any] | None:
        """Return what was turned off for a program, with the fixes that failed since; None: nothing was."""
        off = self.turned_off
        if off is None:
            return None
        failed = [
            {"fix": each.key, "why": each.why, "isOfPresentSpec": each.generation == self.generation}
            for each in self.failed
        ]
        return {"method": off.method, "wall": str(off.wall), "at": _moment_text(off.at), "failed": failed}

    def scores_as_json(self) -> list[dict[str, Any]]:
        """Return every score on record for a program, the newest first."""
        return [self._score_as_json(each) for each in self.scores]

    def _failure(self, failed: FailedAttempt) -> str:
        is_over = failed.generation != self.generation
        when = "; the spec was edited since, so it may be tried again" if is_over else ""
        return f"{failed.key} failed: {failed.why}{when}."

    def _score(self, result: EvaluationResult) -> str:
        found = result.score
        shown = f"{found.accuracy:.3f} over {found.samples} samples" if found else "not shown"
        return f"Accuracy {shown} on {self._whose(result)} ({_moment_text(result.at)}): {result.message}."

    def _whose(self, result: EvaluationResult) -> str:
        if not self.template:
            return f"pod template {result.configuration}"
        return "this pod template" if result.configuration == self.template else "another pod template"

    def _score_as_json(self, result: EvaluationResult) -> dict[str, Any]:
        found = result.score
        return {
            "at": _moment_text(result.at),
            "template": result.configuration,
            "isOfPresentTemplate": result.configuration == self.template if self.template else None,
            "evaluation": result.evaluation,
            "accuracy": found.accuracy if found else None,
            "samples": found.samples if found else None,
            "refused": result.refused,
            "message": result.message,
        }


def fixes_of(record: Record | None, template: str, generation: int) -> ShownFixes:
    """Return what a record holds of the fix after the method."""
    known = record or Record()
    scores = tuple(sorted(known.scores, key=lambda each: each.at, reverse=True))
    return ShownFixes(known.turned_off, known.failed_fixes, scores, template, generation)


def _moment_text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def runbook_switch_as_text(record: Record) -> Iterator[str]:
    """Yield the newest switch of the runbooks as one line; nothing where there was none."""
    for switch in record.runbook_switches[:1]:
        yield (
            f"{switch.from_runbook} handed the fleet to {switch.to_runbook} ({_moment_text(switch.at)}, "
            f"pod template {switch.template}): {switch.message.rstrip('.')}."
        )


def runbook_switch_as_json(record: Record | None) -> dict[str, Any] | None:
    """Return the newest switch of the runbooks for a program; None: there was none."""
    if record is None or not record.runbook_switches:
        return None
    switch = record.runbook_switches[0]
    return {
        "from": switch.from_runbook,
        "to": switch.to_runbook,
        "reason": str(switch.reason),
        "template": switch.template,
        "generation": switch.generation,
        "at": _moment_text(switch.at),
        "message": switch.message,
    }


_BACK = Remedy(
    "to roll the open change back",
    "kvmedic rollback $name -n $namespace --run $run",
)
_KEEP = Remedy(
    "to keep the open change without a verdict",
    "kvmedic keep $name -n $namespace --run $run",
)
_NOBODY = Remedy("to see whether the operator runs", "kubectl -n $operator logs deployment/kvmedic")


@dataclass(frozen=True, slots=True)
class Place:
    """The operator's own names, for what to type."""

    namespace: str
    stop: str


def command(name: str, namespace: str, context: str, kubeconfig: str, verbose: bool, output: Form) -> None:
    """Print the sentences."""
    settings, cluster = settings_with(), ClusterChoice(kubeconfig, context)
    which = name_in(cluster, namespace, name)

    async def look() -> tuple[Resource, str]:
        async with open_connections(settings, cluster) as world:
            resource = await load_resource(world.client, which)
            record = resource.record
            asked = record is not None and bool(record.answers or record.scores)
            return resource, await template_of(world, resource) if asked else ""

    place = Place(settings.process.namespace, settings.process.stop)
    resource, template = finish_look(look())
    trial = trial_of(resource.record, template)
    fixes = fixes_of(resource.record, template, resource.generation)
    if output is Form.JSON:
        print(json.dumps(as_json(resource, place, trial, fixes), indent=2))
    else:
        show_text(explain_resource(resource, place, report_tried(trial, fixes, verbose), verbose))


def report_tried(trial: ShownTrial | None, fixes: ShownFixes, whole: bool) -> Iterator[str]:
    """Yield what trials and the fix after the method came to, and only where it is asked for on what."""
    if trial is not None:
        yield from trial.as_text() if whole else (trial.sentence(),)
    yield from fixes.as_text() if whole else fixes.turned_off_as_text()


def as_json(resource: Resource, place: Place, trial: ShownTrial | None, fixes: ShownFixes) -> dict[str, Any]:
    """Return what there is to say for a program: sentences, the trial's readings, scores, the switch."""
    tried = (*((trial.sentence(),) if trial else ()), *fixes.as_text())
    return {
        "namespace": resource.namespace,
        "name": resource.name,
        "sentences": list(explain_resource(resource, place, tried)),
        "trial": trial.as_json() if trial else None,
        "turnedOff": fixes.turned_off_as_json(),
        "scores": fixes.scores_as_json(),
        "runbookSwitch": runbook_switch_as_json(resource.record),
    }


def explain_resource(
    resource: Resource, place: Place, tried: Iterable[str] = (), whole: bool = True
) -> Iterator[str]:
    """Yield what there is to say about a resource, one paragraph a line: the state and why it is so first,
    then on what that rests, and what to type last.

    Args:
        tried: what there is to say about trials and the fix after the method, line by line.
        whole: also each change that did not help; else that there are some.
    """
    yield f"KVRemediation {resource.namespace}/{resource.name}: {state_of(resource)}."
    record = resource.record
    if resource.problem is not None:
        yield f"It does nothing: {resource.problem.reason}: {resource.problem.message}."
    if record is not None:
        yield from _run(record.run) if record.run else _describe_idle(record)
        yield from _describe_evidence(record)
    yield _task(resource)
    if record is not None:
        yield from runbook_switch_as_text(record)
        yield from tried
        yield from _memory(record)
        yield from _describe_failed_attempts(record) if whole else _name_left_out(record)
    yield from _next(resource, place)


def _task(resource: Resource) -> str:
    policy = resource.policy
    if policy is None:
        return "Its spec is invalid."
    allowed = [str(lever.knob) for lever in policy.levers]
    allowed += ["scaleOut"] * (policy.scale_out is not None)
    allowed += ["revisionRollback"] * policy.rollback.is_allowed
    levers = ", ".join(allowed) or "none"
    held = " It is suspended." if policy.suspended else ""
    return (
        f"It watches {policy.target.kind} {policy.target.name} in mode {policy.mode}; allowed levers: "
        f"{levers}.{held}"
    )


def _describe_evidence(record: Record) -> Iterator[str]:
    shown = record.diagnosis
    if shown is None:
        yield "The operator has not looked at the fleet yet."
        return
    yield f"It sees {shown.reason} ({shown.at:%Y-%m-%dT%H:%M:%SZ}, {shown.runbook}): {shown.message}"
    if record.urgency is not None:
        urgent = record.urgency
        yield f"That is a {urgent.severity} since {urgent.since:%Y-%m-%dT%H:%M:%SZ}: {urgent.message}."
    metrics = record.condition(ConditionType.METRICS_AVAILABLE)
    if metrics is not None and metrics.status is not Truth.TRUE:
        yield f"Metrics are incomplete: {metrics.reason}: {metrics.message}"


def _run(run: Run) -> Iterator[str]:
    yield f"Run {run.id} is open since {run.started_at:%Y-%m-%dT%H:%M:%SZ} ({run.reason}): {run.message}."
    for record in run.steps:
        judged = f", judged {record.verdict}" if record.verdict else ""
        yield f"  {record.step.line()}: {record.state}{judged}. {record.message}".rstrip()
        if record.comparison is not None:
            found, since = record.comparison, record.comparison.since
            yield f"  beside old replicas since {since:%Y-%m-%dT%H:%M:%SZ}: {found.state}. {found.message}"
    yield from _replicas(run)
    if run.ending is not None:
        yield f"It ends as {run.ending.reason}: {run.ending.message}"


def _replicas(run: Run) -> Iterator[str]:
    """Yield how many replicas of a run are changed, and a table of those that it moves right now."""
    yield f"  changed {changed_replicas(run)} of {run.replicas} replicas"
    comparison = run.current.comparison
    rows = [
        *((each.name, _rotation_text(each)) for each in run.draining_pods),
        *(
            (each.name, f"back in rotation, as its drain timed out after {format_duration(each.after)}")
            for each in run.timed_out
        ),
        *((name, "new, looked at beside old ones") for name in (comparison.pods if comparison else ())),
    ]
    width = max((len(name) for name, _ in rows), default=0)
    yield from (f"    {name:<{width}}  {state}" for name, state in rows)


def _rotation_text(draining_pod: DrainingPod) -> str:
    if draining_pod.out_at is None:
        return f"taken out of rotation since {_moment_text(draining_pod.cordoned_at)}"
    return f"out of rotation since {_moment_text(draining_pod.out_at)}, finishes its requests"


def _describe_idle(record: Record) -> Iterator[str]:
    yield "No run is open."
    if record.plan is not None:
        steps = "; ".join(record.plan.steps)
        yield f"It would do: {steps} (digest {record.plan.digest}), because {record.plan.message}."
    why = _why_nothing_is_done(record)
    if why is not None:
        yield f"It does not act: {why.reason}: {why.message}"


def _why_nothing_is_done(record: Record) -> Condition | None:
    """Return the condition that says why nothing is done, or None where there is nothing to do."""
    found = record.condition(ConditionType.PROGRESSING)
    if found is None or found.reason in (Reason.NO_RUN, Reason.NOTHING_TO_DO):
        return None
    return found


def _describe_temporary_change(each: TemporaryChange) -> Iterator[str]:
    """Yield what stays for a while, and what it waits for."""
    calm = f"calm since {each.calm_since:%Y-%m-%dT%H:%M:%SZ}" if each.calm_since else "not calm yet"
    yield f"Temporary change: {each.line()}; {calm}."
    if each.outlook and each.looked_at:
        what = "Would fewer replicas suffice" if each.adds_replicas else "Could the fleet do without it"
        yield f"  {what} ({each.looked_at:%Y-%m-%dT%H:%M:%SZ})? {each.outlook}."


def _memory(record: Record) -> Iterator[str]:
    yield from _describe_temporary(record)
    if record.history:
        last = record.history[0]
        steps = "; ".join(last.steps)
        yield f"The last run {last.id} ended {last.ended_at:%Y-%m-%dT%H:%M:%SZ} as {last.outcome}: {steps}."
        yield f"  {last.outcome.sentence} {last.message}".rstrip()
    if record.summary is not None:
        yield f"Result of run {record.summary.run}: {record.summary.sentence}"


_UNTIL = {
    Attempt.TURN_LEVER: "with this template, these lengths and this pool",
    Attempt.RAISE_MEMORY: "with this template, these lengths and this pool",
    Attempt.RAISE_CAP: "with this template, these lengths and this pool",
    Attempt.REPLACE_REPLICA: "with this template and as many replicas",
    Attempt.ROLL_BACK_REVISION: "from this template",
    Attempt.SWITCH_METHOD: "on this template",
    Attempt.ADD_REPLICAS: "from as many replicas with this template",
    Attempt.GIVE_BACK: "before a clearly lighter load, other lengths or another template",
}
"""On what evidence an attempt is not made again."""


def _name_left_out(record: Record) -> Iterator[str]:
    """Yield what `-v` shows beside; nothing where it shows no more."""
    kinds = {
        "changes that did not help": bool(_attempts(record) or record.oom_shares),
        "readings of trials": any(each.seen or each.prompts for each in record.answers),
        "scores": bool(record.scores),
    }
    if any(kinds.values()):
        yield f"With -v also: {', '.join(kind for kind, is_there in kinds.items() if is_there)}."


def _attempts(record: Record) -> list[FailedAttempt]:
    """Return what is not tried again; fixes are shown with the method that they follow."""
    return [one for one in record.failed_attempts if one.attempt is not Attempt.FIX]


def _describe_failed_attempts(record: Record) -> Iterator[str]:
    """Yield what is not tried again."""
    for one in _attempts(record):
        when = f"({one.at:%Y-%m-%dT%H:%M:%SZ}, pod template {one.template})"
        yield f"{one.change} was tried {when}: {one.why}; not tried again {_UNTIL[one.attempt]}."
    for share in record.oom_shares:
        yield (
            f"A GPU ran out of memory at a share of {share.share:g} ({share.at:%Y-%m-%dT%H:%M:%SZ}); it "
            "is not raised to that share again with this image, these devices and volumes."
        )


def _describe_temporary(record: Record) -> Iterator[str]:
    """Yield what is there for a time and goes again."""
    for each in record.temporary:
        yield from _describe_temporary_change(each)
    for copy in record.copies:
        yield f"ConfigMap {copy.name} is kvmedic's own copy; it is removed when nothing uses it any more."


def _next(resource: Resource, place: Place) -> Iterator[str]:
    """Yield what a person may type."""
    record = resource.record
    run = record.run if record else None
    names = {
        "namespace": resource.namespace,
        "name": resource.name,
        "run": run.id if run else "",
        "digest": record.plan.digest if record and record.plan else "",
        "target": resource.policy.target.name if resource.policy else "",
        "kind": resource.policy.target.kind if resource.policy else "Deployment",
        "operator": place.namespace,
        "stop": place.stop,
    }
    for remedy in dict.fromkeys(_advice(resource, record)):
        yield f"{remedy.purpose[0].upper()}{remedy.purpose[1:]}:  {remedy.write_command(names)}"


def _advice(resource: Resource, record: Record | None) -> Iterator[Remedy]:
    if record is not None and record.run is not None:
        yield _BACK
        step = record.run.current
        waits = step.comparison is not None and not step.comparison.is_decided
        if step.state is StepState.VERIFYING or (waits and step.state is StepState.ROLLING_OUT):
            yield _KEEP
    reasons = [resource.problem.reason] if resource.problem else []
    if record is not None:
        reasons += [why.reason] if (why := _why_nothing_is_done(record)) else []
        action = record.condition(ConditionType.ACTION_REQUIRED)
        reasons += [action.reason] if action and action.status is Truth.TRUE else []
        diagnosed = record.condition(ConditionType.DIAGNOSED)
        reasons += [diagnosed.reason] if diagnosed and diagnosed.status is Truth.UNKNOWN else []
        if not record.conditions:
            yield _NOBODY
    yield from (reason.remedy for reason in dict.fromkeys(reasons) if reason.remedy is not None)
    yield LOOK
