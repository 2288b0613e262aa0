"""Did the change help? Compares two looks at a fleet at like load.

Three questions, all per replica: are preemptions down, are answers smoother, is throughput worth it.
Below them lie the floors (`kvmedic.verdict.floors`): whom a change keeps waiting has not recovered. What a
correctly capped, saturated replica fails by design (usage under 0.9, nothing waiting) is reported beside
the verdict and never decides it. Every threshold was fitted on simulated cuts:
`docs/explanation/verdict-thresholds.md`.

What a verdict is: one of four words, its reason, and the numbers that it rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from kvmedic.model.evidence import Inconclusive, Observation, Signal
from kvmedic.model.readings import number_or_none
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives, Trigger
from kvmedic.verdict.baseline import baseline_of
from kvmedic.verdict.floors import (
    is_broken,
    is_late,
    is_served_less,
    is_silent_for_longer,
    silent_seconds,
    stalls_by_chance,
)
from kvmedic.verdict.sizing import MOST_STALLS, STALL_SECONDS


def undecided_verdict(why: Inconclusive) -> Judged:
    """Return the verdict where something that it needs is missing."""
    return Judged(Verdict.INCONCLUSIVE, why.reason, why.message)


def not_recovered(text: str, after: Baseline | None = None) -> Judged:
    """Return the verdict that a change did not help."""
    return Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, text, after)


def restart_verdict(restarts: int, since: str = "of replicas that run the change") -> Judged | None:
    """Return the verdict on a change after which engines restarted; None where none did.

    Args:
        restarts: restarts since the change, each of which is new.
        since: which ones these are.
    """
    return not_recovered(f"{restarts} restarts {since}") if restarts > 0 else None


def figures_after(
    observation: Observation, restarts: int, since: str = "of replicas that run the change"
) -> Baseline | Judged:
    """Return a fleet's figures over the sustained window, or the verdict that needs none.

    Args:
        observation: the look over the window.
        restarts: restarts since the change, each of which is new.
        since: which ones these are.
    """
    if down := restart_verdict(restarts, since):
        return down
    after = baseline_of(observation, restarts)
    return undecided_verdict(after) if isinstance(after, Inconclusive) else after


__all__ = [
    "Baseline",
    "Change",
    "Judged",
    "Objectives",
    "Verdict",
    "baseline_of",
    "compare",
    "is_smoother",
    "judge",
    "judge_replacement",
    "serves_more",
]

CALM = 0.25
"""Preemptions per request after the change over those before, at most, for the trouble to be gone. Right
caps left 2 % of them (simulated median; 14 % at the 9th decile)."""
TRIGGER_SHARE = 0.5
"""Share of the trigger under which preemptions per request are no trouble, whatever they were before: at
the best setting 0.05 to 0.4 remain (measured on vLLM 0.32.0, CPU build)."""
SMOOTH = 0.5
"""Tail of the gaps between tokens after the change over the one before, at most. Right caps left 3 % of it
(simulated median; 20 % at the 9th decile)."""
NO_STALL_SECONDS = STALL_SECONDS / 2
"""A tail under this hangs for nobody, however it compares."""
THROUGHPUT_HELD = 0.95
"""Tokens per second after over before, from which throughput counts as held. Without any change two
windows of 10 minutes differ by up to 4 % (simulated, 3 replicas), of 5 minutes by 6 % (9th decile)."""
GOODPUT_PER_LOSS = 0.5
"""Share of goodput that must be won for each share of throughput that is lost beyond that. At 0.5 three of
1,063 simulated harmful caps (goodput under 0.95 of before) were kept, at 1 one; at 0.5 one of 255 right
caps was taken back, at 1 six."""
BETTER = 0.5
"""Preemptions per request after over before, at most, for a clear improvement. Without any change windows
of 2 minutes differed by more in 1 of 112 simulated pairs, of 5 minutes in none."""
LIGHTER = 0.8
"""Arrivals per replica after over before, under which a fleet with an empty queue has had less to do."""
HEAVIER = 1.3
"""The same, over which it has had more to do, so that a bad verdict is not the change's. Nine in ten right
caps raised the arrivals of a closed loop by less."""
QUEUED = 1.0
"""Waiting requests per replica, on average, from which demand exceeds what the fleet admits; fewer
arrivals then say nothing about the load."""
MORE = 1.1
"""Goodput after over before, from which a fleet serves clearly more: without any change two windows of 5
minutes differ by up to 6 % (simulated, 3 replicas, 9th decile)."""
LENGTHS_ALIKE = 0.8
"""Mean prompt (or output) length, the smaller over the larger, at least. A sequence that is 20 % smaller
lets 25 % more run, as much as a right cap takes away."""


GIVEN_UP = 1 - THROUGHPUT_HELD
"""By how much more of the requests may end without an answer than before: as much as throughput may fall.
A cap moves waiting in front of the first token; clients that do not wait so long are lost."""


def judge(
    before: Baseline, observation: Observation, objectives: Objectives, trigger: Trigger, restarts: int
) -> Judged:
    """Return whether a change helped.

    Args:
        before: the fleet before the change.
        observation: the look over the sustained window, at replicas that run the change only.
        objectives: service levels.
        trigger: when a replica counts as pressured.
        restarts: restarts of those replicas; each was started by the change, so each restart is new.
    """
    after = figures_after(observation, restarts)
    if isinstance(after, Judged):
        return after
    return compare(before, after, objectives, trigger)


def judge_replacement(
    before: Baseline, observation: Observation, objectives: Objectives, trigger: Trigger, restarts: int
) -> Judged:
    """Return whether the fleet is rid of the trouble that one of its replicas had.

    The fleet's figures alone would not do: one replica in ten hardly shows in them, before as after.
    So no replica may be beyond the trigger any more, whichever it is, at like load; and what the fleet
    as a whole had must be there still.

    Args:
        before: the fleet before the replacement.
        observation: the look over the sustained window, at every replica.
        objectives: service levels.
        trigger: when a replica counts as pressured.
        restarts: restarts since then.
    """
    after = figures_after(observation, restarts, "since the replacement")
    if isinstance(after, Judged):
        return after
    change = Change(before, after)
    text = change.line(objectives)
    if unlike := change.unlike():
        return _unlike(unlike, text, after)
    hot = _replicas_over_trigger(observation, trigger)
    if not hot and change.is_harmless(objectives):
        verdict = Verdict.IMPROVED if change.missed(objectives) else Verdict.RECOVERED
        return Judged(verdict, Reason(verdict.value), f"no replica is beyond the trigger; {text}", after)
    why = f"beyond the trigger: {hot}; {text}" if hot else text
    if heavier := change.heavier():
        return _unlike(heavier, why, after)
    return not_recovered(why, after)


def _replicas_over_trigger(observation: Observation, trigger: Trigger) -> str:
    """Return the replicas that preempt beyond the trigger over the whole window; empty: none does."""
    rates = {
        name: (number_or_none(pod, Signal.PREEMPTIONS) or 0.0)
        / max(1.0, number_or_none(pod, Signal.REQUESTS_FINISHED) or 0.0)
        for name, pod in sorted(observation.pods.items())
    }
    over = {name: rate for name, rate in rates.items() if rate > trigger.preemptions_per_request}
    return ", ".join(f"{name} ({rate:.2f} per request)" for name, rate in over.items())


def compare(before: Baseline, after: Baseline, objectives: Objectives, trigger: Trigger) -> Judged:
    """Return whether a fleet is better off with a change, by its figures before and after."""
    change = Change(before, after)
    text = change.line(objectives)
    if unlike := change.unlike():
        return _unlike(unlike, text, after)
    verdict = _verdict(change, objectives, trigger)
    if verdict is Verdict.NOT_RECOVERED and (heavier := change.heavier()):
        return _unlike(heavier, text, after)
    return Judged(verdict, Reason(verdict.value), text, after)


def _unlike(how: str, text: str, after: Baseline) -> Judged:
    return Judged(Verdict.INCONCLUSIVE, Reason.LOAD_DIFFERS, f"{how}; {text}", after)


def _verdict(change: Change, objectives: Objectives, trigger: Trigger) -> Verdict:
    if not change.is_harmless(objectives):
        return Verdict.NOT_RECOVERED
    if change.is_calm(trigger) and change.is_smooth(objectives):
        return Verdict.IMPROVED if change.missed(objectives) else Verdict.RECOVERED
    if change.is_better():
        return Verdict.IMPROVED
    return Verdict.NOT_RECOVERED


@dataclass(frozen=True, slots=True)
class Change:
    """Two sets of figures, compared per replica."""

    before: Baseline
    after: Baseline

    @property
    def preemptions(self) -> float:
        """Return preemptions per request, after over before."""
        return _ratio(self.after.preemptions_per_request, self.before.preemptions_per_request)

    @property
    def tail(self) -> float:
        """Return the tail of the gaps, after over before."""
        return _ratio(self.after.inter_token_tail_seconds, self.before.inter_token_tail_seconds)

    @property
    def arrivals(self) -> float:
        """Return arrivals per replica, after over before."""
        return self._per_replica(self.after.requests_per_second, self.before.requests_per_second)

    @property
    def throughput(self) -> float:
        """Return tokens per second and replica, after over before.

        Where more replicas than before share a load of which nothing waits, each has less to do: tokens of
        the whole fleet then.
        """
        before, after = self.before, self.after
        tokens = after.generated_tokens_per_second, before.generated_tokens_per_second
        is_spread = after.replicas > before.replicas and after.waiting_mean < QUEUED * after.replicas
        return _ratio(*tokens) if is_spread else self._per_replica(*tokens)

    @property
    def goodput(self) -> float:
        """Return tokens of requests without a stall, after over before.

        With x stalls per request, scattered at random, exp(-x) of the requests have none.
        """
        saved = min(self.before.stalls_per_request, MOST_STALLS)
        return self.throughput * exp(saved - min(self.after.stalls_per_request, MOST_STALLS))

    def _per_replica(self, after: float, before: float) -> float:
        return _ratio(after / self.after.replicas, before / self.before.replicas)

    def unlike(self) -> str | None:
        """Return how load or lengths differ so much that nothing can be said, or None."""
        before, after = self.before, self.after
        if before.models and after.models and before.models != after.models:
            return f"{', '.join(after.models)} is served, {', '.join(before.models)} before"
        if self.arrivals < LIGHTER and after.waiting_mean < QUEUED * after.replicas:
            return f"{self.arrivals:.2f} times the arrivals of before and nothing waits (limit {LIGHTER})"
        lengths = {
            "prompts": (before.prompt_tokens_mean, after.prompt_tokens_mean),
            "outputs": (before.output_tokens_mean, after.output_tokens_mean),
        }
        for name, (then, now) in lengths.items():
            if min(then, now) < LENGTHS_ALIKE * max(then, now):
                return f"{name} of {now:.0f} tokens on average, {then:.0f} before"
        return None

    def heavier(self) -> str | None:
        """Return how much more there was to do, so much that a bad verdict is not the change's, or None."""
        if self.arrivals <= HEAVIER:
            return None
        return f"{self.arrivals:.2f} times the arrivals of before (limit {HEAVIER})"

    def is_harmless(self, objectives: Objectives) -> bool:
        """Return whether nobody is worse off: tokens, objectives, answers at all, and in time."""
        return self.is_worth_it() and not self.sinks(objectives) and self.given_up() <= GIVEN_UP

    def sinks(self, objectives: Objectives) -> str:
        """Return which objective or floor the fleet is below because of the change; empty: none."""
        stalls = self.goodput * stalls_by_chance(self.before, self.after) < 1
        facts = (
            (self.breaches(objectives), "an objective is broken"),
            (self.keeps_waiting(objectives), "users are kept waiting"),
            (stalls and is_served_less(self.goodput, self.arrivals), "fewer tokens come without a stall"),
        )
        return ", ".join(text for applies, text in facts if applies)

    def given_up(self) -> float:
        """Return by how much more of the requests ended without an answer; 0 where that is not known."""
        before, after = self.before.aborted_share, self.after.aborted_share
        return 0.0 if before is None or after is None else after - before

    def is_worth_it(self) -> bool:
        """Return whether throughput held, or what was lost of it bought goodput."""
        lost = 1 - self.throughput
        return self.throughput >= THROUGHPUT_HELD or self.goodput - 1 >= GOODPUT_PER_LOSS * lost

    def keeps_waiting(self, objectives: Objectives) -> bool:
        """Return whether first tokens come late, and not because something else waits less for it.

        Requests wait for longer in all; or as many come as before, and fewer tokens go out, so that the
        queue grows.
        """
        first = objectives.time_to_first_token_p95_seconds
        if not is_late(self.before, self.after, first):
            return False
        grows = is_served_less(self.throughput, self.arrivals)
        return grows or is_silent_for_longer(self.before, self.after)

    def breaches(self, objectives: Objectives) -> bool:
        """Return whether an objective is missed that was met, or is missed by clearly more than before."""
        return any(is_broken(limit, then, now) for _, limit, then, now in self._judged_by(objectives))

    def missed(self, objectives: Objectives) -> tuple[str, ...]:
        """Return the objectives still not met, each with its figure."""
        return tuple(
            f"{name} {now:.3g} s, objective {limit:g} s"
            for name, limit, _, now in self._judged_by(objectives)
            if limit is not None and now > limit
        )

    def _judged_by(self, objectives: Objectives) -> tuple[tuple[str, float | None, float, float], ...]:
        """Return each objective by name, with its limit and the figures before and after."""
        before, after, wanted = self.before, self.after, objectives
        return (
            (
                "interTokenP95",
                wanted.inter_token_p95_seconds,
                before.inter_token_p95_seconds,
                after.inter_token_p95_seconds,
            ),
            ("e2eP95", wanted.e2e_p95_seconds, before.end_to_end_p95_seconds, after.end_to_end_p95_seconds),
            (
                "ttftP95",
                wanted.time_to_first_token_p95_seconds,
                before.time_to_first_token_p95_seconds,
                after.time_to_first_token_p95_seconds,
            ),
        )

    def is_calm(self, trigger: Trigger) -> bool:
        """Return whether preemptions are no trouble any more."""
        few = TRIGGER_SHARE * trigger.preemptions_per_request
        return self.preemptions <= CALM or self.after.preemptions_per_request < few

    def is_smooth(self, objectives: Objectives) -> bool:
        """Return whether answers come without hanging."""
        wanted = objectives.inter_token_p95_seconds
        within = wanted is not None and self.after.inter_token_p95_seconds <= wanted
        return within or self.tail <= SMOOTH or self.after.inter_token_tail_seconds <= NO_STALL_SECONDS

    def is_better(self) -> bool:
        """Return whether preemptions are clearly fewer and answers no rougher."""
        return self.preemptions <= BETTER and self.tail <= 1

    def line(self, objectives: Objectives) -> str:
        """Return the comparison in one line, what decides first."""
        before, after = self.before, self.after
        sunk = f"{below}; " if (below := self.sinks(objectives)) else ""
        missed = "".join(f"not met: {each}; " for each in self.missed(objectives))
        lost = f"requests without an answer {self.given_up():+.1%}; " if self.given_up() > GIVEN_UP else ""
        return (
            f"{sunk}{missed}{lost}preemptions per request {before.preemptions_per_request:.2f} -> "
            f"{after.preemptions_per_request:.2f}, longest gap of one request in twenty "
            f"{before.inter_token_tail_seconds:.2f} -> {after.inter_token_tail_seconds:.2f} s, "
            f"tokens/s x{self.throughput:.2f}, goodput x{self.goodput:.2f}, e2e p95 "
            f"{before.end_to_end_p95_seconds:.1f} -> {after.end_to_end_p95_seconds:.1f} s, first token p95 "
            f"{before.time_to_first_token_p95_seconds:.1f} -> "
            f"{after.time_to_first_token_p95_seconds:.1f} s, silent seconds per request "
            f"{silent_seconds(before):.1f} -> {silent_seconds(after):.1f} (reported only, as "
            f"a capped replica that is full stays full: usage "
            f"{before.kv_cache_usage_ratio:.2f} -> {after.kv_cache_usage_ratio:.2f}, waiting "
            f"{before.waiting_mean:.0f} -> {after.waiting_mean:.0f})"
        )


def _ratio(after: float, before: float) -> float:
    """Return after over before: 1 where both are 0, infinite where only before is."""
    if before > 0:
        return after / before
    return 1.0 if after <= 0 else inf


def is_smoother(before: Baseline, observation: Observation, objectives: Objectives) -> bool:
    """Return whether answers hang clearly less than before, and nothing that matters was lost for it.

    Either the tail of the gaps is at least halved, or hangs for nobody any more; or it is clearly shorter
    while clearly more is served. A fleet in which hardly anybody hung cannot show it.

    Args:
        before: the fleet before the change.
        observation: the look over the sustained window, at replicas that run the change only.
        objectives: service levels.
    """
    after = baseline_of(observation, 0)
    if isinstance(after, Inconclusive) or before.inter_token_tail_seconds <= NO_STALL_SECONDS:
        return False
    change = Change(before, after)
    smooth = change.tail <= SMOOTH or after.inter_token_tail_seconds <= NO_STALL_SECONDS
    smooth = smooth or (change.tail * MORE <= 1 and change.goodput >= MORE)
    return smooth and change.is_worth_it() and not change.sinks(objectives)


def serves_more(before: Baseline, observation: Observation, objectives: Objectives) -> bool:
    """Return whether a fleet answers clearly more requests without a stall, and no more of them hang.

    That is what more KV cache brings where clients send the next request as soon as one is answered: as many
    preemptions per request as before, on more requests. Arrivals that grew with it speak for the change.

    Args:
        before: the fleet before the change.
        observation: the look over the sustained window, at replicas that run the change only.
        objectives: service levels.
    """
    after = baseline_of(observation, 0)
    if isinstance(after, Inconclusive):
        return False
    change = Change(before, after)
    alike = change.unlike() is None and not change.sinks(objectives)
    flows = change.tail <= MORE or after.inter_token_tail_seconds <= STALL_SECONDS
    return alike and flows and min(change.goodput, change.throughput) >= MORE
