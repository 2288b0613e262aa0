"""What follows from the table of permissions, and from the CRD, is current."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml

from chart.generated import ROOT, SCOPES, permissions, stale
from chart.rendering import Object, Rendered, kustomize, pod_of, render
from kvmedic.kube.installations import SERVES
from kvmedic.manifests.trial_pod import PRIORITY_CLASS
from kvmedic.model import plan
from kvmedic.settings import LeadershipOptions, ProcessOptions, StormOptions, load_settings

PARTS = {"frame", "evidence", "gate", "record", "leadership"}


def step_kinds() -> set[str]:
    """The kinds of the step union."""
    members = get_args(plan.Step) or (plan.Step,)
    return {get_args(get_type_hints(member)["kind"])[0] for member in members}


def ordered(rules: Iterable[Object]) -> list[Object]:
    return sorted(rules, key=lambda rule: json.dumps(rule, sort_keys=True))


def rules(rendered: Rendered, kind: str, name: str) -> list[Object]:
    return ordered(rendered[kind, name]["rules"])


def table(scope: str, only: tuple[str, ...] = ("",)) -> list[Object]:
    """The rules that the table asks for in a scope, by default or where some values are true."""
    found = []
    for row in (row for row in permissions() if row.scope == scope and row.only in only):
        rule: Object = {
            "apiGroups": [row.group],
            "resources": [row.resource],
            "verbs": [g.verb for g in row.grants],
        }
        found.append(rule | ({"resourceNames": list(row.names)} if row.names else {}))
    return ordered(found)


def test_no_generated_file_is_stale():
    assert stale() == [], "run `make manifests`"


def test_every_permission_names_a_part_or_a_step_and_every_step_has_one():
    named = {grant.needed_by for row in permissions() for grant in row.grants}

    assert named - PARTS == step_kinds()
    assert named & PARTS == PARTS
    assert {row.scope for row in permissions()} == set(SCOPES)


def test_the_named_objects_are_those_that_the_operator_asks_for():
    named = {(row.scope, row.resource): row.names for row in permissions() if row.names}

    assert named == {
        ("own", "configmaps"): (ProcessOptions().stop, StormOptions().over),
        ("own", "leases"): (LeadershipOptions().lease,),
        ("watched", "leases"): (SERVES,),
    }


def test_no_verb_is_given_twice_or_by_a_wildcard():
    given = [(r.scope, r.group, r.resource, r.names, g.verb) for r in permissions() for g in r.grants]

    assert len(given) == len(set(given))
    assert not [row for row in given if "*" in (row[1], row[2], row[4])]
    assert all(grant.why.strip() for row in permissions() for grant in row.grants)


@pytest.mark.parametrize("rendered", [render, kustomize], ids=["chart", "kustomize"])
def test_the_roles_hold_exactly_the_table(rendered):
    made = rendered()

    assert rules(made, "ClusterRole", "kvmedic") == table("watched")
    assert rules(made, "Role", "kvmedic-own") == table("own")


def test_watched_namespaces_get_a_role_each_and_there_is_no_cluster_wide_one():
    made = render({"watchNamespaces": ["serving", "batch"]})

    assert ("ClusterRole", "kvmedic") not in made
    assert ("ClusterRoleBinding", "kvmedic") not in made
    roles = [made["Role", "kvmedic"], made["Role", "kvmedic.batch"]]
    assert [role["metadata"]["namespace"] for role in roles] == ["serving", "batch"]
    assert all(ordered(role["rules"]) == ordered([*table("watched"), *table("each")]) for role in roles)
    bindings = [made["RoleBinding", "kvmedic"], made["RoleBinding", "kvmedic.batch"]]
    subject = {"kind": "ServiceAccount", "name": "kvmedic", "namespace": "kvmedic-system"}
    assert all(binding["subjects"] == [subject] for binding in bindings)
    assert rules(made, "Role", "kvmedic-own") == table("own")


@pytest.mark.parametrize("kind", ["kvremediations", "kvapprovals"])
def test_a_crd_is_rendered_as_it_is_in_crds(kind):
    made = render({"crds": {"keep": False}})["CustomResourceDefinition", f"{kind}.kvmedic.io"]

    assert made == yaml.safe_load((ROOT / "crds" / f"kvmedic.io_{kind}.yaml").read_text())


EXEC = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]}


def may_run_commands(rendered: Rendered) -> bool:
    """Whether any role, of anybody, has a right on `pods/exec`."""
    given = [rule for (kind, _), each in rendered.items() if "Role" in kind for rule in each.get("rules", ())]
    return any("exec" in resource for rule in given for resource in rule["resources"])


@pytest.mark.parametrize("rendered", [render, kustomize], ids=["chart", "kustomize"])
def test_nobody_may_run_commands_in_pods_by_default(rendered):
    assert not may_run_commands(rendered())


MAKES_TRIALS = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
]
MAKES_EVALUATIONS = [
    {"apiGroups": ["batch"], "resources": ["cronjobs"], "verbs": ["get"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "create", "delete"]},
]
WRITES_FIELDS = [
    {"apiGroups": [group], "resources": [resource], "verbs": ["get", "patch"]}
    for group, resource in (
        ("serving.kserve.io", "inferenceservices"),
        ("serving.kserve.io", "llminferenceservices"),
        ("ome.io", "inferenceservices"),
        ("production-stack.vllm.ai", "vllmruntimes"),
    )
]
IN_FILES = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "delete"]}]
TRIALS = {"probe": {"trialPods": True}}
SWITCHES = {
    "owners' fields": ({}, {"rbac": {"ownerFields": True}}, WRITES_FIELDS, ("rbac.ownerFields",)),
    "flags in files": ({}, {"rbac": {"configFiles": True}}, IN_FILES, ("rbac.configFiles",)),
    "commands in pods": ({}, {"nodeHealth": {"nvidiaSmi": True}}, [EXEC], ("nodeHealth.nvidiaSmi",)),
    "trial pods": ({}, TRIALS, MAKES_TRIALS, ("probe.trialPods",)),
    "evaluations": (
        TRIALS,
        {"probe": {"trialPods": True, "evaluations": True}},
        MAKES_EVALUATIONS,
        ("probe.trialPods", "probe.evaluations"),
    ),
}


@pytest.mark.parametrize("only", [{}, {"watchNamespaces": ["serving"]}], ids=["everywhere", "in one"])
@pytest.mark.parametrize(("before", "values", "added", "rows"), SWITCHES.values(), ids=SWITCHES)
def test_rights_come_with_every_verb_and_only_where_they_are_switched_on(only, before, values, added, rows):
    kind = "Role" if only else "ClusterRole"
    off = rules(render({**before, **only}), kind, "kvmedic")

    made = render({**values, **only})

    on = rules(made, kind, "kvmedic")
    assert [rule for rule in on if rule not in off] == ordered(added)
    assert [rule for rule in off if rule not in on] == []
    assert on == ordered([*table("watched", ("", *rows)), *(table("each") if only else [])])
    assert rules(made, "Role", "kvmedic-own") == table("own")
    assert may_run_commands(made) == (added == [EXEC])


def test_the_priority_class_is_the_one_that_trial_pods_ask_for_and_never_preempts():
    (made,) = [
        each for (kind, _), each in render({"probe": {"trialPods": True}}).items() if kind == "PriorityClass"
    ]

    assert made["metadata"]["name"] == PRIORITY_CLASS
    assert made["preemptionPolicy"] == "Never"
    assert made["value"] == -10
    assert not made["globalDefault"]


@pytest.mark.parametrize(
    "values",
    [{}, {"probe": {"trialPods": True, "createPriorityClass": False}}],
    ids=["off", "somebody else's"],
)
def test_no_priority_class_is_made_that_nobody_asked_for(values):
    assert "PriorityClass" not in render(values).kinds()


def with_component(folder: Path, *components: str) -> Rendered:
    """The kustomization with components, as an overlay of somebody's own."""
    base = os.path.relpath(ROOT / "deploy", folder)
    overlay = {"resources": [base], "components": [f"{base}/{name}" for name in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return kustomize(folder)


@pytest.mark.parametrize(
    ("component", "added", "variable", "kinds"),
    [
        ("nvidia-smi", [EXEC], "KVMEDIC_HEALTH__NVIDIA_SMI", set()),
        ("trial-pods", MAKES_TRIALS, "KVMEDIC_PROBE__TRIAL_PODS", {("PriorityClass", PRIORITY_CLASS)}),
        ("evaluations", MAKES_EVALUATIONS, "KVMEDIC_PROBE__EVALUATIONS", set()),
        ("owner-fields", WRITES_FIELDS, "", set()),
        ("config-files", IN_FILES, "", set()),
    ],
)
def test_a_component_of_the_kustomization_adds_the_same(tmp_path, component, added, variable, kinds):
    name = f"kvmedic-{component}"

    plain, made = kustomize(), with_component(tmp_path, component)

    assert made.keys() - plain.keys() == {("ClusterRole", name), ("ClusterRoleBinding", name)} | kinds
    assert rules(made, "ClusterRole", name) == ordered(added)
    binding = made["ClusterRoleBinding", name]
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"] == made["ClusterRoleBinding", "kvmedic"]["subjects"]
    (container,) = pod_of(made)["containers"]
    assert not variable or {"name": variable, "value": "true"} in container["env"]


def test_the_component_for_some_namespaces_binds_the_same_rules_there_alone(tmp_path, monkeypatch):
    plain, made = kustomize(), with_component(tmp_path, "namespaced")

    everywhere, binding = ("ClusterRoleBinding", "kvmedic"), made["RoleBinding", "kvmedic"]
    (container,) = pod_of(made)["containers"]
    (watch,) = (each["value"] for each in container["env"] if each["name"] == "KVMEDIC_PROCESS__WATCH")
    monkeypatch.setenv("KVMEDIC_PROCESS__WATCH", watch)
    assert plain.keys() - made.keys() == {everywhere}
    assert load_settings().process.watch == (binding["metadata"]["namespace"],)
    assert [binding[part] for part in ("roleRef", "subjects")] == [
        plain[everywhere][part] for part in ("roleRef", "subjects")
    ]
    assert rules(made, "ClusterRole", "kvmedic") == table("watched")


def test_the_component_for_gitops_keeps_definitions_and_changes_nothing_else(tmp_path):
    plain, made = kustomize(), with_component(tmp_path, "gitops")

    for key, each in made.items():
        marks = each["metadata"].pop("annotations", {})
        wave = int(marks.get("argocd.argoproj.io/sync-wave", 0))
        assert wave == {"Namespace": -2, "CustomResourceDefinition": -1}.get(key[0], 0)
        if key[0] == "CustomResourceDefinition":
            assert "Prune=false" in marks["argocd.argoproj.io/sync-options"]
            assert marks["kustomize.toolkit.fluxcd.io/prune"] == "disabled"
    for each in plain.values():
        each["metadata"].pop("annotations", None)
    assert made == plain


def test_components_go_together_and_their_priority_class_is_the_charts(tmp_path):
    made = with_component(tmp_path, "nvidia-smi", "trial-pods", "evaluations")

    (container,) = pod_of(made)["containers"]
    switches = {"KVMEDIC_HEALTH__NVIDIA_SMI", "KVMEDIC_PROBE__TRIAL_PODS", "KVMEDIC_PROBE__EVALUATIONS"}
    assert switches <= {each["name"] for each in container["env"]}
    key = ("PriorityClass", PRIORITY_CLASS)
    ours, charts = dict(made[key]), dict(render({"probe": {"trialPods": True}})[key])
    del ours["metadata"], charts["metadata"]
    assert ours == charts
