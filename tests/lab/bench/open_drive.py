"""One engine under arrivals that do not wait, in virtual time: scored by tokens that were served in time."""

import random

from lab.bench.drive import PAGES, STALL_SECONDS, Client, Drive, Outcome
from lab.bench.workloads import Workload
from lab.engine.requests import Request

FIRST_TOKEN_SECONDS = 30.0
"""A request whose first token comes later does not count as served in time."""


class OpenDrive(Drive):
    """A run in which requests come by a Poisson process, however long others wait.

    The same seed gives the same requests at the same moments, whatever the engine does with them.

    Args:
        workload: lengths and engine; its clients do not count.
        cap: most sequences that run at once.
        per_second: requests per second.
        seed: of the arrivals and the lengths.
    """

    def __init__(self, workload: Workload, cap: int, per_second: float, seed: int) -> None:
        super().__init__(workload, cap, workload.lengths(seed))
        self._chance = random.Random(seed)
        self._per_second = per_second
        self._next_at = self._chance.expovariate(per_second)

    def run_for(self, warm_seconds: float, seconds: float) -> Outcome:
        """Serve for a while, then for a while that is measured and scraped."""
        while self.now < warm_seconds:
            self._advance()
        until = self.now + seconds
        return self._measured(seconds / PAGES, lambda _: self.now >= until)

    def _count(self, outcome: Outcome, client: Client, request: Request) -> None:
        outcome.finished += 1
        outcome.tokens += request.output_length
        waited = client.times.first_token_at - client.times.arrived_at
        if waited <= FIRST_TOKEN_SECONDS and client.longest_gap <= STALL_SECONDS:
            outcome.good_tokens += request.output_length

    def _advance(self) -> list[tuple[Client, Request]]:
        if not self._in_flight and not self.scheduler.has_requests:
            self.now = max(self.now, self._next_at)
        while self._next_at <= self.now:
            self._send(self._next_at)
            self._next_at += self._chance.expovariate(self._per_second)
        return super()._advance()

    def _follow_up(self) -> None:
        """Send nothing: who comes next does not ask how others fared."""
