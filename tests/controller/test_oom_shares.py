"""A share of the GPU's memory that was too much is written down with the diagnosis, in every mode."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.survey import survey
from kvmedic.controller.temporary import with_known_limit
from kvmedic.model.devices import Cause, EngineEnd
from kvmedic.model.fleet import body_hash
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import Policy
from kvmedic.model.status import Record
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from run_builder import NOW, a_fleet
from worlds.asked import Asked, spec
from worlds.vitals_builder import an_end
from worlds.world import deployment

OUT_OF_MEMORY = an_end(Cause.DEVICE_MEMORY, NOW)


def a_view(*args: str, image: str = "vllm/vllm-openai:v0.32.0") -> Any:
    template = deployment(3)["spec"]["template"]
    container = template["spec"]["containers"][0]
    container["args"] += args
    container["image"] = image
    return View(fleet=a_fleet(), template=template)


async def found(view: Any, ended: EngineEnd | None = OUT_OF_MEMORY, **more: Any) -> tuple[Survey, Policy]:
    resource, metrics = spec(**more), Asked(State.RECOVERED, ended=ended)
    return await survey(resource, resource.policy, view, SurveyInput(metrics, metrics)), resource.policy


@pytest.mark.parametrize("mode", ["Observe", "Auto"])
@pytest.mark.parametrize(
    ("args", "share"), [((), 0.92), (("--gpu-memory-utilization=0.88",), 0.88)], ids=["the default", "given"]
)
async def test_the_share_at_which_memory_ran_out_is_written_down(
    mode: str, args: tuple[str, ...], share: float
) -> None:
    view = a_view(*args)
    seen, policy = await found(view, mode=mode)

    record = with_known_limit(Record(), seen, policy, NOW)

    assert seen.diagnosis.reason is Reason.CUDA_OUT_OF_MEMORY
    assert [(one.share, one.body) for one in record.oom_shares] == [(share, body_hash(view.template))]
    assert with_known_limit(record, seen, policy, NOW) == record


@pytest.mark.parametrize(
    "view",
    [
        a_view("--num-gpu-blocks-override=150"),
        a_view("--config", "/etc/engine.yaml"),
        a_view(image="vllm/vllm-openai:latest"),
        a_view(image="nginx"),
    ],
    ids=["the share decides nothing", "a file may give it", "no known default", "not an engine"],
)
async def test_a_share_that_is_not_known_is_not(view: Any) -> None:
    view.template["spec"]["containers"][0]["command"] = (
        ["nginx"]
        if view.template["spec"]["containers"][0]["image"] == "nginx"
        else ["vllm", "serve", "/models/tiny"]
    )
    seen, policy = await found(view)

    assert with_known_limit(Record(), seen, policy, NOW).oom_shares == ()


@pytest.mark.parametrize(
    "ended",
    [None, an_end(Cause.HOST_MEMORY, NOW), an_end(Cause.UNKNOWN, NOW)],
    ids=["nothing ended", "its host's memory", "nobody knows"],
)
async def test_without_an_end_for_want_of_device_memory_nothing_is_written(ended: EngineEnd | None) -> None:
    seen, policy = await found(a_view(), ended)

    assert with_known_limit(Record(), seen, policy, NOW) == Record()
