"""How an inference engine is described: its version, what may be turned on it, how its command line reads.

An engine's profile is data (`kvmedic.engines`); `kvmedic.manifests` reads and edits command lines by it, and
nothing else needs to know how an engine spells a knob.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

_PATTERN = re.compile(
    r"v?(?P<release>\d{1,9}(?:\.\d{1,9})*)"
    r"(?:(?P<stage>a|b|rc)(?P<pre>\d{1,9}))?"
    r"(?:\.post(?P<post>\d{1,9}))?"
    r"(?:\.dev(?P<dev>\d{1,9}))?"
    r"(?:\+(?P<local>[0-9A-Za-z.]+))?"
)
_STAGES = {"a": 0, "b": 1, "rc": 2, None: 3}
_RELEASE_PARTS = 4
"""Release numbers that are compared; vLLM's longest so far has four (0.10.1.1)."""


Key: TypeAlias = tuple[tuple[int, ...], int, int, int, float]


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version as Python packages write them (PEP 440): `0.10.2rc1`, `0.8.5.post1`, `0.32.0+cpu`.

    `0.9` and `0.9.0` are equal, and so are builds that differ in the local part alone. Made by
    `parse`.
    """

    key: Key
    """What is compared: release, stage, number within the stage, post release, development release."""
    text: str = field(compare=False)

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version that a text names; ValueError: it names none."""
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a version; expected one like 0.32.0 or 0.10.2rc1")
        return cls(_version_key(match), text.strip().removeprefix("v"))

    def __str__(self) -> str:
        return self.text


def _version_key(match: re.Match[str]) -> Key:
    numbers = [int(part) for part in match["release"].split(".")]
    stage, post, dev = match["stage"], match["post"], match["dev"]
    lone_dev = dev is not None and stage is None and post is None
    return (
        tuple(numbers + [0] * (_RELEASE_PARTS - len(numbers))),
        -1 if lone_dev else _STAGES[stage],
        int(match["pre"] or 0),
        -1 if post is None else int(post),
        float("inf") if dev is None else int(dev),
    )


@dataclass(frozen=True, slots=True)
class HostCache:
    """What decides how much host memory an engine takes for KV blocks, and whether it takes any.

    Options are named by the engine's own names of their values: `tensor_parallel_size`.
    """

    ranks: tuple[str, ...]
    """Options whose product is the number of devices of one engine; 1 each where they are not given."""
    engines: str
    """Option: engines of one replica, each with host memory of its own."""
    engines_here: str
    """Option: how many of these run in one pod, where they are spread over several."""
    engine_rank: str
    """Option: which of the engines a pod runs; where it is given the pod runs that one alone."""
    connector: str
    """Option that says where KV blocks go beside the device. Host memory for them would replace that."""
    backend: str
    """Option that says who keeps them."""
    own_backend: str
    """The backend with which the size is memory of the engine's own container; it is the default."""
    shared_since: Version
    """The first release that may keep them in shared memory (`/dev/shm`)."""
    exact_since: Version
    """The first release that is known to take no more than it was given; before, up to twice as much."""
    swap_mode: str
    """Option of engines of old that says what becomes of a preempted sequence."""
    swapping: str
    """Its value with which the sequence is kept in host memory; with any other nothing ever is."""


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
    """The version is not known, or lies between two that were looked at, and these differ."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of an engine's command line, over a run of releases in which it reads the same."""

    names: tuple[str, ...]
    """All spellings, with their dashes; for a switch `--x` and `--no-x`."""
    dest: str
    """The engine's own name for the value: `max_num_seqs`."""
    arity: Arity
    kind: Kind
    since: Version
    """The first release of the run."""
    until: Version
    """The last release of the run."""
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
        low = float("-inf") if self.minimum is None else self.minimum
        high = float("inf") if self.maximum is None else self.maximum
        above = value > low if self.minimum_open else value >= low
        return value in self.also or (above and (value < high if self.maximum_open else value <= high))

    def __str__(self) -> str:
        parts = []
        if self.minimum is not None:
            parts.append(f"{'over' if self.minimum_open else 'at least'} {self.minimum:g}")
        if self.maximum is not None:
            parts.append(f"{'under' if self.maximum_open else 'at most'} {self.maximum:g}")
        return " and ".join(parts) + "".join(f", or {value:g}" for value in self.also)


class Spelled(Protocol):
    """Something that an engine's command line may give: a knob's flag or any other option."""

    @property
    def name(self) -> str:
        """Return the canonical spelling: `--max-num-seqs`."""

    @property
    def dest(self) -> str:
        """Return the engine's own name for the value: `max_num_seqs`."""


@dataclass(frozen=True, slots=True)
class OptionName:
    """An option that need not be a knob."""

    name: str
    dest: str


@dataclass(frozen=True, slots=True)
class Flag:
    """How one engine spells one knob."""

    knob: Knob
    name: str
    """The canonical spelling: `--max-num-seqs`. How it reads in which release is in the profile's options."""
    bounds: Bounds = Bounds()
    default: str = ""
    """What an engine without the flag does, in words, and where that is from."""
    defaults: tuple[tuple[Version, float], ...] = ()
    """The default as a number, each with the first release that has it, oldest first; empty where it
    depends on the device or the model."""
    most: int | None = None
    """The largest value that an engine takes by itself where the flag is not given; None: not known."""
    least: int | None = None
    """The smallest of these; None: not known."""
    is_greatest_unset: bool = False
    """Where the flag is not given the engine takes the greatest value that its model allows."""
    on_since: Version | None = None
    """For a switch: the first release in which every engine has it on where the flag is not given.
    None: no such release is known."""
    off_before: Version | None = None
    """For a switch: the first release in which an engine may have it on where the flag is not given.
    None: no such release is known."""
    kept_on: tuple[Version, Version] | None = None
    """For a switch: the first release that has it on whatever is given, and the first after it that listens.
    None: every release listens."""

    @property
    def dest(self) -> str:
        """Return the engine's own name for the value: `max_num_seqs`."""
        return self.name.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an engine's command line has beyond options and one positional; nothing where it is left out.

    The names are canonical spellings of options.
    """

    config: str = ""
    """Reads a YAML file whose entries count as if they stood before all options; only where the
    option and the path are two tokens."""
    positional: str = ""
    """May stand for the positional argument after a subcommand."""
    positional_since: Version | None = None
    """The first release in which it may; before, the engine refuses to start. None: each one does."""
    needs_positional: str = ""
    """Is refused after a subcommand where the positional is missing."""
    dotted_since: Version | None = None
    """The first release that reads `--option.key value` as a part of the option's JSON; None: none does."""
    short_level: str = ""
    """`-O`: glued to its value, it is short for `level`."""
    level: str = ""
    levels: tuple[str, ...] = ()
    """The values that `-O` may have as a word of its own."""
    foreign: tuple[str, ...] = ()
    """Options that hand the whole command line to another program."""


@dataclass(frozen=True, slots=True)
class OtherEngine:
    """Another engine, of which nothing can be changed: how it is distinguished from those that are known."""

    name: str
    """As its users write it."""
    images: tuple[str, ...]
    """Regular expressions on an image's name without tag and digest."""
    starts: tuple[str, ...]
    """Regular expressions on the words that start it: a program, or a Python module."""


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
    port: str = "--port"
    """The option that says where it listens, for its metrics too."""
    default_port: int = 8000
    """Where it listens without that option (vLLM 0.11, `vllm serve --help`)."""
    host_modules: tuple[str, ...] = ()
    """Python modules that serve and take the engine's options beside options of their own."""
    others: tuple[OtherEngine, ...] = ()
    """Engines that a container may run instead, whatever a person calls it."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """How an engine is given the keys that it asks its clients for."""

    option: str
    """The canonical spelling: `--api-key`. Where it is given, the variable does not count."""
    variable: str

    @property
    def dest(self) -> str:
        """Return the engine's own name for the value: `api_key`."""
        return self.option.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True)
class RemoteCache:
    """By what an engine shares KV blocks with others."""

    options: tuple[OptionName, ...]
    variables: tuple[str, ...]
    """Beginnings of variables that only its connectors read."""


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
    releases: tuple[Version, ...]
    """The releases whose options are listed, oldest first."""
    assumed: Version
    """The release that an engine of unknown version is taken for when its command line is read."""
    unknown_since: Version
    """The oldest release that an engine of unknown version may be when something is added."""
    types: tuple[str, ...] = ()
    """The engine's own names of the options that say in which types weights and KV cache are stored."""
    host_cache: HostCache | None = None
    """None: it keeps no blocks in its host's memory."""
    api_key: ApiKey | None = None
    """None: it asks nobody for a key."""
    remote_cache: RemoteCache | None = None
    """None: it shares no blocks with other engines."""
    _forms: dict[tuple[str, Version], Kind | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """What `form_of` found: there are hundreds of options, and each look asks for the same few."""

    def flag(self, knob: Knob) -> Flag | None:
        """Return how this engine spells a knob, or None where it has no such thing."""
        return next((flag for flag in self.flags if flag.knob is knob), None)

    def by_dest(self) -> Mapping[str, Flag]:
        """Return the flags by the engine's own names."""
        return {flag.dest: flag for flag in self.flags}

    def options_of(self, release: Version) -> tuple[Option, ...]:
        """Return the options of one of the releases."""
        return tuple(option for option in self.options if option.since <= release <= option.until)

    def form_of(self, flag: Spelled, release: Version) -> Kind | None:
        """Return how one of the releases has a flag written, or None where it has no such flag.

        All flags that take a text are of one form: a plain number reads the same in each.
        """
        key = flag.name, release
        if key not in self._forms:
            found = (option.kind for option in self.options_of(release) if flag.name in option.names)
            kind = next(found, None)
            plain = kind in {None, Kind.SWITCH, Kind.PRESENCE, Kind.TRUTH}
            self._forms[key] = kind if plain else Kind.TEXT
        return self._forms[key]

    def covers(self, version: Version) -> bool:
        """Return whether a version is one of the engine's own rather than that of somebody's build.

        A build from a shallow clone calls itself `0.1.dev1`; another first number is not known to mean
        the same flags.
        """
        oldest, newest = self.releases[0], self.releases[-1]
        return version >= oldest and version.key[0][0] == newest.key[0][0]

    def neighbours(self, version: Version) -> tuple[Version, Version]:
        """Return the releases around a version: both the same where it is one of them, or lies outside."""
        below = [release for release in self.releases if release <= version]
        above = [release for release in self.releases if release >= version]
        low = below[-1] if below else self.releases[0]
        return low, above[0] if above else low


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of a certain version, as far as the version is known."""

    profile: EngineProfile
    version: Version | None = None

    @property
    def effective_version(self) -> Version:
        """Return the version whose command line is assumed."""
        return self.version or self.profile.assumed

    def presence(self, flag: Spelled) -> Presence:
        """Return whether this engine has a flag, and it is known how to write it.

        An engine older or newer than every release looked at counts as the oldest or the newest.
        """
        forms = {self.profile.form_of(flag, release) for release in self._around()}
        if len(forms) > 1:
            return Presence.UNKNOWN
        return Presence.ABSENT if forms == {None} else Presence.PRESENT

    def default_of(self, flag: Flag) -> float | None:
        """Return the value of a flag that is not given; None where version or value is not known."""
        if self.version is None:
            return None
        held = [value for since, value in flag.defaults if since <= self.version]
        return held[-1] if held else None

    def has_on(self, flag: Flag, given: Scalar) -> bool | None:
        """Return whether a switch is on, by what the command line says of it; None: not known."""
        if isinstance(given, bool):
            return given
        if self.version is None:
            return None
        if flag.off_before is not None and self.version < flag.off_before:
            return False
        return True if flag.on_since is not None and self.version >= flag.on_since else None

    def keeps_on(self, flag: Flag) -> bool | None:
        """Return whether a switch stays on whatever is given, or None where that is not known."""
        if flag.kept_on is None:
            return False
        if self.version is None:
            return None
        first, after = flag.kept_on
        return first <= self.version < after

    def _around(self) -> tuple[Version, ...]:
        """Return the releases that this engine may be like."""
        profile = self.profile
        if self.version is not None:
            return profile.neighbours(self.version)
        return tuple(release for release in profile.releases if release >= profile.unknown_since)
