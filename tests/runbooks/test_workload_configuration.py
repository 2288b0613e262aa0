"""An engine whose flags are in a mounted configuration file."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.controller.blockers import propose_plan
from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.engine_file import file_remarks, owner_of_file
from kvmedic.model.config_edits import SIZE_LIMIT, ConfigMap, Contents, Sight, Unseen
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef, Owner, OwnerKind, TemplateOwner, template_hash
from kvmedic.model.plan import FlagStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.rollout.gates.approval import is_plan_current
from kvmedic.runbooks.branches import Assignment
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.workload import View, Workload, workload_of
from run_builder import NOW, a_fleet, a_pod

SECRET = "s3cret"
TARGET = ObjectRef("Deployment", "chat")
TEXT = f"# of the fleet\nmax-num-seqs: 64  # cap\ngpu_memory_utilization: '0.9'\napi-key: {SECRET}\n"
CONTENTS = Contents({"engine.yaml": TEXT, "template.jinja": SECRET})
NOTHING = View(a_fleet(), {})
"""No earlier revision is kept."""


def a_template(*args: str, path: str = "/etc/vllm/engine.yaml") -> dict[str, Any]:
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--model=m", "--config", path, *args],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/vllm"}],
    }
    volumes = [{"name": "config", "configMap": {"name": "limits", "defaultMode": 420}}]
    return {"spec": {"containers": [{"name": "proxy", "image": "envoy"}, container], "volumes": volumes}}


def a_workload(template: dict[str, Any], maps: dict[str, Sight] | None = None) -> Workload:
    seen = {"limits": ConfigMap(CONTENTS)} if maps is None else maps
    workload = workload_of(TARGET, "uid", template, None, (VLLM,), seen)
    assert isinstance(workload, Workload), workload
    return workload


def planned(workload: Workload, knob: Knob = Knob.MAX_NUM_SEQS, value: Any = 16) -> Plan | Blocked:
    return plan_of(workload, Assignment(knob, value, Reason.CAP_RIGHT_SIZED, "why"), 1)


def step_of(plan: Plan | Blocked) -> FlagStep:
    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, FlagStep)
    assert step.file_of is not None
    return step


@pytest.mark.parametrize(
    ("knob", "value", "before", "changed"),
    [
        (Knob.MAX_NUM_SEQS, 16, "64", "max-num-seqs: 16  # cap"),
        (Knob.GPU_MEMORY_UTILIZATION, 0.88, "0.9", "gpu_memory_utilization: '0.88'"),
    ],
)
def test_a_plan_changes_the_value_in_a_copy_and_knows_the_way_back(
    knob: Knob, value: Any, before: str, changed: str
) -> None:
    template = a_template()

    step = step_of(planned(a_workload(template), knob, value))

    assert (step.before, step.after, step.container) == (before, str(value), "vllm")
    copied = step.file_of.make_copy(CONTENTS)
    assert changed in copied.data["engine.yaml"]
    assert copied.data["template.jinja"] == SECRET
    assert step.file_of.copy.startswith("limits-")
    rolled = step.edit.apply(template)
    assert rolled["spec"]["volumes"] == [
        {"name": "config", "configMap": {"name": step.file_of.copy, "defaultMode": 420}}
    ]
    assert (template_hash(template), template_hash(rolled)) == (step.before_template, step.after_template)
    assert step.inverse().edit.apply(rolled) == template
    assert step.inverse().inverse() == replace(step, reason=Reason.ROLLING_BACK)


def test_a_step_holds_nothing_of_the_file_but_the_value() -> None:
    step = step_of(planned(a_workload(a_template())))

    text = str(asdict(step)) + step.line() + repr(step)
    assert SECRET not in text
    assert "of the fleet" not in text
    assert step.line() == "Deployment/chat: maxNumSeqs 64 -> 16 (ConfigMap/limits, engine.yaml)"


def test_nobody_prints_a_workload_and_finds_the_file() -> None:
    assert SECRET not in repr(a_workload(a_template()).file)


def test_where_the_command_line_beats_the_file_it_is_changed_there() -> None:
    plan = planned(a_workload(a_template("--max-num-seqs=32")))

    assert isinstance(plan, Plan)
    (step,) = plan.steps
    assert isinstance(step, FlagStep)
    assert (step.edit.before, step.edit.after) == ("--max-num-seqs=32", "--max-num-seqs=16")


@pytest.mark.parametrize(
    ("knob", "value", "token"),
    [(Knob.WATERMARK, 0.1, "--watermark=0.1"), (Knob.PREFIX_CACHING, False, "--no-enable-prefix-caching")],
    ids=["not in the file", "a switch"],
)
def test_what_the_file_cannot_give_is_appended_to_the_command_line(
    knob: Knob, value: Any, token: str
) -> None:
    plan = planned(a_workload(a_template()), knob, value)

    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, FlagStep)
    assert (step.edit.before, step.edit.after) == (None, token)


def test_the_present_value_is_the_files_and_the_same_again_changes_nothing() -> None:
    workload = a_workload(a_template())

    assert workload.value_of(Knob.MAX_NUM_SEQS) == 64
    assert workload.given_flags() == {"maxNumSeqs": "64", "gpuMemoryUtilization": "0.9"}
    assert workload.knobs() is not None
    fault = planned(workload, value=64)
    assert isinstance(fault, Blocked)
    assert fault.reason is Reason.CAP_WITHOUT_EFFECT


BIG = ConfigMap(Contents({**CONTENTS.data, "weights": "x" * (SIZE_LIMIT - len(TEXT) - len(SECRET) - 1)}))
UNSEEN: dict[str, tuple[dict[str, Sight], str]] = {
    "gone": ({"limits": Unseen.GONE}, "ConfigMap/limits, which does not exist"),
    "not read": ({}, "ConfigMap/limits, which does not exist"),
    "no right": ({"limits": Unseen.UNREADABLE}, "which may not be read by the operator"),
    "no such key": ({"limits": ConfigMap(Contents({"a": "b"}))}, "has no text 'engine.yaml'"),
    "binary": ({"limits": ConfigMap(Contents({}, {"engine.yaml": "eA=="}))}, "has no text 'engine.yaml'"),
    "broken": ({"limits": ConfigMap(Contents({"engine.yaml": "[" + SECRET}))}, "not readable as YAML"),
}


@pytest.mark.parametrize(("maps", "said"), UNSEEN.values(), ids=UNSEEN)
def test_a_file_that_cannot_be_seen_refuses_what_may_be_in_it_and_says_why(
    maps: dict[str, Sight], said: str
) -> None:
    fault = planned(a_workload(a_template(), maps))
    on_the_line = planned(a_workload(a_template("--max-num-seqs=32"), maps))

    assert isinstance(fault, Blocked)
    assert fault.reason is Reason.FLAG_NOT_EDITABLE
    assert "max_num_seqs may be in a file" in fault.message
    assert said in fault.message
    assert SECRET not in fault.message
    assert isinstance(on_the_line, Plan)


def test_a_copy_that_no_api_server_would_take_is_not_planned() -> None:
    workload = a_workload(a_template(), {"limits": BIG})

    assert isinstance(planned(workload, value=16), Plan)
    fault = planned(workload, value=10000)
    assert isinstance(fault, Blocked)
    assert fault.reason is Reason.FLAG_NOT_EDITABLE
    assert f"more than {SIZE_LIMIT} bytes" in fault.message


def test_a_second_change_is_a_copy_of_the_copy_with_one_hash() -> None:
    first = step_of(planned(a_workload(a_template())))
    copy = ConfigMap(first.file_of.make_copy(CONTENTS), copy_of="limits", copied_content=CONTENTS.digest)
    template = first.edit.apply(a_template())

    second = step_of(planned(a_workload(template, {first.file_of.copy: copy}), value=8))

    assert (second.file_of.config_map, second.before) == (first.file_of.copy, "16")
    assert len(second.file_of.copy) == len(first.file_of.copy)
    assert second.file_of.copy != first.file_of.copy


def test_a_plan_stands_only_on_the_same_contents() -> None:
    shown = planned(a_workload(a_template()), value=20)
    near = planned(a_workload(a_template()), value=21)
    other = Contents({**CONTENTS.data, "template.jinja": "new"})
    edited = planned(a_workload(a_template(), {"limits": ConfigMap(other)}), value=20)
    assert isinstance(shown, Plan)
    assert isinstance(near, Plan)
    assert isinstance(edited, Plan)

    assert is_plan_current(shown, near)
    assert not is_plan_current(shown, edited)
    assert shown.digest != edited.digest


GIT = TemplateOwner(OwnerKind.ARGO_CD, "prod")


@pytest.mark.parametrize("kind", list(OwnerKind))
def test_the_owner_sees_the_value_and_no_more_of_the_file(kind: OwnerKind) -> None:
    workload = a_workload(a_template())
    plan = planned(workload)
    assert isinstance(plan, Plan)

    proposal = propose_plan(TemplateOwner(kind, "prod", part="m"), "serving", workload, plan, NOTHING)

    assert "16" in proposal.text
    assert SECRET not in str(proposal)


def test_the_value_in_a_file_in_git_is_given_in_words() -> None:
    workload = a_workload(a_template())
    plan = planned(workload)
    assert isinstance(plan, Plan)

    proposal = propose_plan(GIT, "serving", workload, plan, NOTHING)

    assert proposal.text.startswith('max_num_seqs in engine.yaml of ConfigMap/limits: "64" -> "16"')
    assert "kvmedic flags set max_num_seqs=16 -f FILE" in proposal.text


def test_the_owner_of_the_config_map_is_named_only_where_it_would_be_copied() -> None:
    owner = Owner(Reason.MANAGED_BY_GITOPS, str(GIT), GIT)
    maps: dict[str, Sight] = {"limits": ConfigMap(CONTENTS, owner)}
    copied, appended = (
        planned(a_workload(a_template(), maps), *each) for each in ((), (Knob.WATERMARK, 0.1))
    )
    assert isinstance(copied, Plan)
    assert isinstance(appended, Plan)

    assert owner_of_file(copied, maps) is owner
    assert owner_of_file(appended, maps) is None
    assert owner_of_file(copied, {"limits": ConfigMap(CONTENTS)}) is None


def test_replicas_that_are_older_than_the_file_are_noted() -> None:
    at = NOW - timedelta(minutes=30)
    pods = [a_pod("old"), a_pod("new", created_at=at + timedelta(seconds=1))]

    (remark,) = file_remarks(a_template(), {"limits": ConfigMap(CONTENTS, edited_at=at)}, pods)

    assert remark.startswith("ConfigMap limits was edited at 2026-03-01T02:30:00Z: old started before")


def test_an_original_that_was_edited_since_it_was_copied_is_noted() -> None:
    template = step_of(planned(a_workload(a_template()))).edit.apply(a_template())
    copy = template["spec"]["volumes"][0]["configMap"]["name"]
    maps = lambda content: {  # noqa: E731
        copy: ConfigMap(Contents({}), copy_of="limits", copied_content=content),
        "limits": ConfigMap(CONTENTS, edited_at=NOW),
    }

    assert list(file_remarks(template, maps(CONTENTS.digest), [a_pod("a")])) == []
    (remark,) = file_remarks(template, maps("0" * 16), [a_pod("a")])
    assert remark == f"ConfigMap limits was edited since {copy} was copied from it: the fleet reads the copy"
