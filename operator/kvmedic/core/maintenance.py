"""Maintenance windows: the times of the week in which runs may be opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
"""Days of the week, as `datetime.weekday` counts them."""
_AHEAD = range(-1, len(DAYS) + 1)
"""Days from today on which a window that matters can begin: yesterday's may still be open."""


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """A stretch of wall-clock time that comes again every week."""

    days: frozenset[str]
    """On which it begins, of `DAYS`."""
    start: time
    end: time
    """First time after it; on the next day where it is not after `start`."""
    zone: ZoneInfo

    def around(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield begin and end (UTC) of its turns from yesterday to a week ahead.

        A time that a change to daylight-saving time skips counts as the time before the change says; of a
        time that comes twice the first one counts.
        """
        today = now.astimezone(self.zone).date()
        for ahead in _AHEAD:
            day = today + timedelta(days=ahead)
            if DAYS[day.weekday()] in self.days:
                last = day if self.end > self.start else day + timedelta(days=1)
                begins = datetime.combine(day, self.start, self.zone)
                ends = datetime.combine(last, self.end, self.zone)
                yield begins.astimezone(UTC), ends.astimezone(UTC)


def is_open(windows: Sequence[MaintenanceWindow], now: datetime) -> bool:
    """Return whether a time lies in one of the windows; without windows every time does."""
    return not windows or any(begins <= now < ends for w in windows for begins, ends in w.around(now))


def next_opening(windows: Sequence[MaintenanceWindow], now: datetime) -> datetime:
    """Return when the first window opens after a time that lies in none (UTC)."""
    return min(begins for w in windows for begins, _ in w.around(now) if begins > now)
