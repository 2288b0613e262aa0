"""Which adapter stands behind which port, by what the administrator allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.cluster.trial_pods import Evaluations, Trials
from kvmedic.controller.ports import NoEvaluations, NoProbes, NoTrials
from kvmedic.kube.client import Client, Limits
from kvmedic.manifests.trial_pod import Evaluation, Owner, Trial
from kvmedic.model.evidence import Blocked
from kvmedic.model.trial import Counted, Interrupted, Served, Underway
from kvmedic.record.telemetry import Telemetry
from kvmedic.settings import ProbeOptions, Settings
from kvmedic.wiring import evaluations_of, open_connections, reporter_of, trials_of
from run_builder import a_pod
from worlds.probing import a_step

TRIAL = Trial("llm-trial", "serving", Owner("v1", "ConfigMap", "owner", "uid"), 600)
EVALUATION = Evaluation("llm-eval", "serving", TRIAL.owner, "gsm8k", "0", 600)
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
current-context: a
"""


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(Configuration(host="http://127.0.0.1:1"), Limits()) as found:
        yield found


async def test_trial_pods_are_made_only_where_they_are_allowed(client: Client) -> None:
    assert trials_of(ProbeOptions(trial_pods=True), client) == Trials(client)
    assert trials_of(ProbeOptions(), client) == NoTrials()


async def test_evaluations_are_made_only_where_they_are_allowed(client: Client) -> None:
    allowed = ProbeOptions(trial_pods=True, evaluations=True)

    assert evaluations_of(allowed, client) == Evaluations(client)
    assert evaluations_of(ProbeOptions(trial_pods=True), client) == NoEvaluations()


async def test_where_evaluations_are_not_allowed_it_is_said_what_to_set() -> None:
    evaluations = NoEvaluations()

    blocked = await evaluations.evaluation_digest("serving", "gsm8k")

    assert isinstance(blocked, Blocked)
    assert "probe.evaluations" in blocked.message
    assert await evaluations.make(EVALUATION, Served("http://a", "m", "", Counted(0, 0.0))) == blocked.message
    assert await evaluations.look(EVALUATION) is None
    assert await evaluations.delete_evaluations("serving", "uid") == ()


async def test_where_they_are_not_it_is_said_what_to_set_and_nothing_else_happens() -> None:
    trials = NoTrials()

    assert "probe.trialPods" in await trials.make(TRIAL, {})
    assert await trials.look(TRIAL, "vllm") is None
    assert await trials.delete_trials("serving", "uid") == ()
    assert await trials.held_claims("serving", {}) == frozenset()


def test_where_nobody_can_make_tests_none_goes_on() -> None:
    probes = NoProbes()

    probes.begin("serving", a_pod("trial"), {}, a_step(100))

    assert probes.progress(a_pod("trial")) == Interrupted("no tests are made here")
    probes.forget(a_pod("trial"))


async def test_where_nobody_can_make_tests_nothing_is_read() -> None:
    assert await NoProbes().read_served("serving", a_pod("trial")) == "no tests are made here"


@pytest.mark.parametrize(
    ("notify", "tasks"), [({}, 0), ({"chat": {"url": "http://p"}, "b": {"url": "http://q"}}, 1)]
)
async def test_something_runs_for_notifications_only_where_a_destination_is_named(
    notify: dict[str, object], tasks: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    settings, telemetry = Settings(notify=notify), Telemetry()

    async with open_connections(settings) as world:
        reporter, notifications = reporter_of(settings, world, telemetry)
        companions = notifications.companions()

    assert (reporter.events is notifications) is bool(notify)
    assert len(companions) == tasks
    for each in companions:
        each.close()


async def test_with_the_process_its_tests_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    pod = replace(a_pod("trial"), uid="uid-trial", address="192.0.2.1")

    async with open_connections(Settings()) as world:
        world.probes.begin("serving", pod, {}, a_step(100))
        assert world.probes.progress(pod) == Underway(0, 100)

    assert world.probes.progress(pod) == Interrupted("the operator ends")
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe")]
