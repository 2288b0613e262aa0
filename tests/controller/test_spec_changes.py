"""Somebody edits the spec of a resource all the time while its runs go on, as a pipeline gone wild would.

Each edit is drawn: a valid one of any field that may change, or one that the API server refuses. Whatever the
spec says at a moment, no replica in rotation goes undrained, and what was temporary is restored in the end.
Hypothesis draws several sequences, each on a fleet of its own, and shortens one that fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvmedic.model.status import HISTORY_LENGTH
from lab.cluster.api import ApiError, abandon_namespace
from lab.cluster.light import LightCluster
from worlds.phases import PATIENCE_SECONDS
from worlds.world import DRAINING, Eye, Maker, World, remediation

EDITS, SEQUENCES = 500, 5
PAUSES = (0.0, 0.1, 0.2, 0.3)
"""Seconds between two edits: on average about as many looks at an open run."""
SHORTENING_SECONDS = 300
"""For how long Hypothesis shortens a sequence that failed (6.170, MAX_SHRINKING_SECONDS)."""
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


# One edit in eight is one that is refused, and after as many requests come or go.
CHANGES = tuple(edit for edits in WORDS.values() for edit in edits)
TURNS = st.fixed_dictionaries(
    {"inFlight": st.sampled_from((0, 0, 3)), "new": st.sampled_from(("recovered", "worse"))}
)


def is_taken(world: World, edit: dict[str, Any]) -> bool:
    """Edit the spec, and return whether the API server takes it."""
    try:
        world.cluster.api.patch("KVRemediation", "llm", {"spec": edit}, world.namespace)
    except ApiError as error:
        if error.code != 422:
            raise
        return False
    return True


class Editing(RuleBasedStateMachine):
    """One fleet whose resource is edited, from the middle of a run on; `ends` gets what came of it."""

    def __init__(self, world: World, stack: ExitStack, ends: list[tuple[int, int, list[str]]]) -> None:
        super().__init__()
        self.world, self.stack, self.ends = world, stack, ends
        self.edits, self.in_a_run, self.is_sound = 0, 0, True
        self.eye = stack.enter_context(Eye(world.cluster, world.namespace, 2))
        world.rewrite(inFlight=3)
        world.start()
        world.wait(lambda: "run" in world.status(), PATIENCE_SECONDS, "a run is open")

    @rule(
        edit=st.sampled_from((*CHANGES, *REFUSED)),
        turn=st.sampled_from(range(8)).flatmap(lambda one: TURNS if one == 7 else st.none()),
        pause=st.sampled_from(PAUSES),
    )
    def edit(self, edit: dict[str, Any], turn: dict[str, Any] | None, pause: float) -> None:
        self.is_sound = False
        self.edits += 1
        assert is_taken(self.world, edit) is (edit not in REFUSED)
        if turn is not None:
            self.world.rewrite(**turn)
        self.world.revive()
        time.sleep(pause)

    @invariant()
    def nobody_was_cut_and_the_record_holds(self) -> None:
        self.is_sound = False
        assert self.eye.lost == []
        assert self.eye.fewest >= 1
        assert self.world.starts == 1
        resource = self.world.resource()
        status = resource.get("status") or {}
        assert "run" not in status or resource["metadata"].get("finalizers"), "a run without a finalizer"
        self.in_a_run += "run" in status
        assert status.get("observedGeneration", 0) <= resource["metadata"]["generation"]
        kinds = [each["type"] for each in status.get("conditions", [])]
        assert len(kinds) == len(set(kinds))
        assert len(status.get("history", [])) <= HISTORY_LENGTH
        assert self.world.replicas() >= 2
        self.is_sound = True

    def teardown(self) -> None:
        """Calm down, unless something was wrong before: nothing of ours may be left then."""
        with self.stack:
            if self.is_sound:
                self.calm_down()

    def calm_down(self) -> None:
        world = self.world
        assert is_taken(world, dict.fromkeys(world.resource()["spec"]) | CALM)
        world.rewrite(old="idle", new="recovered", inFlight=0)
        world.wait(lambda: "run" not in world.status(), PATIENCE_SECONDS, "no run is open")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")
        world.wait(lambda: world.traces() == [], PATIENCE_SECONDS, "nothing of ours is left")
        self.nobody_was_cut_and_the_record_holds()
        assert "paused" not in world.deployment()["spec"]
        self.ends.append((self.edits, self.in_a_run, world.outcomes()))


@pytest.mark.timeout(6 * PATIENCE_SECONDS + SHORTENING_SECONDS)
def test_five_hundred_edits_of_the_spec_cut_nobody_and_leave_nothing(
    light: LightCluster, crd: None, new_namespace: Callable[[], str], tmp_path: Path
) -> None:
    ends: list[tuple[int, int, list[str]]] = []

    def edited() -> Editing:
        stack, namespace = ExitStack(), new_namespace()
        stack.callback(abandon_namespace, light.api, namespace)
        (directory := tmp_path / namespace).mkdir()
        return Editing(Maker(light, namespace, directory, stack).make(2), stack, ends)

    drawn = settings(
        max_examples=SEQUENCES,
        stateful_step_count=EDITS // SEQUENCES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(edited, settings=drawn)

    print("edits, those in an open run, how runs ended:", ends)
    assert sum(edits for edits, _, _ in ends) >= EDITS
    assert all(met for _, met, _ in ends), "no run was open when the edits began"
    assert all(outcomes for _, _, outcomes in ends), "a run is still open"
