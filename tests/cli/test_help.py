"""What the command says of itself: help that comes at once, completion, versions, and who may run what."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.testing import CliRunner, Result

from kvmedic import __version__
from kvmedic.api.crd import KINDS
from kvmedic.cli.app import HIDDEN, SUBCOMMANDS, app_for
from kvmedic.cli.commands import fleets, offline
from kvmedic.cli.options import WORK
from kvmedic.model.compression import KV_HEADS
from kvmedic.model.spec import Mode
from kvmedic.verdict.counts import Routing

COMMANDS = (*[[name] for name in SUBCOMMANDS if name != "flags"], ["flags", "show"], ["flags", "set"])
"""Every command that does something."""
HEAVY = ("kopf", "kubernetes", "httpx", "pydantic", "rich", "ruamel")
PAGES = Path(__file__).parents[1] / "data" / "vllm"
MOST_OF_HTTPX = 0.75
"""What help may take of a processor, as a share of what `import httpx` alone takes. Measured in one run: 0.5;
seconds are the machine's, and twice as many where its other work shares a core."""


def kvmedic(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(app_for(arguments), list(arguments), env={"COLUMNS": "100", **env})


def a_process(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **env},
    )


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_shows_its_exit_codes_and_an_example(words):
    shown = kvmedic(*words, "--help")

    paragraphs = [" ".join(each.split()) for each in shown.stdout.split("\n\n")]
    assert shown.exit_code == 0
    assert any(each.startswith("Exit code 0: ") for each in paragraphs)
    assert any(
        f"Example: {'source <(' * (words == ['completion'])}kvmedic {' '.join(words)}" in each
        for each in paragraphs
    )


def test_every_command_but_the_operator_is_listed():
    listed = {line.split()[0] for line in kvmedic("--help").stdout.splitlines() if line.startswith("  ")}

    assert SUBCOMMANDS.keys() - listed == HIDDEN
    assert kvmedic("run", "--help").exit_code == 0


def test_help_of_no_command_loads_what_its_work_needs():
    code = (
        "import sys, json; from typer.testing import CliRunner; from kvmedic.cli.app import app_for\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    assert 'Usage' in CliRunner().invoke(app_for(words), [*words, '--help']).stdout, words\n"
        f"print(sorted(set({HEAVY}) & set(sys.modules)))"
    )

    assert a_process(code, json.dumps([[], *COMMANDS])).stdout == "[]\n"


PAGES = Path(__file__).parents[1] / "data" / "vllm"
SAVED = [f"--scrape={PAGES / f'metrics-{name}.txt'}" for name in ("idle", "thrash")]


OF_FILES = (
    ["flags", "show", "-f", os.devnull],
    ["diagnose", *SAVED],
    ["judge", *(f"--{side}={PAGES / name}" for side, name in (("old", "x"), ("new", "y")))],
)
NO_PART_OF_FILES = {
    *("kopf", "kubernetes", "httpx", "requests", "asyncio"),
    *(f"kvmedic.{part}" for part in ("settings", "api.status", "kube", "cluster", "record", "rollout")),
    *(f"kvmedic.{part}" for part in ("doctor", "controller", "wiring", "handlers")),
}
"""What asks and changes a cluster. `diagnose` of saved pages took 1.0 s of a processor with what the operator
decides by, and 0.85 s without (Python 3.11)."""


@pytest.mark.parametrize("words", OF_FILES, ids=lambda words: words[0])
def test_files_are_read_without_the_operator_and_without_what_asks_a_cluster(words):
    code = (
        "import sys; from kvmedic.cli.app import app_for; a = sys.argv[1:]\n"
        "try: app_for(a)(a)\n"
        "except SystemExit as end: assert end.code in (0, 2, 3), end\n"
        f"print(sorted({NO_PART_OF_FILES} & set(sys.modules)))"
    )

    assert a_process(code, *words).stdout.splitlines()[-1] == "[]"


def test_installed_packages_are_not_looked_through():
    code = (
        "import importlib.metadata as packages, sys; from kvmedic.__main__ import main\n"
        "packages.distributions = lambda *_, **__: sys.exit('looked through')\n"
        "main()"
    )

    assert "diagnosis  " in a_process(code, "diagnose", *SAVED).stdout


def test_the_checks_of_a_spec_are_built_when_one_is_read():
    code = (
        "from kvmedic.api.resource import KVRemediationSpec as Spec; print(Spec.__pydantic_complete__)\n"
        "Spec.model_validate({'targetRef': {'name': 'chat'}}); print(Spec.__pydantic_complete__)"
    )

    assert a_process(code).stdout.split() == ["False", "True"]


def without(*packages: str) -> str:
    """Return a process in which some packages are not installed."""
    return (
        "import runpy, sys\n"
        "class LeftOut:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {packages!r}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, LeftOut())\n"
        "sys.argv[0] = 'kvmedic'\n"
        "runpy.run_module('kvmedic', run_name='__main__')\n"
    )


LEFT_OUT = without("aiohttp", "kubernetes", "prometheus_api_client", "kopf")
"""What the extras bring."""


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "--scrape", f"{PAGES}/metrics-idle.txt", "--scrape", f"{PAGES}/metrics-thrash.txt"),
        ("flags", "--help"),
        ("judge", "--help"),
        ("crd",),
        ("version",),
        ("completion", "bash"),
    ],
    ids=lambda words: words[0],
)
def test_what_asks_no_cluster_needs_no_extra(words):
    assert a_process(LEFT_OUT, *words).stdout


@pytest.mark.parametrize("command", ["doctor", "init"])
def test_manifests_are_looked_at_without_an_extra(tmp_path, command):
    file = tmp_path / "fleet.yaml"
    pod = {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=m"]}]}
    labels = {"app": "chat"}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": spec}
    file.write_text(json.dumps(manifest))
    argv = [sys.executable, "-c", LEFT_OUT, command, "-f", str(file)]

    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert "chat" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("get",), "aiohttp is not installed, and this needs it: pip install 'kvmedic[cluster]'"),
        (("run",), "is not installed, and this needs it: pip install 'kvmedic["),
    ],
    ids=["get", "run"],
)
def test_what_asks_a_cluster_says_what_to_install(words, missing):
    argv = [sys.executable, "-c", LEFT_OUT, *words]

    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert missing in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "deploy/chat"),
        ("init", "deploy/chat"),
        ("get",),
        *((command, "chat") for command in ("plan", "explain", "history", "report", "approve", "rollback")),
        ("stop",),
    ],
    ids=lambda words: words[0],
)
def test_what_asks_a_cluster_needs_the_operator_s_own_packages_nowhere(tmp_path, words):
    argv = [sys.executable, "-c", without("kopf"), *words, "--kubeconfig", str(tmp_path / "none")]

    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert str(tmp_path / "none") in done.stderr.replace("\n", "")
    assert "not installed" not in done.stderr


@pytest.mark.parametrize("words", [[], ["diagnose"], ["flags", "show"]], ids=" ".join)
def test_help_costs_little(words):
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, *sys.argv[1:]], stdout=-3, check=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )

    def least(*argv: str) -> float:
        # The better of two: the first one may have to compile.
        return min(float(a_process(code, *argv).stdout) for _ in range(2))

    assert least("-m", "kvmedic", *words, "--help") < MOST_OF_HTTPX * least("-c", "import httpx")


def work_of(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def test_a_declared_command_and_its_work_take_the_same_arguments():
    for place, _ in SUBCOMMANDS.values():
        import_module(place.partition(":")[0])

    assert len(WORK) == len(COMMANDS)
    for declared, place in WORK.items():
        ours = list(inspect.signature(declared).parameters)
        assert ours == list(inspect.signature(work_of(place)).parameters), place


def test_the_version_is_printed_for_people_and_for_programs():
    assert kvmedic("--version").stdout == f"kvmedic {__version__}\n"
    assert kvmedic("version").stdout.startswith(f"kvmedic {__version__}, API kvmedic.io/")
    assert json.loads(kvmedic("version", "-o", "json").stdout)["version"] == __version__


def test_kubectl_is_given_a_program_that_answers_as_it_asks(tmp_path):
    program = tmp_path / "kubectl_complete-kvmedic"
    program.write_text(kvmedic("completion", "kubectl").stdout)
    (tmp_path / "kvmedic").write_text(f'#!/bin/sh\nexec {sys.executable} -m kvmedic "$@"\n')
    for each in tmp_path.iterdir():
        each.chmod(0o755)

    answer = subprocess.run(
        [program, "resu"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )

    assert answer.stdout.split() == ["resume", ":4"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_script(shell):
    script = kvmedic("completion", shell)

    assert script.exit_code == 0
    assert f"_KVMEDIC_COMPLETE=complete_{shell}" in script.stdout


@pytest.mark.parametrize(
    ("typed", "offered"), [("kvmedic res", ["resume"]), ("kvmedic get --out", ["--output"])]
)
def test_a_shell_gets_completions(typed, offered):
    ask = {"_KVMEDIC_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}

    assert a_process("from kvmedic.__main__ import main; main()", **ask).stdout.split() == offered


def test_kubectl_finds_it_as_its_own_command():
    code = "import sys; sys.argv[0] = 'kubectl-kvmedic'; from kvmedic.__main__ import main; main()"

    assert a_process(code, "get", "--help").stdout.startswith("Usage: kubectl kvmedic get")


def test_the_operator_does_not_run_with_a_persons_kubeconfig(tmp_path):
    config = {
        "current-context": "prod",
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:1"}}],
        "contexts": [{"name": "prod", "context": {"cluster": "c"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))

    done = kvmedic("run", KUBECONFIG=str(tmp_path / "config"))

    assert (done.exit_code, done.stdout) == (2, "")
    assert "in context prod of" in done.stderr
    assert "--yes" in done.stderr


def test_choices_and_defaults_are_those_of_the_models_that_help_does_not_load():
    def choices(command: Callable[..., Any], name: str) -> set[str]:
        types = get_args(get_type_hints(command)[name])
        return set(get_args(types[0]) if None.__class__ in types else types)

    assert choices(fleets.init, "mode") == set(Mode)
    assert choices(offline.judge, "routing") == set(Routing)
    assert choices(offline.crd, "which") == {"all", *(kind.plural for kind in KINDS)}
    assert inspect.signature(offline.count_blocks).parameters["heads"].default == KV_HEADS
