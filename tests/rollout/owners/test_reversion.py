"""What Argo CD, Flux and Helm do with a change that is not theirs, by their own objects."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.kube.objects import FIELD_MANAGER
from kvmedic.model.config_edits import FileEdit, Revision
from kvmedic.model.edits import BundleEdit, EnvEdit, Field, ReferenceEdit, TokenEdit
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.plan import BundleStep, FlagStep, MinimumHolder, ReplaceStep, ReplicasStep, RevisionStep
from kvmedic.model.reasons import Reason
from kvmedic.rollout.owners.reversion import (
    DRIFT_DETECTION,
    MANAGER,
    ROLLOUT_FIELDS,
    SSA,
    Changed,
    by_argo_cd,
    by_helm,
    by_helm_release,
    by_kustomization,
    fields_of,
)
from worlds.steps import GATE, TRIAL

ARGS = "/spec/template/spec/containers/1/args"
TEMPLATE = {"spec": {"containers": [{"name": "proxy"}, {"name": "vllm", "args": ["--max-num-seqs=64"]}]}}
TARGET = ObjectRef("Deployment", "llm")
HASHES: dict[str, Any] = {
    "before_template": "old",
    "after_template": "new",
    "reason": Reason.FLEET_WIDE_DEMAND,
}


def changed(*fields: str, **marks: str) -> Changed:
    return Changed("ml", "llm", marks, TEMPLATE, fields or (ARGS, *ROLLOUT_FIELDS))


def application(
    *rules: dict[str, Any], heals: bool = True, respects: bool = True, **policy: Any
) -> dict[str, Any]:
    automated = {"automated": {"prune": True, "selfHeal": heals}}
    options = ["RespectIgnoreDifferences=true"] if respects else []
    sync = {**automated, "syncOptions": options, **policy}
    return {"metadata": {"name": "prod"}, "spec": {"ignoreDifferences": list(rules), "syncPolicy": sync}}


def rule(*expressions: str, pointers: tuple[str, ...] = (), **where: Any) -> dict[str, Any]:
    found = {"group": "apps", "kind": "Deployment", **where}
    return {**found, "jqPathExpressions": list(expressions), "jsonPointers": list(pointers)}


ROLLOUT = [path.replace("/", ".") for path in ROLLOUT_FIELDS]
OURS = {"group": "apps", "kind": "Deployment", "managedFieldsManagers": [FIELD_MANAGER]}


def test_the_field_manager_of_the_rule_is_the_one_that_writes() -> None:
    assert MANAGER == FIELD_MANAGER


@pytest.mark.parametrize(
    "rules",
    [
        [OURS],
        [{**OURS, "name": "llm", "namespace": "ml"}],
        [{**OURS, "group": "*", "kind": "*"}],
        [rule('.spec.template.spec.containers[] | select(.name == "vllm") | .args', *ROLLOUT)],
        [rule('(.spec.template.spec.containers[]|select(.name=="vllm")).args', *ROLLOUT)],
        [rule(".spec.template.spec.containers[].args", *ROLLOUT)],
        [rule(".spec.template.spec.containers[]?.args", *ROLLOUT)],
        [rule(".spec.template.spec.containers[1].args", *ROLLOUT)],
        [rule('.spec["template"].spec.containers[].args', *ROLLOUT)],
        [rule(".spec.template", *ROLLOUT)],
        [rule(".spec")],
        [rule(pointers=(ARGS, *ROLLOUT_FIELDS))],
        [rule(pointers=("/spec/template",)), rule(*ROLLOUT)],
    ],
)
def test_an_application_that_heals_itself_ignores_what_a_rule_names(rules: list[dict[str, Any]]) -> None:
    found = by_argo_cd("Argo CD Application prod", application(*rules), [], changed())

    assert (found.at_once, found.message) == (False, "Argo CD Application prod ignores the fields of a run")


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ([], ", ".join((ARGS, *ROLLOUT_FIELDS))),
        ([rule(".spec.template.spec.containers[].args")], ", ".join(ROLLOUT_FIELDS)),
        ([rule(".spec.template.spec.containers[0].args", *ROLLOUT)], ARGS),
        ([rule(".spec.template.spec.containers[].env", *ROLLOUT)], ARGS),
        ([rule(".spec.template.spec.containers[1].args[2]", *ROLLOUT)], ARGS),
        ([rule('.spec.template.spec.containers[] | select(.name == "proxy") | .args', *ROLLOUT)], ARGS),
        ([rule('.spec.template.spec.containers[] | select(.image | test("vllm")) | .args', *ROLLOUT)], ARGS),
        ([rule(pointers=("/spec/template/spec/containers/0/args", *ROLLOUT_FIELDS))], ARGS),
        ([{**OURS, "managedFieldsManagers": ["hpa"]}, rule(*ROLLOUT)], ARGS),
        ([{**OURS, "kind": "StatefulSet"}, rule(*ROLLOUT)], ARGS),
        ([{**OURS, "name": "other"}, rule(*ROLLOUT)], ARGS),
        ([{**OURS, "namespace": "other"}, rule(*ROLLOUT)], ARGS),
        ([rule("", *ROLLOUT)], ARGS),
    ],
)
def test_an_application_that_heals_itself_puts_back_what_no_rule_names(
    rules: list[dict[str, Any]], missing: str
) -> None:
    found = by_argo_cd("Argo CD Application prod", application(*rules), [], changed())

    assert found.at_once
    assert f"ignore {missing}: add `managedFieldsManagers: [kvmedic]`" in found.message


def test_a_rule_of_the_whole_argo_cd_counts_as_well() -> None:
    common = [{"managedFieldsManagers": [FIELD_MANAGER]}]

    assert by_argo_cd("prod", application(), [], changed()).at_once
    assert not by_argo_cd("prod", application(), common, changed()).at_once


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (application(heals=False), "the next sync of prod puts it back unless it is committed"),
        (application(automated={}), "the next sync of prod"),
        (application(automated=None), "the next sync of prod"),
        (application(automated={"selfHeal": True, "enabled": False}), "the next sync of prod"),
        ({"metadata": {"name": "prod"}, "spec": {}}, "the next sync of prod"),
        (
            {**application(), "metadata": {"annotations": {"argocd.argoproj.io/skip-reconcile": "true"}}},
            "the next sync of prod",
        ),
        (application(OURS, respects=False), "lacks the syncOption RespectIgnoreDifferences=true"),
        (application(OURS, syncOptions=None), "lacks the syncOption RespectIgnoreDifferences=true"),
        (application(OURS), "ignores the fields of a run"),
    ],
)
def test_what_comes_with_the_next_sync_is_only_said(body: dict[str, Any], words: str) -> None:
    found = by_argo_cd("prod", body, [], changed())

    assert not found.at_once
    assert words in found.message


def kustomization(*rules: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"interval": "10m", "ignore": list(rules), **spec}}


def paths(*given: str, **target: str) -> dict[str, Any]:
    return {"paths": list(given), "target": target}


EVERY = (ARGS, *ROLLOUT_FIELDS)


@pytest.mark.parametrize(
    ("body", "marks", "at_once", "words"),
    [
        (kustomization(), {}, True, f"corrects drift every 10m, and no rule makes it ignore {ARGS}"),
        (kustomization(), {SSA: "IfNotPresent"}, False, "leaves the Deployment alone"),
        (kustomization(), {SSA: "Ignore"}, False, "leaves the Deployment alone"),
        (kustomization(), {SSA: "Merge"}, True, "corrects drift"),
        (kustomization(suspend=True), {}, False, "is suspended"),
        (kustomization(paths(*EVERY)), {}, False, "ignores the fields of a run"),
        (kustomization(paths(*EVERY, kind="Deployment", name="ll.*")), {}, False, "ignores"),
        (kustomization(paths(*EVERY, kind="Deployment", name="l")), {}, True, "corrects drift"),
        (kustomization(paths(*EVERY, name="(")), {}, True, "corrects drift"),
        (kustomization(paths(*EVERY, labelSelector="app=llm")), {}, True, "corrects drift"),
        (kustomization(paths(ARGS)), {}, True, f"ignore {', '.join(ROLLOUT_FIELDS)}:"),
        (None, {}, False, "cannot be read; one revert ends it"),
        (None, {SSA: "IfNotPresent"}, False, "leaves the Deployment alone"),
    ],
)
def test_a_kustomization_corrects_drift_unless_something_says_otherwise(
    body: dict[str, Any] | None, marks: dict[str, str], at_once: bool, words: str
) -> None:
    found = by_kustomization("Flux Kustomization apps", body, changed(**marks))

    assert found.at_once is at_once
    assert words in found.message


def release(mode: str | None, *rules: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"driftDetection": {"mode": mode, "ignore": list(rules)}, **spec}}


UPGRADE = "the next upgrade of Flux HelmRelease chat puts it back unless its values have it"


@pytest.mark.parametrize(
    ("body", "marks", "at_once", "words"),
    [
        (
            release("enabled"),
            {},
            True,
            f"corrects drift (driftDetection.mode: enabled), and no rule makes it ignore {ARGS}",
        ),
        (release("enabled", paths(*EVERY, kind="Deployment")), {}, False, UPGRADE),
        (release("enabled"), {DRIFT_DETECTION: "disabled"}, False, UPGRADE),
        (release("enabled", suspend=True), {}, False, UPGRADE),
        (release("warn"), {}, False, UPGRADE),
        (release(None), {}, False, UPGRADE),
        ({"spec": {}}, {}, False, UPGRADE),
        (None, {}, False, "cannot be read; one revert ends it"),
    ],
)
def test_a_helm_release_of_flux_puts_back_at_once_only_with_drift_detection(
    body: dict[str, Any] | None, marks: dict[str, str], at_once: bool, words: str
) -> None:
    found = by_helm_release("Flux HelmRelease chat", body, changed(**marks))

    assert found.at_once is at_once
    assert words in found.message


def test_helm_alone_does_nothing_until_the_next_upgrade() -> None:
    assert not by_helm("Helm release chat").at_once


EDIT = TokenEdit("vllm", 1, Field.ARGS, 0, "--max-num-seqs=64", "--max-num-seqs=14")
VARIABLE = EnvEdit("vllm", 1, "EVICT_TOKENS", 0, "512", None)
IN_FILE = ReferenceEdit("config", 2, None, "llm", "llm-copy")
COPY = FileEdit("llm", "llm-copy", "engine.yaml", 14, "64", "14", "before", "after")
HPA = MinimumHolder(ObjectRef("HorizontalPodAutoscaler", "llm"), "uid", is_given=True)


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        (
            FlagStep(TARGET, "vllm", EDIT, "64", "14", knob=Knob.MAX_NUM_SEQS, **HASHES),
            (ARGS, *ROLLOUT_FIELDS),
        ),
        (
            FlagStep(TARGET, "vllm", IN_FILE, "64", "14", knob=Knob.MAX_NUM_SEQS, file_of=COPY, **HASHES),
            ("/spec/template/spec/volumes/2", *ROLLOUT_FIELDS),
        ),
        (
            BundleStep(TARGET, "vllm", BundleEdit((EDIT, VARIABLE)), "on", "off", method="evict", **HASHES),
            (ARGS, "/spec/template/spec/containers/1/env", *ROLLOUT_FIELDS),
        ),
        (
            RevisionStep(
                TARGET, "vllm", Revision(2, "llm-2", "new"), Revision(1, "llm-1", "old"), Reason.HEALTHY
            ),
            ("/spec/template", *ROLLOUT_FIELDS),
        ),
        (ReplaceStep(TARGET, "vllm", "llm-0", "uid", 3, "old", Reason.HEALTHY), ("/spec/replicas",)),
        (ReplicasStep(TARGET, "vllm", 2, 3, "old", Reason.HEALTHY), ("/spec/replicas",)),
        (ReplicasStep(TARGET, "vllm", 2, 3, "old", Reason.HEALTHY, holder=HPA), ()),
        (TRIAL, ()),
        (GATE, ()),
    ],
)
def test_each_kind_of_step_names_its_fields(step: Any, fields: tuple[str, ...]) -> None:
    assert fields_of(step) == fields
