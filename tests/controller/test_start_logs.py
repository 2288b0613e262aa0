"""Start-up logs on a real API server: a type of the KV cache that labels leave open, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.model.spec import Runbook
from lab.engine.logs import EIGHT_BIT

SECONDS = 60
SECRET = "sesame"
PLAIN = f"""\
INFO 11-21 04:49:50 [api_utils.py:286] non-default args: {{'api_key': ['{SECRET}']}}
INFO 11-21 04:50:01 [kv_cache_utils.py:2327] GPU KV cache size: 4,800 tokens
INFO:     Application startup complete.
"""
EIGHT = PLAIN.replace(
    "INFO 11-21 04:50:01", f"INFO [cache.py:232] {EIGHT_BIT.format('fp8')}\nINFO 11-21 04:50:01"
)


def asking(container: dict[str, Any], pod: dict[str, Any]) -> None:
    """Ask for a type with fewer bits, which the replicas' labels do not have."""
    del pod
    container["args"] = [*container["args"], "--kv-cache-dtype=fp8"]


@pytest.mark.parametrize(
    ("log", "applied"), [(EIGHT, True), (PLAIN, False)], ids=["it names fp8", "it does not"]
)
def test_what_the_start_up_log_says_decides_and_nothing_else_of_it_is_kept(a_world, log, applied):
    """A type that is ignored is reported; as nothing could mend that, the fleet goes to the other runbook."""
    spec = {"runbooks": [str(each) for each in Runbook], "mode": "Observe"}
    world = a_world(replicas=2, spec=spec, change=asking)
    world.proxy.log = log
    world.start()

    world.wait(
        lambda: world.status().get("diagnosis", {}).get("reason") == "FleetWideDemand", SECONDS, "a diagnosis"
    )

    assert ("CompressionNotApplied" in world.status()["diagnosis"]["message"]) is not applied
    assert any(path.split("?")[0].endswith("/log") for path in world.proxy.reads)
    assert SECRET not in str(world.status())
    assert SECRET not in world.log


def test_no_log_is_read_where_the_runbook_is_not_asked_for(a_world):
    world = a_world(replicas=2, spec={"mode": "Observe"}, change=asking)
    world.proxy.log = EIGHT
    world.start()

    world.wait(
        lambda: world.status().get("diagnosis", {}).get("reason") == "FleetWideDemand", SECONDS, "a diagnosis"
    )

    assert not any(path.split("?")[0].endswith("/log") for path in world.proxy.reads)
