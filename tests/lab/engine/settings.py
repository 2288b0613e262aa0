"""The lab's own settings, read once from LAB_* variables. vLLM has none of them."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

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
        micro = (("TOKEN", TOKEN_US), ("LOAD", LOAD_US), ("MOVE", MOVE_US))
        parts = (number(environ, f"LAB_{name}_US", default) / 1e6 for name, default in micro)
        cost = StepCost(number(environ, "LAB_STEP_MS", STEP_MS) / 1e3, *parts)
        return cls(cost.scaled(scale), number(environ, "LAB_STARTUP_SECONDS", STARTUP_SECONDS) * scale)


def number(environ: Mapping[str, str], name: str, default: float) -> float:
    """Return a variable as a number; `default` if it is absent or empty."""
    text = environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong; nothing by default. Each field is read from `LAB_FAULT_` and its name in capitals.

    LAB_FAULT_ONLY_BELOW_SEQS: all of them only where `max_num_seqs` is below this. A fleet's replicas share
    their environment: so a changed setting goes wrong while the old one is fine.
    """

    crash_below_seqs: int = 0
    """Exit 1 at start where `max_num_seqs` is below this."""
    crash_above_seqs: float = math.inf
    """Exit 1 at start where `max_num_seqs` is above this."""
    crash_message: str = ""
    """The last log line of such a crash, e.g. a torch.OutOfMemoryError."""
    oom_above_utilization: float = math.inf
    """The GPU's memory runs out where `gpu_memory_utilization` is above this: exit 1 at start with torch's
    message, as vLLM does."""
    oom_running: int = 0
    """It runs out not at start then but while serving, once that many sequences run."""
    never_ready: bool = False
    """Loads for ever and never listens."""
    slow_start_seconds: float = 0.0
    """Added to the start-up time, not scaled."""
    slow_start_one_in: int = 1
    """Only where the last part of the pod's address is a multiple of this. A node gives pods addresses in
    turn, so of so many that start one after the other one is slow."""
    missing_blocks: int = 0
    """That many blocks fewer than configured."""
    unreported_pool: bool = False
    """Neither metrics nor log report blocks, as where the cache is no pool of them."""
    slowdown: float = 1.0
    """Every step takes so many times as long."""
    host_memory_mib: int = 0
    """Takes, and fills, that much of its host's memory, so that the kernel ends it where its container's
    limit is lower."""
    host_memory_running: int = 1
    """Once so many sequences run."""
    drop_metrics: frozenset[str] = frozenset()
    """Comma-separated family names that are not exported."""
    nan_metrics: frozenset[str] = frozenset()
    """Comma-separated family names whose values are NaN."""

    @classmethod
    def from_environ(cls, max_num_seqs: int, environ: Mapping[str, str] = os.environ) -> "Faults":
        """Return the faults that an engine with this setting has.

        Raises:
            ValueError: a variable is not a number; the message names it.
        """
        if max_num_seqs >= number(environ, "LAB_FAULT_ONLY_BELOW_SEQS", math.inf):
            return cls()
        return cls(
            **{f.name: _read_fault(environ, f"LAB_FAULT_{f.name.upper()}", f.default) for f in fields(cls)}
        )

    def start_delay(self, address: str) -> float:
        """Return the seconds that a start takes longer at an address."""
        is_slow = int(address.rpartition(".")[2]) % self.slow_start_one_in == 0
        return self.slow_start_seconds if is_slow else 0.0

    def reason_to_crash(self, max_num_seqs: int) -> str | None:
        """Return why the engine must die at start with this setting, None if it may live."""
        reason = None
        if max_num_seqs < self.crash_below_seqs:
            reason = f"[lab fault] max_num_seqs {max_num_seqs} is below {self.crash_below_seqs}"
        elif max_num_seqs > self.crash_above_seqs:
            reason = f"[lab fault] max_num_seqs {max_num_seqs} is above {self.crash_above_seqs:g}"
        return reason and (self.crash_message or reason)

    def runs_out_at_start(self, utilization: float) -> bool:
        """Return whether an engine that takes this share of its GPU dies of memory at start."""
        return utilization > self.oom_above_utilization and not self.oom_running

    def runs_out_at(self, utilization: float) -> int | None:
        """Return at how many running sequences it dies of memory while serving, None if it does not."""
        return self.oom_running if self.oom_running and utilization > self.oom_above_utilization else None


def _read_fault(environ: Mapping[str, str], name: str, default: Any) -> Any:
    """Return a variable as what its default is: a switch, a number, a text, or names with commas between."""
    text = environ.get(name, "")
    match default:
        case bool():
            return text not in ("", "0")
        case int() | float():
            return type(default)(number(environ, name, default))
        case frozenset():
            return frozenset(filter(None, (each.strip() for each in text.split(","))))
        case _:
            return text
