"""What the sustained window says of a replica that was made so that it has another type of KV cache."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from kvmedic.core.judged import Judged, not_recovered


def in_view_of_types(judged: Judged, types: AbstractSet[str], wanted: tuple[str, ...]) -> Judged:
    """Return a verdict that is no recovery where no new replica has what it was made for.

    One that has not would be followed by another, without end.

    Args:
        judged: the verdict by the fleet's figures.
        types: in which new replicas store keys and values; empty: nobody tells.
        wanted: beginnings of the types that would do.
    """
    if not types or any(each.startswith(wanted) for each in types):
        return judged
    return not_recovered(
        f"the new replica stores keys and values as {', '.join(sorted(types))}, too", judged.after
    )
