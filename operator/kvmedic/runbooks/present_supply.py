"""What is known of the memory that a fleet's KV cache could have, from its template and what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvmedic.core.diagnosis import Evidence
from kvmedic.core.evidence import Measured
from kvmedic.core.record import OutgrownShare
from kvmedic.core.supply import HostTerms, Supply
from kvmedic.core.template import body_hash
from kvmedic.core.vitals import MEMORY_SERIES, Vital, Vitals

NAMED_REPLICAS = 3
"""Replicas that a message names; the rest is counted."""
SHOWN = MEMORY_SERIES[-1]
"""The series that a message names: those of exporters before 4.9.0 are the ones that most fleets have."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a command line says, and what is on record of it."""

    caches_prefixes: bool | None
    """The switch as given, else the engine's default for its version; None where neither tells."""
    is_given: bool
    """The switch stands on the command line."""
    host: HostTerms
    raised_in_vain: bool


def supply_of(
    given: Given, template: Mapping[str, object], outgrown: Sequence[OutgrownShare], evidence: Evidence
) -> Supply:
    """Return the present supply; what cannot be told is unknown, never assumed."""
    used, unknown = memory_in_use(evidence)
    told = _told_prefixes(evidence)
    return Supply(
        caches_prefixes=given.caches_prefixes if given.is_given or told is None else told,
        leaves_prefixes=not given.is_given and told is False and given.caches_prefixes is not False,
        memory_in_use=used,
        memory_unknown=unknown,
        outgrown=lowest(outgrown, template),
        raised_in_vain=given.raised_in_vain,
        host=given.host,
    )


def lowest(outgrown: Sequence[OutgrownShare], template: Mapping[str, object]) -> float | None:
    """Return the lowest share at which a pod template ran out of memory, whatever its command line says."""
    if not outgrown:
        return None
    body = body_hash(template)
    return min((one.share for one in outgrown if one.body == body), default=None)


def memory_in_use(evidence: Evidence) -> tuple[float | None, str]:
    """Return the largest share of any device's memory that was in use, or of whom that is not known.

    Every device of every replica counts: the same flag holds for all of them.
    """
    shares = {name: _shares(evidence.vitals.get(name, Vitals())) for name in sorted(evidence.burn.pods)}
    blind = [name for name, found in shares.items() if not found or None in found]
    known = [share for found in shares.values() for share in found if share is not None]
    if not blind and known:
        return max(known), ""
    named = ", ".join(blind[:NAMED_REPLICAS]) or "any replica"
    rest = f" and {len(blind) - NAMED_REPLICAS} more" if len(blind) > NAMED_REPLICAS else ""
    return None, (
        f"the metrics source has no fresh {SHOWN.used} and {SHOWN.free} for {named}{rest}: have the DCGM "
        "exporter scraped, with the label of the pod that uses the GPU"
    )


def _shares(vitals: Vitals) -> tuple[float | None, ...]:
    devices = vitals.devices.value if isinstance(vitals.devices, Measured) else ()
    return tuple(device.ratio(Vital.MEMORY_IN_USE) for device in devices)


def _told_prefixes(evidence: Evidence) -> bool | None:
    """Return what the running engines say of themselves; None where they differ or one does not say."""
    pools = [readings.pool for readings in evidence.burn.pods.values()]
    told = {pool.value.caches_prefixes if isinstance(pool, Measured) else None for pool in pools}
    return told.pop() if len(told) == 1 else None
