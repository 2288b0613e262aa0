"""The next move of an evaluation on a trial pod, from what is seen of it; pure.

Whoever dies in the middle: pod and Job are found by their names, and the Job keeps what the pod had done
before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from kvmedic.core.accuracy import Evaluation, JobEnd, NotPassed, score_of
from kvmedic.core.fleet import Pod
from kvmedic.core.gating import Counted, GateStep, JobSight, Served
from kvmedic.core.last_words import NO_WORDS, LastWords, ended_by_itself, told_of_end
from kvmedic.core.moves import Failed, Wait
from kvmedic.core.reasons import Reason
from kvmedic.core.run import Run
from kvmedic.core.scored import Scored
from kvmedic.core.starting import StartLimits
from kvmedic.core.trial_moves import MakeTrial, trial_start


@dataclass(frozen=True, slots=True)
class GateSight:
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


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The evaluation came to its end."""

    scored: Scored


GateMove: TypeAlias = MakeTrial | MakeJob | Evaluated | Wait | Failed


def gate_move(sight: GateSight, step: GateStep, run: Run, limits: StartLimits, now: datetime) -> GateMove:
    """Return the next move of an evaluation.

    Args:
        sight: pod and Job as they are.
        step: what is asked.
        run: of the step.
        limits: how long a replica may take to start, and to be scheduled.
        now: the time.
    """
    if now - run.started_at > timedelta(seconds=step.limit_seconds):
        late = JobSight(JobEnd.LATE, "", Counted(0, 0.0))
        return Evaluated(_scored(late, None, step, run, now))
    toward = _of_pod(sight, step, run, limits, now)
    if toward is not None:
        return toward
    if sight.served is None or isinstance(sight.served, str):
        return Wait(
            Reason.AWAITING_EVALUATION, f"the trial pod does not tell yet: {sight.served or 'starts'}"
        )
    if doubt := _other_cache(step, sight.served):
        return Failed(Reason.TRIAL_UNANSWERED, doubt)
    if sight.job is None:
        return MakeJob(sight.served)
    if sight.job.end is None:
        done = _roughly(sight.served.counted.requests - sight.job.before.requests)
        text = f"CronJob/{step.cron_job} evaluates the trial pod: {done} requests or more are answered"
        return Wait(Reason.AWAITING_EVALUATION, text)
    return Evaluated(_scored(sight.job, sight.served.counted, step, run, now))


def _of_pod(
    sight: GateSight, step: GateStep, run: Run, limits: StartLimits, now: datetime
) -> GateMove | None:
    """Return the next move toward a trial pod that is Ready, or what its end shows; None where it is Ready.

    An end by itself is on record: whatever ended the engine would do so again.
    """
    pod = sight.pod
    if pod is None or not ended_by_itself(pod):
        return trial_start(pod, limits, now)
    refused = step.change is not None and bool(sight.words.refusal)
    words = sight.words if refused else replace(sight.words, refusal="")
    message = f"{step.subject}: {told_of_end(pod, words)}"
    scored = Scored(step.tried, step.evaluation, message, now, run.spec_generation, refused=refused)
    return Evaluated(scored)


def _roughly(requests: int) -> int:
    """Return a number by its first digit, so that what is told of it changes seldom."""
    unit = int(10 ** (len(str(max(0, requests))) - 1))
    return max(0, requests) // unit * unit


def _other_cache(step: GateStep, served: Served) -> str:
    """Return that the trial pod does not store as the step wants it; empty where it does."""
    if not step.cache_types or served.cache_type.startswith(step.cache_types):
        return ""
    stores = (
        f"stores keys and values as {served.cache_type}" if served.cache_type else "does not tell its type"
    )
    return (
        f"the trial pod {stores}, and {step.subject} was asked for: see whether model and device support it"
    )


def _scored(job: JobSight, after: Counted | None, step: GateStep, run: Run, now: datetime) -> Scored:
    """Return the outcome of an evaluation that ended."""
    requests = None if after is None else after.requests - job.before.requests
    tokens = (after.tokens - job.before.tokens) / requests if after and requests else None
    found = score_of(Evaluation(job.end or JobEnd.LATE, job.message, requests, tokens), step.budget)
    name = f"CronJob/{step.cron_job} on a trial pod with {step.subject}"
    score = None if isinstance(found, NotPassed) else found
    told = found.why if isinstance(found, NotPassed) else f"{found.accuracy:.3f} over {found.samples} samples"
    return Scored(step.tried, step.evaluation, f"{name}: {told}", now, run.spec_generation, score)
