"""Temporary changes, restored: whose turn it is, whether the fleet does without, and the plan.

Would the fleet carry the load as it is now with less? Asked of a calm one that has something for a while.

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

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf, sqrt

from kvmedic.manifests.flags import remove_flag
from kvmedic.manifests.refusal import Refusal
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked, Inconclusive, Signal
from kvmedic.model.fleet import Fleet, template_hash
from kvmedic.model.plan import FlagStep, Plan, ReplicasStep
from kvmedic.model.readings import Complete, complete, total
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import RESTORE_AFTER, Policy
from kvmedic.model.status import Attempt, FailedAttempt, Load, Record, TemporaryChange, failed_before
from kvmedic.runbooks.branches import Assignment, Evidence, NoChange, Resize, Setting
from kvmedic.runbooks.fleet_plans import plan_for
from kvmedic.runbooks.planning import as_written, plan_of
from kvmedic.runbooks.preemption.memory_levers import HOST_KNOBS
from kvmedic.runbooks.preemption.pressure import size_fleet
from kvmedic.runbooks.preemption.temporary_changes import SetValue, is_unchanged_number, is_value, step_back
from kvmedic.runbooks.workload import Workload, fault_of
from kvmedic.verdict.baseline import quorum_line
from kvmedic.verdict.comparison import LENGTHS_ALIKE, LIGHTER, QUEUED
from kvmedic.verdict.sizing import MOST_PREFILL, SAFEST_FIT, cap_at

NEEDED = frozenset({Signal.RUNNING_MEAN, Signal.RUNNING_MAX, Signal.WAITING_MEAN, Signal.GENERATED_TOKENS})
"""Signals that the question needs of every replica."""


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


@dataclass(frozen=True, slots=True)
class _Seen:
    """A calm fleet all of whose replicas tell what is needed."""

    evidence: Evidence
    found: Mapping[str, Complete]
    carried: Carried


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


@dataclass(frozen=True, slots=True)
class Fits:
    """The fleet is predicted to carry its load without a setting."""

    message: str
    """One sentence with the numbers behind it."""


def fewer_replicas(
    evidence: Evidence, held: TemporaryChange, setting: Setting, template: str
) -> Resize | NoChange:
    """Return the fewest replicas that are predicted to carry the load, or why fewer are not.

    Args:
        evidence: both looks at the calm fleet.
        held: what was added.
        setting: the present setting.
        template: hash of the pod template that runs now.
    """
    seen = _present_load(evidence)
    if isinstance(seen, NoChange):
        return seen
    now = seen.carried
    if now.at_once <= held.fewest:
        text = f"{now.at_once:.0f} sequences ran or waited at once, no more than {held.fewest} replicas"
        return Resize(held.fewest, Reason.REPLICAS_GIVEN_BACK, text)
    room = _room(seen, setting)
    return room if isinstance(room, NoChange) else _fewest(now, held, room, template)


def without_host_memory(
    evidence: Evidence, held: TemporaryChange, setting: Setting, template: str, failed: FailedAttempt | None
) -> Fits | NoChange:
    """Return whether the load is predicted to fit the devices alone, or why it is not.

    Args:
        evidence: both looks at the calm fleet.
        held: the setting.
        setting: the present setting.
        template: hash of the pod template that runs now.
        failed: the way back that did not hold on this template; None: none was tried.
    """
    seen = _present_load(evidence)
    if isinstance(seen, NoChange):
        return seen
    now = seen.carried
    tried = None if failed is None or _is_lighter(now, failed) else failed
    if now.at_once <= now.replicas and tried is None:
        return Fits(f"{now.at_once:.0f} sequences ran or waited at once on {now.replicas} replicas")
    room = _room(seen, setting)
    if isinstance(room, NoChange):
        return room
    if tried is not None and (tried.load is None or room.is_like(tried.load)):
        why = f"restoring it did not hold at {tried.at:%Y-%m-%dT%H:%M:%SZ}, and load and template are as then"
        return NoChange(Reason.TEMPORARY_CHANGE_HELD, why)
    running = _alone(now, held, room, template)
    if running is None:
        why = "the load is too near to what the fleet could not carry without it, or nobody can tell"
        return NoChange(Reason.TEMPORARY_CHANGE_HELD, why)
    told = f"without it {_expected_without(now.replicas, running, room)}"
    return Fits(told) if _peak(running) <= room.sequences else NoChange(Reason.TEMPORARY_CHANGE_HELD, told)


def _is_lighter(now: Carried, failed: FailedAttempt) -> bool:
    """Return whether the load is clearly lighter than when restoring it did not hold."""
    return failed.load is not None and _share(now, failed.load) <= LIGHTER


def failed_restore(record: Record, held: TemporaryChange, template: str) -> FailedAttempt | None:
    """Return the way back of this very setting that did not hold on a pod template; None: none was tried."""
    failed = failed_before(record.failed_attempts, Attempt.GIVE_BACK, held.knob, template)
    return failed if failed is not None and failed.at >= held.at else None


def _alone(now: Carried, held: TemporaryChange, room: Room, template: str) -> float | None:
    """Return how many sequences each replica would run without it, at most; None where nobody can tell."""
    load = held.load if _template(held) == template else None
    each = now.running / now.replicas
    if load is not None and room.is_like(load) and load.tokens_per_second > 0:
        share = _share(now, load)
        return max(each, load.running * share) if share <= LIGHTER else None
    return _running_if_stretched(each, 1 + room.prompt_tokens / max(1.0, room.output_tokens))


def _share(now: Carried, load: Load) -> float:
    """Return what a replica generates now over what one generated then; infinite where that was nothing."""
    then = load.tokens_per_second
    return now.tokens_per_second / now.replicas / then if then > 0 else inf


def _present_load(evidence: Evidence) -> _Seen | NoChange:
    """Return what the fleet carries now, or why nobody can tell."""
    if evidence.left_out:
        line = quorum_line(len(evidence.burn.pods), evidence.left_out)
        return NoChange(Reason.TEMPORARY_CHANGE_HELD, f"{line}: nobody knows what these carry")
    found = complete(evidence.sizing, NEEDED)
    if isinstance(found, Inconclusive):
        return NoChange(found.reason, found.message)
    return _Seen(evidence, found, _carried_load(found, evidence.sizing.window_seconds))


def _carried_load(found: Mapping[str, Complete], window_seconds: float) -> Carried:
    return Carried(
        replicas=len(found),
        running=total(found, Signal.RUNNING_MEAN),
        waiting=total(found, Signal.WAITING_MEAN),
        at_once=total(found, Signal.RUNNING_MAX) + total(found, Signal.WAITING_MEAN),
        tokens_per_second=total(found, Signal.GENERATED_TOKENS) / window_seconds,
    )


def _room(seen: _Seen, setting: Setting) -> Room | NoChange:
    """Return what a replica holds; why nothing is given back where requests wait, or nobody can tell."""
    now = seen.carried
    if now.waiting >= QUEUED * now.replicas:
        return NoChange(
            Reason.TEMPORARY_CHANGE_HELD, f"{now.waiting:.0f} requests wait on {now.replicas} replicas"
        )
    case = size_fleet(seen.evidence, seen.found)
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    seats = cap_at(case.blocks, case.sequence, SAFEST_FIT)
    if setting.max_num_seqs is not None:
        seats = min(seats, setting.max_num_seqs)
    engines = min(readings.engines for readings in seen.evidence.sizing.pods.values())
    return Room(float(seats * engines), case.prompt_tokens, case.output_tokens)


def _fewest(now: Carried, held: TemporaryChange, room: Room, template: str) -> Resize | NoChange:
    said = ""
    for replicas in range(held.fewest, now.replicas):
        running = _running_per_replica(
            now, held.load if _template(held) == template else None, room, replicas
        )
        said = said or _load_text(replicas, running, room)
        if running is not None and _peak(running) <= room.sequences:
            return Resize(replicas, Reason.REPLICAS_GIVEN_BACK, _load_text(replicas, running, room))
    return NoChange(Reason.TEMPORARY_CHANGE_HELD, said)


def _load_text(replicas: int, running: float | None, room: Room) -> str:
    if running is None:
        return f"the load is too near to what {replicas} replicas could not carry, or nobody can tell"
    return _expected_without(replicas, running, room)


def _expected_without(replicas: int, running: float, room: Room) -> str:
    return (
        f"{replicas} replicas would run {running:.1f} sequences each, up to {_peak(running):.0f} at once, "
        f"and have room for {room.sequences:.0f}"
    )


def _peak(running: float) -> float:
    """Return how many run at once 9 times in 10, where their mean is known and they come at random."""
    return running + SAFEST_FIT * sqrt(running)


def _running_per_replica(now: Carried, load: Load | None, room: Room, replicas: int) -> float | None:
    """Return how many sequences each of so many replicas would run, at most; None where nobody can tell."""
    if load is not None and room.is_like(load) and load.tokens_per_second > 0:
        share = now.tokens_per_second / replicas / load.tokens_per_second
        return load.running * share if share <= LIGHTER else None
    return _running_if_stretched(now.running / replicas, now.replicas / replicas)


def _running_if_stretched(running: float, more: float) -> float | None:
    """Return how many sequences run where steps have so many times the work; None where nobody can tell."""
    if MOST_PREFILL * more >= 1:
        return None
    return running * (1 - MOST_PREFILL) / (1 - MOST_PREFILL * more)


@dataclass(frozen=True, slots=True)
class CalmFleet:
    """A calm fleet that is asked whether it would do with less."""

    evidence: Evidence
    """Both looks at it."""
    fleet: Fleet
    workload: Workload
    """The engine in its pod template."""
    setting: Setting
    record: Record


@dataclass(frozen=True, slots=True)
class Restore:
    """What becomes of a temporary change."""

    outlook: str
    """Whether the fleet does without it, for people."""
    plan: Plan | Blocked | None = None
    """What restores it, or why that cannot be carried out; None: it stays."""


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
    given = workload.given(held.knob)
    if given is None and workload.flags.config is not None:
        return SetValue.UNKNOWN
    same = given is not None and is_value(str(held.step.after), given)
    return SetValue.UNCHANGED if same else SetValue.CHANGED


def plan_restore(held: TemporaryChange, asked: CalmFleet, generation: int) -> Restore:
    """Return what becomes of a change that is due; `generation`: of the spec."""
    evidence, fleet, setting, step = asked.evidence, asked.fleet, asked.setting, held.step
    if isinstance(step, ReplicasStep):
        advice = fewer_replicas(evidence, held, setting, fleet.revision)
        if isinstance(advice, NoChange):
            return Restore(advice.message)
        back = step_back(step, held.fewest, advice.replicas, fleet.revision)
        return Restore(advice.message, plan_for(fleet, back, advice, generation))
    failed = failed_restore(asked.record, held, fleet.revision)
    found = without_host_memory(evidence, held, setting, fleet.revision, failed)
    if isinstance(found, NoChange):
        return Restore(found.message)
    return Restore(found.message, restore_setting(asked.workload, step, found.message, generation))


def restore_setting(workload: Workload, step: FlagStep, message: str, generation: int) -> Plan | Blocked:
    """Return the plan that puts a flag's recorded value back, or why it cannot be carried out.

    It is made anew and not by `step.inverse()`: somebody may have edited the template since.
    """
    reason = Reason.HOST_MEMORY_GIVEN_BACK
    if step.before is not None:
        return plan_of(workload, Assignment(step.knob, step.before, reason, message), generation)
    removal = _removal(workload, step.knob)
    if isinstance(removal, Blocked):
        return removal
    return Plan((removal,), workload.target_uid, removal.before_template, generation, reason, message)


def _removal(workload: Workload, knob: Knob) -> FlagStep | Blocked:
    flag = workload.engine.profile.flag(knob)
    if flag is None:
        return Blocked(Reason.FLAG_UNKNOWN_TO_ENGINE, f"{workload.engine.profile.name} has no {knob}")
    index, line = workload.container_index, workload.line
    change = remove_flag(workload.container, index, flag, workload.engine, line)
    if isinstance(change, Refusal):
        return fault_of(change)
    return FlagStep(
        target=workload.target,
        container=change.container,
        knob=knob,
        edit=change,
        before=as_written(workload.given(knob)),
        after=None,
        before_template=template_hash(workload.template),
        after_template=template_hash(change.apply(workload.template)),
        reason=Reason.HOST_MEMORY_GIVEN_BACK,
    )


def _template(held: TemporaryChange) -> str:
    """Return the hash of the pod template with a change."""
    return held.step.template if isinstance(held.step, ReplicasStep) else held.step.after_template
