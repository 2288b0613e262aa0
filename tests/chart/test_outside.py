"""What other tools see of KVRemediations: Argo CD runs its Lua, k9s and kubectl name what exists."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from lupa import lua51

from chart.generated import ROOT
from kvmedic.cli.app import SUBCOMMANDS
from kvmedic.model.status import ConditionType

ARGO_CD = yaml.safe_load((ROOT / "deploy" / "argo-cd" / "argocd-cm.yaml").read_text())["data"]
KIND = "kvmedic.io_KVRemediation"
HEALTH = ARGO_CD[f"resource.customizations.health.{KIND}"]
ACTIONS = yaml.safe_load(ARGO_CD[f"resource.customizations.actions.{KIND}"])
PAGE = (ROOT / "docs" / "howto" / "see-it-from-outside.md").read_text()
CRD = yaml.safe_load((ROOT / "crds" / "kvmedic.io_kvremediations.yaml").read_text())
STATUS = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
Object = dict[str, Any]


def run(script: str, resource: Object) -> Any:
    """What a script returns for an object, by the Lua version that Argo CD embeds; nothing else is there."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    for name in ("os", "io", "require", "package", "python"):
        lua.globals()[name] = None
    lua.globals()["obj"] = lua.table_from(resource, recursive=True)
    return lua.execute(script)


def resource(*conditions: tuple[str, str], suspend: bool = False, observed: int = 2, **status: Any) -> Object:
    """A KVRemediation of generation 2 with these conditions."""
    entries = [
        {"type": kind, "status": truth, "reason": f"{kind}Why", "message": f"about {kind}"}
        for kind, truth in conditions
    ]
    return {
        "metadata": {"name": "chat", "generation": 2},
        "spec": {"suspend": suspend},
        "status": {"observedGeneration": observed, "conditions": entries, **status},
    }


READY = ("Ready", "True")
CASES = {
    "just created": (
        {"metadata": {"generation": 1}, "spec": {}},
        "Progressing",
        "has not looked at this spec",
    ),
    "edited": (resource(READY, observed=1), "Progressing", "has not looked at this spec"),
    "no condition yet": (resource(), "Progressing", "has not looked at the target"),
    "target not found": (resource(("Ready", "False")), "Progressing", "ReadyWhy: about Ready"),
    "readiness unknown": (resource(("Ready", "Unknown")), "Progressing", "ReadyWhy: about Ready"),
    "stalled": (resource(READY, ("Stalled", "True")), "Degraded", "StalledWhy: about Stalled"),
    "stalled, not ready": (resource(("Stalled", "True"), ("Ready", "False")), "Degraded", "StalledWhy"),
    "stalled no more": (resource(READY, ("Stalled", "False")), "Healthy", ""),
    "suspended": (resource(READY, suspend=True), "Suspended", "spec.suspend"),
    "healthy": (resource(READY, ("Diagnosed", "False")), "Healthy", "DiagnosedWhy: about Diagnosed"),
    "in trouble": (resource(READY, ("Diagnosed", "True")), "Healthy", "DiagnosedWhy"),
    "a run is open": (
        resource(READY, ("Diagnosed", "True"), ("Progressing", "True")),
        "Healthy",
        "ProgressingWhy",
    ),
    "waits for a person": (
        resource(READY, ("Progressing", "True"), ("ActionRequired", "True")),
        "Healthy",
        "ActionRequiredWhy: about ActionRequired",
    ),
}


@pytest.mark.parametrize(("shown", "health", "message"), CASES.values(), ids=CASES)
def test_argo_cd_sees_the_health_that_kstatus_sees(shown, health, message):
    seen = run(HEALTH, shown)

    assert seen["status"] == health
    assert message in seen["message"]


@pytest.mark.parametrize("kind", ConditionType)
def test_argo_cd_can_read_a_condition_without_a_message(kind):
    shown = resource(READY, (kind.value, "True"))
    for condition in shown["status"]["conditions"]:
        del condition["message"]

    assert run(HEALTH, shown)["status"] in {"Healthy", "Degraded"}


@pytest.mark.parametrize(
    ("shown", "offered"),
    [
        (resource(READY), {"suspend"}),
        (resource(READY, suspend=True), {"resume"}),
        (resource(READY, run={"id": "r1"}), {"suspend", "rollback", "keep"}),
        ({"metadata": {}, "spec": {}}, {"suspend"}),
    ],
    ids=["calm", "suspended", "open run", "no status"],
)
def test_argo_cd_offers_the_actions_that_have_a_meaning(shown, offered):
    found = run(ACTIONS["discovery.lua"], shown)

    assert {name for name in found if not found[name]["disabled"]} == offered
    assert set(found) == {each["name"] for each in ACTIONS["definitions"]}


@pytest.mark.parametrize("annotations", [None, {"a": "b"}], ids=["no annotations", "some"])
@pytest.mark.parametrize("action", ["rollback", "keep"])
def test_an_action_names_the_open_run_and_changes_nothing_else(action, annotations):
    script = next(each["action.lua"] for each in ACTIONS["definitions"] if each["name"] == action)
    shown = resource(READY, run={"id": "r1"})
    if annotations:
        shown["metadata"]["annotations"] = annotations

    made = run(script, shown)

    assert dict(made["metadata"]["annotations"]) == {**(annotations or {}), f"kvmedic.io/{action}": "r1"}
    assert made["spec"]["suspend"] is False


@pytest.mark.parametrize(("action", "value"), [("suspend", True), ("resume", False)])
def test_suspending_is_one_field_of_the_spec(action, value):
    script = next(each["action.lua"] for each in ACTIONS["definitions"] if each["name"] == action)

    assert run(script, resource(READY, suspend=not value))["spec"]["suspend"] is value


def test_a_key_of_k9s_is_its_own_and_runs_a_command_that_exists():
    plugins = yaml.safe_load((ROOT / "deploy" / "k9s" / "plugins.yaml").read_text())["plugins"]

    keys = [plugin["shortCut"] for plugin in plugins.values()]
    assert len(set(keys)) == len(keys)
    assert all(key in PAGE for key in keys)
    for name, plugin in plugins.items():
        command = re.fullmatch(
            r'kvmedic (\w+) "\$NAME" -n "\$NAMESPACE" --context "\$CONTEXT" .*', plugin["args"][1]
        )
        assert command, name
        assert name == f"kvmedic-{command[1]}"
        assert command[1] in SUBCOMMANDS
        assert plugin["scopes"] == ["kvremediations"]
        assert plugin.get("confirm", False) is (command[1] not in {"explain", "plan", "history"})


def test_what_kubectl_waits_for_exists():
    waits = re.findall(r"kubectl .* wait kvr/NAME --for=(\S+)", PAGE)

    conditions = {wait.split("=")[1] for wait in waits if wait.startswith("condition=")}
    fields = {wait.split("{.status.")[1].split("}")[0] for wait in waits if wait.startswith("jsonpath=")}
    assert len(waits) == len(conditions) + len(fields)
    assert conditions <= set(ConditionType)
    assert fields <= set(STATUS)
