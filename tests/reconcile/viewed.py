"""A target as it was read, for tests without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvmedic.model.config_edits import Sight
from kvmedic.model.fleet import Fleet


@dataclass(frozen=True)
class Viewed:
    """A fleet and its pod template, with whatever else of it was read."""

    fleet: Fleet
    template: Mapping[str, object]
    templates: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    config_maps: Mapping[str, Sight] = field(default_factory=dict)
