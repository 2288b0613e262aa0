"""One write of a resource's status, and after it what people are told of the change."""

from __future__ import annotations

from kvmedic.core.record import Record
from kvmedic.core.resource import Resource
from kvmedic.ports import Ports


async def save(resource: Resource, after: Record, ports: Ports) -> Resource:
    """Write a record down, then tell what changed; nothing where it is what was loaded.

    Dying between the two loses the telling, never the record.

    Raises:
        Conflict: the resource moved since it was loaded; nothing was written or told.
    """
    if after == resource.record:
        return resource
    saved = await ports.store.save(resource, after)
    await ports.reporter.saved(resource, resource.record, after)
    return saved
