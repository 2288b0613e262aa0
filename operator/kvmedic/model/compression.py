"""Methods that compress a KV cache: what they do to blocks, how they are turned on, what shows them.

What is compared of a fleet with and without a method that compresses its KV cache.

How many blocks of a paged KV cache become free when a method evicts tokens of one sequence.

A block is free once none of its tokens is left. So what counts is where the survivors are, not how many
they are: evicting seven eighths of the tokens may free seven eighths of the blocks, an eighth, or none.

Formulae, for T tokens of which E are evicted, in blocks of b:

* **scattered**: which tokens survive is the same for all heads and has no order. Of k given tokens all are
  evicted with probability P(k) = E/T x (E-1)/(T-1) x ... (k factors), near (E/T)^k.
* **per head**: each of H heads chooses its own survivors, and a block holds the tokens of all heads: P(k)^H.
* **runs**: survivors stand in runs of L that begin anywhere and may overlap. A token is evicted if no run
  begins at one of L places, k neighbours are if none begins at one of k + L - 1: with many runs
  (E/T)^((k + L - 1)/L).
* **compacted**: survivors are moved together, so that they fill as few blocks as they can.
* **layers**: each of N layers that share a block table chooses its own survivors, so a block is free once all
  of them have evicted its tokens: the probability of one layer to the power N. Compacted survivors fill as
  few blocks in every layer.

Source: counting, checked against drawn evictions in `tests/model/test_compression_blocks.py`.

Amounts in Kubernetes' own grammar, as `resource.Quantity` reads them: `24Gi`, `500m`, `1e3`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from math import prod, sqrt
from typing import TypeAlias, assert_never


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a fleet under load. Absent if unknown."""

    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    preemptions_per_request: float | None = None
    kv_cache_usage: float | None = None
    """Mean, ratio 0 to 1."""
    kv_cache_usage_deviation: float | None = None
    """Standard deviation of the usage over the window, for the replica where it is largest. It is reported
    and decides nothing, because a method's passes make usage rise and fall in any case."""
    device_memory: float | None = None
    """Bytes in use on one device."""
    e2e_p95: float | None = None
    """Seconds."""
    requests_in_flight: float | None = None
    """Mean number of running requests, over the whole fleet."""
    replicas: float | None = None
    """Replicas that the fleet's figures cover."""

    @property
    def is_complete(self) -> bool:
        """Return whether every figure is known but those of how many replicas and requests there were."""
        desired = {each.name for each in fields(self)} - {"replicas", "requests_in_flight"}
        return all(getattr(self, name) is not None for name in desired)


@dataclass(frozen=True, slots=True)
class Scattered:
    """Survivors are anywhere, the same for all heads."""


@dataclass(frozen=True, slots=True)
class PerHead:
    """Each head keeps survivors of its own, anywhere."""

    heads: int
    """KV heads that share a block."""


@dataclass(frozen=True, slots=True)
class InRuns:
    """Survivors stand in runs that begin anywhere and may overlap, the same for all heads."""

    length: int
    """Tokens of a run."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Survivors are moved together after the eviction."""


Pattern: TypeAlias = Scattered | PerHead | InRuns | Compacted

KV_HEADS = 8
"""KV heads of the models of 7 to 72 billion parameters that are served most: Llama 3.1 8B and 70B, Qwen3 8B
to 32B (`num_key_value_heads` in their `config.json`)."""
PASS_TOKENS = 128
"""Generated tokens between two evictions of a sequence (TriAttention's default)."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What a method keeps of one sequence, per head: a number of tokens, or a share of all."""

    budget: int | None = None
    share: float | None = None
    """Above 0, up to 1."""

    def tokens_of(self, tokens: int) -> int:
        """Return how many of so many tokens are kept."""
        kept = self.budget if self.budget is not None else round((self.share or 0.0) * tokens)
        return min(tokens, kept)


class NoEvictionError(ValueError):
    """The numbers name no eviction; the message says which number and what it may be."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Tokens of one sequence in a paged cache, and how many of them are evicted.

    Raises:
        NoEvictionError: there is no such eviction.
    """

    tokens: int
    block_tokens: int
    """Tokens of one block. The last block may be filled in part."""
    evicted: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise NoEvictionError(f"--tokens must be 1 or more, got {self.tokens}")
        if self.block_tokens < 1:
            raise NoEvictionError(f"--block-size must be 1 or more, got {self.block_tokens}")
        if not 0 <= self.evicted <= self.tokens:
            raise NoEvictionError(
                f"--evict must be between 0 and --tokens ({self.tokens}), got {self.evicted}"
            )

    @property
    def blocks(self) -> int:
        """Return how many blocks the tokens take before the eviction."""
        return -(-self.tokens // self.block_tokens)

    @property
    def kept(self) -> int:
        """Return how many tokens survive."""
        return self.tokens - self.evicted

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return how many blocks hold how many tokens: the full ones, and the last where it is not full."""
        full, rest = divmod(self.tokens, self.block_tokens)
        return tuple(pair for pair in ((full, self.block_tokens), (1, rest)) if pair[0] and pair[1])


@dataclass(frozen=True, slots=True)
class Freed:
    """Blocks that become free."""

    mean: float
    deviation: float | None
    """Standard deviation over evictions of the kind; None where it is not computed."""


def freed_blocks(eviction: Eviction, pattern: Pattern, layers: int = 1) -> Freed:
    """Return how many blocks an eviction frees on average.

    Args:
        eviction: of every layer.
        pattern: where the survivors of a layer are.
        layers: how many choose their own survivors and share a block table; 1: one choice counts for all.

    Raises:
        NoEvictionError: the survivors cannot be as the pattern says, or there is no layer.
    """
    if layers < 1:
        raise NoEvictionError(f"--layers must be 1 or more, got {layers}")
    match pattern:
        case Scattered():
            return _freed_if_scattered(eviction, layers)
        case PerHead(heads):
            if heads < 1:
                raise NoEvictionError(f"--kv-heads must be 1 or more, got {heads}")
            return _freed_if_scattered(eviction, heads * layers)
        case InRuns(length):
            if length < 1:
                raise NoEvictionError(f"--pattern runs:LENGTH must be 1 or more, got {length}")
            return Freed(_in_runs(eviction, length, layers), None)
        case Compacted():
            return Freed(float(_most_freed(eviction)), 0.0)
        case _:
            assert_never(pattern)


def used_blocks(tokens: int, block_tokens: int, keep: Keep, pattern: Pattern) -> float:
    """Return how many blocks a sequence of so many tokens takes on average, right after an eviction."""
    eviction = Eviction(tokens, block_tokens, tokens - keep.tokens_of(tokens))
    return eviction.blocks - freed_blocks(eviction, pattern).mean


def _freed_if_scattered(eviction: Eviction, choices: int) -> Freed:
    """Return what is freed where so many choices, of heads and layers, must agree on a block."""
    empty = {size: _eviction_chance(eviction, size) ** choices for _, size in eviction.sizes}
    mean = sum(count * empty[size] for count, size in eviction.sizes)
    square = 0.0
    for count, size in eviction.sizes:
        for others, other in eviction.sizes:
            both = _eviction_chance(eviction, size + other) ** choices
            pairs = count * (others - 1) if size == other else count * others
            square += pairs * (both - empty[size] * empty[other])
        square += count * empty[size] * (1 - empty[size])
    return Freed(mean, sqrt(max(0.0, square)))


def _eviction_chance(eviction: Eviction, tokens: int) -> float:
    """Return how likely all of some given tokens are evicted."""
    if tokens > eviction.evicted:
        return 0.0
    return prod((eviction.evicted - i) / (eviction.tokens - i) for i in range(tokens))


def _in_runs(eviction: Eviction, length: int, layers: int) -> float:
    share = (eviction.evicted / eviction.tokens) ** layers
    mean: float = sum(count * share ** ((size + length - 1) / length) for count, size in eviction.sizes)
    return min(mean, _most_freed(eviction))


def _most_freed(eviction: Eviction) -> int:
    """Return how many blocks become free where the survivors fill as few as they can."""
    return eviction.blocks - -(-eviction.kept // eviction.block_tokens)


QUANTITY_PATTERN = "^[0-9]+([.][0-9]+)?([EPTGMK]i|[mkMGTPE]|[eE][+-]?[0-9]+)?$"
"""Quantities without a sign (k8s.io/apimachinery/pkg/api/resource, quantity.go)."""

_QUANTITY = re.compile(QUANTITY_PATTERN)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_BINARY = {f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)}
_MOST_DIGITS = 30
"""Digits before the point that a quantity may come to; Kubernetes' own end at 2**63 - 1, which has 19."""
_MOST_COUNTED = 18
"""Digits of a count in an annotation or a variable; Python refuses to read more than 4,300."""
_DECIMAL = {"": Decimal(1), "m": Decimal("0.001")} | {
    suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)
}


@lru_cache(maxsize=512)  # the pods of a cluster ask for few different amounts
def parse_quantity(text: str) -> Decimal:
    """Return a quantity as a number of its base unit: `1Ki` is 1024, `500m` is 0.5.

    Raises:
        ValueError: the text is not a quantity.
    """
    if not _QUANTITY.fullmatch(text):
        raise ValueError(f"{text!r} is not a quantity: write one such as 24Gi or 500M")
    number = _NUMBER.match(text)
    digits = number.group() if number else ""
    suffix = text[len(digits) :]
    factor = _BINARY.get(suffix) or _DECIMAL.get(suffix)
    amount = Decimal(digits) * factor if factor is not None else Decimal(text)
    if amount.adjusted() > _MOST_DIGITS:
        raise ValueError(f"{text[:_MOST_DIGITS]!r}… is more than a quantity can be: at most 8Ei")
    return amount


def parse_count(text: str) -> int | None:
    """Return a text of digits as a number; None where it is anything else, or too long to be a count."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_COUNTED else None


def whole_amount(value: object) -> int | None:
    """Return a manifest's amount as a whole number of its base unit, rounded down; None where it is none.

    Manifests hold amounts as text or as bare numbers.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return int(parse_quantity(str(value).strip()))
    except ValueError:
        return None


class MethodClass(StrEnum):
    """What a method does to blocks; the values are those of `spec.compression.class`."""

    SCATTERED_EVICTION = "ScatteredEviction"
    """Evicts tokens, the same for all heads, and leaves the others where they are."""
    PER_HEAD_EVICTION = "PerHeadEviction"
    """Evicts tokens for each head by itself, and leaves the others where they are."""
    COMPACTING_EVICTION = "CompactingEviction"
    """Evicts tokens so that whole blocks become free: moves survivors together, or evicts block by block."""
    PAGE_SELECTION = "PageSelection"
    """Keeps every token and reads a part of them in each step: frees no memory by design."""
    QUANTIZATION = "Quantization"
    """Keeps every token in fewer bits: more blocks from the start on, none that become free."""

    @property
    def frees(self) -> str:
        """Return in a sentence what such a method does for memory."""
        return _FREES[self]


_FREES = {
    MethodClass.SCATTERED_EVICTION: "a block becomes free only once all its tokens are evicted: 10 to 20 % "
    "of the blocks where seven eighths of the tokens go",
    MethodClass.PER_HEAD_EVICTION: "a block holds the tokens of all heads, and nearly every one is kept by "
    "some: no block becomes free",
    MethodClass.COMPACTING_EVICTION: "about as many blocks become free as tokens are evicted",
    MethodClass.PAGE_SELECTION: "no block becomes free; size the pool as if there were no method",
    MethodClass.QUANTIZATION: "the pool has more blocks from the start on (twice as many with 8 bits for 16) "
    "and none becomes free while serving",
}


@dataclass(frozen=True, slots=True)
class BundleSetting:
    """One setting of a bundle: a flag of the engine or a variable of its container."""

    on: str | None
    """Value with the method; None: not given at all. A switch has an empty one."""
    off: str | None
    """Value without it."""
    flag: str = ""
    """With its dashes."""
    env: str = ""


@dataclass(frozen=True, slots=True)
class OffSwitch:
    """A variable that keeps a method from running, whatever its own switch says."""

    env: str
    words: frozenset[str]
    """Its values that do, in lower case."""
    unless: str = ""
    """A variable with which it runs all the same."""


@dataclass(frozen=True, slots=True)
class Method:
    """A known method.

    It is an ordered bundle of settings: turned on from the first to the last, and off the other way round.
    """

    name: str
    method_class: MethodClass
    needs_scores: bool
    """It needs attention scores, which fused kernels do not give out: without a kernel of its own attention
    falls back to an eager one."""
    source: str
    """Where the method is described."""
    settings: tuple[BundleSetting, ...] = ()
    prerequisites: tuple[str, ...] = ()
    """What must be so before the first setting is of use, each in a sentence."""
    variables: tuple[str, ...] = ()
    """Patterns of names of variables of the engine's container that only this method has."""
    plugin: str = ""
    """Its entry point in `vllm.general_plugins`; where `VLLM_PLUGINS` leaves it out it is not loaded."""
    switch: str = ""
    """The variable that turns it off with `0`, though it is on without."""
    cache_dtypes: tuple[str, ...] = ()
    """Beginnings of `cache_dtype` under it."""
    log: str = ""
    """Pattern of a line of the start-up log that says that it is on; not every installation shows it."""
    budget: str = ""
    """The variable that says how many tokens are kept."""
    default_budget: int | None = None
    every: str = ""
    """The variable that says how many tokens are generated from one eviction to the next; `PASS_TOKENS` where
    it is not given."""
    off_switches: tuple[OffSwitch, ...] = ()
    older_names: tuple[tuple[str, str], ...] = ()
    """Variables with the names that they had before, which it reads where these are empty or not given."""
    demands: tuple[str, ...] = ()
    """Variables without which it does not run, whose values only an installation can say."""
    denial: str = ""
    """Pattern of a line of the start-up log that says that it does not run."""


@dataclass(frozen=True, slots=True)
class MethodSigns:
    """What a running engine and its template say."""

    environment: Mapping[str, str]
    cache_dtype: str
    """The engine's own label; empty where it is not known."""
    log: Sequence[str] = ()
    """Lines of its start-up log, or the phrases of these by which methods say that they are on."""
    asked_type: str = ""
    """The type of the cache that its template asks for."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """A method that is configured, and whether the engine itself said that it is on."""

    method: Method
    by: str
    """What showed it, such as a variable's name."""
    is_confirmed: bool
    """A log line or the type of the cache confirms it; a variable alone says only what somebody wants."""
    budget: int | None
    """Tokens that are kept of each sequence; None: not known."""
    every: int
    """Generated tokens from one eviction of a sequence to the next."""
    denied: str = ""
    """The phrase of a log by which the engine says that it does not run, though settings ask for it."""


@dataclass(frozen=True, slots=True)
class TokenEviction:
    """A method that takes tokens from sequences while they run: they do not grow with their length."""

    name: str
    pattern: Pattern
    """Where survivors are."""
    budget: int | None
    """Tokens that are kept of each sequence; None: not known."""
    every: int = PASS_TOKENS
    """Generated tokens from one eviction of a sequence to the next."""


PATTERNS: dict[MethodClass, Pattern] = {
    MethodClass.SCATTERED_EVICTION: Scattered(),
    MethodClass.PER_HEAD_EVICTION: PerHead(KV_HEADS),
    MethodClass.COMPACTING_EVICTION: Compacted(),
}
"""Where survivors are, under methods that evict tokens."""


def method_names(method: Method) -> tuple[str, ...]:
    """Return patterns of the names of all variables by which a method is configured."""
    own = (*(each.env for each in method.settings), method.switch, method.budget, method.every)
    return (*method.variables, *(re.escape(name) for name in own if name))


def token_eviction(found: Iterable[Recognised]) -> TokenEviction | None:
    """Return the first of some methods that evicts tokens; None where none does."""
    for each in found:
        pattern = PATTERNS.get(each.method.method_class)
        if pattern is not None and not each.denied:
            return TokenEviction(each.method.name, pattern, each.budget, each.every)
    return None


PLUGINS = "VLLM_PLUGINS"
"""Variable of vLLM: the general plugins that it loads, all where it is not given (plugins/__init__.py)."""
OFF_WORDS = frozenset({"0", "false", "no", "off"})
"""Values of a variable that turn off what it is the switch of."""
ON_WORDS = frozenset({"1", "true", "yes", "on"})


def recognise_methods(methods: Iterable[Method], signs: MethodSigns) -> tuple[Recognised, ...]:
    """Return the methods that are on, as far as anything shows it; empty where nothing does."""
    found = (_recognise_method(method, signs) for method in methods)
    return tuple(each for each in found if each is not None)


def find_off_switch(method: Method, environment: Mapping[str, str]) -> str:
    """Return the variable with its value that keeps a method from running; empty where none does."""
    switches = (OffSwitch(method.switch, OFF_WORDS), *method.off_switches)
    for each in switches:
        value = environment.get(each.env, "")
        goes_on = environment.get(each.unless, "").strip().lower() in ON_WORDS
        if value.strip().lower() in each.words and not goes_on:
            return f"{each.env}={value}"
    named = environment.get(PLUGINS)
    if method.plugin and named is not None and method.plugin not in map(str.strip, named.split(",")):
        return f"{PLUGINS}={named}"
    return ""


def with_older_names(method: Method, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables as a method reads them: by their older names where the present ones have no value."""
    older = {
        name: environment[old]
        for name, old in method.older_names
        if not environment.get(name) and environment.get(old)
    }
    return {**environment, **older}


def _recognise_method(method: Method, signs: MethodSigns) -> Recognised | None:
    """Return a method that is on: what its running engine logged counts before what settings ask for."""
    proof, wish = _proof(method, signs), _wish(method, signs)
    if not (proof or wish):
        return None
    environment = with_older_names(method, signs.environment)
    off = find_off_switch(method, environment)
    if off and not proof:
        return None
    budget, every = (_whole(environment, name) for name in (method.budget, method.every))
    return Recognised(
        method,
        f"{proof}, although {off}" if off else proof or wish,
        bool(proof),
        method.default_budget if budget is None else budget,
        every or PASS_TOKENS,
        "" if proof else _phrase(method.denial, signs),
    )


def _proof(method: Method, signs: MethodSigns) -> str:
    """Return what the engine itself says of a method, empty where it says nothing.

    Of a line only the phrase is kept by which the method is known.
    """
    if phrase := _phrase(method.log, signs):
        return f"start-up log: {phrase}"
    is_label = bool(method.cache_dtypes) and signs.cache_dtype.startswith(method.cache_dtypes)
    return f"cache_dtype {signs.cache_dtype}" if is_label else ""


def _phrase(pattern: str, signs: MethodSigns) -> str:
    """Return the first part of a log that a pattern matches; empty where none does."""
    matches = (re.search(pattern, line) for line in signs.log if pattern)
    return next((match.group() for match in matches if match), "")


def _wish(method: Method, signs: MethodSigns) -> str:
    """Return which setting asks for a method; empty where none does."""
    names = [name for name in signs.environment for each in method.variables if re.fullmatch(each, name)]
    if names:
        switches = {each.env for each in method.off_switches}
        return min(names, key=lambda name: (name in switches, name))
    is_asked = bool(method.cache_dtypes) and signs.asked_type.startswith(method.cache_dtypes)
    return f"the type {signs.asked_type} that is asked for" if is_asked else ""


def _whole(environment: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a whole number; None where it is none."""
    return parse_count(environment.get(name, "").strip())
