"""An administrator's word that a storm of bad ends is over: the age of one ConfigMap.

`kubectl -n kvmedic-system create configmap kvmedic-storm-over`

Runs that ended badly before it was created do not count any more. It may stay: the next storm is
another one, for which it is deleted and made anew.
"""

from __future__ import annotations

from datetime import datetime

from kvmedic.kube.client import Client
from kvmedic.kube.errors import ApiError
from kvmedic.kube.objects import CONFIG_MAPS, Ref, moment, section


async def storm_over_at(client: Client, namespace: str, name: str) -> datetime | None:
    """Return when an administrator said that the last storm is over, or None.

    Never raises: an answer that is not had means that nobody said so.

    Args:
        client: the API.
        namespace: the operator's own namespace.
        name: the ConfigMap's name.
    """
    try:
        found = await client.get(Ref(CONFIG_MAPS, namespace, name))
    except ApiError:
        return None
    stamp = section(found or {}, "metadata").get("creationTimestamp")
    return moment(str(stamp)) if stamp else None
