"""A run is closed by the one who leads, and by nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kvmedic.controller.execute import pursue
from kvmedic.controller.next_move import Tick
from kvmedic.kube.clock import Stopwatch
from kvmedic.model.run import StepState
from kvmedic.model.status import Record
from kvmedic.rollout.gates import Stop
from run_builder import NOW, a_run, an_intent
from worlds.asked import a_resource

SOON = timedelta(seconds=1)


@dataclass
class Saved:
    """A store that takes what it is given."""

    records: list[Any] = field(default_factory=list)

    async def save(self, resource: Any, record: Any) -> Any:
        self.records.append(record)
        return resource

    async def saved(self, *_: Any) -> None:
        """Report nothing."""


async def ended(*, leads: bool) -> tuple[timedelta, Saved]:
    """Pursue a run whose target was deleted."""

    async def gone(*_: Any) -> None:
        return None

    async def nobody(*_: Any) -> tuple[()]:
        return ()

    async def read() -> Stop:
        return Stop.OFF

    saved, run, resource = Saved(), a_run(StepState.ROLLING_OUT, an_intent()), a_resource()
    ports: Any = SimpleNamespace(
        target=SimpleNamespace(look=gone, left_cordoned=nobody),
        stop=SimpleNamespace(read=read),
        leader=SimpleNamespace(is_held=lambda: leads),
        pace=SimpleNamespace(controller=SOON),
        store=saved,
        reporter=saved,
        watch=Stopwatch(),
    )
    record = Record(run=run)
    return await pursue(Tick(resource, resource.policy, record, run, ports, NOW, None)), saved


@pytest.mark.parametrize("leads", [True, False])
async def test_who_does_not_lead_leaves_the_end_to_the_one_who_does(*, leads: bool) -> None:
    again, saved = await ended(leads=leads)

    assert [record.run for record in saved.records] == ([None] if leads else [])
    assert again == (timedelta(0) if leads else SOON)
