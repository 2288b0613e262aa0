"""The API key that a pod template gives its engine in plain text. It is secret: never print or store it."""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.core.edit import containers_of
from kvmedic.core.engine import Engine, EngineProfile
from kvmedic.manifests.budget import Budget
from kvmedic.manifests.flags import parsed_of
from kvmedic.manifests.grammar import Given
from kvmedic.manifests.invocation import version_of
from kvmedic.manifests.refusal import Refusal
from kvmedic.manifests.tokens import environment_of


def api_key_of(template: Mapping[str, object], profile: EngineProfile) -> str:
    """Return a key that the engine of a pod template takes; empty where there is none in plain text.

    The command line beats the environment, and of several keys each is as good.
    """
    budget = Budget()
    keys = (_key(each, profile, budget) for each in containers_of(template))
    return next(filter(None, keys), "")


def _key(container: Mapping[str, object], profile: EngineProfile, budget: Budget) -> str:
    spelling = profile.api_key
    if spelling is None:
        return ""
    parsed = parsed_of(container, Engine(profile, version_of(container, profile)), budget)
    given = None if isinstance(parsed, Refusal) else parsed.last(spelling.dest)
    if given is not None:
        return _plain(given)
    environment = environment_of(container, budget)
    return "" if isinstance(environment, Refusal) else environment.values.get(spelling.variable, "")


def _plain(given: Given) -> str:
    return next((word.text for word in given.values if word.text and not word.token.unresolved), "")
