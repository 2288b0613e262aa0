"""Debian packages that the lab needs; installed when missing, without letting their services start."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.cluster.progress import say, step

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
}
CLUSTER = ("containerd", "runc", "containernetworking-plugins", "iptables", "iproute2", "openssl")
IMAGES = ("buildah", "debootstrap")
PROMETHEUS = ("prometheus",)

_SERVICES = ("containerd", "prometheus", "prometheus-node-exporter")
_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_POLICY = Path("/usr/sbin/policy-rc.d")


def program(name: str) -> str:
    """Full path of a program, in the sbin folders too; FileNotFoundError when it is missing."""
    found = shutil.which(name, path=_SEARCH)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; `make lab-up` as root installs it")
    return found


def ensure(packages: Sequence[str]) -> None:
    """Install those packages that are missing; needs root only then.

    Raises:
        PermissionError: Something is missing and this is not root.
    """
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
    ours = [service for service in _SERVICES if service in installed]
    if ours and Path("/run/systemd/system").is_dir():
        subprocess.run(["systemctl", "disable", "--now", "-q", *ours], check=False)
        say(f"disabled the system services {', '.join(ours)}: the lab starts its own")
