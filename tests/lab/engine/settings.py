"""The lab's own settings, read once from LAB_* variables. vLLM has none of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

STEP_MS = 11.0
TOKEN_US = 420.0
"""Cost of one engine step: ~11 ms plus ~0.42 ms per token (two-point fit of worker CPU at caps 4 and 8,
measured on vLLM 0.32.0, CPU build, small random-weight Llama)."""

LOAD_US = 5.0
"""Cost of one token whose keys and values are fetched from the host: 128 KiB (an 8B model in bf16) at 25
GB/s, as PCIe 4 with 16 lanes moves them. Computed, not measured."""

MOVE_US = 0.13
"""Cost of one token whose keys and values compaction moves: 128 KiB (an 8B model in bf16) read and written at
2 TB/s, as the memory of an A100 does. Computed, not measured."""

STARTUP_SECONDS = 12.0
"""From the first to the last line of the recorded start-up log (04:49:50 to 04:50:02)."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a forward pass takes: a fixed part and a part per token in the batch, recompute
    included.
    """

    step_seconds: float = STEP_MS / 1e3
    token_seconds: float = TOKEN_US / 1e6
    load_seconds: float = LOAD_US / 1e6
    move_seconds: float = MOVE_US / 1e6

    def of(self, tokens: int, loaded: int = 0, moved: int = 0) -> float:
        """Return the seconds of a step that computes `tokens` tokens, fetches `loaded` and moves `moved`."""
        beside = self.load_seconds * loaded + self.move_seconds * moved
        return self.step_seconds + self.token_seconds * tokens + beside

    def scaled(self, factor: float) -> "StepCost":
        """Return this cost multiplied by `factor`."""
        parts = (self.step_seconds, self.token_seconds, self.load_seconds, self.move_seconds)
        return StepCost(*(part * factor for part in parts))


@dataclass(frozen=True, slots=True)
class LabSettings:
    """Pace of the engine.

    `LAB_STEP_MS`, `LAB_TOKEN_US`, `LAB_LOAD_US`, `LAB_MOVE_US`, `LAB_STARTUP_SECONDS`; `LAB_TIME_SCALE`
    multiplies all (0.5 is twice as fast) and nothing else: whatever the engine exports is wall clock.
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
            number(environ, "LAB_STEP_MS", STEP_MS) / 1e3,
            number(environ, "LAB_TOKEN_US", TOKEN_US) / 1e6,
            number(environ, "LAB_LOAD_US", LOAD_US) / 1e6,
            number(environ, "LAB_MOVE_US", MOVE_US) / 1e6,
        )
        return cls(cost.scaled(scale), number(environ, "LAB_STARTUP_SECONDS", STARTUP_SECONDS) * scale)


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
