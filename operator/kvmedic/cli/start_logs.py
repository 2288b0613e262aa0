"""Start-up logs that a person saved: whose they are, and what they tell.

--log startup.log               of the only replica
--log a=a.log --log b=b.log     of several, by the names that their scrapes have

Logs may hold prompts and secrets: nothing is kept or shown of one but what `core.started` looks for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kvmedic.cli.saved import UnfitError, text_of
from kvmedic.cli.scrapes import ScrapeError, named_file
from kvmedic.core.diagnosis import Evidence
from kvmedic.core.started import Started, started_of
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.engines.vllm_start import VLLM_START
from kvmedic.gathering import completed

LARGEST_BYTES = 16 << 20
"""A start of vLLM 0.32 writes 9 kB (recorded, CPU build); each rank of a large model adds some."""
_BEGINNING = "give its beginning: kubectl logs POD -c CONTAINER | head -c 1000000 >startup.log"


def starts_of(arguments: Sequence[str], replicas: Collection[str]) -> dict[str, Started]:
    """Return what the logs tell, by replica.

    Raises:
        ScrapeError: a file cannot be used, or nobody can tell whose it is.
    """
    found: dict[str, Started] = {}
    for argument in arguments:
        name, file = named_file("--log", argument)
        replica = _replica(argument, name, replicas)
        if replica in found:
            raise ScrapeError(
                f"--log {argument}: there is a log of {replica} already; give one start of each"
            )
        found[replica] = started_of(_text(file).split("\n"), VLLM_START)
    return found


def with_starts(evidence: Evidence, starts: Mapping[str, Started]) -> Evidence:
    """Return evidence with what logs tell, also of pools that no metric tells."""
    sizes = {name: start.size for name, start in starts.items() if start.size is not None}
    null = VLLM_SIGNALS.pool.null_blocks
    burn, sizing = (completed(seen, sizes, null) for seen in (evidence.burn, evidence.sizing))
    return replace(evidence, burn=burn, sizing=sizing, started=dict(starts))


def gaps_in(starts: Mapping[str, Started]) -> tuple[str, ...]:
    """Return of which replicas the log is not all of a start."""
    return tuple(
        f"the log of {name} is not the whole start of an engine, from its arguments to its pool: what it "
        f"does not say may have been said; {_BEGINNING}"
        for name, start in sorted(starts.items())
        if not start.is_whole
    )


def _replica(argument: str, name: str, replicas: Collection[str]) -> str:
    if not name and len(replicas) == 1:
        return next(iter(replicas))
    if name in replicas:
        return name
    raise ScrapeError(
        f"--log {argument}: of which replica? Write NAME=FILE with the name of its scrapes: "
        f"{', '.join(sorted(replicas))}"
    )


def _text(file: str) -> str:
    try:
        return text_of(file, LARGEST_BYTES)
    except OSError as error:
        raise ScrapeError(f"{file}: {error.strerror}; correct the path") from None
    except UnfitError as error:
        raise ScrapeError(f"{error}: no start-up log; {_BEGINNING}") from None
