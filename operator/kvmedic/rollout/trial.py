"""The next move of a test on a trial pod, from what is seen of it; pure.

After a crash in the middle: the pod is found by its name and the test begins anew, within the same limit.

The next move of an evaluation on a trial pod, from what is seen of it; pure.

After a crash in the middle: pod and Job are found by their names, and the Job keeps what the pod had done
before.

What the log of an engine that ended by itself on a trial pod says of why.

A log may hold prompts and secrets. Only what the patterns of an engine's vocabulary match is kept of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from kvmedic.engines.engine_log import LINE_LENGTH
from kvmedic.model.compression import KV_HEADS, Keep
from kvmedic.model.fleet import Pod
from kvmedic.model.plan import EvaluationStep, TrialStep
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Run
from kvmedic.model.trial import (
    Answer,
    Begun,
    Counted,
    EvaluationResult,
    Growth,
    Interrupted,
    JobEnd,
    JobSight,
    Progress,
    Prompted,
    Question,
    Reclaim,
    Sample,
    Served,
    Shown,
    Underway,
    Watched,
)
from kvmedic.rollout.moves import Failed, Settled, Wait
from kvmedic.rollout.preconditions import find_trial_blocker
from kvmedic.rollout.start_failure import StartLimits, start_failure
from kvmedic.rollout.steps import StepRow
from kvmedic.runbooks.compression.accuracy import Evaluation, NotPassed, score_of
from kvmedic.runbooks.compression.probes import (
    Generation,
    GrowthJudged,
    Judged,
    Reclamation,
    Unjudged,
    judge,
    judge_prompts,
)


@dataclass(frozen=True, slots=True)
class LastWords:
    """What is known of an end beside what the kubelet says."""

    refusal: str = ""
    """The phrase with which the engine refuses a type of its KV cache; empty: it does not, or the log was
    not read."""
    trouble: str = ""
    """Why the log could not be read; empty where it was."""


NO_WORDS = LastWords()


def refusal_in(lines: Iterable[str], refusals: Sequence[re.Pattern[str]]) -> str:
    """Return the first phrase with which an engine refuses a type of its KV cache; empty where none does.

    Args:
        lines: of its log, without those of ordinary logging.
        refusals: the phrases; the last group of a pattern is what is kept.
    """
    found = (pattern.search(line[:LINE_LENGTH]) for line in lines for pattern in refusals)
    return next((match.group(match.re.groups) for match in found if match), "")


def has_ended_by_itself(pod: Pod) -> bool:
    """Return whether a trial pod's engine ended and nobody deleted the pod."""
    return pod.has_ended and not pod.terminating


def end_message(pod: Pod, words: LastWords) -> str:
    """Return why a trial pod's engine ended, as far as it is known."""
    if words.refusal:
        return f"the engine refuses it on this hardware: {words.refusal}"
    end = pod.last_end
    said = f" (exit code {end.exit_code}, {end.reason or 'no reason given'})" if end else ""
    unread = f"; its log cannot be read: {words.trouble}" if words.trouble else ""
    return f"the trial pod ended by itself{said}{unread}"


MIB = 1 << 20
KEPT_READINGS = 24
"""Readings of a generation that stay on record: as many as show its course in a terminal's width."""


@dataclass(frozen=True, slots=True)
class TrialSight:
    """A trial as it is seen."""

    pod: Pod | None
    """None: there is none, not yet or not any more."""
    progress: Progress | None
    """None: nobody has begun the test."""
    words: LastWords = NO_WORDS
    """Of a pod that ended by itself."""


@dataclass(frozen=True, slots=True)
class MakeTrial:
    """Make the trial pod."""


@dataclass(frozen=True, slots=True)
class BeginTest:
    """Begin the test on the pod, which is Ready."""

    pod: Pod
    step: TrialStep


@dataclass(frozen=True, slots=True)
class Answered:
    """The test came to its end."""

    answer: Answer


TrialMove: TypeAlias = MakeTrial | BeginTest | Answered | Wait | Failed


def trial_move(sight: TrialSight, step: TrialStep, run: Run, limits: StartLimits, now: datetime) -> TrialMove:
    """Return the next move of a test.

    The other half of a comparison that fails is on record as one that showed nothing: what the first half
    showed does not wait for it without end.
    """
    move = _move(sight, step, run, limits, now)
    if not (isinstance(move, Failed) and step.without):
        return move
    silent = Answer(
        step.question, step.answer_template, move.message, now, run.spec_generation, beside=_beside(step)
    )
    return Answered(silent)


def _move(sight: TrialSight, step: TrialStep, run: Run, limits: StartLimits, now: datetime) -> TrialMove:
    if now - run.started_at > timedelta(seconds=step.limit_seconds):
        return Failed(Reason.TRIAL_UNANSWERED, f"no answer within {step.limit_seconds} s; {_where(sight)}")
    pod = sight.pod
    if isinstance(sight.progress, Shown):
        # It counts whatever became of the pod since: a long prompt may well be the end of an engine.
        return Answered(answer_of(sight.progress, step, run.spec_generation, now))
    if pod is not None and step.change is not None and has_ended_by_itself(pod):
        # The change under test may be what ended it, and would again: that is on record.
        return Answered(_of_end(pod, sight.words, step, run.spec_generation, now))
    waits = trial_start(pod, limits, now)
    if pod is None or waits is not None:
        return waits or MakeTrial()
    return move_of_test(sight.progress, pod, step)


def trial_start(pod: Pod | None, limits: StartLimits, now: datetime) -> MakeTrial | Wait | Failed | None:
    """Return the next move toward a trial pod that is Ready; None where it is."""
    if pod is None:
        return MakeTrial()
    if pod.has_ended or pod.terminating:
        return Failed(Reason.TRIAL_UNANSWERED, f"{pod.name} ended by itself, or someone deleted it")
    return None if pod.ready else _await_start(pod, limits, now)


def move_of_test(
    progress: Underway | Interrupted | None, pod: Pod, step: TrialStep
) -> BeginTest | Wait | Failed:
    """Return the next move of a test whose pod is ready for it and which has not come to its end."""
    match progress:
        case None:
            return BeginTest(pod, step)
        case Underway() if step.question is Question.START:
            return Wait(step.reason, f"{pod.name} started; its log and its metrics are read")
        case Underway(tokens, of):
            does = "computes prompts" if step.question is Question.PROMPTS else "generates"
            return Wait(step.reason, f"{pod.name} {does}: {10 * tokens // of * 10} % of {of} tokens")
        case Interrupted(why):
            return Failed(Reason.TRIAL_UNANSWERED, f"{pod.name}: {why}")


def answer_of(seen: Shown, step: TrialStep, generation: int, now: datetime) -> Answer:
    """Return what a test that came to its end shows; `generation`: of the spec."""
    match seen:
        case Prompted():
            return _of_prompts(seen, step, generation, now)
        case Begun():
            return _of_start(seen, step, generation, now)
        case Watched():
            return _of_blocks(seen, step, generation, now)


def judge_generation(watched: Watched, keep: Keep) -> Judged:
    """Return what a long generation shows of a method that keeps so much of a sequence."""
    seen = watched.samples, watched.generated, watched.block_tokens
    return judge(Generation(*seen, keep, KV_HEADS, watched.window))


def _of_blocks(watched: Watched, step: TrialStep, generation: int, now: datetime) -> Answer:
    found = judge_generation(watched, step.keep)
    return Answer(
        step.question,
        step.answer_template,
        message=f"on a trial pod {watched.generated} tokens {say_judged(found)}",
        at=now,
        generation=generation,
        reclaim=None if isinstance(found, Unjudged) else found.reclaim,
        seen=thin_readings(watched.samples),
        block_tokens=watched.block_tokens,
        keep=step.keep,
    )


def _of_end(pod: Pod, words: LastWords, step: TrialStep, generation: int, now: datetime) -> Answer:
    refused = bool(words.refusal)
    message, beside = end_message(pod, words), _beside(step)
    return Answer(
        step.question, step.answer_template, message, now, generation, refused=refused, beside=beside
    )


def _of_prompts(seen: Prompted, step: TrialStep, generation: int, now: datetime) -> Answer:
    found = judge_prompts(seen.before, seen.prompts, in_chunks=seen.in_chunks)
    lengths = ", ".join(str(each.tokens) for each in seen.prompts)
    shown = f"prompts of {lengths} tokens {_describe_growth(found, seen)}{_attention(seen.backends)}"
    return Answer(
        step.question,
        step.answer_template,
        message=f"{_on_pod(step)} {shown}",
        at=now,
        generation=generation,
        growth=None if isinstance(found, Unjudged) else found.growth,
        prompts=seen.prompts[-KEPT_READINGS:],
        memory_before=seen.before,
        beside=_beside(step),
        backends=seen.backends,
    )


def _of_start(seen: Begun, step: TrialStep, generation: int, now: datetime) -> Answer:
    sized = f" of {seen.block_tokens} tokens" if seen.block_tokens else ""
    typed = f"{sized}, stored as {seen.cache_type}" if seen.cache_type else sized
    return Answer(
        step.question,
        step.answer_template,
        message=f"{_on_pod(step)} there are {seen.blocks} blocks{typed}{_attention(seen.backends)}",
        at=now,
        generation=generation,
        beside=_beside(step),
        block_tokens=seen.block_tokens,
        blocks=seen.blocks,
        cache_type=seen.cache_type,
        backends=seen.backends,
    )


def _beside(step: TrialStep) -> str:
    return step.template if step.without else ""


def _on_pod(step: TrialStep) -> str:
    return f"on a trial pod without {step.method}" if step.without else "on a trial pod"


def _attention(backends: Sequence[str]) -> str:
    return f"; attention by {', '.join(backends)}" if backends else ""


def _describe_growth(found: GrowthJudged, seen: Prompted) -> str:
    if isinstance(found, Unjudged):
        return f"showed nothing: {found.why}"
    more = (max(each.used for each in seen.prompts) - seen.before) / MIB
    if found.growth is Growth.NONE:
        return f"left device memory as it was ({more:.0f} MiB more)"
    return (
        f"took {more:.0f} MiB more of device memory, which grows with the power {found.exponent:.2f} of the "
        f"prompt (1: in proportion, 2: scores are held); confidence {found.confidence:.2f}"
    )


def thin_readings(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return some of the readings, evenly over their course, the last one among them."""
    every = -(-len(samples) // KEPT_READINGS)
    return tuple(reversed(samples[::-1][::every])) if samples else ()


def say_judged(found: Judged, kept_in: str = "spec.compression.keepTokens") -> str:
    """Return what a long generation shows, with its numbers; `kept_in`: where a person says what is kept."""
    if isinstance(found, Unjudged):
        return f"showed nothing: {found.why}"
    expected = found.predicted[Reclaim.RECLAIMS]
    return (
        f"left {found.freed:.0%} of their blocks free; used blocks grow by {found.slope:.2f} of what tokens "
        f"take (where blocks come back: {expected:.2f}); the request uses {found.ratio}"
        f"{_if_budget(found, kept_in)}; confidence {found.confidence:.2f}"
    )


def _if_budget(found: Reclamation, kept_in: str) -> str:
    if found.reclaim is not Reclaim.IN_PART:
        return ""
    return f" for the tokens that its settings keep (if it keeps more, say so in {kept_in})"


def _await_start(pod: Pod, limits: StartLimits, now: datetime) -> Wait | Failed:
    failed = start_failure(pod, False, limits, now)
    if failed is not None:
        no_room = failed.reason is Reason.SPARE_UNSCHEDULABLE
        return failed if no_room else Failed(Reason.TRIAL_UNANSWERED, failed.message)
    return Wait(
        Reason.AWAITING_REPLICA, f"{pod.name} {'waits for a node' if pod.unschedulable else 'starts'}"
    )


def _where(sight: TrialSight) -> str:
    if sight.pod is None:
        return "there is no trial pod"
    if isinstance(sight.progress, Underway):
        return f"{sight.progress.tokens} of {sight.progress.of} tokens came"
    return f"{sight.pod.name} is {'' if sight.pod.ready else 'not '}Ready"


@dataclass(frozen=True, slots=True)
class EvaluationSight:
    """An evaluation as it is seen."""

    pod: Pod | None
    """None: there is none, not yet or not any more."""
    served: Served | str | None
    """What its engine says, or why that cannot be read; None: it is not Ready."""
    job: JobSight | None
    """None: there is none yet."""
    words: LastWords = NO_WORDS
    """Of a trial pod that ended by itself."""


@dataclass(frozen=True, slots=True)
class MakeJob:
    """Make the Job, for a trial pod that is Ready."""

    subject: Served
    step: EvaluationStep


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The evaluation came to its end."""

    result: EvaluationResult


EvaluationMove: TypeAlias = MakeTrial | MakeJob | Evaluated | Wait | Failed


def evaluation_move(
    sight: EvaluationSight, step: EvaluationStep, run: Run, limits: StartLimits, now: datetime
) -> EvaluationMove:
    """Return the next move of an evaluation."""
    if now - run.started_at > timedelta(seconds=step.limit_seconds):
        late = JobSight(JobEnd.LATE, "", Counted(0, 0.0))
        return Evaluated(_score_outcome(late, None, step, run, now))
    toward = _of_pod(sight, step, run, limits, now)
    if toward is not None:
        return toward
    if sight.served is None or isinstance(sight.served, str):
        return Wait(
            Reason.AWAITING_EVALUATION, f"the trial pod does not report yet: {sight.served or 'starts'}"
        )
    if doubt := _other_cache(step, sight.served):
        return Failed(Reason.TRIAL_UNANSWERED, doubt)
    if sight.job is None:
        return MakeJob(sight.served, step)
    if sight.job.end is None:
        done = _roughly(sight.served.counted.requests - sight.job.before.requests)
        text = f"CronJob/{step.cron_job} evaluates the trial pod: {done} requests or more are answered"
        return Wait(Reason.AWAITING_EVALUATION, text)
    return Evaluated(_score_outcome(sight.job, sight.served.counted, step, run, now))


def _of_pod(
    sight: EvaluationSight, step: EvaluationStep, run: Run, limits: StartLimits, now: datetime
) -> EvaluationMove | None:
    """Return the next move toward a trial pod that is Ready, or what its end shows; None where it is Ready.

    An end by itself is on record: whatever ended the engine would do so again.
    """
    pod = sight.pod
    if pod is None or not has_ended_by_itself(pod):
        return trial_start(pod, limits, now)
    refused = step.change is not None and bool(sight.words.refusal)
    words = sight.words if refused else replace(sight.words, refusal="")
    message = f"{step.subject}: {end_message(pod, words)}"
    result = EvaluationResult(step.tried, step.evaluation, message, now, run.spec_generation, refused=refused)
    return Evaluated(result)


def _roughly(requests: int) -> int:
    """Return a number by its first digit, so that a message with it changes seldom."""
    unit = int(10 ** (len(str(max(0, requests))) - 1))
    return max(0, requests) // unit * unit


def _other_cache(step: EvaluationStep, served: Served) -> str:
    if not step.cache_types or served.cache_type.startswith(step.cache_types):
        return ""
    stores = (
        f"stores keys and values as {served.cache_type}" if served.cache_type else "does not report its type"
    )
    return (
        f"the trial pod {stores}, and {step.subject} was asked for: see whether model and device support it"
    )


def _score_outcome(
    job: JobSight, after: Counted | None, step: EvaluationStep, run: Run, now: datetime
) -> EvaluationResult:
    requests = None if after is None else after.requests - job.before.requests
    tokens = (after.tokens - job.before.tokens) / requests if after and requests else None
    found = score_of(Evaluation(job.end or JobEnd.LATE, job.message, requests, tokens), step.budget)
    name = f"CronJob/{step.cron_job} on a trial pod with {step.subject}"
    score = None if isinstance(found, NotPassed) else found
    text = found.why if isinstance(found, NotPassed) else f"{found.accuracy:.3f} over {found.samples} samples"
    return EvaluationResult(step.tried, step.evaluation, f"{name}: {text}", now, run.spec_generation, score)


def trial_row() -> StepRow:
    """Return what a question to a trial pod does to the fleet: nothing. Its own moves are above."""
    return StepRow(
        find_blocker=lambda fleet, _purpose: find_trial_blocker(fleet),
        next_move=lambda _fleet, _known: Settled(),
        rest=lambda _fleet, _known: Settled(),
        leave=lambda _fleet, _known: Settled(),
    )
