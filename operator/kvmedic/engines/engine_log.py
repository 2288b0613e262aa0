"""What an engine's start-up log says about its KV cache, and which version the replicas say they run.

A log may hold prompts and secrets: only what an engine's patterns match is kept, from lines before the first
request. The replicas' word beats the image's tag, which may move. Replicas that contradict each other, or a
version that nobody can place, make it unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

from kvmedic.model.engine import EngineProfile, Version
from kvmedic.model.evidence import Absence, LogForms, LoggedSize, Measured, Missing, Reading, logged_size
from kvmedic.model.fleet import Pod

MODELS_OWN = "auto"
"""The type of the cache where the command line names none: the model's own, or that of its checkpoint."""
LINE_LENGTH = 4000
"""Characters of a line that are looked at: a selector of attention backends logs its whole configuration
and every backend's reasons in one (vLLM 0.14: about 900). An engine may write lines of any length."""
DIFFERENT = 8
"""Different phrases of one kind that are kept; an engine has one or two."""


@dataclass(frozen=True, slots=True)
class StartForms:
    """How the log of one engine reports its start."""

    pool: LogForms
    begins: re.Pattern[str]
    """A line before all the others that are read; where it is missing the beginning was rotated away."""
    cache_type: re.Pattern[str]
    """A line that names the type in which keys and values are stored, its first group."""
    backends: tuple[re.Pattern[str], ...]
    """Lines that name what computes attention, the first group, by generation."""
    methods: tuple[re.Pattern[str], ...]
    """Phrases by which methods of compression say that they are on."""


@dataclass(frozen=True, slots=True)
class Started:
    """What one engine said of itself when it started."""

    methods: tuple[str, ...] = ()
    """Phrases of methods of compression, as they were matched."""
    cache_type: str = ""
    """The type in which keys and values are stored; empty: no line names it."""
    backends: tuple[str, ...] = ()
    """What computes attention. It decides nothing by itself: one fused kernel may take the place of another,
    and a method may replace attention after its name is logged."""
    size: LoggedSize | None = None
    is_whole: bool = False
    """The log goes from the beginning to the pool, so that what it does not say was not said."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A log that says nothing, because it could not be read."""

    why: str
    """For a person; never a part of a log."""


Start: TypeAlias = Started | Unread


def parse_start(lines: Iterable[str], forms: StartForms) -> Started:
    """Return what a log says about the start of its engine; of a log without a start, nothing."""
    taken = takewhile(lambda line: not forms.pool.serving.search(line), lines)
    start = [line[:LINE_LENGTH] for line in taken]
    size = logged_size(start, forms.pool)
    return Started(
        methods=_keep_lines(start, forms.methods, 0),
        cache_type=next(iter(_keep_lines(start, (forms.cache_type,), 1)), ""),
        backends=_keep_lines(start, forms.backends, 1),
        size=size,
        is_whole=size is not None and any(forms.begins.search(line) for line in start),
    )


def phrases(starts: Mapping[str, Start]) -> tuple[str, ...]:
    """Return the phrases of methods that any of some replicas logged, by pod name, without doubles."""
    in_order = (starts[name] for name in sorted(starts))
    return tuple(dict.fromkeys(each for one in in_order if isinstance(one, Started) for each in one.methods))


def _keep_lines(start: Iterable[str], patterns: tuple[re.Pattern[str], ...], group: int) -> tuple[str, ...]:
    found = (pattern.search(line) for line in start for pattern in patterns)
    return tuple(dict.fromkeys(match.group(group) for match in found if match))[:DIFFERENT]


@dataclass(frozen=True, slots=True)
class Witness:
    """What one replica answered when it was asked for its engine's version."""

    pod: str
    image: str
    """What it runs, as the kubelet names it; empty where that is not known."""
    version: Reading[Version]


@dataclass(frozen=True, slots=True)
class Agreed:
    """Of every image that runs a replica answered, and all say the same."""

    version: Version


@dataclass(frozen=True, slots=True)
class Silent:
    """Nobody answered with a version: the image's tag is as good as it gets."""

    why: str


@dataclass(frozen=True, slots=True)
class Unclear:
    """Somebody answered, and the version is not known all the same: the tag cannot be right about all."""

    why: str


@dataclass(frozen=True, slots=True)
class Mixed:
    """Replicas of one template run different versions."""

    why: str


ReportedVersion: TypeAlias = Agreed | Silent | Unclear | Mixed

_WHY_ABSENT = {
    Absence.SOURCE_UNAVAILABLE: "did not answer",
    Absence.NOTHING_FOUND: "has no such page",
    Absence.UNREADABLE: "answered with something that is no version",
}
_NOT_REPORTED = "does not report it"


def witnesses(pods: Iterable[Pod], revision: str) -> tuple[Pod, ...]:
    """Return the replicas that are asked: of each image the oldest and the newest that is Ready.

    So their number does not grow with the fleet. One image holds one version, unless a script installs the
    engine whenever a container starts, which shows between the oldest and the newest.
    """
    asked = (pod for pod in pods if pod.revision == revision and pod.ready and not pod.terminating)
    by_image: dict[str, list[Pod]] = {}
    for pod in sorted(asked, key=lambda pod: (pod.created_at, pod.name)):
        by_image.setdefault(pod.image, []).append(pod)
    ends = (pod for many in by_image.values() for pod in (many[0], many[-1]))
    return tuple({pod.uid: pod for pod in ends}.values())


def reported_version(answers: Sequence[Witness], profile: EngineProfile) -> ReportedVersion:
    """Return the version that a fleet runs, as far as its replicas report it."""
    said: dict[Version, list[str]] = {}
    for one in answers:
        if isinstance(one.version, Measured):
            said.setdefault(one.version.value, []).append(one.pod)
    if not said:
        return Silent(_silence(answers))
    if len(said) > 1:
        return Mixed(
            "; ".join(
                f"{version} on {', '.join(pods)}" for version, pods in sorted(said.items(), key=_first_line)
            )
        )
    version, pods = next(iter(said.items()))
    if not profile.covers(version):
        return Unclear(f"{pods[0]} says {version}, which is none of its releases")
    silent = _silent_witnesses(answers)
    return Unclear(_silence(silent)) if silent else Agreed(version)


def _first_line(said: tuple[Version, list[str]]) -> Version:
    return said[0]


def _silent_witnesses(answers: Sequence[Witness]) -> list[Witness]:
    """Return the witnesses of images of which no replica answered."""
    answered = {one.image for one in answers if isinstance(one.version, Measured)}
    return [one for one in answers if one.image not in answered]


def _silence(answers: Sequence[Witness]) -> str:
    if not answers:
        return "no replica is Ready to be asked"
    return "; ".join(f"{one.pod} {_why_unread(one.version)}" for one in answers)


def _why_unread(reading: Reading[Version]) -> str:
    return _WHY_ABSENT.get(reading.reason, _NOT_REPORTED) if isinstance(reading, Missing) else _NOT_REPORTED
