"""The lab's own settings and deliberate faults, read once from LAB_* variables. vLLM has none of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

STEP_MS = 11.0
TOKEN_US = 420.0
"""Cost of one engine step: ~11 ms plus ~0.42 ms per token (two-point fit of worker CPU at caps 4 and 8,
measured on vLLM 0.32.0, CPU build, small random-weight Llama)."""

STARTUP_SECONDS = 12.0
"""From the first to the last line of the recorded start-up log (04:49:50 to 04:50:02)."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a forward pass takes: a fixed part and a part per token in the batch, recompute
    included.
    """

    step_seconds: float = STEP_MS / 1e3
    token_seconds: float = TOKEN_US / 1e6

    def of(self, tokens: int) -> float:
        """Return the duration of a step over `tokens` tokens, in seconds."""
        return self.step_seconds + self.token_seconds * tokens

    def scaled(self, factor: float) -> "StepCost":
        """Return this cost multiplied by `factor`."""
        return StepCost(self.step_seconds * factor, self.token_seconds * factor)


@dataclass(frozen=True, slots=True)
class LabSettings:
    """Pace of the engine.

    `LAB_STEP_MS`, `LAB_TOKEN_US`, `LAB_STARTUP_SECONDS`; `LAB_TIME_SCALE` multiplies all three (0.5 is
    twice as fast) and nothing else: whatever the engine exports is wall clock.
    """

    cost: StepCost = StepCost()
    startup_seconds: float = STARTUP_SECONDS

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> "LabSettings":
        """Return the settings.

        Raises:
            ValueError: a variable is not a number; the message names it.
        """
        scale = number(environ, "LAB_TIME_SCALE", 1.0)
        cost = StepCost(
            number(environ, "LAB_STEP_MS", STEP_MS) / 1e3, number(environ, "LAB_TOKEN_US", TOKEN_US) / 1e6
        )
        return cls(cost.scaled(scale), number(environ, "LAB_STARTUP_SECONDS", STARTUP_SECONDS) * scale)


@dataclass(frozen=True, slots=True)
class Faults:
    """Lab-only ways to misbehave on purpose; all off by default.

    LAB_FAULT_CRASH_BELOW_SEQS / LAB_FAULT_CRASH_ABOVE_SEQS: exit 1 at start where `max_num_seqs` is
    below/above.
    LAB_FAULT_CRASH_MESSAGE: the last log line of such a crash, e.g. a torch.OutOfMemoryError.
    LAB_FAULT_NEVER_READY=1: loads for ever and never listens.
    LAB_FAULT_SLOW_START_SECONDS: added to the start-up time, not scaled.
    LAB_FAULT_MISSING_BLOCKS: that many blocks fewer than configured (read in `config.py`).
    LAB_FAULT_DROP_METRICS: comma-separated family names that are not exported.
    LAB_FAULT_NAN_METRICS: comma-separated family names whose values are NaN.
    """

    crash_below_seqs: int = 0
    crash_above_seqs: int | None = None
    crash_text: str = ""
    never_ready: bool = False
    slow_start_seconds: float = 0.0
    dropped: frozenset[str] = frozenset()
    not_a_number: frozenset[str] = frozenset()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> "Faults":
        """Return the faults asked for.

        Raises:
            ValueError: a variable is not a number; the message names it.
        """
        above = environ.get("LAB_FAULT_CRASH_ABOVE_SEQS")
        return cls(
            crash_below_seqs=int(number(environ, "LAB_FAULT_CRASH_BELOW_SEQS", 0)),
            crash_above_seqs=None if above is None else int(above),
            crash_text=environ.get("LAB_FAULT_CRASH_MESSAGE", ""),
            never_ready=environ.get("LAB_FAULT_NEVER_READY") == "1",
            slow_start_seconds=number(environ, "LAB_FAULT_SLOW_START_SECONDS", 0.0),
            dropped=_names(environ, "LAB_FAULT_DROP_METRICS"),
            not_a_number=_names(environ, "LAB_FAULT_NAN_METRICS"),
        )

    def crash_message(self, max_num_seqs: int) -> str | None:
        """Return why the engine must die at start with this setting, None if it may live."""
        if max_num_seqs < self.crash_below_seqs:
            return (
                self.crash_text or f"[lab fault] max_num_seqs {max_num_seqs} is below {self.crash_below_seqs}"
            )
        if self.crash_above_seqs is not None and max_num_seqs > self.crash_above_seqs:
            return (
                self.crash_text or f"[lab fault] max_num_seqs {max_num_seqs} is above {self.crash_above_seqs}"
            )
        return None


def number(environ: Mapping[str, str], name: str, default: float) -> float:
    """Return a variable as a number; `default` if it is absent or empty.

    Raises:
        ValueError: not a number.
    """
    text = environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None


def _names(environ: Mapping[str, str], variable: str) -> frozenset[str]:
    return frozenset(name.strip() for name in environ.get(variable, "").split(",") if name.strip())
