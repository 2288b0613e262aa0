"""One incident of the tables of incidents."""

from __future__ import annotations

from dataclasses import dataclass

from kvmedic.runbooks.branches import Evidence


@dataclass(frozen=True, slots=True)
class Incident:
    """What was seen, and whether the branch applies."""

    name: str
    evidence: Evidence
    fires: bool
