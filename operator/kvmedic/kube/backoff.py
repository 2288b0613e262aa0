"""How long a resource is left alone: after looks that failed, and after looks that cost much CPU."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import timedelta

from kvmedic.model.status import Key


@dataclass(slots=True)
class Backoff:
    """How long a resource waits after a look that failed: twice as long with every failure in a row."""

    first: timedelta
    most: timedelta
    _failures: dict[Key, int] = field(default_factory=dict)

    def delay_after_failure(self, key: Key, *, at_once: bool = False) -> timedelta:
        """Return how long to wait after one more failure; `at_once`: not at all after the first one."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        if at_once and count == 1:
            return timedelta(0)
        return min(self.most, self.first * (1 << min(count - 1, 16)))

    def forget(self, key: Key) -> None:
        """Begin anew, after a look that succeeded."""
        self._failures.pop(key, None)


CHEAP_SECONDS = 0.2
"""CPU that a look may take as often as it likes, and the grain in which namespaces are compared. A calm look
takes 0.5 to 5 ms, a whole one of two replicas 25 to 31 ms, the worst pod template 0.1 s (measured)."""
DEAR_SECONDS = CHEAP_SECONDS / 2
"""CPU from which on a look is dear: readers take one text at a time, so others would wait behind all that are
under way."""
ALLOWANCE_SECONDS = 1.0
"""CPU beyond that, of all looks at one resource, after which it rests. The first look of a process, and one
at a fleet of hundreds of replicas, may take longer."""
REST_FACTOR = 100.0
"""Seconds of rest for each second beyond the allowance: a resource that is woken all the time, and takes 0.3
to 0.8 s for each look, has two to three hundredths of the loop then."""
LONGEST_REST_SECONDS = 300.0
HALF_LIFE_SECONDS = 60.0
"""After which half of what a namespace took is forgotten."""


@dataclass(slots=True)
class RecentCpuCost:
    """The CPU that looks took of late, by namespace or by resource."""

    _spent: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    """Seconds, and when."""

    def add(self, who: Hashable, seconds: float, now: float) -> float:
        """Count a look, and return what all took of late."""
        total = self._decay_seconds(who, now) + seconds
        if total > CHEAP_SECONDS / 4:
            self._spent[who] = total, now
        else:
            self._spent.pop(who, None)
        return total

    def forget(self, who: Hashable) -> None:
        """Drop who is gone."""
        self._spent.pop(who, None)

    def rank(self, who: Hashable, now: float) -> int:
        """Return who comes first: the least; those whose looks are as cheap as usual have 0 alike."""
        return int(self._decay_seconds(who, now) / CHEAP_SECONDS)

    def _decay_seconds(self, who: Hashable, now: float) -> float:
        seconds, at = self._spent.get(who, (0.0, now))
        return seconds * float(0.5 ** ((now - at) / HALF_LIFE_SECONDS))


def rest_after(costly_seconds: float) -> float:
    """Return for how long a resource is not looked at, even if it is woken.

    Args:
        costly_seconds: CPU that its looks took of late, beyond what each may take.
    """
    return min(LONGEST_REST_SECONDS, max(0.0, costly_seconds - ALLOWANCE_SECONDS) * REST_FACTOR)
