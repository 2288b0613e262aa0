"""The operator-wide stop: while one ConfigMap exists, no forward move is made anywhere.

On:  `kubectl -n kvmedic-system create configmap kvmedic-stop`
Off: `kubectl -n kvmedic-system delete configmap kvmedic-stop`

Its existence is the whole message, so there is no key to misspell at three in the morning; whatever
it contains is for people (who, why). Ways back stay open while it exists.
"""

from __future__ import annotations

from kvmedic.core.gates import Stop
from kvmedic.kube.client import Client
from kvmedic.kube.errors import ApiError
from kvmedic.kube.objects import CONFIG_MAPS, Ref


async def read_stop(client: Client, namespace: str, name: str) -> Stop:
    """Return whether the operator-wide stop is on. Never raises: not knowing is an answer.

    Args:
        client: the API.
        namespace: the operator's own namespace.
        name: the ConfigMap's name.
    """
    try:
        found = await client.get(Ref(CONFIG_MAPS, namespace, name))
    except ApiError:
        return Stop.UNREADABLE
    return Stop.OFF if found is None else Stop.ON
