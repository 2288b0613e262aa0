"""The observed fleet."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kvmedic.model.devices import ContainerEnd, Instance
from kvmedic.model.fleet import Pod
from run_builder import NOW, a_pod

SECOND = timedelta(seconds=1)
ENDED = ContainerEnd("vllm", 1, "Error", NOW - 60 * SECOND, NOW, Instance.PREVIOUS)
STOPPED = ContainerEnd("vllm", 1, "Error", NOW - 60 * SECOND, NOW, Instance.PRESENT)
DOWN: dict[str, object] = {"ready_at": None, "in_rotation": False, "restarts": 2, "last_end": ENDED}


@pytest.mark.parametrize(
    ("pod", "ends", "is_down", "keeps_ending"),
    [
        (a_pod("a"), 0, False, False),
        (a_pod("a", restarts=2, last_end=ENDED), 2, False, False),
        (a_pod("a", **DOWN, waiting_reason="CrashLoopBackOff"), 3, True, True),
        (a_pod("a", **DOWN, waiting_reason="ImagePullBackOff"), 3, True, False),
        (a_pod("a", **{**DOWN, "restarts": 0, "last_end": STOPPED}), 1, True, True),
        (a_pod("a", **DOWN, unready_at=NOW), 2, True, True),
        (a_pod("a", **DOWN, unready_at=NOW + SECOND), 2, False, False),
        (a_pod("a", **DOWN), 2, False, False),
        (a_pod("a", **{**DOWN, "restarts": 0, "last_end": None}, unready_at=NOW), 0, False, False),
    ],
    ids=[
        "serves",
        "serves again",
        "waits before it is started again",
        "waits for its image",
        "ended for the first time",
        "loads, and was not Ready since its end",
        "was Ready since its end",
        "nobody says since when it is not Ready",
        "loads for the first time",
    ],
)
def test_how_a_replica_stands(pod: Pod, ends: int, *, is_down: bool, keeps_ending: bool) -> None:
    assert (pod.ends, pod.is_down, pod.keeps_ending) == (ends, is_down, keeps_ending)
