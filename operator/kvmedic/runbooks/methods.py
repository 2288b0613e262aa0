"""Which method of KV compression a workload's own settings switch on."""

from __future__ import annotations

from kvmedic.core.compression import TokenEviction, Told, recognised, token_eviction
from kvmedic.engines.kv_methods import METHODS
from kvmedic.runbooks.planning import Workload


def eviction_of(workload: Workload) -> TokenEviction | None:
    """Return the method that evicts tokens while sequences run; None where none is known of.

    Only variables with a value of their own are read: one that comes from elsewhere tells nothing.
    """
    variables = workload.container.get("env")
    environment = {
        str(each["name"]): each["value"]
        for each in (variables if isinstance(variables, list) else ())
        if isinstance(each, dict) and "name" in each and isinstance(each.get("value"), str)
    }
    return token_eviction(recognised(METHODS, Told(environment, cache_dtype="")))
