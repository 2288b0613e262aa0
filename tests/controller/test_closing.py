"""A run is closed by the one who leads, and by nobody else; one that may not look says so."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.controller.execute import execute_run
from kvmedic.controller.next_move import Tick
from kvmedic.kube.clock import Stopwatch
from kvmedic.kube.errors import Call, Refused
from kvmedic.model.reasons import Reason
from kvmedic.model.run import StepState
from kvmedic.model.status import ConditionType, Record, Wish
from kvmedic.rollout.gates.opening import Stop
from kvmedic.runbooks.workload import View
from run_builder import NOW, STEP, a_fleet, a_run, an_intent
from worlds.asked import a_resource
from worlds.owner_model import FIELD, OWNER

SOON = timedelta(seconds=1)


@dataclass
class Saved:
    """A store that takes what it is given."""

    records: list[Any] = field(default_factory=list)

    async def save(self, resource: Any, record: Any) -> Any:
        self.records.append(record)
        return resource

    async def report_changes(self, *_: Any) -> None:
        """Report nothing."""


async def ended(*, leads: bool) -> tuple[timedelta, Saved]:
    """Execute a run whose target was deleted."""

    async def gone(*_: Any) -> None:
        return None

    async def nobody(*_: Any) -> tuple[()]:
        return ()

    async def read() -> Stop:
        return Stop.OFF

    saved, run, resource = Saved(), a_run(StepState.ROLLING_OUT, an_intent()), a_resource()
    ports: Any = SimpleNamespace(
        target=SimpleNamespace(look=gone, find_cordoned_pods=nobody),
        stop=SimpleNamespace(read=read),
        leader=SimpleNamespace(is_held=lambda: leads),
        pace=SimpleNamespace(controller=SOON),
        store=saved,
        reporter=saved,
        watch=Stopwatch(),
    )
    record = Record(run=run)
    return await execute_run(Tick(resource, resource.policy, record, run, ports, NOW, None)), saved


@pytest.mark.parametrize("leads", [True, False])
async def test_who_does_not_lead_leaves_the_end_to_the_one_who_does(*, leads: bool) -> None:
    again, saved = await ended(leads=leads)

    assert [record.run for record in saved.records] == ([None] if leads else [])
    assert again == (timedelta(0) if leads else SOON)


@pytest.mark.parametrize(
    ("wish", "reason", "words"),
    [
        (Wish.NONE, Reason.CHANGE_REFUSED, "inferenceservices/chat: 403"),
        (Wish.ROLL_BACK, Reason.CHANGE_REFUSED, "inferenceservices/chat: 403"),
        (Wish.ABANDON, Reason.FLAG_DRIFTED, "cannot be read"),
    ],
)
async def test_a_run_that_may_not_see_the_owners_object_says_so_and_can_be_abandoned(
    wish: Wish, reason: Reason, words: str
) -> None:
    async def live(*_: Any) -> View:
        return View(fleet=a_fleet(owner=OWNER), template={})

    async def forbidden(*_: Any) -> View:
        raise Refused(Call("get", "/apis/serving.kserve.io/v1beta1/inferenceservices/chat"), 403, "Forbidden")

    async def read() -> Stop:
        return Stop.OFF

    saved, resource = Saved(), replace(a_resource(), wish=wish)
    ports: Any = SimpleNamespace(
        target=SimpleNamespace(look=live, with_owner_object=forbidden),
        stop=SimpleNamespace(read=read),
        pace=SimpleNamespace(idle=SOON),
        store=saved,
        reporter=saved,
        watch=Stopwatch(),
    )
    run = a_run(StepState.ROLLING_OUT, an_intent(), step=replace(STEP, through=FIELD))

    await execute_run(Tick(resource, resource.policy, Record(run=run), run, ports, NOW, None))

    (record,) = saved.records
    condition = record.condition(ConditionType.PROGRESSING)
    assert condition.reason is reason
    assert (record.run.current == run.current) is (reason is Reason.CHANGE_REFUSED)
    assert words in condition.message
