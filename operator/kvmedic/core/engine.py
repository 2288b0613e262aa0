"""How an inference engine is described: what may be turned on it and how its command line reads.

An engine's profile is data (`kvmedic.engines`); `kvmedic.manifests` reads and edits command lines
by it, and nothing else needs to know how an engine spells a knob.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from kvmedic.core.version import Version

Scalar: TypeAlias = bool | int | float | str | None
"""A flag's value after parsing; None where the engine reads the text `None` as "not set"."""


class Knob(StrEnum):
    """A thing on an engine that may be turned. The values are the names that a resource's levers use."""

    MAX_NUM_SEQS = "maxNumSeqs"
    """Sequences that run at once, at most; also sizes the model runner."""
    MAX_NUM_ACTIVE_SEQS = "maxNumActiveSeqs"
    """Sequences that run at once, at most, without resizing the model runner."""
    WATERMARK = "watermark"
    """Share of the KV cache kept free when a sequence is admitted (ratio 0-1)."""
    MAX_MODEL_LEN = "maxModelLen"
    """Tokens of prompt and output together, at most, per request."""
    MAX_NUM_BATCHED_TOKENS = "maxNumBatchedTokens"
    """Tokens of one engine step, at most."""
    GPU_MEMORY_UTILIZATION = "gpuMemoryUtilization"
    """Share of the device's memory that the engine takes (ratio 0-1)."""
    PREFIX_CACHING = "prefixCaching"
    """Whether the blocks of shared prefixes are reused."""
    CHUNKED_PREFILL = "chunkedPrefill"
    """Whether a long prompt is spread over several steps."""
    KV_OFFLOADING_SIZE = "kvOffloadingSize"
    """Host memory for KV blocks, over all ranks (GiB)."""
    SWAP_SPACE = "swapSpace"
    """Host memory for swapped sequences, per device (GiB); only engines of old have it."""
    KV_CACHE_DTYPE = "kvCacheDtype"
    """Type in which keys and values are stored."""
    KV_CACHE_MEMORY_BYTES = "kvCacheMemoryBytes"
    """Device memory for the KV cache (bytes); overrides the memory utilization."""
    NUM_GPU_BLOCKS_OVERRIDE = "numGpuBlocksOverride"
    """Blocks of the KV cache, whatever memory there is (count)."""
    BLOCK_SIZE = "blockSize"
    """Tokens per block."""
    SHUTDOWN_TIMEOUT = "shutdownTimeout"
    """Seconds that requests in flight get to finish after SIGTERM."""


class Kind(StrEnum):
    """What the engine makes of the text after an option."""

    INT = "int"
    """A plain integer: `8`, ` 8`, `1_000`; never `1k`."""
    HUMAN_INT = "human"
    """An integer with an optional suffix: `8`, `2k` = 2000, `2K` = 2048, `25.6k` = 25600."""
    HUMAN_INT_OR_AUTO = "human-auto"
    """The same, or `auto`, which reads as -1."""
    FLOAT = "float"
    """A decimal number."""
    TEXT = "text"
    """Any text, or one of the option's choices where it has some."""
    SWITCH = "switch"
    """No text: `--x` is true and `--no-x` is false."""
    PRESENCE = "presence"
    """No text: `--x` is true and there is no way to write false."""
    TRUTH = "truth"
    """An optional `true` or `false` after the option (engines of old)."""
    HELP = "help"
    """No text: the engine prints its help and does not serve."""


class Arity(StrEnum):
    """How many of the following tokens an option takes."""

    NONE = "0"
    ONE = "1"
    OPTIONAL = "?"
    SOME = "+"


class Presence(StrEnum):
    """Whether an engine of some version has an option."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    """The version lies between two that were looked at, and only one of these has the option."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The versions over which something existed, as far as they were looked at."""

    since: Version
    """The oldest version looked at that has it."""
    until: Version | None
    """The newest version looked at that has it; None when the newest of all has it."""
    absent_before: Version | None = None
    """The version looked at right before `since`; None when `since` is the oldest of all."""
    absent_after: Version | None = None
    """The version looked at right after `until`."""

    def at(self, version: Version) -> Presence:
        """Return whether a version is among them."""
        if self.since <= version and (self.until is None or version <= self.until):
            return Presence.PRESENT
        if version < self.since:
            before = self.absent_before
            return Presence.ABSENT if before is not None and version <= before else Presence.UNKNOWN
        after = self.absent_after
        return Presence.ABSENT if after is not None and version >= after else Presence.UNKNOWN


@dataclass(frozen=True, slots=True)
class Option:
    """One option of an engine's command line, over the versions in which it reads like this."""

    names: tuple[str, ...]
    """All spellings, with their dashes; for a switch `--x` and `--no-x`."""
    dest: str
    """The engine's own name for the value: `max_num_seqs`."""
    arity: Arity
    kind: Kind
    lifetime: Lifetime
    nullable: bool = False
    """Whether the texts `None` and the empty one read as "not set"."""
    choices: tuple[str, ...] = ()
    """The texts that are allowed, where the engine checks them while parsing; empty: any."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values that the engine's configuration accepts. Both ends count as inside unless marked open."""

    minimum: float | None = None
    maximum: float | None = None
    minimum_open: bool = False
    maximum_open: bool = False
    also: tuple[float, ...] = ()
    """Values outside that have a meaning of their own: -1 for "fit to memory"."""

    def holds(self, value: float) -> bool:
        """Return whether a value is accepted."""
        return value in self.also or (self._above(value) and self._below(value))

    def _above(self, value: float) -> bool:
        if self.minimum is None:
            return True
        return value > self.minimum if self.minimum_open else value >= self.minimum

    def _below(self, value: float) -> bool:
        if self.maximum is None:
            return True
        return value < self.maximum if self.maximum_open else value <= self.maximum

    def __str__(self) -> str:
        parts = []
        if self.minimum is not None:
            parts.append(f"{'over' if self.minimum_open else 'at least'} {self.minimum:g}")
        if self.maximum is not None:
            parts.append(f"{'under' if self.maximum_open else 'at most'} {self.maximum:g}")
        return " and ".join(parts) + "".join(f", or {value:g}" for value in self.also)


@dataclass(frozen=True, slots=True)
class Flag:
    """How one engine spells one knob."""

    knob: Knob
    name: str
    """The canonical spelling: `--max-num-seqs`."""
    dest: str
    """The engine's own name for the value: `max_num_seqs`."""
    kind: Kind
    lifetime: Lifetime
    aliases: tuple[str, ...] = ()
    bounds: Bounds = Bounds()
    default: str = ""
    """What an engine without the flag does, in words, and where that is from."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an engine's command line has beyond options and one positional.

    The names are canonical spellings of options.
    """

    config: str
    """Reads a YAML file whose entries count as if they stood before all options; only where the
    option and the path are two tokens."""
    positional: str
    """May stand for the positional argument after a subcommand."""
    needs_positional: str
    """Is refused after a subcommand where the positional is missing."""
    short_level: str
    """`-O`: glued to its value, it is short for `level`."""
    level: str
    foreign: tuple[str, ...] = ()
    """Options that hand the whole command line to another program."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a container's command line starts the engine."""

    executable: str
    """The program that takes a subcommand: `vllm`."""
    subcommand: str
    """The subcommand that serves."""
    modules: tuple[str, ...]
    """Python modules that serve without a subcommand."""
    command_modules: tuple[str, ...]
    """Python modules that are the executable: they take the subcommand."""
    images: tuple[str, ...]
    """Regular expressions on an image's name without registry, tag and digest (`vllm/vllm-openai`):
    the image's own entry point serves, so that `args` alone are flags."""
    versioned_images: tuple[str, ...]
    """Regular expressions of the same kind: the image's tag names the engine's version."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine: how it is recognised, what may be turned on it, and how its command line reads."""

    name: str
    """The engine's name as its users write it."""
    launch: Launch
    flags: tuple[Flag, ...]
    options: tuple[Option, ...]
    """Every option of every version looked at; needed to resolve abbreviations and to know which
    options take values."""
    dialect: Dialect
    assumed: Version
    """The version that an engine of unknown version is taken for."""
    newest: Version
    """The newest version looked at; a newer engine may have options that are not listed."""
    oldest: Version
    """The oldest version looked at."""

    def flag(self, knob: Knob) -> Flag | None:
        """Return how this engine spells a knob, or None where it has no such thing."""
        return next((flag for flag in self.flags if flag.knob is knob), None)

    def by_dest(self) -> Mapping[str, Flag]:
        """Return the flags by the engine's own names."""
        return {flag.dest: flag for flag in self.flags}


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of a certain version, as far as the version is known."""

    profile: EngineProfile
    version: Version | None = None

    @property
    def effective_version(self) -> Version:
        """Return the version whose command line is assumed."""
        return self.version or self.profile.assumed
