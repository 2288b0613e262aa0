"""The version of its engine that a fleet runs, by the word of its replicas.

It beats the image's tag: a tag may move, may be anybody's, and says nothing beside a digest. Replicas that
contradict each other make the version unknown, and so does one that nobody can place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvmedic.core.engine import EngineProfile
from kvmedic.core.evidence import Absence, Measured, Missing, Reading
from kvmedic.core.fleet import Pod
from kvmedic.core.version import Version


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


Told: TypeAlias = Agreed | Silent | Unclear | Mixed

_UNTOLD = {
    Absence.SOURCE_UNAVAILABLE: "did not answer",
    Absence.NOTHING_FOUND: "has no such page",
    Absence.UNREADABLE: "answered with something that is no version",
}
_NOT_TOLD = "does not tell it"


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


def told_of(told: Sequence[Witness], profile: EngineProfile) -> Told:
    """Return the version that a fleet runs, as far as its replicas tell it."""
    said: dict[Version, list[str]] = {}
    for one in told:
        if isinstance(one.version, Measured):
            said.setdefault(one.version.value, []).append(one.pod)
    if not said:
        return Silent(_silence(told))
    if len(said) > 1:
        return Mixed(
            "; ".join(f"{version} on {', '.join(pods)}" for version, pods in sorted(said.items(), key=_first))
        )
    version, pods = next(iter(said.items()))
    if not profile.covers(version):
        return Unclear(f"{pods[0]} says {version}, which is none of its releases")
    unheard = _unheard(told)
    return Unclear(_silence(unheard)) if unheard else Agreed(version)


def _first(said: tuple[Version, list[str]]) -> Version:
    return said[0]


def _unheard(told: Sequence[Witness]) -> list[Witness]:
    """Return the witnesses of images of which no replica answered."""
    heard = {one.image for one in told if isinstance(one.version, Measured)}
    return [one for one in told if one.image not in heard]


def _silence(told: Sequence[Witness]) -> str:
    if not told:
        return "no replica is Ready to be asked"
    return "; ".join(f"{one.pod} {_why(one.version)}" for one in told)


def _why(reading: Reading[Version]) -> str:
    return _UNTOLD.get(reading.reason, _NOT_TOLD) if isinstance(reading, Missing) else _NOT_TOLD
