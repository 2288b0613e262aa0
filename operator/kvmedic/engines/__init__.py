"""The vocabulary of each engine: how it is recognised, what may be turned on it, what it reports of itself.

Data only. A new engine is files of its own in this folder and a row in `VOCABULARIES`.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

from kvmedic.engines.engine_log import StartForms
from kvmedic.engines.signal_sources import SignalTable
from kvmedic.engines.vllm import VLLM
from kvmedic.engines.vllm_log import VLLM_OUT_OF_MEMORY, VLLM_REFUSALS, VLLM_START
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.model.engine import EngineProfile


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How one engine speaks."""

    profile: EngineProfile
    signals: SignalTable
    """What it exports."""
    start: StartForms
    """What it logs when it starts."""
    refusals: tuple[re.Pattern[str], ...]
    """How it says that a type of the KV cache is not supported where it runs."""
    out_of_memory: re.Pattern[str]
    """How it says that a GPU's memory ran out."""


VOCABULARIES = (Vocabulary(VLLM, VLLM_SIGNALS, VLLM_START, VLLM_REFUSALS, VLLM_OUT_OF_MEMORY),)
"""Every engine that is known. Where nothing shows which of them runs, the first is taken."""

ENGINES = tuple(each.profile for each in VOCABULARIES)


@cache
def profiles_for(engine: str | None) -> tuple[EngineProfile, ...]:
    """Return the engines that a target's container may run.

    Args:
        engine: the one that it does run, by name, whatever its image is called; None: any that is recognised.
    """
    named = (each for each in ENGINES if each.name == engine)
    return tuple(replace(each, launch=replace(each.launch, images=(".*",))) for each in named) or ENGINES


def vocabulary_of(profile: EngineProfile) -> Vocabulary:
    """Return how an engine speaks that is one of those known."""
    return next(each for each in VOCABULARIES if each.profile.name == profile.name)
