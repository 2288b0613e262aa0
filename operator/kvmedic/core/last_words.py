"""What the log of an engine that ended by itself on a trial pod tells of why.

A log may hold prompts and secrets. Only what the patterns of an engine's vocabulary match is kept of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvmedic.core.fleet import Pod

LINE_LENGTH = 4000
"""Characters of a line that are looked at: a selector of attention backends tells its whole configuration
and every backend's reasons in one (vLLM 0.14: about 900)."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """What is known of an end beside what the kubelet says."""

    refusal: str = ""
    """The phrase with which the engine refuses a type of its KV cache; empty: it does not, or the log was
    not read."""
    trouble: str = ""
    """Why the log could not be read; empty where it was."""


NO_WORDS = LastWords()


def refusal_in(lines: Iterable[str], refusals: Sequence[re.Pattern[str]]) -> str:
    """Return the first phrase with which an engine refuses a type of its KV cache; empty where none does.

    Args:
        lines: of its log, without those of ordinary logging.
        refusals: the phrases; the last group of a pattern is what is kept.
    """
    found = (pattern.search(line[:LINE_LENGTH]) for line in lines for pattern in refusals)
    return next((match.group(match.re.groups) for match in found if match), "")


def ended_by_itself(pod: Pod) -> bool:
    """Return whether a trial pod's engine ended and nobody deleted the pod."""
    return pod.has_ended and not pod.terminating


def told_of_end(pod: Pod, words: LastWords) -> str:
    """Return why a trial pod's engine ended, as far as it is known."""
    if words.refusal:
        return f"the engine refuses it on this hardware: {words.refusal}"
    end = pod.last_end
    said = f" (exit code {end.exit_code}, {end.reason or 'no reason given'})" if end else ""
    unread = f"; its log cannot be read: {words.trouble}" if words.trouble else ""
    return f"the trial pod ended by itself{said}{unread}"
