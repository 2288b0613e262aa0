"""Mode Approve on a real API server: a plan waits for an approval of exactly it, and each opens one run."""

from __future__ import annotations

from typing import Any

from lab.scripted.proxy import Fate, Write
from worlds.approving import APPROVE, approve, digest, has_run, let_it_look, message, waiting, waits_as
from worlds.killing import Killer
from worlds.world import World

SECONDS = 60


def take_back(world: World) -> None:
    run = world.status()["run"]["id"]
    world.kubectl("annotate", "kvr", "llm", f"kvmedic.io/rollback={run}", "--overwrite")


def closed_runs(world: World) -> list[dict[str, Any]]:
    return list(world.status().get("history", []))


def is_closed(world: World, count: int) -> bool:
    return not has_run(world) and len(closed_runs(world)) == count


def test_without_an_approval_it_shows_the_plan_and_what_to_type_and_waits(a_world):
    world = waiting(a_world(spec=APPROVE))
    before = world.resource()

    let_it_look(world)

    after = world.resource()
    assert f"kvmedic approve llm -n {world.namespace} --digest {digest(world)}" in message(world)
    assert world.condition("ActionRequired") == ("True", "AwaitingApproval")
    assert after["status"]["phase"] == "AwaitingApproval"
    assert after["status"]["plan"]["steps"] == ["Deployment/llm: maxNumSeqs 64 -> 14"]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"], "nothing is written"
    assert world.args()[2] == "--max-num-seqs=64"
    assert world.traces() == []


def test_an_approved_plan_is_carried_out_and_the_record_names_the_approval(a_world):
    world = waiting(a_world(spec=APPROVE))
    shown = digest(world)

    made = approve(world)
    world.wait(lambda: world.args()[2] == "--max-num-seqs=14", SECONDS, "the change is on its way")

    run = world.status()["run"]
    assert run["digest"] == shown
    assert run["approval"] == {"name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    assert world.condition("ActionRequired") == ("False", "NothingToDo")
    changed = [w for w in world.proxy.writes if w.object.startswith("kvapprovals")]
    assert changed == [], "the operator writes no approval"


VOID = {
    "of another plan": ({"digest": "f" * 16}, "ApprovalExpired", "approves plan ffffffffffffffff"),
    "for an earlier resource of the name": (
        {"remediationUID": "11111111-2222-3333-4444-555555555555"},
        "ApprovalExpired",
        "for an earlier KVRemediation",
    ),
    "that is over": ({"expiresAt": "2026-01-01T00:00:00Z"}, "ApprovalExpired", "past its spec.expiresAt"),
    "for another resource": ({"remediation": "other"}, "AwaitingApproval", "waits for approval"),
    "in another namespace": ({"namespace": "default"}, "AwaitingApproval", "waits for approval"),
}


def test_an_approval_that_is_not_of_this_plan_opens_nothing(a_world):
    """One after the other on one fleet: each is deleted before the next is made."""
    world = waiting(a_world(spec=APPROVE))

    for what, (change, reason, says) in VOID.items():
        made = approve(world, **change)["metadata"]
        world.wait(lambda reason=reason: waits_as(world, reason), SECONDS, f"it says why of one {what}")
        let_it_look(world)

        assert waits_as(world, reason), what
        assert says in message(world), what
        assert f"--digest {digest(world)}" in message(world), what
        assert not has_run(world), what
        assert closed_runs(world) == [], what
        world.cluster.api.delete("KVApproval", made["name"], made["namespace"])
        world.wait(lambda: waits_as(world, "AwaitingApproval"), SECONDS, "it waits as before")


def test_an_approval_does_not_open_what_is_stopped_and_counts_afterwards(a_world):
    world = waiting(a_world(spec=APPROVE))
    world.kubectl("create", "configmap", "kvmedic-stop")
    world.wait(lambda: waits_as(world, "Stopped"), SECONDS, "it is stopped")

    approve(world)
    version, seen = world.resource()["metadata"]["resourceVersion"], stops_read(world)
    world.wait(lambda: stops_read(world) > seen + 2, SECONDS, "it looks again")
    while_stopped = world.resource()["metadata"]["resourceVersion"]
    world.kubectl("delete", "configmap", "kvmedic-stop")
    world.wait(lambda: has_run(world), SECONDS, "the run opens")

    assert while_stopped == version


def stops_read(world: World) -> int:
    """Return how often the operator looked whether it is stopped."""
    return world.proxy.reads.count(f"/api/v1/namespaces/{world.namespace}/configmaps/kvmedic-stop")


def test_suspending_is_another_spec_and_so_another_plan(a_world):
    world = waiting(a_world(spec=APPROVE))
    old = digest(world)
    world.kubectl("patch", "kvr", "llm", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    world.wait(lambda: waits_as(world, "Suspended"), SECONDS, "it is suspended")

    approve(world, digest=old)
    approve(world)
    world.kubectl("patch", "kvr", "llm", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    world.wait(lambda: waits_as(world, "ApprovalExpired"), SECONDS, "it asks anew")
    let_it_look(world)

    assert digest(world) != old
    assert not has_run(world)


def test_an_approval_expires_when_the_template_moves(a_world):
    world = waiting(a_world(spec=APPROVE))
    old = digest(world)
    world.kubectl("create", "configmap", "kvmedic-stop")
    world.wait(lambda: waits_as(world, "Stopped"), SECONDS, "it is stopped")

    approve(world)
    world.kubectl("set", "env", "deployment/llm", "A=b")
    world.wait(world.is_settled, SECONDS, "the rollout is complete")
    world.rewrite(revision=world.revision())
    world.kubectl("delete", "configmap", "kvmedic-stop")
    world.wait(lambda: waits_as(world, "ApprovalExpired"), SECONDS, "it asks anew")
    let_it_look(world)

    assert digest(world) != old
    assert f"approves plan {old}, and evidence, pod template or spec have moved since" in message(world)
    assert not has_run(world)


def test_a_look_without_evidence_keeps_the_plan_and_opens_nothing(a_world):
    world = waiting(a_world(spec=APPROVE))
    shown = world.status()["plan"]

    world.rewrite(old="missing")
    world.wait(lambda: waits_as(world, "MetricsMissing"), SECONDS, "the metrics are gone")
    approve(world)
    blind = world.status()
    world.rewrite(old="thrash")
    world.wait(lambda: has_run(world), SECONDS, "the evidence is back, and the approval counts")

    assert blind["plan"] == shown
    assert "run" not in blind
    assert world.status()["run"]["digest"] == shown["digest"]


def test_a_fleet_that_recovers_takes_the_plan_and_its_approval_with_it(a_world):
    world = waiting(a_world(spec=APPROVE))
    world.rewrite(old="recovered")
    world.wait(lambda: "plan" not in world.status(), SECONDS, "the plan goes")

    assert world.condition("Diagnosed") == ("False", "Healthy")
    assert world.condition("ActionRequired") == ("False", "NothingToDo")
    assert not has_run(world)


def test_the_mode_takes_effect_for_a_resource_that_observed(a_world):
    world = a_world(spec={**APPROVE, "mode": "Observe"})
    world.speed = 1.0
    world.start()
    world.wait(lambda: waits_as(world, "ObserveOnly"), SECONDS, "a plan is shown")
    approve(world)

    world.kubectl("patch", "kvr", "llm", "--type=merge", "-p", '{"spec": {"mode": "Approve"}}')
    world.wait(lambda: waits_as(world, "ApprovalExpired"), SECONDS, "it waits for approval")

    assert "spec have moved since" in message(world)
    assert not has_run(world)


class KillerUntil(Killer):
    """Kills at each write until it is asked to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.rests = False

    def decide(self, write: Write) -> Fate:
        return Fate.PASS if self.rests else super().decide(write)


def test_killed_at_every_write_one_approval_opens_one_run_and_the_next_run_needs_another(a_world):
    """The first replica's drain does not end before the run is taken back."""
    killer = KillerUntil()
    world = a_world(spec=APPROVE, decide=killer.decide)
    world.rewrite(inFlight=1)
    waiting(world)
    shown, first = digest(world), approve(world)["metadata"]
    uid = first["uid"]

    world.wait(lambda: world.args()[2] == "--max-num-seqs=14", 180, "the change is on its way")
    opened = world.status()["run"]["approval"]["uid"]
    take_back(world)
    world.rewrite(inFlight=0)
    world.wait(lambda: is_closed(world, 1), 180, "the run is taken back")
    world.wait(lambda: waits_as(world, "ApprovalExpired"), SECONDS, "the plan waits again")
    killer.rests = True
    let_it_look(world)

    print(f"{world.starts} processes; {killer.report()}")
    assert opened == uid
    assert [run["approval"]["uid"] for run in closed_runs(world)] == [uid]
    assert not has_run(world)
    assert any(write.object == "kvremediations/status" for write in killer.kills)
    assert digest(world) == shown, "the very same plan"
    assert "was used by an earlier run" in message(world)
    assert world.cluster.api.get("KVApproval", first["name"], world.namespace)["metadata"] == first
    second = approve(world)["metadata"]
    world.wait(lambda: has_run(world), SECONDS, "another approval opens another run")
    assert world.status()["run"]["approval"]["uid"] == second["uid"]
