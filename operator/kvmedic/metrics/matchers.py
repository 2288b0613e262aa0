"""The administrator's label matchers in every selector of a query: a source may hold several clusters.

Replicas are joined by namespace and pod, and another cluster may have the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from kvmedic.core.vitals import MEMORY_SERIES, SERIES

MATCHER = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*(?:=~|!~|!=|=)"(?:[^"\\\n]|\\[^\n])*"')
"""One matcher as PromQL writes it."""
DEVICE_NAMES = frozenset(
    {
        *(name for names in SERIES.values() for name in names),
        *(name for one in MEMORY_SERIES for name in (one.used, one.free)),
    }
)
"""Every series of a device that is asked for."""

Narrow: TypeAlias = Callable[[str], str]
"""Returns a query with some matchers in each of its selectors."""


def narrowed_by(matchers: Sequence[str], names: Iterable[str]) -> Narrow:
    """Return what puts matchers into each selector of a query.

    Args:
        matchers: of the administrator; none leave a query as it is.
        names: of all metrics that queries select. None of them can be part of a label's value, as names of
            pods and namespaces have neither underscores nor colons.
    """
    if not matchers:
        return str
    alternatives = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    selector = re.compile(rf"(?<![\w:])({alternatives})(?![\w:])(\{{)?")
    told = ", ".join(matchers)

    def narrow(text: str) -> str:
        return selector.sub(lambda found: f"{found[1]}{{{told}{', ' if found[2] else '}'}", text)

    return narrow
