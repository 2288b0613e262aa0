"""The machine that the lab runs on: folders under `build/`, locks, ports, Debian packages, progress lines."""

import fcntl
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

QUIET_SECONDS = 5.0
STILL_SECONDS = 30.0
"""Between two lines of a step that takes long, such as a build of nine minutes."""


def say(text: str) -> None:
    print(f"[lab] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce `text` if it takes longer than five seconds, that it still goes on, and its duration."""
    started, over = time.monotonic(), threading.Event()
    threading.Thread(target=_accompany, args=(text, over), daemon=True).start()
    try:
        yield
    except BaseException:
        say(f"{text}: failed after {time.monotonic() - started:.1f} s")
        raise
    finally:
        over.set()
    say(f"{text}: {time.monotonic() - started:.1f} s")


def _accompany(text: str, over: threading.Event) -> None:
    started = time.monotonic()
    if over.wait(QUIET_SECONDS):
        return
    say(f"{text} ...")
    while not over.wait(STILL_SECONDS):
        say(f"{text}: {time.monotonic() - started:.0f} s so far")


@dataclass
class Stopwatch:
    """Seconds since it was made."""

    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


ROOT = Path(__file__).resolve().parents[3]
LAB_SOURCES = ROOT / "tests" / "lab"
BUILD = (ROOT / "build" / "lab").resolve()
"""Resolved, so that clones which share it by a link know each other's cluster as their own."""
BIN = BUILD / "bin"
IMAGES = BUILD / "images"
KUBECONFIG = BUILD / "kubeconfig"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which is made if needed; a process that dies lets go.

    Not reentrant: a holder that takes it again waits for itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command of the lab, which holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_scratch(parent: Path) -> Path:
    """A new directory under `parent` for this process; removes those of processes that are gone."""
    parent.mkdir(parents=True, exist_ok=True)
    delete_scratch(parent)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))


def delete_scratch(parent: Path) -> None:
    for leftover in parent.glob("*-*"):
        owner = leftover.name.split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(leftover, ignore_errors=True)


# Below Linux' ephemeral range (32768-60999): no outgoing connection takes one between the look and the use.
FIRST, LAST = 20000, 32000
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that nobody listens on at this moment."""
    found: list[int] = []
    while len(found) < count:
        port = _random.randrange(FIRST, LAST)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# A program or file of each package: where it is there already, however it came, the package is not asked for.
NEEDS = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "iptables",
    "iproute2": "ip",
    "openssl": "openssl",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "prometheus": "promtool",
    "chromium": "chromium",
    "docker.io": "dockerd",
    "fonts-dejavu-core": "/usr/share/fonts/truetype/dejavu",
}
CLUSTER_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iptables", "iproute2", "openssl")
IMAGE_PACKAGES = ("buildah", "debootstrap")
PROMETHEUS_PACKAGES = ("prometheus",)

_SERVICES = {"containerd": "containerd", "docker.io": "docker", "prometheus": "prometheus"}
"""By the package that they come with."""
_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_POLICY = Path("/usr/sbin/policy-rc.d")


def program(name: str) -> str:
    """Full path of a program, in the sbin folders too; FileNotFoundError when it is missing."""
    found = shutil.which(name, path=_SEARCH)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; `make lab-up` as root installs it")
    return found


def ensure_packages(packages: Sequence[str]) -> None:
    """Install those packages that are missing; needs root only then."""
    missing = [package for package in packages if not _is_there(NEEDS[package])]
    if not missing:
        return
    if os.geteuid() != 0:
        raise PermissionError(f"missing {', '.join(missing)}; install them, or run this as root")
    with step(f"installing {', '.join(missing)} with apt-get"), _services_off():
        _install(missing)
    _disable_services(missing)


def _is_there(proof: str) -> bool:
    return Path(proof).exists() if proof.startswith("/") else shutil.which(proof, path=_SEARCH) is not None


def _install(packages: Sequence[str]) -> None:
    install = ("install", "-y", "-qq", "--no-install-recommends", *packages)
    if _apt(*install).returncode == 0:
        return
    # A fresh machine has no lists. One unreachable foreign repository must not stop us: the install counts.
    _apt("update", "-qq")
    done = _apt(*install)
    if done.returncode != 0:
        raise RuntimeError(f"apt-get install {' '.join(packages)} failed:\n{done.stdout[-2000:]}")


def _apt(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        ["apt-get", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@contextmanager
def _services_off() -> Iterator[None]:
    """Forbid services to start while packages are unpacked (invoke-rc.d asks policy-rc.d; 101 is no)."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def _disable_services(installed: Sequence[str]) -> None:
    """Services that came with our packages would start at the next boot; the lab runs the programs itself."""
    ours = [_SERVICES[package] for package in installed if package in _SERVICES]
    if ours and Path("/run/systemd/system").is_dir():
        subprocess.run(["systemctl", "disable", "--now", "-q", *ours], check=False)
        say(f"disabled the system services {', '.join(ours)}: the lab starts its own")
