"""Turning a method of compression off: all of its settings where the engine reads them, or none."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.engines.kv_methods import EIGHT_BITS
from kvmedic.engines.vllm import VLLM
from kvmedic.model.compression import BundleSetting as Setting
from kvmedic.model.config_edits import ConfigMap, Contents
from kvmedic.model.edits import EnvEdit
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import template_hash
from kvmedic.model.plan import BundleStep, Plan
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import TurnOff
from kvmedic.runbooks.compression.bundle import bundle_plan
from kvmedic.runbooks.workload import Workload, with_template, workload_of
from worlds.bundles import (
    BUDGET,
    FLAG,
    RECLAIM,
    SECRET,
    SWITCH,
    TARGET,
    TRI,
    TUNED,
    a_template,
    a_workload,
    env,
    off,
)

DTYPE = Setting(flag="--kv-cache-dtype", on="fp8", off=None)


def script(text: str, variables: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return a_template([text], variables, command=["sh", "-c"])


def planned(template: dict[str, Any], advice: TurnOff) -> BundleStep:
    plan = bundle_plan(a_workload(template), advice, 3)
    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, BundleStep)
    return step


def test_a_whole_method_is_turned_off_in_one_step_and_comes_back_to_the_byte() -> None:
    template = a_template(["m", FLAG, "--max-num-seqs=64"], TUNED)

    plan = bundle_plan(a_workload(template), TRI, 3)

    assert isinstance(plan, Plan)
    (step,) = plan.steps
    assert isinstance(step, BundleStep)
    quiet = a_template(["m", "--max-num-seqs=64"], [SECRET, *env(**{SWITCH: "0"})])
    assert step.edit.apply(template) == quiet
    assert step.edit.inverse().apply(quiet) == template
    assert (step.before_template, step.after_template) == (template_hash(template), template_hash(quiet))
    assert (plan.template, plan.target_uid, plan.spec_generation) == (step.before_template, "uid-1", 3)
    assert (plan.reason, plan.message) == (Reason.COMPRESSION_REVERTED, "it saves nothing")
    assert step.container == "vllm"
    assert step.line() == (
        f"Deployment/chat: TriAttention {FLAG}, {BUDGET}=4096, {RECLAIM}=1, {SWITCH}=1 -> off ({SWITCH}=0)"
    )


def test_what_turned_it_on_last_is_turned_off_first() -> None:
    step = planned(a_template(["m", FLAG], TUNED), TRI)

    names = [part.name if isinstance(part, EnvEdit) else part.before for part in step.edit.parts]
    assert names == [SWITCH, RECLAIM, BUDGET, FLAG]


def test_a_method_that_is_on_without_its_switch_gets_one() -> None:
    step = planned(a_template(["m"]), TRI)

    assert step.edit.apply(a_template(["m"])) == a_template(["m"], env(**{SWITCH: "0"}))
    assert (step.before, step.after) == ("on", f"off ({SWITCH}=0)")


def test_objects_in_env_from_are_beaten_by_a_value_of_its_own() -> None:
    advice = off(Setting(env=SWITCH, on="1", off="0"))
    template = a_template(["m"], envFrom=[{"configMapRef": {"name": "tuning"}}])

    assert planned(template, advice).after == f"off ({SWITCH}=0)"


@pytest.mark.parametrize(
    ("value", "is_refused"), [("4096", False), ("False", False), ("/stats.pt", False), ("s3cr3t", True)]
)
def test_a_value_that_nobody_declared_reaches_no_status(value: str, *, is_refused: bool) -> None:
    advice = off(Setting(env=BUDGET, on="2048", off=None))

    found = bundle_plan(a_workload(a_template(["m"], env(**{BUDGET: value}))), advice, 3)

    assert isinstance(found, Blocked) is is_refused
    assert "s3cr3t" not in str(found)


AUTO = Setting(flag="--kv-cache-dtype", on="fp8", off="auto")
EAGER = Setting(flag="--enforce_eager", on=None, off="")
CACHING = Setting(flag="--no-enable-prefix-caching", on=None, off="")
OFF = [
    ("one word", DTYPE, a_template(["m", "--kv-cache-dtype=fp8"]), a_template(["m"])),
    ("two words", DTYPE, a_template(["m", "--kv_cache_dtype", "fp8"]), a_template(["m"])),
    (
        "given twice",
        DTYPE,
        a_template(["m", "--kv-cache-dtype=fp8", "--seed=1", "--kv-cache-dtype", "fp8_e5m2"]),
        a_template(["m", "--seed=1"]),
    ),
    (
        "a budget of its own is left out whatever it is",
        Setting(env=BUDGET, on="2048", off=None),
        a_template(["m"], env(**{BUDGET: "512"})),
        a_template(["m"]),
    ),
    (
        "from a variable that is its own word",
        DTYPE,
        a_template(["m", "--kv-cache-dtype", "$(KV)"], env(KV="fp8")),
        a_template(["m"], env(KV="fp8")),
    ),
    (
        "in a script",
        DTYPE,
        script("set -e\nexec vllm serve m \\\n  --kv-cache-dtype fp8 --seed 1"),
        script("set -e\nexec vllm serve m \\\n  --seed 1"),
    ),
    (
        "in the text of a variable",
        DTYPE,
        script("vllm serve m $EXTRA", env(EXTRA="--seed=1 --kv-cache-dtype fp8")),
        script("vllm serve m $EXTRA", env(EXTRA="--seed=1")),
    ),
    (
        "at the beginning of a variable's text",
        DTYPE,
        script("vllm serve m $EXTRA", env(EXTRA="--kv-cache-dtype fp8 --seed=1")),
        script("vllm serve m $EXTRA", env(EXTRA="--seed=1")),
    ),
    (
        "another value of a flag",
        AUTO,
        a_template(["m", "--kv-cache-dtype=fp8"]),
        a_template(["m", "--kv-cache-dtype=auto"]),
    ),
    ("a flag that is needed without it", EAGER, a_template(["m"]), a_template(["m", "--enforce-eager"])),
    (
        "a switch that is needed without it",
        CACHING,
        a_template(["m", "--enable-prefix-caching"]),
        a_template(["m", "--no-enable-prefix-caching"]),
    ),
]


@pytest.mark.parametrize(
    ("setting", "template", "after"),
    [row[1:] for row in OFF if row[3]],
    ids=[row[0] for row in OFF if row[3]],
)
def test_a_setting_is_turned_off_where_the_engine_reads_it(
    setting: Setting, template: dict[str, Any], after: dict[str, Any]
) -> None:
    step = planned(template, off(setting))

    assert step.edit.apply(template) == after
    assert step.edit.inverse().apply(after) == template


ALREADY = {
    "nothing is given": (a_template(["m"]), DTYPE),
    "the switch is spelled the other way": (a_template(["m", "--enable-prefix-caching"]), TRI.settings[0]),
    "the value is the one without it": (a_template(["m", "--kv-cache-dtype=auto"]), AUTO),
    "the variable is": (a_template(["m"], env(**{SWITCH: "0"})), TRI.settings[3]),
    "in other words": (a_template(["m"], env(**{SWITCH: "False"})), TRI.settings[3]),
    "the variable is not given": (a_template(["m"]), TRI.settings[1]),
}


@pytest.mark.parametrize(("template", "setting"), ALREADY.values(), ids=ALREADY)
def test_what_is_off_already_is_no_plan(template: dict[str, Any], setting: Setting) -> None:
    found = bundle_plan(a_workload(template), off(setting), 1)

    assert found == Blocked(
        Reason.FLAG_NOT_EDITABLE,
        "fp8 is off already, as far as its settings show: see what overrides them, such as the image's "
        "entry point",
    )


UNEDITABLE = {
    "from another object": (
        a_template(["m"], [{**SECRET, "name": BUDGET}]),
        TRI.settings[1],
        f"the value of {BUDGET} comes from another object (valueFrom): change it there",
    ),
    "given twice": (
        a_template(["m"], [*env(**{BUDGET: "1"}), *env(**{BUDGET: "2"})]),
        TRI.settings[1],
        f"{BUDGET} is given 2 times: leave one of them",
    ),
    "perhaps in a whole object": (
        a_template(["m"], env(**{BUDGET: "1"}), envFrom=[{"configMapRef": {"name": "tuning"}}]),
        TRI.settings[1],
        f"{BUDGET} may also come from an object in envFrom",
    ),
    "read by the command line": (
        a_template(["m", f"--seed=$({BUDGET})"], env(**{BUDGET: "1"})),
        TRI.settings[1],
        f"{BUDGET} is also read or set in args[1]: take it off there",
    ),
    "read by another variable": (
        a_template(["m"], env(**{BUDGET: "1", "OTHER": f"$({BUDGET})"})),
        TRI.settings[1],
        f"{BUDGET} is also read or set in env[1]",
    ),
    "set by the script": (
        script(f"export {SWITCH}=1\nvllm serve m"),
        TRI.settings[3],
        f"{SWITCH} is also read or set in args[0]",
    ),
    "a flag that the engine has not": (
        a_template(["m"]),
        Setting(flag="--kv-compression", on="", off=None),
        "vLLM 0.32.0 is not known to have --kv-compression: take it off by hand",
    ),
    "a value that the engine has not": (
        a_template(["m", "--kv-cache-dtype=fp8"]),
        Setting(flag="--kv-cache-dtype", on="fp8", off="fp3"),
        "invalid choice: 'fp3'",
    ),
    "a value from another object": (
        a_template(["m", "--load-format=$(FORMAT)"], [{**SECRET, "name": "FORMAT"}]),
        Setting(flag="--load-format", on="dummy", off="auto"),
        "load_format comes from $(FORMAT) (args[1]), set outside of the manifest by key token of Secret hub",
    ),
    "the only argument": (
        a_template([FLAG], command=["vllm", "serve", "m"]),
        TRI.settings[0],
        "--enable-prefix-caching (args[0]) can't be removed",
    ),
    "glued together in a script": (
        script("vllm serve m --kv-cache-dtype=$KV", env(KV="fp8")),
        DTYPE,
        "--kv-cache-dtype (args[0]) can't be removed without changing how the rest is read: remove it",
    ),
    "all of a variable's text": (
        script("vllm serve m $KV", env(KV="--kv-cache-dtype=fp8")),
        DTYPE,
        "can't be removed",
    ),
    "a variable that others use": (
        script("echo $EXTRA; vllm serve m $EXTRA", env(EXTRA="--seed=1 --kv-cache-dtype=fp8")),
        DTYPE,
        "can't be removed",
    ),
    "perhaps in a file": (
        a_template(["m", "--config", "/etc/vllm/engine.yaml"]),
        DTYPE,
        "--kv-cache-dtype may be in the file /etc/vllm/engine.yaml, which is not edited: see that it is not",
    ),
}


@pytest.mark.parametrize(("template", "setting", "words"), UNEDITABLE.values(), ids=UNEDITABLE)
def test_one_setting_that_cannot_be_edited_keeps_the_whole_method_on(
    template: dict[str, Any], setting: Setting, words: str
) -> None:
    plain = Setting(env="PLAIN", on="1", off="0")

    found = bundle_plan(a_workload(template), off(plain, setting, plain), 1)

    assert isinstance(found, Blocked), found
    assert found.reason in (Reason.FLAG_NOT_EDITABLE, Reason.FLAG_UNKNOWN_TO_ENGINE)
    assert found.message.startswith("fp8 cannot be turned off as a whole: ")
    assert words in found.message


def from_file(text: str, *args: str) -> Workload:
    """Return a workload whose engine reads a file from a ConfigMap."""
    volume = {"name": "config", "configMap": {"name": "limits"}}
    mounted = a_template(
        ["m", "--config", "/etc/vllm/engine.yaml", *args],
        volumeMounts=[{"name": "config", "mountPath": "/etc/vllm"}],
    )
    mounted["spec"]["volumes"] = [volume]
    source = ConfigMap(Contents({"engine.yaml": text}))
    found = workload_of(TARGET, "uid-1", mounted, "vllm", (VLLM,), {"limits": source})
    assert isinstance(found, Workload), found
    return found


def test_a_setting_in_a_file_keeps_the_whole_method_on() -> None:
    found = bundle_plan(from_file("kv-cache-dtype: fp8\n"), off(*EIGHT_BITS.settings), 1)

    assert isinstance(found, Blocked)
    assert "--kv-cache-dtype stands in " in found.message
    assert "engine.yaml" in found.message
    assert found.message.endswith("which is not edited for a method: take it out there")


@pytest.mark.parametrize(
    ("text", "args", "setting", "after"),
    [
        ("seed: 1\n", ["--kv-cache-dtype=fp8"], DTYPE, []),
        ("kv-cache-dtype: fp8\n", ["--kv-cache-dtype=fp8"], AUTO, ["--kv-cache-dtype=auto"]),
        ("seed: 1\n", [], EAGER, ["--enforce-eager"]),
        ("enable-prefix-caching: true\n", [], CACHING, ["--no-enable-prefix-caching"]),
    ],
    ids=[
        "not in the file",
        "the command line beats the file",
        "added beside the file",
        "the file has the other spelling",
    ],
)
def test_a_file_that_does_not_matter_blocks_nothing(
    text: str, args: list[str], setting: Setting, after: list[str]
) -> None:
    workload = from_file(text, *args)

    plan = bundle_plan(workload, off(setting), 1)

    assert isinstance(plan, Plan), plan
    (step,) = plan.steps
    assert isinstance(step, BundleStep)
    containers: Any = step.edit.apply(workload.template)["spec"]
    assert containers["containers"][1]["args"][3:] == after


@pytest.mark.parametrize(
    ("text", "setting"), [("kv-cache-dtype: auto\n", AUTO), ("enforce-eager: true\n", EAGER)]
)
def test_a_file_that_has_the_value_without_it_is_off_already(text: str, setting: Setting) -> None:
    found = bundle_plan(from_file(text), off(setting), 1)

    assert isinstance(found, Blocked)
    assert "is off already" in found.message


def test_a_command_line_that_the_engine_would_refuse_is_not_edited() -> None:
    found = with_template(a_workload(a_template(["m"])), a_template(["m", "--no-such-flag"]))

    assert isinstance(found, Blocked)
    assert "would not start" in found.message


def test_nothing_of_the_template_but_the_methods_own_settings_is_in_the_plan() -> None:
    secret = "s3cret"
    template = a_template(["m", FLAG, f"--api-key={secret}"], [*TUNED, *env(PASSWORD=secret)])

    assert secret not in repr(bundle_plan(a_workload(template), TRI, 1))
