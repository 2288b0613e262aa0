"""Which of a manifest's containers is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvmedic.core.engine import EngineProfile
from kvmedic.manifests.budget import Budget
from kvmedic.manifests.documents import ManifestContainer, containers_of
from kvmedic.manifests.invocation import Invocation, NotAnEngine, invocation_of
from kvmedic.manifests.refusal import Refusal, RefusalReason


@dataclass(frozen=True, slots=True)
class Selector:
    """What a person says about the container that is meant; None leaves it open."""

    container: str | None = None
    owner: str | None = None
    """Name of the object."""

    def matches(self, candidate: ManifestContainer) -> bool:
        """Return whether a container may be the one."""
        by_name = self.container is None or self.container == candidate.name
        return by_name and (self.owner is None or self.owner == candidate.owner)


def engines_in(
    text: str, profile: EngineProfile, selector: Selector
) -> tuple[ManifestContainer, ...] | Refusal:
    """Return the containers of a manifest's text that start the engine; at least one.

    A container that starts it in a way that can't be followed refuses the whole, because what is
    left would look complete.
    """
    found = containers_of(text)
    if isinstance(found, Refusal):
        return found
    chosen = [candidate for candidate in found if selector.matches(candidate)]
    budget = Budget()
    seen = [(candidate, invocation_of(candidate.data, profile, budget)) for candidate in chosen]
    for candidate, invocation in seen:
        if isinstance(invocation, Refusal):
            return Refusal(invocation.reason, f"container {candidate}: {invocation.message}")
    engines = tuple(c for c, invocation in seen if not isinstance(invocation, NotAnEngine | Refusal))
    return engines or _none(found, seen, profile)


def engine_in(text: str, profile: EngineProfile, selector: Selector) -> ManifestContainer | Refusal:
    """Return the one container of a manifest's text that starts the engine."""
    engines = engines_in(text, profile, selector)
    if isinstance(engines, Refusal):
        return engines
    return engines[0] if len(engines) == 1 else several(engines)


def several(engines: Sequence[ManifestContainer]) -> Refusal:
    """Return the refusal that tells which of several containers could be meant.

    How to name one is up to the command that asks.
    """
    listed = ", ".join(str(engine) for engine in engines)
    message = f"{len(engines)} containers could be meant: {listed}"
    return Refusal(RefusalReason.SEVERAL_ENGINES, message)


def _none(
    found: Sequence[ManifestContainer],
    seen: Sequence[tuple[ManifestContainer, Invocation]],
    profile: EngineProfile,
) -> Refusal:
    if not found:
        return Refusal(
            RefusalReason.NO_ENGINE,
            "no object with containers in the manifest; init containers are not looked at",
        )
    if not seen:
        listed = ", ".join(str(candidate) for candidate in found)
        return Refusal(RefusalReason.NO_ENGINE, f"no container of that name; the manifest has {listed}")
    doubts = [f"container {c}: {i.doubt}" for c, i in seen if isinstance(i, NotAnEngine) and i.doubt]
    if doubts:
        return Refusal(RefusalReason.UNKNOWN_ENTRYPOINT, "; ".join(doubts))
    listed = ", ".join(str(candidate) for candidate, _ in seen)
    return Refusal(RefusalReason.NO_ENGINE, f"no container starts {profile.name}: {listed}")
