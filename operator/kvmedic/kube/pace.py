"""A bound on how many requests a second leave this process."""

from __future__ import annotations

import asyncio


class Pace:
    """At most `per_second` requests in the long run and `burst` at once.

    Readers wait for their turn; writers are counted and never wait, because a write that waits in a
    queue is carried out on an older look at the world than it was decided on. Each write follows
    several reads, so the bound holds all the same.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        """Start with the whole burst available.

        Raises:
            ValueError: a bound is not positive.
        """
        if per_second <= 0 or burst < 1:
            raise ValueError(
                f"need more than 0 requests a second and a burst of 1, got {per_second}, {burst}"
            )
        self._interval = 1 / per_second
        self._slack = (burst - 1) * self._interval
        self._booked_until = 0.0

    def spend(self, now: float) -> float:
        """Book one request and return for how many seconds it should wait.

        Args:
            now: any clock in seconds that never goes back.
        """
        start = max(self._booked_until, now)
        self._booked_until = start + self._interval
        return max(0.0, start - now - self._slack)

    async def turn(self) -> None:
        """Wait until one more request may be sent."""
        delay = self.spend(asyncio.get_running_loop().time())
        if delay > 0:
            await asyncio.sleep(delay)
