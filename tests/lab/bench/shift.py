"""Traffic that turns from prompts to long outputs in the middle, and an operator that goes along.

The operator looks once per window, at the scrapes of that window alone. After a change it waits for the
next whole window, judges it, and only then looks anew; a change that did not help is taken back, which is
a restart too. Windows in which the traffic turned mix both kinds of lengths.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from kvmedic.model.evidence import Inconclusive
from kvmedic.model.run import Verdict
from lab.bench.drive import UNCAPPED, Drive, chosen_cap, figures_of, verdict_on
from lab.bench.workloads import CHAT_OUTPUT, CHAT_PROMPT, GPU, Lengths, Workload, varied

WINDOW = 400
"""Requests that finish in one window of the operator."""
WINDOWS_BEFORE, WINDOWS_AFTER = 1.5, 6.0
"""Windows that the traffic lasts before and after it turns: in the middle of the second one."""


@dataclass(frozen=True, slots=True)
class Shift:
    """One engine, and what its clients send first and later."""

    name: str
    before: Workload
    after: Workload

    def lengths(self) -> Iterator[Lengths]:
        """Yield the requests' lengths, the same ones each time."""
        first = islice(self.before.lengths(), round(WINDOW * WINDOWS_BEFORE) + self.before.clients)
        return chain(first, self.after.lengths())


@dataclass(frozen=True, slots=True)
class Followed:
    """How the operator went along."""

    caps: tuple[tuple[int, int], ...]
    """Every cap that it set, in order, each with the window after which."""
    verdicts: tuple[str, ...]

    @property
    def last(self) -> int:
        """The cap that it ends with."""
        return self.caps[-1][1] if self.caps else UNCAPPED

    @property
    def restarts(self) -> int:
        """How often the fleet restarted since the traffic turned."""
        return sum(window >= WINDOWS_BEFORE for window, _ in self.caps)


SHIFTS = (
    Shift(
        "prompts, then long outputs",
        Workload("prompts", varied(900, 0.5, 50, 4000), varied(60, 0.6, 5, 300), 1000, 16, 64, GPU),
        Workload("long outputs", varied(120, 0.8, 10, 1000), varied(700, 0.7, 30, 4000), 1000, 16, 64, GPU),
    ),
    Shift(
        "chats, then long outputs",
        Workload("chats", CHAT_PROMPT, CHAT_OUTPUT, 400, 16, 48),
        Workload("long outputs", varied(100, 0.8, 10, 1000), varied(500, 0.7, 30, 3000), 400, 16, 48),
    ),
)


def follow(shift: Shift) -> Followed:
    """Return what the operator does while the traffic turns."""
    lengths = shift.lengths()
    caps: list[tuple[int, int]] = []
    verdicts: list[str] = []
    drive, before = _fresh(shift, UNCAPPED, lengths), None
    for window in range(1, round(WINDOWS_BEFORE + WINDOWS_AFTER) + 1):
        outcome, new_cap = drive.measure(WINDOW), None
        if before is not None:
            verdicts.append(verdict_on(before, outcome))
        if before is not None and verdicts[-1] is Verdict.NOT_RECOVERED:
            new_cap, before = UNCAPPED, None
        else:
            # The first cap that the operator computed may be corrected.
            new_cap, _ = chosen_cap(outcome, caps[-1][1] if caps else None, ours=len(caps) == 1)
            figures = figures_of(outcome)
            if isinstance(figures, Inconclusive):
                new_cap = None
            before = None if new_cap is None else figures
        if new_cap is not None:
            caps.append((window, new_cap))
            drive = _fresh(shift, new_cap, lengths)
    return Followed(tuple(caps), tuple(verdicts))


def _fresh(shift: Shift, cap: int, lengths: Iterator[Lengths]) -> Drive:
    """Return the engine after a restart, warm."""
    drive = Drive(shift.after, cap, lengths)
    drive.warm_up(shift.after.clients)
    return drive


@dataclass(frozen=True, slots=True)
class Turned:
    """One shift's row of the table."""

    name: str
    caps: tuple[int, ...]
    best_cap: int
    regret: float
    """Of the cap that the operator ends with, on the traffic after the turn."""
    restarts: int

    def __str__(self) -> str:
        caps = " -> ".join(map(str, self.caps)) or "none"
        return f"{self.name:34s} {caps:>18} {self.best_cap:6d} {self.regret:7.1%} {self.restarts:8d}"


def turned_by(shift: Shift) -> Turned:
    followed = follow(shift)
    rough = {cap: _static(shift, cap) for cap in range(8, shift.after.clients, 6)}
    top = max(rough, key=lambda cap: rough[cap])
    fine = rough | {cap: _static(shift, cap) for cap in (top - 3, top + 3, followed.last)}
    best = max(fine, key=lambda cap: fine[cap])
    caps = tuple(cap for _, cap in followed.caps)
    return Turned(shift.name, caps, best, 1 - fine[followed.last] / fine[best], followed.restarts)


def _static(shift: Shift, cap: int) -> float:
    """Return the goodput of one cap on the traffic after the turn."""
    return Drive(shift.after, cap).run(2 * shift.after.clients, 3 * WINDOW).goodput
