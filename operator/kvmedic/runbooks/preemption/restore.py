"""Temporary changes: what is kept of them when a run is closed, and when and how each is restored.

A temporary change outlives the run that made it: the run is judged and closed, and what it added or set stays
until the fleet is predicted to do without. Closing the run and noting the change are one write of the status,
so it is restored whichever process dies meanwhile. It counts only while number or flag are as they were set:
what somebody else set is theirs, and the change is forgotten.

Would a calm fleet carry the load as it is now with less?

Replicas that were added: fewer carry more each, so each runs more sequences at once. How many, at most:

* Where pod template and lengths are as they were when replicas had to be added, that is measured: each ran
  R sequences then and generated T tokens per second. Tokens per second rise with the sequences that run
  at once, ever more slowly, so for a share x of T no more than x R sequences run. Fewer must carry
  clearly less than what was too much for them then.
* Where the configuration or the lengths moved, nothing of then counts. With r times the load a replica
  runs more than r times the sequences, because each step takes longer; at most `MOST_PREFILL` of a step
  depends on how many they are, so at most r (1 - f) / (1 - f r) times.

Memory of the host: as many replicas have the same room on their devices. How many run, at most:

* Where nothing moved since, it is the same measure: each ran R sequences *without* it.
* Otherwise a step computes again what is fetched now. Of a request that is at most its prompt, so a step has
  at most 1 + P/O times the tokens, and as many times longer latencies follow as above, with r = 1 + P/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from math import inf, sqrt
from typing import assert_never

from kvmedic.model.engine import Knob, Scalar
from kvmedic.model.evidence import Blocked, Inconclusive, Signal
from kvmedic.model.fleet import Fleet
from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    Plan,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    TrialStep,
)
from kvmedic.model.readings import gather_values, total
from kvmedic.model.reasons import Reason, Trait
from kvmedic.model.run import Outcome, Run, StepState
from kvmedic.model.spec import RESTORE_AFTER, Policy
from kvmedic.model.status import Attempt, FailedAttempt, Load, Record, TemporaryChange, find_failure
from kvmedic.runbooks.branches import Assignment, Evidence, NoChange, Resize, Setting
from kvmedic.runbooks.planning import plan_for, plan_of
from kvmedic.runbooks.preemption.cap_size import MOST_PREFILL, SAFEST_FIT, cap_at, token_share
from kvmedic.runbooks.preemption.memory_levers import HOST_KNOBS
from kvmedic.runbooks.preemption.pressure import size_fleet
from kvmedic.runbooks.workload import Workload
from kvmedic.verdict.baseline import quorum_line
from kvmedic.verdict.comparison import LENGTHS_ALIKE, LIGHTER, QUEUED

MOST = 10
"""Changes that are kept: an engine has two flags for its host's memory, so more are never there."""
NEEDED = frozenset({Signal.RUNNING_MEAN, Signal.RUNNING_MAX, Signal.WAITING_MEAN, Signal.GENERATED_TOKENS})
"""Signals that a prediction needs of every replica."""


class SetValue(StrEnum):
    """Whether number or flag are as a temporary change set them."""

    UNCHANGED = "Unchanged"
    CHANGED = "Changed"
    """Somebody set another one, took the flag away, or made the target anew."""
    UNKNOWN = "Unknown"
    """The command line, or the file that it names, cannot be read now."""


def temporary_after(
    held: tuple[TemporaryChange, ...], run: Run, fleet: Fleet | None, outcome: Outcome, now: datetime
) -> tuple[TemporaryChange, ...]:
    """Return the temporary changes once a run is closed, replicas first; `fleet` None: the target is gone."""
    step = run.current.step
    match step:
        case ReplicasStep():
            mine = next((one for one in held if one.adds_replicas), None)
            number = None
            if fleet is not None and Trait.REPLICAS_TAKEN not in outcome.reason.traits:
                number = _present_number(step, fleet)
            left = None if number is None else _replicas_left(mine, run, step, number, now)
        case FlagStep():
            mine = next((one for one in held if one.knob is step.knob), None)
            left = _setting_left(mine, run, step, outcome, now)
        case BundleStep() | RevisionStep() | ReplaceStep() | TrialStep() | EvaluationStep():
            return _in_order(held)
        case _:
            assert_never(step)
    others = (one for one in held if one is not mine)
    return _in_order((*((left,) if left else ()), *others))


def _in_order(changes: Iterable[TemporaryChange]) -> tuple[TemporaryChange, ...]:
    """Return the temporary changes as they are kept: replicas first, as they are restored first."""
    return tuple(sorted(changes, key=lambda one: not one.adds_replicas))[:MOST]


def _present_number(step: ReplicasStep, fleet: Fleet) -> int | None:
    if step.holder is None:
        return fleet.replicas
    found = fleet.minimum
    return found.number if found is not None and found.uid == step.holder.uid else None


def _replicas_left(
    mine: TemporaryChange | None, run: Run, step: ReplicasStep, number: int, now: datetime
) -> TemporaryChange | None:
    """Return the change that there is with a number; None where the number is none that a run of ours set."""
    had = mine.step if mine is not None and isinstance(mine.step, ReplicasStep) else None
    before = had.before if had is not None else min(step.before, step.after)
    if not before < number <= max(step.before, step.after):
        return None
    if mine is not None and had is not None and number <= had.after:
        return with_calm(replace(mine, step=replace(had, after=number)), None)
    up = step if step.after > step.before else step.inverse()
    return TemporaryChange(
        step=replace(up, before=before, after=number, reason=Reason.REPLICAS_ADDED),
        run=run.id,
        target_uid=run.target_uid,
        at=now,
        fewest=mine.fewest if mine else run.replicas,
        load=load_of(run),
        run_spec=run.run_spec,
    )


def _setting_left(
    mine: TemporaryChange | None, run: Run, step: FlagStep, outcome: Outcome, now: datetime
) -> TemporaryChange | None:
    """Return the change that there is of a setting after a run; None: there is none."""
    state = run.current.state
    if step.reason is Reason.HOST_MEMORY_USED and state is StepState.KEPT and step.after is not None:
        return mine if outcome.reason is Reason.TARGET_DELETED else _kept_setting(mine, run, step, now)
    if step.reason is not Reason.HOST_MEMORY_GIVEN_BACK or mine is None:
        return mine
    deleted = outcome.reason is Reason.RESOURCE_DELETED
    if state is StepState.KEPT or (state is StepState.VERIFYING and deleted):
        return None
    if state is not StepState.REVERTED:
        return mine
    # For a deleted resource nothing is tried twice: what could not be restored stays, and nobody waits.
    return None if run.reason is Reason.RESOURCE_DELETED else with_calm(mine, None)


def _kept_setting(mine: TemporaryChange | None, run: Run, step: FlagStep, now: datetime) -> TemporaryChange:
    """Return a setting that was kept; one that was set in two parts goes back to what was before both."""
    load, had = load_of(run), mine.step if mine is not None else None
    if (
        mine is not None
        and isinstance(had, FlagStep)
        and had.after is not None
        and step.before is not None
        and is_value(had.after, step.before)
    ):
        load = mine.load if had.after_template == step.before_template else None
        step = replace(step, before=had.before)
    return TemporaryChange(step, run.id, run.target_uid, at=now, load=load, run_spec=run.run_spec)


def load_of(run: Run) -> Load | None:
    """Return what a replica carried before a run, on average; None where it was not measured."""
    then = run.baseline
    if then is None or then.running_mean is None:
        return None
    return Load(
        running=then.running_mean / then.replicas,
        tokens_per_second=then.generated_tokens_per_second / then.replicas,
        prompt_tokens=then.prompt_tokens_mean,
        output_tokens=then.output_tokens_mean,
    )


def is_value(text: str, given: Scalar) -> bool:
    """Return whether a text and a value say the same: 32, "32" and "32.0" do."""
    try:
        return float(text) == float(str(given))
    except ValueError:
        return text == str(given)


def is_unchanged_number(held: TemporaryChange, fleet: Fleet) -> bool:
    """Return whether the number is the one that was set, by nobody else's doing.

    Where it is an autoscaler's minimum, the fleet must have been read with it.
    """
    if fleet.uid != held.target_uid:
        return False
    step, found = held.step, fleet.minimum
    if isinstance(step, ReplicasStep) and step.holder is not None:
        return found is not None and (found.uid, found.number) == (step.holder.uid, step.after)
    return fleet.replicas == step.after and fleet.scaler is None


def step_back(step: ReplicasStep, fewest: int, replicas: int, template: str) -> ReplicasStep:
    """Return the inverse of a step that added replicas, so far that some replicas are enough.

    Where these are no more than there were before (`fewest`) the number is restored as a whole. `template` is
    the hash of the pod template that runs now.
    """
    number = step.before if replicas <= fewest else replicas
    back = replace(step.inverse(), after=number, template=template, reason=Reason.REPLICAS_GIVEN_BACK)
    if back.holder is None:
        return back
    return replace(back, holder=replace(back.holder, is_given=back.holder.is_given or number > step.before))


def with_calm(held: TemporaryChange, since: datetime | None) -> TemporaryChange:
    """Return it with since when it is calm: the earlier of what is known; None: it is not."""
    if since is None:
        return held if held.calm_since is None else replace(held, calm_since=None, outlook="", looked_at=None)
    return held if held.calm_since is not None else replace(held, calm_since=since)


def with_outlook(held: TemporaryChange, outlook: str, now: datetime, refresh: timedelta) -> TemporaryChange:
    """Return it with the newest outlook, where the present one is older than `refresh`."""
    fresh = held.looked_at is not None and now - held.looked_at < refresh
    return held if fresh or not outlook else replace(held, outlook=outlook, looked_at=now)


def due_change(
    record: Record, fleet: Fleet, policy: Policy, workload: Workload | Blocked, now: datetime
) -> TemporaryChange | None:
    """Return what may be restored now, if the fleet does without it; None: nothing.

    Replicas go first: they cost the most, and another pod template would hide what they are measured by.
    """
    for held in record.temporary:
        if state_of(held, fleet, workload) is not SetValue.UNCHANGED:
            continue
        is_due = held.is_due(restore_after(held, policy), now)
        if is_due or held.adds_replicas:
            return held if is_due else None
    return None


def restore_after(held: TemporaryChange, policy: Policy) -> timedelta:
    """Return how long it must have been calm before a change is restored."""
    if held.adds_replicas:
        return policy.scale_out.restore_after if policy.scale_out else RESTORE_AFTER
    return next((one.restore_after for one in policy.levers if one.knob in HOST_KNOBS), RESTORE_AFTER)


def state_of(held: TemporaryChange, fleet: Fleet, workload: Workload | Blocked) -> SetValue:
    """Return whether number or flag are as they were set, by what the engine is given now."""
    if held.knob is None:
        return SetValue.UNCHANGED if is_unchanged_number(held, fleet) else SetValue.CHANGED
    if fleet.uid != held.target_uid:
        return SetValue.CHANGED
    if isinstance(workload, Blocked):
        return SetValue.UNKNOWN
    given = workload.value_of(held.knob)
    if given is None and (workload.flags.config is not None or workload.gives(held.knob)):
        return SetValue.UNKNOWN
    same = given is not None and is_value(str(held.step.after), given)
    return SetValue.UNCHANGED if same else SetValue.CHANGED


@dataclass(frozen=True, slots=True)
class Fits:
    """The fleet is predicted to carry its load without a setting."""

    message: str
    """One sentence with the numbers behind it."""


def restore_advice(
    record: Record, held: TemporaryChange, evidence: Evidence, setting: Setting, template: str
) -> Resize | Fits | NoChange:
    """Return whether a calm fleet does without a change that is due; `template`: hash of what runs now."""
    if held.adds_replicas:
        return fewer_replicas(evidence, held, setting, template)
    return without_host_memory(evidence, held, setting, template, failed_restore(record, held, template))


def plan_restore(
    held: TemporaryChange, advice: Resize | Fits, fleet: Fleet, workload: Workload, generation: int
) -> Plan | Blocked:
    """Return the plan that restores a change, or why it cannot be carried out; `generation`: of the spec."""
    step = held.step
    if isinstance(step, FlagStep):
        return restore_setting(workload, step, advice.message, generation)
    replicas = advice.replicas if isinstance(advice, Resize) else held.fewest
    back = step_back(step, held.fewest, replicas, fleet.revision)
    return plan_for(fleet, back, Resize(replicas, Reason.REPLICAS_GIVEN_BACK, advice.message), generation)


def restore_setting(workload: Workload, step: FlagStep, message: str, generation: int) -> Plan | Blocked:
    """Return the plan that puts a flag's recorded value back, or why it cannot be carried out.

    It is made anew and not by `step.inverse()`: somebody may have edited the template since.
    """
    advice = Assignment(step.knob, step.before, Reason.HOST_MEMORY_GIVEN_BACK, message)
    return plan_of(workload, advice, generation)


@dataclass(frozen=True, slots=True)
class Carried:
    """What the whole fleet carries now."""

    replicas: int
    running: float
    """Sequences that run at once, on average."""
    waiting: float
    at_once: float
    """Sequences that ran or waited at once, at most."""
    tokens_per_second: float

    def share_of(self, load: Load, replicas: int) -> float:
        """Return what each of some replicas would generate over what one did then; infinite: over nothing."""
        then = load.tokens_per_second
        return self.tokens_per_second / replicas / then if then > 0 else inf


@dataclass(frozen=True, slots=True)
class Room:
    """What a replica holds, and the lengths that this was computed from."""

    sequences: float
    prompt_tokens: float
    output_tokens: float

    def is_like(self, load: Load) -> bool:
        """Return whether requests have the lengths that they had under a load."""
        pairs = ((self.prompt_tokens, load.prompt_tokens), (self.output_tokens, load.output_tokens))
        return all(min(pair) >= LENGTHS_ALIKE * max(pair) for pair in pairs)

    def holds(self, running: float | None) -> bool:
        """Return whether so many fit, where their mean is known and they come at random; None: not known."""
        return running is not None and _peak(running) <= self.sequences


def fewer_replicas(
    evidence: Evidence, held: TemporaryChange, setting: Setting, template: str
) -> Resize | NoChange:
    """Return the fewest replicas that are predicted to carry the load, or why fewer are not."""
    now = _carried_load(evidence)
    if isinstance(now, NoChange):
        return now
    if now.at_once <= held.fewest:
        message = f"{now.at_once:.0f} sequences ran or waited at once, no more than {held.fewest} replicas"
        return Resize(held.fewest, Reason.REPLICAS_GIVEN_BACK, message)
    room = _room(evidence, now, setting)
    if isinstance(room, NoChange):
        return room
    said, load = "", _load_then(held, template, room)
    for replicas in range(held.fewest, now.replicas):
        if load is not None and load.tokens_per_second > 0:
            share = now.share_of(load, replicas)
            running = load.running * share if share <= LIGHTER else None
        else:
            running = _running_if_stretched(now.running / replicas, now.replicas / replicas)
        message = f"the load is too near to what {replicas} replicas could not carry, or that is not known"
        message = message if running is None else _expected_text(replicas, running, room)
        if room.holds(running):
            return Resize(replicas, Reason.REPLICAS_GIVEN_BACK, message)
        said = said or message
    return NoChange(Reason.TEMPORARY_CHANGE_HELD, said)


def without_one_replica(evidence: Evidence, setting: Setting) -> Fits | NoChange:
    """Return whether the others are predicted to carry the load while one replica is away, or why not.

    Each of them runs more sequences then, and more than in proportion, as its steps get longer: by the share
    of a step that its tokens explain, measured where prefills show the price of a token.
    """
    now = _carried_load(evidence)
    if isinstance(now, NoChange):
        return now
    fewer = now.replicas - 1
    if now.at_once <= fewer:
        return Fits(f"{now.at_once:.0f} sequences ran or waited at once on {now.replicas} replicas")
    room = _room(evidence, now, setting)
    if isinstance(room, NoChange):
        return room
    case = size_fleet(evidence, sorted(evidence.sizing.pods))
    share = MOST_PREFILL if isinstance(case, Inconclusive) else token_share(*case.step)
    running = _running_if_stretched(now.running / fewer, now.replicas / fewer, share)
    if running is None:
        return NoChange(Reason.NO_HEADROOM, f"it is not known how long steps get on {fewer} replicas")
    expected = _expected_text(fewer, running, room)
    return Fits(expected) if room.holds(running) else NoChange(Reason.NO_HEADROOM, expected)


def without_host_memory(
    evidence: Evidence, held: TemporaryChange, setting: Setting, template: str, failed: FailedAttempt | None
) -> Fits | NoChange:
    """Return whether the load is predicted to fit the devices alone, or why it is not.

    `failed` is the way back that did not hold on this template; None: none was tried. It does not count where
    the load is clearly lighter than then.
    """
    now = _carried_load(evidence)
    if isinstance(now, NoChange):
        return now
    if failed is not None and failed.load is not None:
        failed = None if now.share_of(failed.load, now.replicas) <= LIGHTER else failed
    if now.at_once <= now.replicas and failed is None:
        return Fits(f"{now.at_once:.0f} sequences ran or waited at once on {now.replicas} replicas")
    room = _room(evidence, now, setting)
    if isinstance(room, NoChange):
        return room
    if failed is not None and (failed.load is None or room.is_like(failed.load)):
        why = (
            f"restoring it did not hold at {failed.at:%Y-%m-%dT%H:%M:%SZ}, and load and template are as then"
        )
        return NoChange(Reason.TEMPORARY_CHANGE_HELD, why)
    load, each = _load_then(held, template, room), now.running / now.replicas
    if load is not None and load.tokens_per_second > 0:
        share = now.share_of(load, now.replicas)
        running = max(each, load.running * share) if share <= LIGHTER else None
    else:
        running = _running_if_stretched(each, 1 + room.prompt_tokens / max(1.0, room.output_tokens))
    if running is None:
        why = "the load is too near to what the fleet could not carry without it, or that is not known"
        return NoChange(Reason.TEMPORARY_CHANGE_HELD, why)
    expected = f"without it {_expected_text(now.replicas, running, room)}"
    return Fits(expected) if room.holds(running) else NoChange(Reason.TEMPORARY_CHANGE_HELD, expected)


def failed_restore(record: Record, held: TemporaryChange, template: str) -> FailedAttempt | None:
    """Return the way back of this very setting that did not hold on a pod template; None: none was tried."""
    failed = find_failure(record.failed_attempts, Attempt.GIVE_BACK, held.knob, template)
    return failed if failed is not None and failed.at >= held.at else None


def _load_then(held: TemporaryChange, template: str, room: Room) -> Load | None:
    """Return the load that made the change necessary, where pod template and lengths are as then."""
    made = held.step.template if isinstance(held.step, ReplicasStep) else held.step.after_template
    load = held.load if made == template else None
    return load if load is not None and room.is_like(load) else None


def _carried_load(evidence: Evidence) -> Carried | NoChange:
    """Return what the fleet carries now, or why that is not known."""
    if evidence.left_out:
        line = quorum_line(len(evidence.burn.pods), evidence.left_out)
        return NoChange(Reason.TEMPORARY_CHANGE_HELD, f"{line}: nobody knows what these carry")
    found = gather_values(evidence.sizing, NEEDED)
    if isinstance(found, Inconclusive):
        return NoChange(found.reason, found.message)
    waiting = total(found, Signal.WAITING_MEAN)
    return Carried(
        replicas=len(found),
        running=total(found, Signal.RUNNING_MEAN),
        waiting=waiting,
        at_once=total(found, Signal.RUNNING_MAX) + waiting,
        tokens_per_second=total(found, Signal.GENERATED_TOKENS) / evidence.sizing.window_seconds,
    )


def _room(evidence: Evidence, now: Carried, setting: Setting) -> Room | NoChange:
    """Return what a replica holds; why nothing is given back where requests wait, or that is not known."""
    if now.waiting >= QUEUED * now.replicas:
        why = f"{now.waiting:.0f} requests wait on {now.replicas} replicas"
        return NoChange(Reason.TEMPORARY_CHANGE_HELD, why)
    case = size_fleet(evidence, sorted(evidence.sizing.pods))
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    if setting.max_num_seqs is None and setting.gives(Knob.MAX_NUM_SEQS):
        why = f"nobody knows the present {Knob.MAX_NUM_SEQS}, which a variable gives"
        return NoChange(Reason.PRESENT_VALUE_UNKNOWN, why)
    seats = cap_at(case.blocks, case.sequence, SAFEST_FIT)
    if setting.max_num_seqs is not None:
        seats = min(seats, setting.max_num_seqs)
    engines = min(readings.engines for readings in evidence.sizing.pods.values())
    return Room(float(seats * engines), case.prompt_tokens, case.output_tokens)


def _expected_text(replicas: int, running: float, room: Room) -> str:
    return (
        f"{replicas} replicas would run {running:.1f} sequences each, up to {_peak(running):.0f} at once, "
        f"and have room for {room.sequences:.0f}"
    )


def _peak(running: float) -> float:
    return running + SAFEST_FIT * sqrt(running)  # 9 times in 10 no more run at once


def _running_if_stretched(running: float, more: float, share: float = MOST_PREFILL) -> float | None:
    """Return how many sequences run where steps have so many times the work; None: not known.

    `share`: of a step that its tokens explain.
    """
    if share * more >= 1:
        return None
    return running * (1 - share) / (1 - share * more)
