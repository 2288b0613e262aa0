"""Which version of its engine counts when a flag is to be added: the replicas' word, the tag, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvmedic.controller.evidence import Survey
from kvmedic.controller.ports import SurveyInput
from kvmedic.controller.survey import survey
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.workload import View
from lab.scripted.readings import State
from run_builder import OLD, a_fleet, a_pod
from worlds.asked import Asked, spec
from worlds.world import deployment

DIGEST = "vllm/vllm-openai@sha256:" + "0" * 64
TAGGED = "vllm/vllm-openai:v{}"
OURS = "ours/engine:prod"
WATERMARK: dict[str, Any] = {"levers": [{"name": "watermark"}]}
"""A lever that vLLM has had since a release between 0.20.2 and 0.24."""
ALL_SAY = "*"


def a_view(image: str, images: Mapping[str, str] | None = None) -> Any:
    """A fleet of three whose template names an image, with what each replica runs."""
    template = deployment(3)["spec"]["template"]
    template["spec"]["containers"][0]["image"] = image
    ran = images or {}
    pods = tuple(a_pod(name, image=ran.get(name, "sha256:1")) for name in ("a", "b", "c"))
    return View(fleet=a_fleet(pods=pods), template=template)


async def found_with(view: Any, says: Mapping[str, str], **more: Any) -> tuple[Survey, Asked]:
    resource, metrics = spec(**{**WATERMARK, **more}), Asked(State.PROMPTS, versions=says)
    return await survey(resource, resource.policy, view, SurveyInput(metrics, metrics)), metrics


ALLOWED, REFUSED = True, False
CASES = [
    ("a digest, and the replicas report", DIGEST, {ALL_SAY: "0.32.0"}, ALLOWED, ""),
    ("a digest, and a build for CPU", DIGEST, {ALL_SAY: "0.32.0+cpu"}, ALLOWED, ""),
    ("anybody's image, and the replicas report", OURS, {ALL_SAY: "0.32.0"}, ALLOWED, ""),
    (
        "a digest, and nobody reports",
        DIGEST,
        {},
        REFUSED,
        "the version of vLLM is not known: a has no such page; c has no such page, and the image's tag does "
        "not show it",
    ),
    ("a tag, and nobody reports", TAGGED.format("0.32.0"), {}, ALLOWED, ""),
    ("a tag that the replicas confirm", TAGGED.format("0.32.0"), {ALL_SAY: "0.32.0"}, ALLOWED, ""),
    (
        "a tag of old, replicas of today",
        TAGGED.format("0.9.2"),
        {ALL_SAY: "0.32.0"},
        ALLOWED,
        "replicas run vLLM 0.32.0; their image's tag says 0.9.2 and does not count",
    ),
    (
        "a tag of today, replicas of old",
        TAGGED.format("0.32.0"),
        {ALL_SAY: "0.9.2"},
        REFUSED,
        "replicas run vLLM 0.9.2; their image's tag says 0.32.0 and does not count",
    ),
    (
        "a tag, and a build from a shallow clone",
        TAGGED.format("0.32.0"),
        {ALL_SAY: "0.1.dev1+gabc"},
        REFUSED,
        "the version of vLLM is not known: a says 0.1.dev1+gabc, which is none of its releases",
    ),
    ("between a release without the flag and one with it", DIGEST, {ALL_SAY: "0.22.0"}, REFUSED, ""),
]


@pytest.mark.parametrize(
    ("image", "says", "allowed", "remark"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
async def test_a_flag_that_only_some_versions_have_is_added_where(
    image: str, says: Mapping[str, str], allowed: bool, remark: str
) -> None:
    found, _ = await found_with(a_view(image), says)

    assert (found.plan is not None) is allowed
    assert allowed or (found.blocked is not None and found.blocked.reason is Reason.FLAG_UNKNOWN_TO_ENGINE)
    assert remark in found.diagnosis.line()
    assert remark or "version" not in found.diagnosis.line()


async def test_a_flag_that_every_version_has_is_changed_whatever_is_known() -> None:
    resource, metrics = spec(levers=[{"name": "maxNumSeqs"}]), Asked(State.THRASH)

    found = await survey(resource, resource.policy, a_view(DIGEST), SurveyInput(metrics, metrics))

    assert found.plan is not None


MIXED = {"a": "sha256:1", "b": "sha256:2", "c": "sha256:2"}


@pytest.mark.parametrize("levers", [["watermark"], ["maxNumSeqs", "maxNumBatchedTokens"]])
async def test_nothing_is_set_on_replicas_of_several_versions_and_they_are_named(levers: list[str]) -> None:
    view = a_view("vllm/vllm-openai:latest", MIXED)
    found, _ = await found_with(
        view, {"a": "0.24.0", "b": "0.32.0", "c": "0.32.0"}, levers=[{"name": name} for name in levers]
    )

    assert found.plan is None
    assert found.blocked.reason is Reason.REPLICAS_DIFFER
    assert "0.24.0 on a; 0.32.0 on b, c; name an image that does not move" in found.blocked.message


async def test_no_replica_is_added_to_a_fleet_of_several_versions() -> None:
    view = a_view("vllm/vllm-openai:latest", MIXED)
    says = {"a": "0.24.0", "b": "0.32.0", "c": "0.32.0"}

    found, _ = await found_with(view, says, levers=[{"name": "scaleOut", "maxReplicas": 4}])

    assert found.plan is None
    assert found.blocked.reason is Reason.REPLICAS_DIFFER


async def test_two_replicas_of_an_image_are_asked_and_the_others_believed() -> None:
    _, metrics = await found_with(a_view(DIGEST), {ALL_SAY: "0.32.0"})

    assert metrics.asked_for_versions == ["a", "c"]


@pytest.mark.parametrize("state", [State.RECOVERED, State.MISSING, State.STALE, State.DOWN, State.NAN])
async def test_a_fleet_that_needs_no_change_or_cannot_be_seen_is_not_asked(state: State) -> None:
    resource, metrics = spec(**WATERMARK), Asked(state, versions={ALL_SAY: "0.32.0"})

    await survey(resource, resource.policy, a_view(DIGEST), SurveyInput(metrics, metrics))

    assert metrics.asked_for_versions == []


async def test_replicas_of_an_earlier_template_have_no_say() -> None:
    view = a_view(DIGEST)
    pods = (a_pod("old", "another"), *view.fleet.pods)

    found, metrics = await found_with(
        replace(view, fleet=replace(view.fleet, pods=pods)), {"old": "0.9.2", ALL_SAY: "0.32.0"}
    )

    assert "old" not in metrics.asked_for_versions
    assert found.plan is not None
    assert view.fleet.revision == OLD
