"""A fleet's figures of before a change and of the sustained window after it, compared at comparable load.

Three questions, all per replica: are preemptions down, are answers smoother, is throughput worth it.
Below them lie the floors: whom a change keeps waiting, or serves less, has not recovered. A cap moves waiting
in front of the first token, where no preemption shows it. What a correctly capped, saturated replica fails by
design (usage under 0.9, nothing waiting) is reported and never decides. Every threshold was fitted on
simulated cuts: `docs/explanation/verdict-thresholds.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, sqrt

from kvmedic.model.evidence import Inconclusive
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Baseline, Judged, Verdict
from kvmedic.model.spec import Objectives, Trigger
from kvmedic.verdict.served_in_time import STALL_SECONDS, WORST_STALLS, first_token_limit, silent_seconds

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
GAIN_PER_LOSS = 0.5
"""Share of what is served in time that must be won for each share of throughput that is lost beyond that. At
0.5 three of 1,063 simulated harmful caps (under 0.95 of before without a stall) were kept, at 1 one; at 0.5
one of 255 right caps was taken back, at 1 six."""
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
"""Served in time, after over before, from which a fleet serves clearly more: without any change two windows
of 5 minutes differ by up to 6 % (simulated, 3 replicas, 9th decile)."""
LENGTHS_ALIKE = 0.8
"""Mean prompt (or output) length, the smaller over the larger, at least. A sequence that is 20 % smaller
lets 25 % more run, as much as a right cap takes away."""
GIVEN_UP = 1 - THROUGHPUT_HELD
"""By how much more of the requests may end without an answer than before: as much as throughput may fall.
A cap moves waiting in front of the first token; clients that do not wait so long are lost."""
MORE_PREEMPTIONS = 1 / BETTER
"""Preemptions per request after over before, beyond which they are clearly more: as much more as is clearly
less."""
ROUGHER = 1 / SMOOTH
"""Tail of the gaps between tokens after over before, beyond which answers clearly hang more."""
LATER = 2.0
"""First token (p95) after over before, beyond which it comes clearly later, if beyond the limit too."""
SILENT_LONGER, SILENT_SECONDS = 2.0, 2.0
"""Silent seconds per request after over before, and what is added to that: beyond it users wait clearly
longer. The seconds added are those of one stall, so that a fleet in which nobody waited may lose as much."""
SHORTER_SILENCE = 0.8
"""Silent seconds per request after over before, at most, for users to wait clearly less (simulated raises of
a cap)."""
LEAST_SERVED = 0.9
"""Served in time, after over before, at least, while as many requests come. Without any change two windows
of 10 minutes differ by up to 4 %, of 5 minutes by 6 % (simulated, 3 replicas)."""
WORK_ALIKE = 1.1
"""Arrivals times mean output after over before, or the reverse, up to which the floor holds once every
replica has a change. Of 138 simulated fleets it took back 6 without this; 5 had more or less to do, and none
was harmed."""
BY_CHANCE = 1.645
"""Standard errors by which a count must differ: chance alone has it differ so in one of twenty cases."""
AS_MANY = 0.95
"""Arrivals after over before, from which as many requests come."""
WORSE = 1.25
"""A figure after over before, beyond which an objective that was missed already counts as broken: a quarter
is beyond what two windows of 5 minutes differ by without any change."""


def undecided_verdict(why: Inconclusive) -> Judged:
    """Return the verdict where something that it needs is missing."""
    return Judged(Verdict.INCONCLUSIVE, why.reason, why.message)


def report_no_recovery(text: str, after: Baseline | None = None) -> Judged:
    """Return the verdict that a change did not help."""
    return Judged(Verdict.NOT_RECOVERED, Reason.NOT_RECOVERED, text, after)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of figures, compared per replica, by what a spec asks for."""

    before: Baseline
    after: Baseline
    objectives: Objectives
    trigger: Trigger

    def conclude(self, verdict: Verdict, found: str = "") -> Judged:
        """Return a verdict with the figures; inconclusive where the load differs too much to judge.

        A bad one is not the change's where clearly more was to be done. `found` goes before the figures.
        """
        if unlike := self.find_load_mismatch():
            return Judged(Verdict.INCONCLUSIVE, Reason.LOAD_DIFFERS, f"{unlike}; {self.line()}", self.after)
        text = f"{found}{self.line()}"
        if verdict is Verdict.NOT_RECOVERED and self.arrivals > HEAVIER:
            more = f"{self.arrivals:.2f} times the arrivals of before (limit {HEAVIER})"
            return Judged(Verdict.INCONCLUSIVE, Reason.LOAD_DIFFERS, f"{more}; {text}", self.after)
        return Judged(verdict, Reason(verdict.value), text, self.after)

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
    def served_in_time(self) -> float:
        """Return tokens of requests that are served in time, after over before."""
        return self.unstalled * _ratio(self.after.in_time_share, self.before.in_time_share)

    @property
    def unstalled(self) -> float:
        """Return tokens of requests without a stall, after over before, whenever these began."""
        return self.throughput * exp(self._stalls(self.before) - self._stalls(self.after))

    def _stalls(self, figures: Baseline) -> float:
        """Return stalls per request, as far as they count, of requests of the mean length of both windows."""
        counted = [
            (each.generated_tokens_per_second * each.window_seconds, max(1.0, each.output_tokens_mean))
            for each in (self.before, self.after)
        ]
        requests = sum(tokens / output for tokens, output in counted)
        output = sum(tokens for tokens, _ in counted) / requests if requests > 0 else 0.0
        return min(WORST_STALLS, figures.stalls_per_request * output / max(1.0, figures.output_tokens_mean))

    @property
    def scatter(self) -> float:
        """Return as a factor how far chance alone may take what is served in time, by what is counted.

        Of x stalls per request and n requests the standard error is sqrt(x / n) at least, of the logarithm of
        a share p in time sqrt((1 - p) / (p n)). Short windows of few requests say little of either.
        """
        spread = sum(
            (each.stalls_per_request + (1 - each.in_time_share) / each.in_time_share)
            / max(1.0, each.requests)
            for each in (self.before, self.after)
        )
        return exp(BY_CHANCE * sqrt(spread))

    def _per_replica(self, after: float, before: float) -> float:
        return _ratio(after / self.after.replicas, before / self.before.replicas)

    def find_load_mismatch(self) -> str | None:
        """Return how load or lengths differ so much that nothing can be said, or None."""
        before, after = self.before, self.after
        if before.models and after.models and before.models != after.models:
            return f"{', '.join(after.models)} is served, {', '.join(before.models)} before"
        if self.arrivals < LIGHTER and after.waiting_mean < QUEUED * after.replicas:
            return f"{self.arrivals:.2f} times the arrivals of before and nothing waits (limit {LIGHTER})"
        for name, then, now in (
            ("prompts", before.prompt_tokens_mean, after.prompt_tokens_mean),
            ("outputs", before.output_tokens_mean, after.output_tokens_mean),
        ):
            if min(then, now) < LENGTHS_ALIKE * max(then, now):
                return f"{name} of {now:.0f} tokens on average, {then:.0f} before"
        return None

    def is_harmless(self) -> bool:
        """Return whether nobody is worse off: tokens, objectives, answers at all, and in time."""
        return self.is_worth_it() and not self.sinks() and self.measure_abort_rise() <= GIVEN_UP

    def sinks(self) -> str:
        """Return which objective or floor the fleet is below because of the change; empty: none."""
        weighty = self.arrivals >= AS_MANY or self.holds_back()
        less = weighty and self.served_in_time < LEAST_SERVED and self.served_in_time * self.scatter < 1
        facts = (
            (self.breaks_objective(), "an objective is broken"),
            (self.keeps_waiting(), "users are kept waiting"),
            (less, "less is served in time"),
        )
        return ", ".join(text for applies, text in facts if applies)

    def sinks_after_walk(self) -> str:
        """Return what is worse once every replica has a change that went on beside old ones; empty: nothing.

        Old replicas may have taken what new ones did not serve, and none is left. Where there is another
        amount of work than before nothing can be said: it alone may have made or emptied a queue. Less work
        is no excuse where it is the queue that holds it back.
        """
        work = self.arrivals * _ratio(self.after.output_tokens_mean, self.before.output_tokens_mean)
        if work > WORK_ALIKE or (work < 1 / WORK_ALIKE and not self.holds_back()):
            return ""
        lost = "requests end without an answer" if self.measure_abort_rise() > GIVEN_UP else ""
        return ", ".join(each for each in (self.sinks(), lost) if each)

    def measure_abort_rise(self) -> float:
        """Return by how much more of the requests ended without an answer; 0 where that is not known."""
        before, after = self.before.aborted_share, self.after.aborted_share
        return 0.0 if before is None or after is None else after - before

    def is_worth_it(self) -> bool:
        """Return whether throughput held, or more is served in time for what was lost of it.

        More first tokens in time alone excuse no loss: new replicas begin with an empty queue.
        """
        lost, gain = 1 - self.throughput, min(self.unstalled, self.served_in_time) - 1
        return self.throughput >= THROUGHPUT_HELD or gain >= GAIN_PER_LOSS * lost

    def keeps_waiting(self) -> bool:
        """Return whether first tokens come late, and not because something else waits less for it.

        Late is clearly later than before, and later than most sit through. Then requests wait for longer in
        all, or as many come as before and fewer tokens go out, so that the queue grows. Fewer that come while
        more wait do not count here: tokens of answers that hung before are no loss.
        """
        least = first_token_limit(self.objectives)
        late = max(least, LATER * self.before.time_to_first_token_p95_seconds)
        if not self.after.time_to_first_token_p95_seconds > late:
            return False
        silent = _silent_seconds(self.after) > SILENT_LONGER * _silent_seconds(self.before) + SILENT_SECONDS
        return silent or (self.arrivals >= AS_MANY and self.throughput < LEAST_SERVED)

    def holds_back(self) -> bool:
        """Return whether more requests wait than before, so that fewer arrivals are no lighter load.

        Clients that wait for an answer before they send the next request send fewer to a slower fleet. Of 20
        simulated closed loops three lost 15 to 48 % so, each kept without this.
        """
        before, after = (each.waiting_mean / each.replicas for each in (self.before, self.after))
        return after >= QUEUED and after > before

    def was_silence_alone(self) -> bool:
        """Return whether users waited before the change, and nothing else was wrong.

        Such a fleet is calm and smooth whatever a change does, so that neither shows what it was for.
        """
        before = self.before
        calm = before.preemptions_per_request < TRIGGER_SHARE * self.trigger.preemptions_per_request
        smooth = before.inter_token_tail_seconds <= NO_STALL_SECONDS
        return calm and smooth and _silent_seconds(before) > self.trigger.silent_seconds

    def shortens_silence(self) -> bool:
        """Return whether users wait clearly less, although as many requests come."""
        shorter = _silent_seconds(self.after) <= SHORTER_SILENCE * _silent_seconds(self.before)
        return shorter and self.arrivals >= AS_MANY

    def serves_clearly_more(self) -> bool:
        """Return whether clearly more is served in time, and no more answers hang.

        As many requests must come. What more of them bring is the load's: it counts by request then.
        """
        gain = self.served_in_time / max(1.0, self.arrivals)
        clearly = self.arrivals >= AS_MANY and gain >= MORE and gain > self.scatter
        return clearly and self._flows()

    def serves_more_sooner(self) -> bool:
        """Return whether users wait clearly less, and clearly more is served in time, by request no less.

        More requests may have come than before: clients that wait less send the next one sooner. Answers that
        hang are not in time, so they are counted.
        """
        gain = self.served_in_time
        return gain >= max(MORE, self.arrivals) and gain > self.scatter and self.shortens_silence()

    def _flows(self) -> bool:
        """Return whether answers hang no more than before, or hardly anybody's does."""
        return self.tail <= MORE or self.after.inter_token_tail_seconds <= STALL_SECONDS

    def breaks_objective(self) -> bool:
        """Return whether an objective is missed that was met, or is missed by clearly more."""
        return any(is_broken(*each[1:]) for each in self._list_limits())

    def brings_within(self) -> bool:
        """Return whether an objective that was missed is met, by more than two windows differ."""
        return any(
            limit is not None and now <= limit < then and then > WORSE * now
            for _, limit, then, now in self._list_limits()
        )

    def list_misses(self) -> tuple[str, ...]:
        """Return the objectives still not met, each with its figure."""
        return tuple(
            f"{name} {now:.3g} s, objective {limit:g} s"
            for name, limit, _, now in self._list_limits()
            if limit is not None and now > limit
        )

    def _list_limits(self) -> tuple[tuple[str, float | None, float, float], ...]:
        """Return each objective by name, with its limit and the figures before and after."""
        desired = self.objectives
        limits = (
            desired.inter_token_p95_seconds,
            desired.e2e_p95_seconds,
            desired.time_to_first_token_p95_seconds,
        )
        figures = (
            (each.inter_token_p95_seconds, each.end_to_end_p95_seconds, each.time_to_first_token_p95_seconds)
            for each in (self.before, self.after)
        )
        return tuple(zip(("interTokenP95", "e2eP95", "ttftP95"), limits, *figures, strict=True))

    def is_calm(self) -> bool:
        """Return whether preemptions are no trouble any more."""
        few = TRIGGER_SHARE * self.trigger.preemptions_per_request
        return self.preemptions <= CALM or self.after.preemptions_per_request < few

    def is_smooth(self) -> bool:
        """Return whether answers come without hanging."""
        desired = self.objectives.inter_token_p95_seconds
        within = desired is not None and self.after.inter_token_p95_seconds <= desired
        return within or self.tail <= SMOOTH or self.after.inter_token_tail_seconds <= NO_STALL_SECONDS

    def is_better(self) -> bool:
        """Return whether preemptions are clearly fewer and answers no rougher."""
        return self.preemptions <= BETTER and self.tail <= 1

    def is_smoother(self) -> bool:
        """Return whether answers hang clearly less than before, and nothing that matters was lost for it.

        Either the tail of the gaps is at least halved, or hangs for nobody any more; or it is clearly shorter
        while clearly more is served. A fleet in which hardly anybody hung cannot show it.
        """
        if self.before.inter_token_tail_seconds <= NO_STALL_SECONDS:
            return False
        smooth = self.tail <= SMOOTH or self.after.inter_token_tail_seconds <= NO_STALL_SECONDS
        smooth = smooth or (self.tail * MORE <= 1 and self.served_in_time >= MORE)
        return smooth and self.is_worth_it() and not self.sinks()

    def serves_more(self) -> bool:
        """Return whether clearly more requests are answered without a stall, and no more of them hang.

        That is what more KV cache brings where clients send the next request as soon as one is answered: as
        many preemptions per request as before, on more requests. Arrivals that grew with it speak for the
        change.
        """
        alike = self.find_load_mismatch() is None and not self.sinks()
        return alike and self._flows() and min(self.served_in_time, self.throughput) >= MORE

    def find_worsening(self) -> str:
        """Return what is clearly worse than before; empty where nothing is."""
        after = self.after
        limit = TRIGGER_SHARE * self.trigger.preemptions_per_request
        more = self.preemptions > MORE_PREEMPTIONS and after.preemptions_per_request >= limit
        rougher = self.tail > ROUGHER and after.inter_token_tail_seconds > NO_STALL_SECONDS
        facts = (
            (not self.is_harmless(), "less is served, or later, or an objective is broken"),
            (more, f"more than {MORE_PREEMPTIONS:g} times the preemptions per request"),
            (rougher, f"more than {ROUGHER:g} times the gap between tokens"),
        )
        return ", ".join(text for applies, text in facts if applies)

    def line(self) -> str:
        """Return the comparison in one line, what decides first."""
        before, after = self.before, self.after
        sunk = f"{below}; " if (below := self.sinks()) else ""
        missed = "".join(f"not met: {each}; " for each in self.list_misses())
        missed = f"an objective is met again; {missed}" if self.brings_within() else missed
        rise = self.measure_abort_rise()
        lost = f"requests without an answer {rise:+.1%}; " if rise > GIVEN_UP else ""
        return (
            f"{sunk}{missed}{lost}served in time x{self.served_in_time:.2f}, "
            f"preemptions per request {before.preemptions_per_request:.2f} -> "
            f"{after.preemptions_per_request:.2f}, longest gap of one request in twenty "
            f"{before.inter_token_tail_seconds:.2f} -> {after.inter_token_tail_seconds:.2f} s, "
            f"tokens/s x{self.throughput:.2f}, e2e p95 "
            f"{before.end_to_end_p95_seconds:.1f} -> {after.end_to_end_p95_seconds:.1f} s, first token p95 "
            f"{before.time_to_first_token_p95_seconds:.1f} -> "
            f"{after.time_to_first_token_p95_seconds:.1f} s, silent seconds per request "
            f"{_silent_seconds(before):.1f} -> {_silent_seconds(after):.1f} (reported only, as "
            f"a capped replica that is full stays full: usage "
            f"{before.kv_cache_usage_ratio:.2f} -> {after.kv_cache_usage_ratio:.2f}, waiting "
            f"{before.waiting_mean:.0f} -> {after.waiting_mean:.0f})"
        )


def is_broken(objective: float | None, before: float, after: float) -> bool:
    """Return whether an objective is missed that was met, or that was missed before and is missed by more."""
    if objective is None or after <= objective:
        return False
    return before <= objective or after > WORSE * before


def _silent_seconds(figures: Baseline) -> float:
    return silent_seconds(figures.waiting_mean, figures.requests_per_second)


def _ratio(after: float, before: float) -> float:
    """Return after over before: 1 where both are 0, infinite where only before is."""
    if before > 0:
        return after / before
    return 1.0 if after <= 0 else inf
