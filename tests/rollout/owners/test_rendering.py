"""Which field of an owner's object a flag is rendered from, and when that is not certain."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.model.config_edits import OwnerField, Roller
from kvmedic.model.edits import EditState, Field, PatchOperation, TokenEdit
from kvmedic.model.engine import Knob
from kvmedic.rollout.owners.rendering import RENDERINGS, OwnerBody, field_of, rendering_of

RENDERED = ["m", "--port", "8000", "--max-num-seqs", "64", "--max-model-len=4096", "--enable-prefix-caching"]
PROBE = {"httpGet": {"path": "/health", "port": 8000}}


def template(args: list[str], probe: Any = PROBE, **container: Any) -> dict[str, Any]:
    engine = {"name": "main", "image": "vllm/vllm-openai:v0.11.0", "args": args, **container}
    return {"spec": {"containers": [{**engine, "readinessProbe": probe} if probe else engine]}}


def located(
    api_version: str,
    kind: str,
    spec: dict[str, Any],
    edit: TokenEdit,
    made: dict[str, Any] | None = None,
    knob: Knob = Knob.MAX_NUM_SEQS,
) -> OwnerField | str:
    rendering = rendering_of(api_version, kind)
    assert not isinstance(rendering, str), rendering
    owner = OwnerBody(api_version, kind, "chat", "uid", spec)
    return field_of(owner, rendering, made or template(RENDERED), edit, knob)


def token(index: int, before: str | None, after: str | None, field: Field = Field.ARGS) -> TokenEdit:
    return TokenEdit("main", 0, field, index, before, after)


CAP = token(4, "64", "16")
KSERVE = ("serving.kserve.io/v1beta1", "InferenceService")
LLM = ("serving.kserve.io/v1alpha2", "LLMInferenceService")
STACK = ("production-stack.vllm.ai/v1alpha1", "VLLMRuntime")
OME = ("ome.io/v1beta1", "InferenceService")


def model(args: list[str]) -> dict[str, Any]:
    return {"predictor": {"model": {"modelFormat": {"name": "vLLM"}, "args": args}}}


ENV = [{"name": "A", "value": "1"}, {"name": "VLLM_ADDITIONAL_ARGS", "value": "--max-num-seqs 64 --seed 1"}]
WITHIN = TokenEdit("main", 0, Field.ENV, 1, "64", "16", at=15)


@pytest.mark.parametrize(
    ("who", "spec", "edit", "made", "path"),
    [
        (KSERVE, model(RENDERED[3:]), CAP, None, "/spec/predictor/model/args/1"),
        (KSERVE, model(RENDERED[3:]), token(7, None, "--x=1"), None, "/spec/predictor/model/args/4"),
        (OME, {"engine": {"runner": {"args": RENDERED}}}, CAP, None, "/spec/engine/runner/args/4"),
        (
            LLM,
            {"template": {"containers": [{"name": "main", "env": ENV[1:]}]}},
            WITHIN,
            template([], env=ENV),
            "/spec/template/containers/0/env/0/value",
        ),
        (STACK, {"model": {"maxNumSeqs": 64}}, CAP, None, "/spec/model/maxNumSeqs"),
        (STACK, {"vllmConfig": {"extraArgs": RENDERED[3:5]}}, CAP, None, "/spec/vllmConfig/extraArgs/1"),
    ],
    ids=[
        "KServe",
        "KServe, one more",
        "OME",
        "a variable of LLMInferenceService",
        "VLLMRuntime",
        "extraArgs",
    ],
)
def test_the_one_place_that_is_rendered_is_found(who, spec, edit, made, path) -> None:
    found = located(*who, spec, edit, made)

    assert isinstance(found, OwnerField), found
    assert found.path == path
    assert found.rolled_by is (Roller.KVMEDIC if who == STACK else Roller.OWNER)
    assert found.state({"spec": spec}) is EditState.BEFORE
    assert found.inverse().state({"spec": spec}) is EditState.AFTER


@pytest.mark.parametrize(
    ("who", "spec", "edit", "words"),
    [
        (KSERVE, {"predictor": {"model": {}}}, CAP, "no field of InferenceService/chat has 64"),
        (KSERVE, model(["--max-num-seqs", "32"]), CAP, "no field"),
        (KSERVE, model(RENDERED[3:5]), token(7, None, "--x=1"), "no field"),
        (
            LLM,
            {
                "template": {"containers": [{"args": RENDERED}]},
                "prefill": {"template": {"containers": [{"args": RENDERED}]}},
            },
            CAP,
            "at 2 places: /spec/template/containers/0/args/4, /spec/prefill/template/containers/0/args/4",
        ),
        (KSERVE, {"transformer": {"containers": [{"args": RENDERED}]}}, CAP, "no field"),
        (STACK, {"model": {"maxNumSeqs": 32}}, CAP, "no field"),
        (STACK, {"model": {"maxNumSeqs": 0}}, token(7, None, "--max-num-seqs=16"), "no field"),
    ],
    ids=[
        "the runtime has it",
        "another value",
        "not the last list",
        "two places",
        "a container that is no engine's",
        "edited by hand",
        "not given",
    ],
)
def test_what_is_not_certain_is_reported(who, spec, edit, words) -> None:
    found = located(*who, spec, edit)

    assert isinstance(found, str)
    assert words in found


def test_an_owner_does_not_wait_for_an_engine_without_a_readiness_probe() -> None:
    found = located(*KSERVE, model(RENDERED[3:]), CAP, template(RENDERED, probe=None))
    ours = located(*STACK, {"model": {"maxNumSeqs": 64}}, CAP, template(RENDERED, probe=None))

    assert "has no readiness probe" in str(found)
    assert isinstance(ours, OwnerField)


@pytest.mark.parametrize(
    ("knob", "spec", "edit", "after"),
    [
        (Knob.MAX_NUM_SEQS, {"model": {"maxNumSeqs": 64}}, CAP, 16),
        (
            Knob.PREFIX_CACHING,
            {"vllmConfig": {"enablePrefixCaching": True}},
            token(6, "--enable-prefix-caching", "--no-enable-prefix-caching"),
            False,
        ),
        (
            Knob.GPU_MEMORY_UTILIZATION,
            {"vllmConfig": {"gpuMemoryUtilization": "0.9"}},
            token(1, "0.9", "0.88"),
            "0.88",
        ),
    ],
)
def test_a_field_of_its_own_keeps_its_type(knob, spec, edit, after) -> None:
    found = located(*STACK, spec, edit, template([*RENDERED, "0.9"]), knob)

    assert isinstance(found, OwnerField)
    test, change = found.patch({"spec": spec})
    assert (test.op, change) == ("test", PatchOperation("replace", found.path, after))


def test_the_text_around_a_token_stays_and_is_in_no_record() -> None:
    body = {"spec": {"template": {"containers": [{"env": ENV}]}}}
    found = located(*LLM, body["spec"], WITHIN, template([], env=ENV))

    assert isinstance(found, OwnerField)
    assert (found.before, found.after) == ("64", "16")
    assert found.patch(body)[1].value == "--max-num-seqs 16 --seed 1"


def test_a_list_gets_one_more_and_loses_it_again() -> None:
    field = OwnerField(*KSERVE, "chat", "uid", "/spec/args/1", None, "--x=1", Roller.OWNER)
    before, after, other = ({"spec": {"args": each}} for each in (["a"], ["a", "--x=1"], ["a", "b"]))

    assert [field.state(each) for each in (before, after, other)] == list(EditState)
    assert field.patch(before) == (PatchOperation("add", "/spec/args/1", "--x=1"),)
    assert field.inverse().patch(after)[1] == PatchOperation("remove", "/spec/args/1")
    with pytest.raises(ValueError, match="is not None"):
        field.patch(other)


@pytest.mark.parametrize(
    ("api_version", "kind", "words"),
    [
        ("serving.kserve.io/v2", "InferenceService", "of version v2 is not known: v1beta1 is"),
        ("example.io/v1", "Chat", "how Chat of example.io renders it is not known"),
        ("v1", "ConfigMap", "is not known"),
    ],
)
def test_another_kind_or_version_is_not_written(api_version: str, kind: str, words: str) -> None:
    assert words in str(rendering_of(api_version, kind))


def test_only_the_owner_that_was_seen_to_revert_nothing_is_rolled_by_kvmedic() -> None:
    assert [kind for _, kind in RENDERINGS if RENDERINGS[_, kind].rolled_by is Roller.KVMEDIC] == [
        "VLLMRuntime"
    ]
