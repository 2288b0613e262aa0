"""Requests that wait although the engines do not thrash: for the cap, for the cache, or for more replicas.

How long a request waits is what users feel, and no preemption shows it. A cap that binds beside free cache is
too low. Where the cap is what the cache holds, or the cache is full, no setting helps and the fleet is too
small. Where neither is full something else holds requests up, and nothing is changed.
"""

from __future__ import annotations

from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Signal
from kvmedic.model.readings import gather_values, number_or_none, total
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import SizedCap
from kvmedic.runbooks.branches import Assignment, Evidence, Finding, Found, NoChange, Setting, SettingAdvice
from kvmedic.runbooks.preemption.cap import (
    BINDING_SECONDS,
    RAISE_FROM,
    CapUse,
    carries,
    lasting_room,
    room_of,
    rooms_of,
)
from kvmedic.runbooks.preemption.cap_size import most_throughput
from kvmedic.runbooks.preemption.pressure import Case, most_of, size_fleet
from kvmedic.runbooks.preemption.symptoms import waiting_replicas

SEATS = frozenset({Signal.RUNNING_LOW, Signal.RUNNING_MAX})
"""What shows whether a cap binds, over each look."""
HELD_BY = SEATS | {
    Signal.WAITING_MEAN,
    Signal.KV_CACHE_USAGE_MEAN,
    Signal.PREEMPTIONS,
    Signal.REQUESTS_FINISHED,
}
"""Needed of the replicas that keep users waiting, to say what for."""
PINNED = 0.95
"""KV-cache usage, on average, from which the cache is full. It saw-tooths below 1 in thrash and averages 0.87
to 0.94 then (vLLM 0.32.0, CPU build)."""


def is_queued(evidence: Evidence) -> bool:
    """Return whether most replicas keep users waiting."""
    waiting = waiting_replicas(evidence)
    return bool(waiting) and len(waiting) >= most_of(len(evidence.burn.pods))


def find_queue(evidence: Evidence) -> Found:
    """Return the replicas that keep users waiting; inconclusive where most of them do not."""
    waiting, limit = waiting_replicas(evidence), evidence.trigger.silent_seconds
    if not waiting:
        return None
    texts = {
        name: f"requests wait {each:.1f} s on average, limit {limit:g}" for name, each in waiting.items()
    }
    if not is_queued(evidence):
        named = "; ".join(f"{name}: {text}" for name, text in texts.items())
        return Inconclusive(
            Reason.PARTIAL_PRESSURE,
            f"{len(waiting)} of {len(evidence.burn.pods)} replicas keep users waiting: {named}; what all "
            "share is not the cause: see what leads requests there",
        )
    signal = Signal.SILENT_SECONDS_HELD
    return tuple(Finding(name, signal, waiting[name], limit, text) for name, text in texts.items())


def cap_too_low(evidence: Evidence) -> Found:
    """Requests wait for the cap alone: it binds beside free cache that holds clearly more sequences."""
    found = find_queue(evidence)
    if evidence.spent is not None or not isinstance(found, tuple):
        return None if evidence.spent is not None else found
    use = cap_use(evidence)
    if isinstance(use, Inconclusive):
        return use
    if not use.binds_beside_room:
        return None
    case = size_fleet(evidence, waiting_replicas(evidence))
    if isinstance(case, Inconclusive):
        return case
    room = room_of(case)
    if room < RAISE_FROM * use.cap:
        return None
    return *found, _say_use(use, f"the cache holds {room} of these lengths")


def queue_needs_replicas(evidence: Evidence) -> Found:
    """Requests wait, and the cache is full, or the cap binds and is about what the cache holds."""
    found = find_queue(evidence)
    if not isinstance(found, tuple):
        return found
    use = cap_use(evidence)
    if isinstance(use, Inconclusive):
        return use
    if use.kv_cache_usage_ratio > PINNED:
        return *found, _say_use(use, "the cache is full")
    if use.is_taken:
        return *found, _say_use(use, "the cap is about what the cache holds")
    facts = "; ".join(f"{each.subject}: {each.text}" for each in found)
    return Inconclusive(
        Reason.QUEUE_UNEXPLAINED,
        f"{facts}; up to {use.cap} sequences run in an engine, not always, and KV-cache usage is "
        f"{use.kv_cache_usage_ratio:.2f}: look at the tokens of a step, at adapters, and at what else the "
        "engine waits for",
    )


def cap_use(evidence: Evidence) -> CapUse | Inconclusive:
    """Return how the engines that keep users waiting fare under their cap, or what is missing.

    The most that any of them ran is the cap where it binds. It must bind over the trigger's window and over
    one that is long enough for a change.
    """
    names = waiting_replicas(evidence)
    burn = evidence.burn.only(names)
    longer = burn if burn.window_seconds >= BINDING_SECONDS else evidence.sizing.only(names)
    now, before = gather_values(burn, HELD_BY), gather_values(longer, SEATS)
    if isinstance(now, Inconclusive):
        return now
    if isinstance(before, Inconclusive):
        return before
    engines = {name: pod.engines for name, pod in burn.pods.items()}
    cap = max(one.numbers[Signal.RUNNING_MAX] / engines[name] for name, one in before.items())
    low = min(
        one.numbers[Signal.RUNNING_LOW] / engines[name]
        for look in (now, before)
        for name, one in look.items()
    )
    return CapUse(
        cap=round(cap),
        seconds=longer.window_seconds,
        running_low=low,
        waiting_mean=min(one.numbers[_WAITING] / engines[name] for name, one in now.items()),
        preemptions_per_request=total(now, Signal.PREEMPTIONS)
        / max(1.0, total(now, Signal.REQUESTS_FINISHED)),
        kv_cache_usage_ratio=total(now, Signal.KV_CACHE_USAGE_MEAN) / len(now),
    )


def queue_behind(evidence: Evidence, ours: SizedCap | None, revision: str) -> str:
    """Return that most replicas keep users waiting behind a cap of ours, in one clause; empty otherwise.

    Args:
        evidence: of the look.
        ours: the cap that was kept last.
        revision: hash of the present pod template.
    """
    if ours is None or ours.revision != revision or not ours.cap.isdecimal() or not is_queued(evidence):
        return ""
    use = cap_use(evidence)
    if isinstance(use, Inconclusive) or not (use.is_taken and use.is_under(int(ours.cap))):
        return ""
    return f"requests queue behind the cap of {ours.cap} that kvmedic set at {ours.at:%Y-%m-%dT%H:%MZ}"


def raise_cap(evidence: Evidence, setting: Setting) -> SettingAdvice:
    """Return the cap that the cache holds, within the lever's bounds, or why it is not raised.

    Where it is not, more replicas are the next to be asked, if they are allowed.
    """
    case, use = size_fleet(evidence, waiting_replicas(evidence)), cap_use(evidence)
    if isinstance(case, Inconclusive):
        return NoChange(case.reason, case.message)
    if isinstance(use, Inconclusive):
        return NoChange(use.reason, use.message)
    why = _refuse_raise(case, use, setting)
    if why is not None:
        return NoChange(why.reason, why.message, passes_on=setting.scale_out is not None)
    room = room_of(case)
    cap = min(lasting_room(room, rooms_of(case, setting, room)), setting.raise_limit or 0)
    most = most_throughput(case.strain, case.sequence, case.pool_size, cap)
    enough = "enough" if carries(case, cap) else "not enough alone"
    return Assignment(
        Knob.MAX_NUM_SEQS,
        cap,
        Reason.CAP_RAISED,
        f"{_seats(case, use)}; expected: predicted at most x{most:.2f} of the tokens that are served now, "
        f"{enough} for what is offered, and shorter waits before the first token",
    )


def _refuse_raise(case: Case, use: CapUse, setting: Setting) -> NoChange | None:
    """Return why the cap is not raised, or None where it may be."""
    knob, lever, most = Knob.MAX_NUM_SEQS, setting.bound(Knob.MAX_NUM_SEQS), setting.raise_limit
    would = f"a cap of {room_of(case)} would help ({_seats(case, use)})"
    if lever is None or most is None:
        add = f"add {knob} to spec.levers" if lever is None else f"add max to {knob} in spec.levers"
        return NoChange(Reason.LEVER_NOT_ALLOWED, f"{would}; to allow it {add}")
    if setting.raise_failed:
        text = f"{knob} was raised on this revision, these lengths and this pool, and it did not help"
        return NoChange(Reason.LEVER_EXHAUSTED, text)
    if knob in setting.refused:
        return setting.refused[knob]
    if setting.most_sequences is None:
        text = f"up to {use.cap} sequences run at once, and nobody knows the present {knob}"
        return NoChange(Reason.PRESENT_VALUE_UNKNOWN, text)
    if not use.is_under(setting.most_sequences):
        text = (
            f"up to {use.cap} sequences run at once, {knob} is {setting.most_sequences}: another limit binds"
        )
        return NoChange(Reason.LEVER_WITHOUT_EFFECT, text)
    if most < RAISE_FROM * use.cap:
        return NoChange(Reason.LEVER_AT_BOUND, f"{would}; {_bound_line(lever, most)}")
    return None


def _bound_line(lever: LeverBound, most: int) -> str:
    """Return which bound a raise meets, and what to do about it."""
    if lever.maximum is not None:
        return f"max of {lever.knob} in spec.levers is {most}: raise it"
    return (
        f"there were {most} before kvmedic lowered it: to go beyond, add max to {lever.knob} in spec.levers"
    )


def _seats(case: Case, use: CapUse) -> str:
    return (
        f"{case.blocks:.0f} blocks hold {room_of(case)} sequences of {case.sequence.mean_blocks:.1f}, and "
        f"{use.cap} may run"
    )


def seats_taken(evidence: Evidence) -> int:
    """Return how many sequences run in an engine that keeps users waiting, on average; 1 at least."""
    pods = evidence.burn.only(waiting_replicas(evidence)).pods.values()
    running = sum(number_or_none(pod, Signal.RUNNING_MEAN) or 0.0 for pod in pods)
    return max(1, round(running / max(1, sum(pod.engines for pod in pods))))


def _say_use(use: CapUse, what: str) -> Finding:
    text = (
        f"up to {use.cap} sequences run in an engine while {use.waiting_mean:.0f} wait, KV-cache usage "
        f"{use.kv_cache_usage_ratio:.2f}, {use.preemptions_per_request:.2f} preemptions per request: {what}"
    )
    return Finding("fleet", Signal.RUNNING_LOW, float(use.cap), None, text)


_WAITING = Signal.WAITING_MEAN
