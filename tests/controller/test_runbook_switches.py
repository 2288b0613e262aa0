"""A look at a fleet that two runbooks look after: when one leaves it to the other, and how often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.survey import survey, switch_where_untriable
from kvmedic.model.evidence import Blocked, Measured
from kvmedic.model.fleet import template_hash
from kvmedic.model.plan import BundleStep, FlagStep, TrialStep
from kvmedic.model.reasons import Reason
from kvmedic.model.status import ClosedRun, Record, Resource, RunbookSwitch
from kvmedic.model.trial import Answer, Growth, Question, Reclaim
from kvmedic.record.surveys import with_runbook_switch
from kvmedic.runbooks.compression.savings import figures_of
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from run_builder import NOW, a_fleet
from worlds.asked import Asked, spec
from worlds.vitals_builder import a_device
from worlds.world import deployment

MINUTE = timedelta(minutes=1)
BOTH = ["PreemptionThrash", "CompressionWithoutSavings"]
COMPRESSION, THRASH = "CompressionWithoutSavings", "PreemptionThrash"
GIB = 1024
ROOMY = Measured((a_device(memory_free=40 * GIB, memory_in_use=0.5),), NOW)
"""Of a fleet whose device memory is known: then it shows that the method took more of it."""


def template(**env: str) -> Any:
    made = deployment(3)["spec"]["template"]
    made["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return made


ON, OFF = template(TRIATTN_RUNTIME_KV_BUDGET="512"), template()


def view(now: Any) -> Any:
    present = template_hash(now)
    pods = tuple(replace(pod, revision=present) for pod in a_fleet().pods)
    return View(fleet=a_fleet(revision=present, pods=pods), template=now)


RECLAIMS = Answer(
    Question.RECLAMATION, template_hash(ON), "blocks come back on a trial pod", NOW, 1, Reclaim.RECLAIMS
)


async def looked(
    record: Record, resource: Resource | None = None, metrics: Asked | None = None, now: Any = ON
) -> Survey:
    owner = replace(resource or spec(runbooks=BOTH), record=record)
    asked = metrics or Asked(State.THRASH)
    return await survey(owner, owner.policy, view(now), SurveyInput(asked, asked, NOW))


def switched(found: Survey) -> RunbookSwitch:
    assert found.switch is not None
    return found.switch


async def suspected(mode: str = "Approve") -> Resource:
    """Return a resource that gives a fleet before the method that was faster, on less device memory.

    In mode Auto what the spec alone says turns nothing off.
    """
    now = figures_of((await looked(Record(answers=(RECLAIMS,)))).evidence)
    before = {
        "requestsPerSecond": now.requests_per_second,
        "tokensPerSecond": 1.3 * (now.tokens_per_second or 0.0),
        "preemptionsPerRequest": now.preemptions_per_request,
        "kvCacheUsage": now.kv_cache_usage,
        "deviceMemory": "20Gi",
        "replicas": int(now.replicas or 0),
    }
    return spec(runbooks=BOTH, mode=mode, compression={"baseline": before})


async def test_a_fleet_whose_method_does_what_it_can_goes_to_the_other_runbook_with_its_plan() -> None:
    found = await looked(Record(answers=(RECLAIMS,)))

    given = switched(found)
    assert (given.from_runbook, given.to_runbook) == (COMPRESSION, THRASH)
    assert (given.reason, given.at) == (Reason.PRESSED_THOUGH_COMPRESSED, NOW)
    assert isinstance(found.plan.steps[0], FlagStep)


def with_longest(tokens: int, **env: str) -> Any:
    made = template(**env)
    made["spec"]["containers"][0]["args"] = [f"--max-model-len={tokens}", "--block-size=16"]
    return made


SHORT, ROOM = (with_longest(tokens, TRIATTN_RUNTIME_KV_BUDGET="512") for tokens in (16_384, 32_768))
SILENT = replace(RECLAIMS, template=template_hash(ROOM), message="refused: 400", reclaim=None)
MINE = {"method": "Mine", "settings": [{"env": "EVICT", "after": "1"}]}
STUCK: dict[str, tuple[Any, dict[str, Any], tuple[Answer, ...], Reason]] = {
    "the engine takes no request that is long enough": (SHORT, {}, (), Reason.TRIAL_IMPOSSIBLE),
    "a trial showed nothing": (ROOM, {}, (SILENT,), Reason.TRIAL_UNANSWERED),
    "nobody knows the method": (with_longest(32_768, EVICT="1"), MINE, (), Reason.METHOD_UNKNOWN),
    "nobody knows what it keeps": (
        with_longest(32_768, EVICT="1"),
        {**MINE, "class": "ScatteredEviction"},
        (),
        Reason.METHOD_UNKNOWN,
    ),
    "it may not be turned off": (
        ROOM,
        {"allowedFixes": []},
        (replace(SILENT, reclaim=Reclaim.SCATTERED),),
        Reason.FIXES_EXHAUSTED,
    ),
}


@pytest.mark.parametrize("name", STUCK)
async def test_where_compression_cannot_go_on_the_fleet_is_capped_as_without_it(name: str) -> None:
    now, compression, answers, reason = STUCK[name]
    resource = spec(runbooks=BOTH, **({"compression": compression} if compression else {}))

    found = await looked(Record(answers=answers), resource, now=now)
    calm = await looked(Record(answers=answers), resource, Asked(State.RECOVERED), now=now)

    assert isinstance(found.plan.steps[0], FlagStep)
    assert (found.runbook, found.blocked) == (THRASH, None)
    assert (switched(found).reason, switched(found).to_runbook) == (reason, THRASH)
    assert f"{COMPRESSION} cannot go on, {reason}: " in found.diagnosis.line()
    assert calm.plan is None


async def test_a_trial_that_turns_out_to_be_impossible_leaves_the_fleet_to_the_other_runbook_too() -> None:
    resource = spec(runbooks=BOTH)
    planned = await looked(Record(), resource, now=ROOM)
    no_pods = replace(planned, blocked=Blocked(Reason.TRIAL_IMPOSSIBLE, "set probe.trialPods"))

    found = switch_where_untriable(no_pods, replace(resource, record=Record()), resource.policy, NOW)
    as_planned = switch_where_untriable(planned, resource, resource.policy, NOW)

    assert as_planned is planned
    assert isinstance(found.plan.steps[0], FlagStep)
    assert switched(found).reason is Reason.TRIAL_IMPOSSIBLE


async def test_a_fleet_without_a_method_needs_no_switch() -> None:
    found = await looked(Record(), now=OFF)

    assert (found.runbook, found.switch) == (THRASH, None)
    assert found.plan is not None


async def test_a_calm_fleet_needs_no_switch() -> None:
    found = await looked(Record(answers=(RECLAIMS,)), metrics=Asked(State.RECOVERED))

    assert found.switch is None


async def test_one_runbook_alone_needs_no_switch() -> None:
    found = await looked(Record(answers=(RECLAIMS,)), spec(runbooks=["PreemptionThrash"]))

    assert (found.runbook, found.switch) == (THRASH, None)


def ran(reason: Reason, at: Any, outcome: Reason = Reason.INCONCLUSIVE) -> ClosedRun:
    """Return a run that left no evidence."""
    return ClosedRun(str(at), reason, outcome, "", (), at, at + MINUTE)


async def ping_pong(*runs: ClosedRun, **more: Any) -> tuple[Survey, RunbookSwitch, RunbookSwitch]:
    """Return a look after one went over and one back, with what was run meanwhile, newest first."""
    resource, record = await suspected(), Record(answers=(RECLAIMS,), **more)
    over = replace(switched(await looked(record, resource)), at=NOW - 60 * MINUTE)
    record = with_runbook_switch(record, over)
    back = switched(await looked(record, resource, Asked(State.THRASH, gpus=ROOMY)))
    back = replace(back, at=NOW - 30 * MINUTE)
    record = replace(with_runbook_switch(record, back), history=tuple(runs))
    return await looked(record, resource), over, back


async def test_a_plan_of_the_compression_runbook_takes_the_fleet_back() -> None:
    found, over, back = await ping_pong()

    assert back.takes_back(over)
    assert back.reason is Reason.EAGER_FALLBACK
    assert switched(found).is_like(over)


OVER_AT, BACK_AT = NOW - 60 * MINUTE, NOW - 30 * MINUTE
CAPPED = ran(Reason.FLEET_WIDE_DEMAND, OVER_AT, Reason.NOT_RECOVERED)
TURNED = ran(Reason.EAGER_FALLBACK, BACK_AT)


async def test_the_second_time_for_the_same_template_nothing_is_planned() -> None:
    found, over, _ = await ping_pong(TURNED, CAPPED)

    assert found.plan is None
    assert found.blocked.reason is Reason.RUNBOOK_SWITCHED_TWICE
    for part in (over.template, "PreemptionThrash wants Deployment/llm: maxNumSeqs 64 -> ", "EagerFallback"):
        assert part in found.blocked.message
    assert "An edit of the spec or of the pod template starts anew" in found.blocked.message


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param((), id="load came and went during a cooldown"),
        pytest.param((CAPPED,), id="only the one whose turn it is tried something"),
        pytest.param(
            (ran(Reason.FLEET_WIDE_DEMAND, NOW - 10 * MINUTE), CAPPED), id="a second lever after the first"
        ),
        pytest.param(
            (ran(Reason.FIX_DUE, BACK_AT, Reason.TRIAL_UNANSWERED), CAPPED), id="a trial changed nothing"
        ),
        pytest.param(
            (ran(Reason.FIX_DUE, BACK_AT, Reason.SPARE_UNSCHEDULABLE), CAPPED), id="no room for a change"
        ),
        pytest.param(
            (CAPPED, ran(Reason.EAGER_FALLBACK, OVER_AT - 30 * MINUTE)), id="a run from before the way back"
        ),
    ],
)
async def test_what_is_no_second_switch_blocks_nobody(runs: Iterable[ClosedRun]) -> None:
    found, _, _ = await ping_pong(*runs)

    assert found.plan is not None
    assert found.blocked is None


async def test_an_edit_of_the_spec_or_of_the_template_starts_anew() -> None:
    resource = await suspected()
    over = switched(await looked(Record(answers=(RECLAIMS,)), resource))
    record = Record(answers=(RECLAIMS,), runbook_switches=(over,), history=(TURNED, CAPPED))
    back = switched(await looked(record, resource, Asked(State.THRASH, gpus=ROOMY)))
    record = replace(record, runbook_switches=(replace(back, at=BACK_AT), replace(over, at=OVER_AT)))
    another = template(TRIATTN_RUNTIME_KV_BUDGET="512", HF_HOME="/models")
    answers = (replace(RECLAIMS, template=template_hash(another)),)

    same = await looked(record, resource)
    spec_edited = await looked(record, replace(resource, generation=resource.generation + 1))
    template_edited = await looked(replace(record, answers=answers), resource, now=another)

    assert same.plan is None
    for found in (spec_edited, template_edited):
        assert found.plan is not None
        assert not switched(found).is_like(over)


async def test_the_way_back_is_bounded_too() -> None:
    resource, record = await suspected(), Record(answers=(RECLAIMS,))
    over = switched(await looked(record, resource))
    known = with_runbook_switch(record, over)
    back = switched(await looked(known, resource, Asked(State.THRASH, gpus=ROOMY)))
    record = Record(
        answers=(RECLAIMS,),
        runbook_switches=(replace(over, at=BACK_AT), replace(back, at=OVER_AT)),
        history=(ran(Reason.FLEET_WIDE_DEMAND, BACK_AT), ran(Reason.EAGER_FALLBACK, OVER_AT)),
    )

    found = await looked(record, resource, Asked(State.THRASH, gpus=ROOMY))

    assert found.diagnosis.reason is Reason.EAGER_FALLBACK
    assert found.plan is None
    assert found.blocked.reason is Reason.RUNBOOK_SWITCHED_TWICE


GROWTHS = {None: TrialStep, Growth.SQUARE: BundleStep, Growth.LINEAR: FlagStep}


@pytest.mark.parametrize("growth", GROWTHS)
async def test_what_the_spec_alone_says_turns_nothing_off_in_auto_before_a_trial_says_so(
    growth: Growth | None,
) -> None:
    works = replace(RECLAIMS, template=template_hash(ROOM))
    asked = replace(works, question=Question.PROMPTS, reclaim=None, growth=growth)
    without = replace(asked, template="f" * 16, beside=works.template, growth=Growth.LINEAR)
    record = Record(answers=(works, asked, without) if growth else (works,))

    found = await looked(record, await suspected("Auto"), Asked(State.THRASH, gpus=ROOMY), ROOM)

    assert isinstance(found.plan.steps[0], GROWTHS[growth])


async def test_the_way_back_turns_the_method_off() -> None:
    resource, record = await suspected(), Record(answers=(RECLAIMS,))

    found = await looked(record, resource, Asked(State.THRASH, gpus=ROOMY))

    assert isinstance(found.plan.steps[0], BundleStep)
    assert found.switch is None, "the fleet had not gone to the other runbook"


async def test_a_trial_is_never_in_the_way_because_it_changes_nothing() -> None:
    roomy = template(TRIATTN_RUNTIME_KV_BUDGET="512")
    roomy["spec"]["containers"][0]["args"] = ["--max-model-len", "32768", "--block-size=16"]
    template_of_now = template_hash(roomy)
    over = RunbookSwitch(
        COMPRESSION, THRASH, Reason.PRESSED_THOUGH_COMPRESSED, "", template_of_now, 1, BACK_AT
    )
    back = switched(await looked(Record(runbook_switches=(over,)), now=roomy))
    record = Record(
        runbook_switches=(over, replace(back, at=OVER_AT)),
        history=(ran(Reason.FLEET_WIDE_DEMAND, BACK_AT), ran(Reason.EAGER_FALLBACK, OVER_AT)),
    )

    found = await looked(record, now=roomy)

    assert found.diagnosis.reason is Reason.COMPRESSION_UNPROVEN
    assert found.blocked is None
    assert isinstance(found.plan.steps[0], TrialStep)
