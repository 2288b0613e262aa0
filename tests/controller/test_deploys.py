"""Which revision counts as a deploy, and what of it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from builders import CALM, an_observation
from kvmedic.controller.evidence import Moment, latest_deploy
from kvmedic.model.config_edits import Deploy, Difference, LatestDeploy, NoDeploy
from kvmedic.model.evidence import Absence, Inconclusive, Look, Measured, Missing, Observation, Reading
from kvmedic.model.fleet import ReplicaSet
from kvmedic.model.reasons import Reason
from kvmedic.model.status import ClosedRun
from kvmedic.runbooks.preemption.deploy_correlation import HISTORY
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from run_builder import NEW, NOW, OLD, a_fleet
from worlds.asked import Asked, a_resource
from worlds.world import deployment

MINUTE = timedelta(minutes=1)
CAME = NOW - 10 * MINUTE


@dataclass
class Remembering(Asked):
    """Metrics that know the past."""

    then: Reading[Observation] = field(default_factory=lambda: Measured(an_observation(CALM, CALM), NOW))
    asked: list[tuple[str, str, str, datetime, Look]] = field(default_factory=list)

    async def observe_past(
        self, source: str, namespace: str, replica_set: str, at: datetime, look: Look
    ) -> Reading[Observation]:
        self.asked.append((source, namespace, replica_set, at, look))
        return self.then


def template(cap: str, *more: str) -> Any:
    made = deployment(3)["spec"]["template"]
    made["spec"]["containers"][0]["args"] = [f"--max-num-seqs={cap}", *more]
    return made


def view(before: Any, after: Any, made_at: datetime = CAME) -> Any:
    """Return a target that got the later of two templates."""
    sets = (
        ReplicaSet("llm-6f", OLD, 6, 0, 0, 0, observed=True, created_at=NOW - timedelta(days=1)),
        ReplicaSet("llm-7c", NEW, 7, 3, 3, 0, observed=True, created_at=made_at),
    )
    pods = tuple(replace(pod, revision=NEW) for pod in a_fleet().pods)
    kept = {"llm-6f": before, "llm-7c": after} if before else {"llm-7c": after}
    fleet = a_fleet(revision=NEW, replica_sets=sets if before else sets[1:], pods=pods)
    return View(fleet=fleet, template=after, templates=kept)


async def found(
    seen: Any, metrics: Remembering | None = None, history: Sequence[ClosedRun] = ()
) -> LatestDeploy:
    policy = a_resource().policy
    assert policy is not None
    asked = metrics or Remembering(State.THRASH)
    return await latest_deploy(policy, "serving", seen, asked, Moment(NOW, history))


async def test_a_deploy_comes_with_what_it_changed_and_how_it_was_before() -> None:
    metrics = Remembering(State.THRASH)

    deploy = await found(view(template("16"), template("64")), metrics)

    assert isinstance(deploy, Deploy)
    assert deploy.differences == (Difference("maxNumSeqs", "16", "64"),)
    assert (deploy.now.number, deploy.previous.number, deploy.came_at) == (7, 6, CAME)
    assert deploy.before == metrics.then
    assert (deploy.to_start, deploy.start_seconds) == (3, 60)
    assert metrics.asked == [("default", "serving", "llm-6f", CAME, Look(MINUTE, signals=HISTORY))]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(template("64"), template("64")), id="nothing of interest"),
        pytest.param(view(template("64"), template("16")), id="a lowered cap"),
        pytest.param(view(template("16"), template("64"), NOW - 61 * MINUTE), id="an old one"),
    ],
)
async def test_the_past_is_asked_about_for_nothing_else(seen: Any) -> None:
    metrics = Remembering(State.THRASH)

    assert await found(seen, metrics) == NoDeploy()
    assert metrics.asked == []


@pytest.mark.parametrize("then", [Missing(Absence.NO_SERIES), Missing(Absence.SOURCE_UNAVAILABLE)])
async def test_a_past_that_is_not_known_stays_so(then: Missing) -> None:
    deploy = await found(view(template("16"), template("64")), Remembering(State.THRASH, then=then))

    assert isinstance(deploy, Deploy)
    assert deploy.before == then


async def test_what_cannot_be_read_is_said_with_its_number_and_time() -> None:
    seen = view(template("16", "--config", "/c"), template("64", "--config", "/c"))

    deploy = await found(seen)

    assert isinstance(deploy, Inconclusive)
    assert deploy.reason is Reason.REVISION_UNREADABLE
    assert deploy.message.startswith(
        "revision 7 came at 2026-03-01T02:50:00Z, and what it changed cannot be read"
    )


async def test_a_predecessor_that_is_gone_cannot_be_gone_back_to_whatever_it_was() -> None:
    assert await found(view(None, template("64"))) == NoDeploy()


OURS = ClosedRun(
    "1", Reason.FLEET_WIDE_DEMAND, Reason.IMPROVED, "", (), CAME - MINUTE, CAME + MINUTE, None, OLD
)
RUNS = [
    pytest.param(OURS, True, id="what a run made"),
    pytest.param(replace(OURS, outcome=Reason.FLAG_DRIFTED), False, id="somebody edited in the middle of it"),
    pytest.param(replace(OURS, template="c" * 16), False, id="the run began on another template"),
    pytest.param(replace(OURS, template=""), False, id="nobody knows on which"),
    pytest.param(replace(OURS, ended_at=CAME - MINUTE), False, id="it came after the run"),
]


@pytest.mark.parametrize(("run", "ours"), RUNS)
async def test_our_own_change_is_no_deploy(run: ClosedRun, *, ours: bool) -> None:
    seen = view(template("16"), template("64"))

    assert (await found(seen, history=(run,)) == NoDeploy()) is ours
