"""Every write of a run, killed after it was committed, with the answer withheld.

The operator's process is killed with SIGKILL and started again, at each kind of write that it has not been
killed at yet, until none is left. What the kills are hung on is read off the requests themselves, so
a new kind of step is covered without anything added here.

What is stored before a write leaves is what was stored after the one before it, so a kill there leaves
nothing else behind for the next process. One run forth and back is killed at both all the same, and at the
writes of each replica; others at those of the first, since the next one's are the same. A template
that stays is written alike whatever it changes: the runs that stay are of a flag. How a fleet without a label
is walked is killed before and after each write in the pure worlds (`tests/rollout`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

from kvmedic.model.plan import (
    BundleStep,
    EvaluationStep,
    FlagStep,
    ReplaceStep,
    ReplicasStep,
    RevisionStep,
    Step,
    TrialStep,
)
from lab.cluster.simulation import behaviour
from lab.scripted.proxy import Fate
from worlds import gating, trying
from worlds.autoscaled import HPA, behind_hpa, marks, minimum
from worlds.bundled import begin, compressing, templates
from worlds.configured import config_map, configure, copies
from worlds.deploying import ALLOWED, RAISED_CAP, deploy
from worlds.ending import LEVERS, PROMPT, TORCH, crash
from worlds.host_memory import OFTEN, host_memory_spec, roomy, temporary_changes
from worlds.killing import UNBOUNDED, Killer
from worlds.owned import annotated, applied_once
from worlds.people import cap
from worlds.phases import BESIDE, drained, let_go
from worlds.probation import keep_cap, later
from worlds.replacing import names, press_one
from worlds.runs import SHORT_SPEC, recreate
from worlds.scaling import calm, held, press, spec
from worlds.trying import allow, evicting, trial_pods
from worlds.world import Eye, World, remediation

SECONDS = 400
pytestmark = pytest.mark.timeout(2 * SECONDS + 60)
PLAYED: dict[str, type[Step]] = {}
"""A kind of step by the test whose run has it."""
STEP_LOGGED = re.compile(r" step=(\w+) ")


def plays(kind: type[Step]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Say of a test which kind of step its run has; it fails where no process logged that."""

    def note(test: Callable[..., None]) -> Callable[..., None]:
        PLAYED[test.__name__] = kind
        return test

    return note


@pytest.fixture
def a_world(a_world, request):
    """Makes a world as anywhere; its run must have had the kind of step that the test says of itself."""
    made: list[World] = []

    def make(**options: Any) -> World:
        made.append(a_world(**options))
        return made[-1]

    yield make
    logged = {kind for world in made for kind in STEP_LOGGED.findall(world.log)}
    if kind := PLAYED.get(request.function.__name__):
        assert kind.__name__ in logged


@pytest.fixture
def killer() -> Killer:
    return Killer()


@pytest.fixture
def thorough() -> Killer:
    """Kills before a write leaves, too."""
    return Killer(Fate.KILL_BEFORE, Fate.KILL_AFTER, each_replica=True)


def survive(world, replicas: int, killer: Killer, runs: int = 1) -> Eye:
    """Run until so many runs are closed, killed at every write; print what was covered."""
    with Eye(world.cluster, world.namespace, replicas) as eye:
        world.start()
        world.wait(lambda: len(world.outcomes()) >= runs and world.is_closed(), SECONDS, "the run closes")
    print(f"{world.starts} processes; {killer.report()}")
    return eye


def test_killed_at_every_write_replicas_with_requests_serve_on_until_a_person_lets_them_go(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec={"rollout": {"drainTimeout": "10s"}})
    old = names(world)
    world.rewrite(inFlight=37)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        asked = ("True", "DrainTimedOut")
        world.wait(lambda: world.condition("ActionRequired") == asked, SECONDS, "a person is asked")
        world.wait(lambda: world.endpoints() == 3, SECONDS, "all serve, and the spare")
        assert old <= names(world)
        assert {one["name"] for one in world.status()["run"]["timedOut"]} == old
        proceed = {"spec": {"rollout": {"onDrainTimeout": "Proceed"}}}
        world.cluster.api.patch("KVRemediation", "llm", proceed, world.namespace)
        world.wait(world.is_closed, SECONDS, "the run closes")

    spec = world.deployment()["spec"]
    assert world.outcomes() == ["Recovered"]
    assert world.args()[2] == "--max-num-seqs=14"
    assert ("paused" in spec, "minReadySeconds" in spec) == (False, False)
    assert world.traces() == []
    assert "Kept" in killer.words()
    assert (eye.lost, eye.cordoned) == ([], old)
    assert eye.fewest >= 2


@plays(FlagStep)
def test_killed_at_every_write_a_change_that_did_not_help_is_taken_back(a_world, thorough):
    world = a_world(replicas=2, decide=thorough.decide)
    before = world.deployment()["spec"]
    world.write_script(old="thrash", new="worse", revision=world.revision())

    eye = survive(world, 2, thorough)

    assert [run["outcome"] for run in world.status()["history"]] == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"


def test_asked_to_end_at_every_write_a_change_that_did_not_help_is_taken_back(a_world):
    ender = Killer(Fate.TERMINATE)
    worlds, late = [], []

    def decide(write):
        """Leave a process alone that was asked to end: what it still writes is a kind for the next one."""
        if not worlds[0].operators[-1].is_ended:
            return ender.decide(write)
        late.append(write)
        return Fate.PASS

    world = a_world(replicas=2, decide=decide)
    worlds.append(world)
    before = world.deployment()["spec"]
    world.write_script(old="thrash", new="worse", revision=world.revision())

    eye = survive(world, 2, ender)

    assert [run["outcome"] for run in world.status()["history"]] == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"
    assert world.starts > 10
    acted = [write for write in late if write.object not in UNBOUNDED]
    assert len(acted) < world.starts, "they stopped at once, and gave the Lease back"


def test_killed_at_every_write_a_fleet_without_a_spare_is_one_replica_short_and_no_more(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec=SHORT_SPEC)

    eye = survive(world, 2, killer)

    assert world.outcomes() == ["Recovered"]
    assert {pod["spec"]["containers"][0]["args"][2] for pod in world.pods()} == {"--max-num-seqs=14"}
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 1
    assert len(eye.seen) == 4, "each replica was replaced once, and nothing else was made"


def test_killed_at_every_write_a_change_is_taken_back_one_short(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec=SHORT_SPEC)
    before = world.deployment()["spec"]
    world.write_script(old="thrash", new="worse", revision=world.revision())

    eye = survive(world, 2, killer)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert eye.lost == []
    assert eye.fewest >= 1
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"


@pytest.mark.parametrize(("new", "outcome"), [("recovered", "Recovered"), ("worse", "NotRecovered")])
def test_killed_at_every_write_a_fleet_that_is_recreated_keeps_its_strategy(a_world, killer, new, outcome):
    world = a_world(replicas=2, decide=killer.decide)
    recreate(world)
    before = world.deployment()["spec"]
    world.write_script(old="thrash", new=new, revision=world.revision())

    eye = survive(world, 2, killer)

    after = world.deployment()["spec"]
    assert world.outcomes() == [outcome]
    assert (after["strategy"], after == before) == ({"type": "Recreate"}, outcome == "NotRecovered")
    assert {**after, "template": before["template"]} == before
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2


def test_killed_at_every_write_a_change_that_serves_worse_beside_the_old_ones_goes_no_further(
    a_world, killer
):
    world = a_world(replicas=2, decide=killer.decide, spec=BESIDE)
    before, old = world.deployment()["spec"], names(world)
    world.rewrite(new="worse")

    eye = survive(world, 2, killer)

    assert [run["outcome"] for run in world.status()["history"]] == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert (names(world), eye.cordoned & old) == (old, set()), "no old replica was touched"
    assert eye.fewest >= 2
    assert len(eye.seen) == 3, "one replica was changed"


def test_killed_at_every_write_a_change_that_serves_no_worse_beside_the_old_ones_reaches_all(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec=BESIDE)

    eye = survive(world, 2, killer)

    assert [run["outcome"] for run in world.status()["history"]] == ["Recovered"]
    assert world.args()[2] == "--max-num-seqs=14"
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 4, "each replica was replaced once"


def test_killed_at_every_write_the_rest_goes_in_waves_once_the_first_ones_served_no_worse(a_world, killer):
    world = a_world(replicas=5, decide=killer.decide, spec={**BESIDE, "rollout": {"waves": "Quarter"}})

    eye = survive(world, 5, killer)

    assert world.outcomes() == ["Recovered"]
    assert {"2", "draining"} <= killer.words()
    assert {pod["spec"]["containers"][0]["args"][2] for pod in world.pods()} == {"--max-num-seqs=14"}
    assert eye.lost == []
    assert eye.fewest >= 5
    assert len(eye.seen) == 10, "each replica was replaced once"
    assert world.traces() == []


def test_killed_at_every_write_a_crashing_canary_is_undone(a_world, killer):
    annotations = behaviour(mode="crash", mode_when="--max-num-seqs=[1-3]")
    world = a_world(replicas=2, decide=killer.decide, annotations=annotations)
    before, pods = world.deployment()["spec"], {p["metadata"]["name"] for p in world.pods()}

    survive(world, 2, killer)

    assert [run["outcome"] for run in world.status()["history"]] == ["CanaryFailed"]
    assert world.deployment()["spec"] == before
    world.wait(lambda: {p["metadata"]["name"] for p in world.pods()} == pods, 10, "the canary is gone")


def test_killed_at_every_write_a_change_of_what_helm_owns_is_kept_and_reported(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec={"ownership": "Apply"})
    annotated(**{"meta.helm.sh__release-name": "chat"})(world)

    eye = survive(world, 2, killer)

    (run,) = world.status()["history"]
    assert (run["outcome"], cap(world)) == ("Recovered", "--max-num-seqs=14")
    assert "helm upgrade chat CHART" in run["ownerPatch"]
    assert world.traces() == []
    assert (eye.lost, eye.fewest >= 2) == ([], True)


def test_killed_at_every_write_an_upgrade_in_the_middle_ends_it(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec={"ownership": "Apply"})
    annotated(**{"meta.helm.sh__release-name": "chat"})(world)
    before = world.deployment()["spec"]
    world.rewrite(inFlight=1)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: bool(drained(world)), SECONDS, "an old replica is drained")
        applied_once(world)
        let_go(world)
        world.wait(world.is_closed, SECONDS, "the run closes")
    print(f"{world.starts} processes; {killer.report()}")
    asked = ("True", "TemplateContested")
    world.wait(lambda: world.condition("ActionRequired") == asked, SECONDS, "a person is asked")

    assert world.outcomes() == ["ChangeReverted"]
    assert world.deployment()["spec"] == before
    assert world.traces() == []
    # The upgrade takes the changed replica while an old one is drained; the run's own moves take none.
    assert len(eye.lost) <= 1
    assert eye.fewest >= 1


@plays(ReplaceStep)
def test_killed_at_every_write_one_replica_is_replaced_all_the_same(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide)
    before, spec = names(world), world.deployment()["spec"]
    pressured = press_one(world)

    eye = survive(world, 2, killer)

    assert [run["outcome"] for run in world.status()["history"]] == ["Recovered"]
    assert world.deployment()["spec"] == spec
    assert before - names(world) == {pressured}
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 3, "one spare came, and one replica went"
    assert {"ScaleOut", "ScaleIn"} <= killer.words()
    (run,) = world.status()["history"]
    assert run["reason"] == "OneReplicaPressured"
    assert run["steps"] == [f"Deployment/llm: replica {pressured} -> a new one: Kept"]


def test_killed_at_every_write_a_replacement_is_taken_back(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide)
    before, spec = names(world), world.deployment()["spec"]
    press_one(world)
    world.rewrite(inFlight=1)

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: bool(drained(world)), SECONDS, "the replica is drained")
        ask = f"kvmedic.io/rollback={world.status()['run']['id']}"
        world.kubectl("annotate", "kvr", "llm", ask)
        let_go(world)
        world.wait(world.is_closed, SECONDS, "the run closes")
    print(f"{world.starts} processes; {killer.report()}")

    assert [run["outcome"] for run in world.status()["history"]] == ["RolledBackByHand"]
    assert world.deployment()["spec"] == spec
    world.wait(lambda: names(world) == before, 10, "the spare is gone")
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2


def test_killed_at_every_write_a_spare_without_room_is_given_up(a_world, killer):
    waits = {**remediation()["spec"]["rollout"], "spareLimit": "15m"}
    world = a_world(replicas=2, decide=killer.decide, spec={"rollout": waits})
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    world.cluster.api.create({**quota, "spec": {"hard": {"pods": "2"}}}, world.namespace)
    before, spec = names(world), world.deployment()["spec"]
    press_one(world)

    eye = survive(world, 2, killer)

    assert [run["outcome"] for run in world.status()["history"]] == ["SpareUnschedulable"]
    assert "quota" in world.status()["history"][0]["message"]
    assert (names(world), world.deployment()["spec"]) == (before, spec)
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2


def test_killed_at_every_write_a_replica_out_of_memory_is_met_all_the_same(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec={"levers": LEVERS})
    world.proxy.log = f"{PROMPT}\n{TORCH}\n"
    world.rewrite(old="recovered", pods={crash(world): "missing"})

    eye = survive(world, 2, killer)

    assert [run["outcome"] for run in world.status()["history"]] == ["Recovered"]
    assert world.status()["history"][0]["reason"] == "CudaOutOfMemory"
    assert [one["share"] for one in world.status()["oomShares"]] == [0.92], "never gone back to"
    assert [arg for arg in world.args() if "memory" in arg] == ["--gpu-memory-utilization=0.9"]
    assert "--max-num-seqs=64" in world.args()
    assert PROMPT not in world.log
    assert PROMPT not in str(world.status())
    assert "Tried to allocate" not in world.log + str(world.status())
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 1
    assert killer.kills


@plays(RevisionStep)
def test_killed_at_every_write_a_rollback_that_did_not_help_is_taken_back(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec=ALLOWED)
    deploy(world, new="worse")
    before = world.deployment()["spec"]

    eye = survive(world, 2, killer)

    assert [run["outcome"] for run in world.status()["history"]] == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert cap(world) == RAISED_CAP
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"
    assert {"Freeze", "Restore"} <= killer.words()


def config_maps_written(killer: Killer) -> set[str]:
    """Return the verbs at which the process was killed while it wrote a ConfigMap."""
    return {write.verb for write in killer.kills if write.object == "configmaps"}


def test_killed_at_every_write_a_change_in_a_file_is_taken_back_and_no_copy_is_left(a_world):
    """Of a flag all but the copy and what is known of it is written alike, wherever it stands."""
    killer = Killer(objects={"configmaps", "kvremediations/status"})
    world = a_world(replicas=2, decide=killer.decide)
    configure(world, history=0)
    original, before = config_map(world), world.deployment()["spec"]
    world.rewrite(new="worse")

    eye = survive(world, 2, killer)
    world.wait(lambda: copies(world) == [] and "copies" not in world.status(), SECONDS, "the copy goes")

    assert [run["outcome"] for run in world.status()["history"]] == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert config_map(world) == original
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert config_maps_written(killer) == {"POST", "DELETE"}


@plays(ReplicasStep)
def test_killed_at_every_write_replicas_are_added_and_given_back_all_the_same(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec=spec())
    before, deployed = names(world), world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        press(world)
        world.start()
        world.wait(lambda: bool(held(world)) and "run" not in world.status(), SECONDS, "a replica is added")
        calm(world)
        world.wait(lambda: len(world.outcomes()) == 2 and world.is_closed(), SECONDS, "it is given back")
    print(f"{world.starts} processes; {killer.report()}")

    assert world.outcomes() == ["Recovered", "Recovered"]
    assert world.deployment()["spec"] == deployed
    assert (names(world), held(world)) == (before, {})
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 3, "one came, and the same one went"
    assert {"ScaleOut", "ScaleIn"} <= killer.words()


def test_killed_at_every_write_replicas_that_did_not_help_go_again(a_world, killer):
    often = {"cooldown": "24h", "maxRunsPerDay": 10}
    world = a_world(replicas=2, decide=killer.decide, spec=spec(limits=often))
    before, deployed = names(world), world.deployment()["spec"]
    press(world, more="fewer requests, and thrash")

    eye = survive(world, 2, killer)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == deployed
    assert (names(world), held(world)) == (before, {})
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2


def test_killed_at_every_write_an_autoscalers_minimum_is_raised_and_put_back(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec=spec())
    behind_hpa(world)

    with Eye(world.cluster, world.namespace, 2) as eye:
        press(world)
        world.start()
        world.wait(lambda: bool(held(world)) and "run" not in world.status(), SECONDS, "it is raised")
        raised, replicas, temporary = minimum(world), world.replicas(), held(world)
        calm(world)
        world.wait(lambda: len(world.outcomes()) == 2 and world.is_closed(), SECONDS, "it is put back")
    print(f"{world.starts} processes; {killer.report()}")

    assert (raised, replicas, minimum(world)) == (3, 3, 2), "the autoscaler itself made it"
    assert temporary["holder"]["object"] == {"kind": HPA, "name": "llm"}
    assert (temporary["before"], temporary["after"], temporary["fewest"]) == (2, 3, 2)
    assert world.outcomes() == ["Recovered", "Recovered"]
    assert [run["steps"][0] for run in world.status()["history"]] == [
        f"{HPA}/llm: minimum 3 -> 2 replicas: Kept",
        f"{HPA}/llm: minimum 2 -> 3 replicas: Kept",
    ]
    assert (held(world), marks(world), world.traces()) == ({}, [], [])
    assert eye.fewest >= 2
    assert {"deployments", "horizontalpodautoscalers"} <= {write.object for write in killer.kills}


def test_killed_at_every_write_host_memory_is_added_and_given_back_all_the_same(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, spec=host_memory_spec(), change=roomy)
    deployed = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        world.rewrite(new="smooth")
        world.start()
        world.wait(
            lambda: bool(temporary_changes(world)) and "run" not in world.status(), SECONDS, "it is added"
        )
        world.rewrite(old="idle", new="idle")
        world.wait(lambda: temporary_changes(world) == [] and world.is_closed(), SECONDS, "it is given back")
    print(f"{world.starts} processes; {killer.report()}")

    assert world.outcomes() == ["Recovered", "Improved"]
    assert world.deployment()["spec"] == deployed
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"


def test_killed_at_every_write_a_cap_on_probation_is_taken_back_all_the_same(a_world):
    """Its rollout is written like that of every flag: what is known of the cap is not."""
    killer = Killer(objects={"kvremediations/status"})
    world = a_world(replicas=2, decide=killer.decide, spec={"limits": OFTEN})
    deployed = world.deployment()["spec"]

    with Eye(world.cluster, world.namespace, 2) as eye:
        keep_cap(world)
        later(world, old="recovered", new="late")
        world.wait(lambda: len(world.outcomes()) == 2 and world.is_closed(), SECONDS, "it is taken back")
    print(f"{world.starts} processes; {killer.report()}")

    assert world.outcomes() == ["Recovered", "Recovered"]
    assert world.deployment()["spec"] == deployed
    assert "sized" not in world.status()
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"


@plays(TrialStep)
def test_killed_at_every_write_a_trial_is_answered_and_leaves_nothing(a_world, killer):
    given = trying.alone(trying.spec(allowedFixes=[]))
    world = a_world(replicas=2, decide=killer.decide, spec=given, change=evicting)
    allow(world)
    world.rewrite(probe="Scattered")
    before, pods = world.deployment()["spec"], names(world)

    eye = survive(world, 2, killer)

    assert world.outcomes() == ["TrialAnswered"]
    assert trying.answers(world) == ["Scattered"]
    assert trial_pods(world) == []
    assert (world.deployment()["spec"], names(world), world.traces()) == (before, pods, [])
    assert eye.lost == []
    assert eye.fewest >= 2
    assert {("POST", "pods"), ("DELETE", "pods")} <= {(write.verb, write.object) for write in killer.kills}


@plays(BundleStep)
def test_killed_at_every_write_a_method_that_was_needed_is_turned_on_again(a_world, killer):
    world = a_world(replicas=2, decide=killer.decide, change=compressing)
    before, revision = world.deployment()["spec"], world.revision()
    begin(world, new="worse")

    eye = survive(world, 2, killer)

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    [remembered] = world.status()["failedAttempts"]
    assert (remembered["key"], remembered["template"]) == ("TriAttention", revision)
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"
    assert len(templates(world)) == 2, "nobody ran a half of it"
    assert "Freeze" in killer.words()


@plays(EvaluationStep)
def test_killed_at_every_write_a_fix_is_evaluated_once_and_turned_on(a_world, killer):
    compression = gating.FP8 | {"baseline": {}}
    world = a_world(replicas=2, decide=killer.decide, spec=gating.spec(**compression), change=gating.roomy)
    gating.allow(world, gating.cron_job())
    world.rewrite(stored="fp8")
    gating.turned_off(world, measured=0.8)
    args = world.args()

    eye = survive(world, 2, killer, runs=2)

    assert world.outcomes() == ["Recovered", "TrialAnswered"]
    assert world.args() == [*args, "--kv-cache-dtype=fp8"]
    assert "turnedOff" not in world.status()
    assert [score for _, score in gating.scores(world)] == [0.8, 0.8]
    assert (trial_pods(world), gating.jobs(world), world.traces()) == ([], [], [])
    assert eye.lost == []
    assert eye.fewest >= 2
    made = {("POST", "pods"), ("DELETE", "pods"), ("POST", "jobs"), ("DELETE", "jobs")}
    assert made <= {(write.verb, write.object) for write in killer.kills}


def test_every_kind_of_step_is_killed_at_every_write():
    """The runs above have every kind of step there is; a new kind needs a run of its own."""
    assert set(PLAYED.values()) == set(get_args(Step))
