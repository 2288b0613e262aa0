"""A cap that was kept and does harm by day, on real controllers: taken back once, and never fought over."""

from __future__ import annotations

import time

import pytest

from worlds.conditions import events
from worlds.host_memory import LOOKS_SECONDS, OFTEN
from worlds.people import set_env
from worlds.probation import keep_cap, later

PATIENCE_SECONDS = 120
SPEC = {"limits": OFTEN}


def test_a_cap_under_which_users_are_worse_off_is_taken_back_and_not_set_again(a_world):
    world = a_world(replicas=2, spec=SPEC)
    before = world.deployment()["spec"]["template"]
    keep_cap(world)

    later(world, old="recovered", new="late")
    world.wait(lambda: len(world.outcomes()) == 2 and world.is_closed(), PATIENCE_SECONDS, "it is taken back")
    newest = world.status()["history"][0]
    assert (newest["reason"], newest["outcome"]) == ("CapHarms", "Recovered")
    assert newest["steps"] == ["Deployment/llm: maxNumSeqs 14 -> 64: Kept"]
    assert world.deployment()["spec"]["template"] == before
    assert "sized" not in world.status()
    assert any("that kvmedic set at" in each for each in events(world, "CapHarms"))

    world.kill()
    world.rewrite(old="thrash")
    exhausted = ("True", "CapacityExhausted")
    world.wait(lambda: world.condition("ActionRequired") == exhausted, PATIENCE_SECONDS, "nothing is left")
    assert world.deployment()["spec"]["template"] == before
    [failed] = world.status()["failedAttempts"]
    assert (failed["attempt"], failed["change"], failed["why"]) == (
        "TurnLever",
        "maxNumSeqs 64 -> 14",
        "CapHarms",
    )


def test_where_taking_it_back_does_not_help_the_cap_stays_for_good(a_world):
    world = a_world(replicas=2, spec=SPEC)
    keep_cap(world)
    capped = world.deployment()["spec"]["template"]

    later(world, old="worse", new="late")
    world.wait(lambda: len(world.outcomes()) == 2 and world.is_closed(), PATIENCE_SECONDS, "it comes back")
    time.sleep(LOOKS_SECONDS)

    assert world.outcomes() == ["NotRecovered", "Recovered"]
    assert world.deployment()["spec"]["template"] == capped
    assert "figures" not in world.status()["sized"]


@pytest.mark.parametrize("hand", ["an edit", "a roll back"])
def test_a_person_is_not_fought_over_a_cap_on_probation(a_world, hand):
    world = a_world(replicas=2, spec=SPEC)
    keep_cap(world)
    if hand == "an edit":
        set_env(world)
        world.wait(world.is_settled, PATIENCE_SECONDS, "the edit is rolled out")
        later(world, new="late")
        runs = 1
    else:
        world.rewrite(inFlight=1)
        later(world, old="recovered", new="late", inFlight=1)
        world.wait(lambda: bool(world.step_state()), PATIENCE_SECONDS, "it is being taken back")
        ask = f"kvmedic.io/rollback={world.status()['run']['id']}"
        world.kubectl("annotate", "kvr", "llm", ask)
        world.rewrite(inFlight=0)
        runs = 2
    world.wait(lambda: len(world.outcomes()) == runs and world.is_closed(), PATIENCE_SECONDS, "it is over")
    time.sleep(LOOKS_SECONDS)

    assert "--max-num-seqs=14" in world.args()
    assert len(world.outcomes()) == runs
    assert hand == "an edit" or world.outcomes()[0] == "RolledBackByHand"
