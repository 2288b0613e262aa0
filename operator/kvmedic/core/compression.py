"""Methods that compress a KV cache: what they do to blocks, how they are turned on, what tells of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvmedic.core.blocks import KV_HEADS, PASS_TOKENS, Compacted, Pattern, PerHead, Scattered
from kvmedic.core.quantity import parse_count


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
class Setting:
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
    settings: tuple[Setting, ...] = ()
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
class Told:
    """What a running engine and its template tell."""

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
    """What told, such as a variable's name."""
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


def recognised(methods: Iterable[Method], told: Told) -> tuple[Recognised, ...]:
    """Return the methods that are on, as far as anything tells; empty where nothing does."""
    found = (_recognised(method, told) for method in methods)
    return tuple(each for each in found if each is not None)


def switched_off(method: Method, environment: Mapping[str, str]) -> str:
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


def _recognised(method: Method, told: Told) -> Recognised | None:
    """Return a method that is on: what its running engine logged counts before what settings ask for."""
    environment = with_older_names(method, told.environment)
    proof, wish = _proof(method, told), _wish(method, told)
    off = switched_off(method, environment)
    if not (proof or wish) or (off and not proof):
        return None
    budget, every = (_whole(environment, name) for name in (method.budget, method.every))
    return Recognised(
        method,
        f"{proof}, although {off}" if off else proof or wish,
        bool(proof),
        method.default_budget if budget is None else budget,
        every or PASS_TOKENS,
        "" if proof else _phrase(method.denial, told),
    )


def _proof(method: Method, told: Told) -> str:
    """Return what the engine itself says of a method, empty where it says nothing.

    Of a line only the phrase is kept by which the method is known.
    """
    if phrase := _phrase(method.log, told):
        return f"start-up log: {phrase}"
    is_label = bool(method.cache_dtypes) and told.cache_dtype.startswith(method.cache_dtypes)
    return f"cache_dtype {told.cache_dtype}" if is_label else ""


def _phrase(pattern: str, told: Told) -> str:
    """Return the first part of a log that a pattern matches; empty where none does."""
    matches = (re.search(pattern, line) for line in told.log if pattern)
    return next((match.group() for match in matches if match), "")


def _wish(method: Method, told: Told) -> str:
    """Return which setting asks for a method; empty where none does."""
    names = [name for name in told.environment for pattern in method.variables if re.fullmatch(pattern, name)]
    if names:
        switches = {each.env for each in method.off_switches}
        return min(names, key=lambda name: (name in switches, name))
    is_asked = bool(method.cache_dtypes) and told.asked_type.startswith(method.cache_dtypes)
    return f"the type {told.asked_type} that is asked for" if is_asked else ""


def _whole(environment: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a whole number; None where it is none."""
    return parse_count(environment.get(name, "").strip())
