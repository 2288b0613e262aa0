"""Metrics, the API server and the watch go wrong while a run is open, or before one.

Bad metrics change nothing and count as nothing; a write that is refused, or committed without an
answer, is done again or found done; the end is the same as without.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from typing import Any

import pytest

from lab.scripted.proxy import Fate, Write
from worlds.phases import PATIENCE_SECONDS, SLOW, Phase, conditions, drained, let_go, reach
from worlds.replacing import press_one
from worlds.world import Eye, World, remediation

TARGETS = frozenset({"deployments", "pods", "deployments/scale"})
"""What a fleet is made of: no evidence, no write to any of it."""

BAD = {
    "nothing": ("missing", "MetricsMissing"),
    "old samples": ("stale", "MetricsStale"),
    "NaN": ("nan", "MetricsMissing"),
    "no answer": ("down", "SourceUnavailable"),
}
IN_TURN = [
    (*BAD[name], everywhere)
    for name, everywhere in (
        ("nothing", True),
        ("old samples", False),
        ("NaN", True),
        ("no answer", False),
        ("old samples", True),
        ("nothing", False),
        ("no answer", True),
        ("NaN", False),
    )
]
"""Each of every pod and of one, so that each is reported for another reason than the one before."""
OUTAGE_SECONDS = 2.0


def managers(world: World) -> set[str]:
    """Return who wrote the Deployment, beside the controllers."""
    return {entry["manager"] for entry in world.deployment()["metadata"]["managedFields"]}


def test_bad_metrics_of_every_pod_or_of_one_open_no_run(a_world):
    world = a_world(2)
    one = world.pods()[0]["metadata"]["name"]
    before = world.deployment()
    writers = managers(world)
    world.write_script(old="idle", new="idle", revision=world.revision())
    world.start()

    for state, reason, everywhere in IN_TURN:
        script = {"old": state, "pods": {}} if everywhere else {"old": "thrash", "pods": {one: state}}
        world.rewrite(**script)
        said = lambda reason=reason: world.condition("MetricsAvailable") == ("False", reason)  # noqa: E731
        world.wait(said, PATIENCE_SECONDS, f"{state} is reported as {reason}")
        assert world.condition("Diagnosed") == ("Unknown", reason)

    assert "run" not in world.status()
    assert [write for write in world.proxy.writes if write.object in TARGETS] == []
    assert world.deployment()["metadata"]["generation"] == before["metadata"]["generation"]
    assert managers(world) == writers
    world.rewrite(old="thrash", new="recovered", pods={})
    world.wait(world.is_closed, PATIENCE_SECONDS, "with metrics again the fleet is healed")
    assert world.outcomes() == ["Recovered"]


@pytest.mark.parametrize("everywhere", [True, False], ids=["of every pod", "of one pod"])
def test_bad_metrics_judge_nothing(a_world, everywhere):
    world = a_world(2, **conditions(Phase.VERIFY))
    reach(world, Phase.VERIFY)
    template = world.deployment()["metadata"]["generation"]
    one = world.pods()[0]["metadata"]["name"]

    for state, reason in BAD.values():
        script = {"new": state} if everywhere else {"pods": {one: state}}
        world.rewrite(**script)
        said = lambda reason=reason: world.condition("Progressing") == ("True", reason)  # noqa: E731
        world.wait(said, PATIENCE_SECONDS, f"{state} is reported as {reason}")
        assert world.step_state() == "Verifying"

    assert world.deployment()["metadata"]["generation"] == template
    world.rewrite(new="recovered", pods={})
    world.wait(world.is_closed, PATIENCE_SECONDS, "with metrics again the change is judged")
    assert world.outcomes() == ["Recovered"]
    assert world.traces() == []


def test_a_drain_that_nobody_can_see_waits(a_world):
    world = a_world(2)
    with Eye(world.cluster, world.namespace, 2) as eye:
        reach(world, Phase.DRAIN)
        out = drained(world)
        world.rewrite(inFlight=None, old="down", new="down")
        time.sleep(3)
        assert drained(world) == out, "the drained replica stays until its requests are known"
        let_go(world)
        world.rewrite(old="thrash", new="recovered")
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert eye.lost == []


SPOILT = (Fate.CONFLICT, Fate.ERROR, Fate.WITHHOLD)
"""What becomes of a kind of write at its first sights: refused with 409, answered with 500, and committed
without an answer."""


REFUSED = (Fate.FORBID, Fate.INVALID)
"""What becomes of a kind of write at its first sights where rights or rules are not there yet."""


class Spoiler:
    """Spoils each kind of write, Leases included, in each way once."""

    def __init__(self, *ways: Fate) -> None:
        self.ways = ways or SPOILT
        self.sights: Counter[Write] = Counter()

    def decide(self, write: Write) -> Fate:
        self.sights[write] += 1
        seen = self.sights[write]
        return self.ways[seen - 1] if seen <= len(self.ways) else Fate.PASS

    def report(self) -> str:
        return f"{len(self.sights)} kinds of write:\n" + "\n".join(f"  {w}" for w in self.sights)

    def spoilt(self) -> set[str]:
        """Return what was spoilt in each of the ways."""
        return {write.object for write, seen in self.sights.items() if seen >= len(self.ways)}


class Outage:
    """Answers 500 to everything for a while, from the first write to the Deployment on."""

    def __init__(self) -> None:
        self.since: float | None = None
        self.refused = 0

    def decide(self, write: Write) -> Fate:
        if self.since is None and write.object == "deployments":
            self.since = time.monotonic()
        if self.since is None or time.monotonic() - self.since > OUTAGE_SECONDS:
            return Fate.PASS
        self.refused += 1
        return Fate.ERROR

    def report(self) -> str:
        return f"{self.refused} writes were answered with 500"


def healed(world: World, spoiler: Spoiler | Outage, new: str) -> Eye:
    """Run to the end under a spoiler; the fleet must never notice."""
    world.rewrite(new=new)
    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")
    print(spoiler.report())
    assert world.traces() == []
    assert eye.lost == []
    assert eye.fewest >= 2
    return eye


def test_each_kind_of_write_spoilt_in_each_way_changes_nothing_about_the_end(a_world):
    spoiler = Spoiler()
    world = a_world(2, decide=spoiler.decide)
    before = world.deployment()["spec"]

    eye = healed(world, spoiler, "worse")

    assert world.outcomes() == ["NotRecovered"]
    assert world.deployment()["spec"] == before
    assert len(eye.seen) == 6, "each replica was replaced once forth and once back"
    assert {"deployments", "pods", "kvremediations", "kvremediations/status"} <= spoiler.spoilt()


def test_each_kind_of_write_forbidden_and_found_invalid_once_changes_nothing_about_the_end(a_world):
    spoiler = Spoiler(*REFUSED)
    world = a_world(2, decide=spoiler.decide)

    eye = healed(world, spoiler, "recovered")

    assert world.outcomes() == ["Recovered"]
    assert len(eye.seen) == 4, "each replica was replaced once"
    assert {"deployments", "pods", "kvremediations", "kvremediations/status"} <= spoiler.spoilt()


def test_each_kind_of_write_of_a_replacement_spoilt_in_each_way_changes_nothing_about_the_end(a_world):
    spoiler = Spoiler()
    world = a_world(2, decide=spoiler.decide)
    before, names = world.deployment()["spec"], {pod["metadata"]["name"] for pod in world.pods()}
    pressured = press_one(world)

    eye = healed(world, spoiler, "recovered")

    assert world.outcomes() == ["Recovered"]
    assert world.deployment()["spec"] == before
    assert names - {pod["metadata"]["name"] for pod in world.pods()} == {pressured}
    assert len(eye.seen) == 3, "one spare came, and one replica went"


def test_an_outage_in_the_middle_is_waited_out(a_world):
    outage = Outage()
    world = a_world(2, decide=outage.decide)

    eye = healed(world, outage, "recovered")

    assert world.outcomes() == ["Recovered"]
    assert outage.refused > 1
    assert len(eye.seen) == 4, "each replica was replaced once"


REAL_OUTAGE_SECONDS = 70.0
"""Longer than kopf's own back-offs for one request, 54 s at its defaults."""


def test_an_api_server_that_is_broken_for_long_is_waited_for(a_world):
    began: list[float] = []
    world = a_world(2, speed=SLOW)

    def committed(write: Write) -> None:
        if not began and write.object == "deployments" and "Pulse" in write.step:
            began.append(time.monotonic())

    def is_broken() -> bool:
        return bool(began) and time.monotonic() - began[0] < REAL_OUTAGE_SECONDS

    world.proxy.committed, world.proxy.broken = committed, is_broken
    with Eye(world.cluster, world.namespace, 2) as eye:
        world.start()
        world.wait(lambda: bool(began), PATIENCE_SECONDS, "a pulse is committed")
        world.wait(lambda: not is_broken(), REAL_OUTAGE_SECONDS + 5, "the API server answers again")
        world.wait(world.is_closed, 2 * PATIENCE_SECONDS, "the run closes")
        world.wait(world.is_settled, PATIENCE_SECONDS, "the rollout is complete")

    assert world.outcomes() == ["Recovered"]
    assert numbers(world) == list(range(1, len(numbers(world)) + 1)), "each effect was committed once"
    assert len(eye.seen) == 4, "each replica was replaced once"
    assert eye.lost == []
    assert eye.fewest >= 2
    assert world.traces() == []


def numbers(world: World) -> list[int]:
    """Return the sequences of the claims that the API server accepted, in order."""
    accepted = (value for _, value, status in sorted(world.proxy.claims) if status < 300)
    return [int(value.rpartition("/")[2]) for value in accepted]


def test_without_a_single_watch_event_a_fleet_is_healed_and_a_person_obeyed(a_world):
    """So it is after an etcd was restored: a watch from a version that is not reached yet reports nothing."""
    world = a_world(2)
    world.proxy.mute = True
    reach(world, Phase.DRAIN)
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"suspend": True}}, world.namespace)
    world.wait(lambda: drained(world) == [], PATIENCE_SECONDS, "the suspension is noticed")
    world.cluster.api.patch("KVRemediation", "llm", {"spec": {"suspend": False}}, world.namespace)
    let_go(world)
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert world.outcomes() == ["Recovered"]
    assert world.proxy.muted > 0, "no event was there to be dropped"
    assert world.traces() == []

    world.kubectl("delete", "kvr", "llm")
    world.cluster.apply(remediation(), world.namespace)
    ready = ("True", "TargetFound")
    world.wait(lambda: world.condition("Ready") == ready, PATIENCE_SECONDS, "one made anew is noticed")


DENIED = "deployments of production change through the release train"


ALTERED = """
Object{spec: Object.spec{template: Object.spec.template{metadata: Object.spec.template.metadata{
  annotations: {"example.com/altered": "yes"}}}}}"""
DENIES = {"validations": [{"expression": "false", "message": DENIED}]}
ALTERS = {
    "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": ALTERED}}],
    "reinvocationPolicy": "Never",
}


def a_policy(namespace: str, does: dict[str, Any]) -> str:
    """A policy for all who change a Deployment of one namespace, and its binding."""
    kind = "MutatingAdmissionPolicy" if does is ALTERS else "ValidatingAdmissionPolicy"
    actions = {} if does is ALTERS else {"validationActions": ["Deny"]}
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["deployments"],
    }
    common = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"test-{namespace}"}}
    policy = {**common, "kind": kind, "spec": {"matchConstraints": {"resourceRules": [rule]}, **does}}
    bound = {"policyName": f"test-{namespace}", "matchResources": where, **actions}
    binding = {**common, "kind": f"{kind}Binding", "spec": bound}
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [policy, binding]})


def tried(world: World) -> str:
    """What becomes of a patch of the Deployment, or why nothing does."""
    try:
        return world.kubectl(
            "annotate", "deployment", "llm", "tried=1", "--overwrite", "--dry-run=server", "-o", "yaml"
        )
    except subprocess.CalledProcessError as error:
        return str(error.stderr)


@pytest.mark.parametrize(
    ("does", "words"),
    [
        pytest.param(DENIES, DENIED, id="denies"),
        pytest.param(ALTERS, "spec.template.metadata.annotations", id="alters"),
    ],
)
def test_a_policy_against_our_patches_is_reported_in_its_own_words_and_waited_for(a_world, does, words):
    world = a_world(2)
    policy = world.directory / "policy.json"
    policy.write_text(a_policy(world.namespace, does))

    def is_asked_for() -> bool:
        return world.condition("ActionRequired") == ("True", "ChangeRefused")

    if does is DENIES:
        reach(world, Phase.DRAIN)
    before = world.deployment()["spec"]
    world.kubectl("apply", "-f", str(policy))
    try:
        world.wait(
            lambda: DENIED in tried(world) or "altered" in tried(world), PATIENCE_SECONDS, "it is in force"
        )
        world.rewrite(new="recovered", inFlight=0)
        if does is ALTERS:
            world.start()
        world.wait(is_asked_for, PATIENCE_SECONDS, "what the policy does is reported")
        message = [c["message"] for c in world.status()["conditions"] if c["type"] == "ActionRequired"]
        assert world.deployment()["spec"] == before
    finally:
        world.kubectl("delete", "-f", str(policy))
    world.wait(world.is_closed, PATIENCE_SECONDS, "the run closes")

    assert words in message[0]
    assert world.outcomes() == ["Recovered"]
