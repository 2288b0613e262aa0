"""Somebody edits the spec of a resource all the time while its runs go on, as a pipeline gone wild would.

Each edit is drawn: a valid one of any field that may change, or one that the API server refuses. Whatever the
spec says at a moment, no replica in rotation goes undrained, and what was borrowed is given back in the end.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from lab.cluster.api import ApiError
from worlds.phases import PATIENCE_SECONDS
from worlds.world import DRAINING, Eye, World, remediation

EDITS, SEED = 500, 1
SECONDS_APART = 0.15
"""Between two edits, on average: about as many looks at an open run."""
SHARE_REFUSED = 0.1
SHARE_OF_TURNS = 0.1
"""Of edits after which requests come or go, and the change helps or does not."""
CALM = remediation(limits={"cooldown": "24h"})["spec"]

WORDS: dict[str, tuple[dict[str, Any], ...]] = {
    "suspend": ({"suspend": True}, {"suspend": False}, {"suspend": False}),
    "mode": ({"mode": "Auto"}, {"mode": "Auto"}, {"mode": "Observe"}, {"mode": "Approve"}),
    "ownership": ({"ownership": "Apply"}, {"ownership": "Respect"}),
    "runbooks": (
        {"runbooks": ["PreemptionThrash"]},
        {"runbooks": ["CompressionWithoutSavings", "PreemptionThrash"]},
    ),
    "objectives": ({"objectives": {"ttftP95": "5s"}}, {"objectives": None}),
    "trigger": (
        {"trigger": {"for": "0s"}},
        {"trigger": {"preemptionsPerRequest": 100}},
        {"trigger": {"preemptionsPerRequest": 0.5}},
    ),
    "levers": (
        {"levers": [{"name": "maxNumSeqs"}]},
        {"levers": [{"name": "maxNumSeqs", "min": 20, "max": 40}]},
        {"levers": [{"name": "scaleOut"}, {"name": "maxNumSeqs"}]},
    ),
    "spare": ({"rollout": {"spare": "BestEffort"}}, {"rollout": {"spare": "Required"}}),
    "waves": ({"rollout": {"waves": "Quarter"}}, {"rollout": {"waves": "OneByOne"}}),
    "drain": (
        {"rollout": {"drainTimeout": "10s", "onDrainTimeout": "Hold"}},
        {"rollout": {"drainTimeout": "30m"}},
    ),
    "rotation": (
        {"rollout": {"rotation": "Label"}},
        {"rollout": {"rotation": "Orphan"}},
        {"rollout": {"rotation": "Auto"}},
        {"rollout": {"rotationLabel": {"draining": "away"}}},
        {"rollout": {"rotationLabel": {"draining": DRAINING}}},
    ),
    "verify": (
        {"verify": {"for": "1m", "sideBySide": "Auto"}},
        {"verify": {"for": "1m", "sideBySide": "Never"}},
        {"verify": {"for": "2m", "onInconclusive": "RollBack"}},
    ),
    "limits": (
        {"limits": {"cooldown": "0s", "maxRunsPerDay": 10}},
        {"limits": {"cooldown": "24h"}},
        {"limits": {"minHealthyReplicas": 3}},
        {"limits": {"minHealthyReplicas": 1}},
    ),
}
REFUSED: tuple[dict[str, Any], ...] = (
    {"mode": "auto"},
    {"verify": {"for": "3m"}},
    {"rollout": {"drainTimeout": "-1s"}},
    {"targetRef": {"name": "another"}},
    {"limits": {"maxRunsPerDay": 0}},
)
"""What the API server does not take, whatever the rest of the spec is."""


def is_taken(world: World, edit: dict[str, Any]) -> bool:
    """Edit the spec, and return whether the API server takes it."""
    try:
        world.cluster.api.patch("KVRemediation", "llm", {"spec": edit}, world.namespace)
    except ApiError as error:
        if error.code != 422:
            raise
        return False
    return True


def edit_at_random(world: World, drawn: random.Random) -> int:
    """Edit the spec again and again, and return how many edits were refused."""
    refused = 0
    for _ in range(EDITS):
        if drawn.random() < SHARE_REFUSED:
            edit = drawn.choice(REFUSED)
            assert not is_taken(world, edit), edit
            refused += 1
        else:
            edit = drawn.choice(WORDS[drawn.choice(list(WORDS))])
            assert is_taken(world, edit), edit
        if drawn.random() < SHARE_OF_TURNS:
            world.rewrite(inFlight=drawn.choice((0, 0, 3)), new=drawn.choice(("recovered", "worse")))
        world.revive()
        time.sleep(drawn.uniform(0, 2 * SECONDS_APART))
    return refused


@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_five_hundred_edits_of_the_spec_cut_nobody_and_leave_nothing(a_world):
    world = a_world(2)
    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        refused = edit_at_random(world, random.Random(SEED))
        assert is_taken(world, dict.fromkeys(world.resource()["spec"]) | CALM)
        world.rewrite(old="idle", new="recovered", inFlight=0)
        world.wait(lambda: "run" not in world.status(), PATIENCE_SECONDS, "no run is open")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")
        world.wait(lambda: world.traces() == [], PATIENCE_SECONDS, "nothing of ours is left")

    print(f"{refused} edits were refused; runs ended as {world.outcomes()}; {len(eye.seen)} pods")
    assert world.outcomes(), "no run was closed meanwhile"
    assert world.starts == 1
    assert eye.lost == []
    assert eye.fewest >= 1
    assert "paused" not in world.deployment()["spec"]
