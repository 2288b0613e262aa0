"""A look at a fleet without an open run: a calm one gets a quick look, and the diagnosis is the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from kvmedic.controller.evidence import Survey, engine_of
from kvmedic.controller.plans import healthy_revision, prove_good_revision
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.survey import examine, survey
from kvmedic.engines.engine_log import Started
from kvmedic.manifests import flags
from kvmedic.model.compression import Figures
from kvmedic.model.devices import Cause
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import (
    EVERY_SIGNAL,
    Histogram,
    Inconclusive,
    LoggedSize,
    Look,
    Measured,
    Observation,
    PastLengths,
    Signal,
    SizeUnit,
)
from kvmedic.model.fleet import CRASH_LOOP, Pod, template_hash
from kvmedic.model.plan import Goal, Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Mode, Objectives
from kvmedic.model.status import LastGood, Record, Resource, ShownPlan, Traffic
from kvmedic.runbooks.branches import Assignment
from kvmedic.runbooks.compression.savings import ASKED
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.preemption.symptoms import FELT, TRIGGER
from kvmedic.runbooks.workload import View, Workload
from kvmedic.verdict.baseline import TRAFFIC
from lab.scripted.readings import State
from run_builder import NOW, OLD, a_fleet, a_pod
from worlds.asked import Asked, a_resource, spec, view
from worlds.vitals_builder import a_device, an_end
from worlds.world import deployment

SHORT = Histogram((10.0,), (9.0, 0.0), 45.0)
QUICK_LOOK = TRIGGER | FELT
"""What shows whether a fleet is in trouble."""


def settled_view() -> Any:
    """A view whose fleet runs the very template."""
    template = deployment(3)["spec"]["template"]
    return View(fleet=a_fleet(revision=template_hash(template)), template=template, templates={})


async def looked(state: State, good: str = "") -> tuple[Survey, Asked]:
    metrics, resource = Asked(state), a_resource(good)
    return await survey(resource, resource.policy, view(), SurveyInput(metrics, metrics)), metrics


async def test_a_calm_fleet_on_record_is_asked_for_the_trigger_alone() -> None:
    found, metrics = await looked(State.RECOVERED, good=OLD)

    assert [look.signals for look in metrics.looks] == [QUICK_LOOK]
    assert found.diagnosis.reason is Reason.HEALTHY


@pytest.mark.parametrize("good", ["", "another"])
async def test_a_new_revision_is_asked_for_its_traffic_too(good: str) -> None:
    found, metrics = await looked(State.RECOVERED, good)
    policy = a_resource().policy
    assert policy is not None

    proved = healthy_revision(found, policy, datetime.now(NOW.tzinfo))

    assert [look.signals for look in metrics.looks] == [QUICK_LOOK | {Signal.REQUESTS_FINISHED}]
    assert (proved.revision, proved.blocks, proved.flags["maxNumSeqs"]) == (OLD, 149, "64")


async def test_a_fleet_that_cannot_be_seen_is_not_asked_for_more() -> None:
    found, metrics = await looked(State.MISSING, good=OLD)

    assert [look.signals for look in metrics.looks] == [QUICK_LOOK]
    assert found.diagnosis.reason is Reason.METRICS_MISSING


async def test_a_fleet_in_trouble_is_looked_at_as_a_whole() -> None:
    found, metrics = await looked(State.THRASH, good=OLD)

    assert [look.signals for look in metrics.looks] == [QUICK_LOOK, EVERY_SIGNAL, EVERY_SIGNAL]
    assert found.diagnosis.reason is Reason.FLEET_WIDE_DEMAND
    assert found.plan is not None


async def test_a_fleet_in_trouble_is_asked_for_its_last_day_and_a_calm_one_is_not() -> None:
    resource, peak, lengths = a_resource(OLD), Measured(900.0, NOW), (PastLengths(NOW, SHORT, SHORT),)

    troubled, calm = [
        await survey(resource, resource.policy, view(), SurveyInput(metrics, metrics))
        for metrics in (Asked(state, peak=peak, lengths=lengths) for state in (State.THRASH, State.RECOVERED))
    ]

    assert set(troubled.evidence.peaks.values()) == {peak}
    assert troubled.evidence.past_lengths == lengths
    assert (calm.evidence.peaks, calm.evidence.past_lengths) == ({}, ())


@pytest.mark.parametrize("state", [State.RECOVERED, State.THRASH, State.MISSING])
async def test_a_look_parses_the_command_line_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, lines = flags.parse, Counter[str]()

    def count(line: Any, engine: Any) -> Any:
        lines[" ".join(token.text for token in line.tokens)] += 1
        return parse(line, engine)

    monkeypatch.setattr(flags, "parse", count)
    found, _ = await looked(state, good=OLD)

    assert set(lines.values()) == {1}
    assert len(lines) == (2 if found.plan else 1), "a plan's edit is read back"


async def test_a_method_that_evicts_tokens_is_known_by_the_template() -> None:
    resource, metrics, seen = a_resource(OLD), Asked(State.THRASH), view()
    container = {**seen.template["spec"]["containers"][0]}
    container["env"] = [{"name": "TRIATTN_RUNTIME_KV_BUDGET", "value": "512"}]
    template = {**seen.template, "spec": {**seen.template["spec"], "containers": [container]}}

    found = await survey(
        resource, resource.policy, replace(seen, template=template), SurveyInput(metrics, metrics)
    )

    assert (found.evidence.evicts.name, found.evidence.evicts.budget) == ("TriAttention", 512)


async def test_a_pool_that_the_log_alone_reports_is_as_good_as_one_of_the_metrics() -> None:
    exported, _ = await looked(State.THRASH, good=OLD)
    metrics = Asked(State.THRASH, silent=True, logged=LoggedSize(4800, SizeUnit.TOKENS))

    found = await surveyed(metrics)

    assert (found.plan.steps, found.blocks()) == (exported.plan.steps, 149)
    assert metrics.read == [("vllm", *sorted(pod.name for pod in a_fleet().pods))]


async def test_a_pool_that_nothing_reports_makes_no_cap() -> None:
    found = await surveyed(Asked(State.THRASH, silent=True))

    assert (found.diagnosis.reason, found.plan) == (Reason.SIGNAL_UNSUPPORTED, None)


async def test_no_log_is_read_where_the_metrics_suffice_or_the_fleet_is_calm() -> None:
    exporting, calm = Asked(State.THRASH), Asked(State.RECOVERED, silent=True)

    await surveyed(exporting)
    await surveyed(calm)

    assert (exporting.read, calm.read) == ([], [])


BOTH = ["PreemptionThrash", "CompressionWithoutSavings"]
EIGHT = Started(("Using fp8 data type to store kv cache",), "fp8", is_whole=True)
EVICTS = Started(("[TriAttention] Runtime (V2) plugin activated",), is_whole=True)
PODS = ("vllm", *sorted(pod.name for pod in a_fleet().pods))


def with_container(**more: Any) -> Any:
    """A view whose engine's container has other fields, such as more arguments."""
    seen = view()
    container = {**seen.template["spec"]["containers"][0], **more}
    template = {**seen.template, "spec": {**seen.template["spec"], "containers": [container]}}
    return replace(seen, template=template)


def asking_for(cache_type: str) -> Any:
    container = view().template["spec"]["containers"][0]
    return with_container(args=[*container["args"], f"--kv-cache-dtype={cache_type}"])


async def surveyed_with(metrics: Asked, seen: Any, **more: Any) -> Survey:
    resource = spec(**more)
    return await survey(resource, resource.policy, seen, SurveyInput(metrics, metrics))


async def test_a_method_that_the_log_alone_reports_is_looked_at() -> None:
    metrics = Asked(State.THRASH, started=EVICTS)

    found = await surveyed_with(metrics, view(), runbooks=BOTH)

    assert metrics.asked_for_starts == [PODS]
    assert (found.evidence.compression.name, found.evidence.compression.is_confirmed) == (
        "TriAttention",
        True,
    )
    assert found.evidence.evicts is not None


async def test_a_type_that_a_start_names_is_applied_though_the_label_says_auto() -> None:
    named, silent = Asked(State.THRASH, started=EIGHT), Asked(State.THRASH)

    applied, missing = [
        await surveyed_with(metrics, asking_for("fp8"), runbooks=BOTH) for metrics in (named, silent)
    ]

    assert named.asked_for_starts == silent.asked_for_starts == [PODS]
    assert Reason.COMPRESSION_NOT_APPLIED not in applied.diagnosis.line()
    assert f"cannot go on, {Reason.COMPRESSION_NOT_APPLIED}: " in missing.diagnosis.line()
    assert "its start-up log cannot be read (gone)" in missing.diagnosis.line()


async def test_a_log_that_cannot_be_read_names_no_method() -> None:
    unread, plain = Asked(State.THRASH), Asked(State.THRASH)

    found = await surveyed_with(unread, view(), runbooks=BOTH)
    alone = await surveyed_with(plain, view())

    assert found.evidence.compression is None
    assert found.diagnosis == alone.diagnosis


async def test_no_start_is_read_by_a_quick_look_without_the_runbook_or_where_settings_show_it() -> None:
    calm, another, settled = Asked(State.RECOVERED), Asked(State.THRASH), Asked(State.THRASH)
    set_up = with_container(env=[{"name": "VLLM_ASCEND_KVCOMPRESS_ENABLED", "value": "1"}])

    await surveyed_with(calm, view(), runbooks=BOTH)
    await surveyed_with(another, view())
    await surveyed_with(settled, set_up, runbooks=BOTH)

    assert [metrics.asked_for_starts for metrics in (calm, another, settled)] == [[], [], []]


@pytest.mark.parametrize("state", list(State))
async def test_the_diagnosis_is_that_of_a_whole_look(state: State) -> None:
    found, _ = await looked(state, good=OLD)
    resource = a_resource()

    asked = Asked(state)
    whole = await examine(resource, resource.policy, view(), SurveyInput(asked, asked))

    assert found.diagnosis == whole.diagnosis
    assert (found.runbook, found.plan, found.blocked) == (whole.runbook, whole.plan, whole.blocked)


async def test_gpus_and_ends_are_asked_for_as_the_look_needs_them() -> None:
    _, calm = await looked(State.RECOVERED, good=OLD)
    _, pressed = await looked(State.THRASH, good=OLD)

    assert (calm.asked_for_devices, pressed.asked_for_devices) == (0, 1)


async def surveyed(metrics: Asked, **more: Any) -> Survey:
    resource = spec(**more)
    return await survey(resource, resource.policy, view(), SurveyInput(metrics, metrics))


async def test_required_node_health_that_nobody_reports_holds_and_says_how_to_provide_it() -> None:
    found = await surveyed(Asked(State.THRASH), nodeHealth="Required")

    assert found.diagnosis.reason is Reason.NODE_HEALTH_UNKNOWN
    assert found.plan is None
    assert "DCGM_FI_DEV_XID_ERRORS" in found.diagnosis.line()


async def test_required_node_health_that_is_known_stands_in_no_way() -> None:
    found = await surveyed(Asked(State.THRASH, gpus=Measured((a_device(),), NOW)), nodeHealth="Required")

    assert found.plan is not None


@pytest.mark.parametrize("health", ["Required", "IfAvailable"])
async def test_a_broken_gpu_diverts_whatever_unknown_health_means(health: str) -> None:
    gpus = Measured((a_device(last_xid=79),), NOW)

    found = await surveyed(Asked(State.THRASH, gpus=gpus), nodeHealth=health)

    assert (found.diagnosis.reason, found.plan) == (Reason.GPU_FAULT, None)
    assert found.blocked.reason is Reason.GPU_FAULT


LEVERS = [{"name": "gpuMemoryUtilization", "min": 0.8, "max": 0.95, "step": 0.02}]


@pytest.mark.parametrize("state", [State.RECOVERED, State.THRASH, State.MISSING])
async def test_a_gpu_that_ran_out_of_memory_is_met_whatever_the_metrics_say(state: State) -> None:
    found = await surveyed(Asked(state, ended=an_end(Cause.DEVICE_MEMORY, NOW)), levers=LEVERS)

    assert found.diagnosis.reason is Reason.CUDA_OUT_OF_MEMORY
    assert found.goal is Goal.STAYS_UP
    assert (found.plan.steps[0].before, found.plan.steps[0].after) == (None, "0.9")
    assert not isinstance(found.baseline(Objectives()), Inconclusive)


async def test_a_replica_that_cannot_stay_up_does_not_stand_in_its_own_way() -> None:
    pods = (replace(a_fleet().pods[0], ready_at=None, in_rotation=False), *a_fleet().pods[1:])
    broken = View(fleet=a_fleet(pods=pods), template=deployment(3)["spec"]["template"])
    metrics, resource = Asked(State.MISSING, ended=an_end(Cause.DEVICE_MEMORY, NOW)), spec(levers=LEVERS)

    found = await survey(resource, resource.policy, broken, SurveyInput(metrics, metrics))

    assert found.plan is not None
    assert found.blocked is None


async def test_an_end_for_another_reason_does_not_change_the_diagnosis() -> None:
    found = await surveyed(Asked(State.RECOVERED, ended=an_end(Cause.ANOTHER, NOW)))

    assert found.diagnosis.reason is Reason.HEALTHY


def inputs(state: State) -> SurveyInput:
    metrics = Asked(state)
    return SurveyInput(metrics, metrics)


def shown_for_approval(cap: int, **changes: Any) -> Resource:
    """A resource in mode Approve that shows a plan with a cap."""
    resource = a_resource(OLD)
    plan = plan_to(cap, resource)
    record = resource.record or Record()
    shown = ShownPlan(plan.digest, plan.reason, plan.message, (), NOW, replace(plan, **changes))
    approving = replace(resource.policy, mode=Mode.APPROVE)
    return replace(resource, policy=approving, record=replace(record, plan=shown))


def plan_to(cap: int, resource: Resource) -> Plan:
    workload = engine_of(view(), resource.policy)
    assert isinstance(workload, Workload)
    advice = Assignment(Knob.MAX_NUM_SEQS, cap, Reason.CAP_RIGHT_SIZED, f"{cap} fit")
    plan = plan_of(workload, advice, resource.generation)
    assert isinstance(plan, Plan)
    return plan


def caps(found: Survey) -> list[str | None]:
    return [step.after for step in found.plan.steps] if found.plan else []


FRESH = "14"


@pytest.mark.parametrize(
    ("cap", "expected"),
    [(14, "14"), (15, "15"), (13, "13"), (16, FRESH), (12, FRESH)],
    ids=["the same", "one more", "one less", "over a tenth more", "over a tenth less"],
)
async def test_a_plan_that_somebody_may_be_approving_stands_within_the_noise(cap: int, expected: str) -> None:
    resource = shown_for_approval(cap)

    found = await survey(resource, resource.policy, view(), inputs(State.THRASH))

    assert caps(found) == [expected]
    assert found.blocked is None


async def test_in_other_modes_the_newest_plan_counts() -> None:
    resource = shown_for_approval(15)

    found = await survey(
        resource,
        replace(resource.policy, mode=Mode.AUTO),
        view(),
        SurveyInput(Asked(State.THRASH), Asked(State.THRASH)),
    )

    assert caps(found) == [FRESH]


async def test_a_shown_plan_that_is_not_the_one_of_its_digest_is_forgotten() -> None:
    resource = shown_for_approval(15, target_uid="another")

    found = await survey(resource, resource.policy, view(), inputs(State.THRASH))

    assert caps(found) == [FRESH]


@pytest.mark.parametrize("state", [State.MISSING, State.STALE, State.DOWN])
async def test_silence_keeps_the_shown_plan_and_stands_in_its_way(state: State) -> None:
    resource = shown_for_approval(15)

    found = await survey(resource, resource.policy, settled_view(), inputs(state))

    assert caps(found) == ["15"]
    assert found.blocked.reason is found.diagnosis.reason


async def test_silence_keeps_no_plan_for_another_spec() -> None:
    resource = replace(shown_for_approval(15), generation=2)

    found = await survey(resource, resource.policy, settled_view(), inputs(State.MISSING))

    assert found.plan is None


async def test_calm_takes_the_shown_plan_away() -> None:
    resource = shown_for_approval(15)

    found = await survey(resource, resource.policy, view(), inputs(State.RECOVERED))

    assert found.plan is None


@pytest.mark.parametrize("good", ["", "another"])
async def test_a_revision_that_proves_good_is_recorded_with_traffic_and_figures(good: str) -> None:
    found, metrics = await looked(State.RECOVERED, good)
    resource = a_resource(good)

    proved = await prove_good_revision(found, resource, resource.policy, metrics, NOW)

    assert metrics.looks[-1].signals == TRAFFIC | ASKED
    assert proved is not None
    assert proved.traffic is not None
    assert proved.traffic.output_tokens == pytest.approx(190)
    assert proved.traffic.requests_per_second == pytest.approx(3 * 400 / 60)
    assert proved.figures is not None
    assert proved.figures.requests_per_second == pytest.approx(3 * 400 / 60)
    assert (proved.figures.replicas, proved.method, proved.recorded_at) == (3, "", NOW)


KNOWN_GOOD = LastGood(OLD, {}, 3, 149, NOW, Traffic(), figures=Figures())


@pytest.mark.parametrize(
    ("good", "after", "again"),
    [
        (KNOWN_GOOD, timedelta(days=1) - timedelta(seconds=1), False),
        (KNOWN_GOOD, timedelta(days=1), True),
        (replace(KNOWN_GOOD, figures=None), timedelta(seconds=59), False),
        (replace(KNOWN_GOOD, figures=None), timedelta(seconds=60), True),
    ],
    ids=["within a day", "after a day", "within a window of young replicas", "once they are old enough"],
)
async def test_a_revision_on_record_is_recorded_anew_once_a_day(
    good: LastGood, after: timedelta, *, again: bool
) -> None:
    metrics, resource = Asked(State.RECOVERED), replace(a_resource(), record=Record(last_good=good))
    assert resource.policy is not None
    found = await survey(resource, resource.policy, view(), SurveyInput(metrics, metrics, NOW + after))
    looks = len(metrics.looks)

    proved = await prove_good_revision(found, resource, resource.policy, metrics, NOW + after)

    assert (proved is not None, len(metrics.looks) > looks) == (again, again)


class Together(Asked):
    """Metrics that answer about engines once they are asked about devices as well."""

    async def look(self, source: str, pods: Any, namespace: str, look: Look) -> Observation:
        await self.together.wait()
        return await super().look(source, pods, namespace, look)

    async def devices(self, *asked: Any) -> Any:
        await self.together.wait()
        return await super().devices(*asked)


async def test_what_proves_a_revision_good_is_asked_for_at_once() -> None:
    found, _ = await looked(State.RECOVERED)
    resource, metrics = a_resource(), Together(State.RECOVERED)
    metrics.together = asyncio.Barrier(2)

    async with asyncio.timeout(5):
        assert await prove_good_revision(found, resource, resource.policy, metrics, NOW) is not None


class Young(Asked):
    """Metrics of replicas that all started a second ago."""

    async def look(self, source: str, pods: Any, namespace: str, look: Look) -> Observation:
        seen = await super().look(source, pods, namespace, look)
        began = {Signal.STARTED_SECONDS: Measured(NOW.timestamp() - 1, NOW)}
        young = {name: replace(one, numbers={**one.numbers, **began}) for name, one in seen.pods.items()}
        return replace(seen, pods=young)


async def test_figures_of_replicas_that_just_started_are_not_recorded() -> None:
    found, _ = await looked(State.RECOVERED)
    resource = a_resource()
    assert resource.policy is not None

    proved = await prove_good_revision(found, resource, resource.policy, Young(State.RECOVERED), NOW)

    assert proved is not None
    assert proved.figures is None


THEN = Traffic(requests_per_second=10, prompt_tokens=64, output_tokens=90, limit_tokens=190)


@pytest.mark.parametrize(
    ("good", "says"),
    [
        (LastGood(OLD, {}, 3, 149, NOW, THEN), "arrivals 10 -> 20/s, outputs 90 -> 190 tokens"),
        (LastGood("before", {}, 3, 149, NOW, None), f"pod template before -> {OLD}"),
        (LastGood(OLD, {}, 3, 149, NOW, Traffic()), "nothing that is recorded"),
    ],
    ids=["traffic", "the template", "nothing"],
)
async def test_the_diagnosis_of_a_trouble_says_what_moved_since_it_was_healthy(
    good: LastGood, says: str
) -> None:
    resource = replace(a_resource(), record=Record(last_good=good))

    found = await survey(resource, resource.policy, view(), inputs(State.THRASH))

    assert f"moved since it was healthy (2026-03-01T03:00:00Z): {says}" in found.diagnosis.line()
    assert found.plan is not None


async def test_a_calm_fleet_is_not_compared() -> None:
    resource = replace(a_resource(), record=Record(last_good=LastGood("before", {}, 3, 149, NOW, THEN)))

    found = await survey(resource, resource.policy, view(), inputs(State.RECOVERED))

    assert "moved" not in found.diagnosis.line()


SILENT_ONE = a_pod("e")
BROKEN_ONE = a_pod("e", ready_at=None, unready_at=NOW - timedelta(minutes=20), waiting_reason=CRASH_LOOP)
YOUNG_ONE = a_pod("e", ready_at=NOW - timedelta(seconds=20))


@pytest.mark.parametrize(
    ("odd", "why"),
    [(SILENT_ONE, "no metrics: NoSeries"), (BROKEN_ONE, CRASH_LOOP), (YOUNG_ONE, "Ready for less than")],
    ids=["unscraped", "not Ready", "young"],
)
@pytest.mark.parametrize(
    ("state", "reason"),
    [(State.THRASH, Reason.FLEET_WIDE_DEMAND), (State.RECOVERED, Reason.HEALTHY)],
    ids=["pressured", "calm"],
)
async def test_one_replica_that_says_nothing_does_not_blind_the_fleet(
    state: State, reason: Reason, odd: Pod, why: str
) -> None:
    fleet = a_fleet(replicas=5, pods=(*(a_pod(name) for name in "abcd"), odd))
    metrics, resource = Asked(state, named={"e": State.MISSING}), a_resource()
    seen = View(fleet=fleet, template=deployment(5)["spec"]["template"], templates={})

    found = await survey(resource, resource.policy, seen, SurveyInput(metrics, metrics, NOW))

    assert found.diagnosis.reason is reason
    assert "judged on 4 of 5 replicas, without e (" in found.diagnosis.line()
    assert why in found.diagnosis.line()
    assert reason is Reason.HEALTHY or (
        found.plan and not isinstance(found.baseline(Objectives()), Inconclusive)
    )
    assert healthy_revision(found, resource.policy, NOW) is None


async def test_a_silent_fleet_and_one_with_too_many_silent_replicas_are_judged_as_before() -> None:
    resource = a_resource()
    metrics = Asked(State.THRASH, named={"a": State.MISSING})

    found = await survey(resource, resource.policy, view(), SurveyInput(metrics, metrics, NOW))

    assert isinstance(found.diagnosis, Inconclusive)
    assert found.diagnosis.message.startswith("a: preemptions")
    assert found.evidence.left_out == {}
