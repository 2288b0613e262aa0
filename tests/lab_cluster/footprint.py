"""What is on the machine that a node would change; compared before a cluster and after it."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab.cluster.machine import BUILD, program

# Broader than the lab's own list of settings, so that one forgotten there is found here.
_SETTINGS = (
    "vm",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all",
)
_CGROUPS = Path("/sys/fs/cgroup")
_VOLATILE = ("vm/stat", "vm/nr_pdflush", "vm/compact_memory", "vm/drop_caches")
_FOLDERS = (
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)

# What buildah mounts while it builds, for anyone who builds an image at this moment.
_BUILDERS_MOUNT = re.compile(r"/overlay(/[0-9a-f]{64}/merged)?$")

# Another clone's cluster, in a network of its own.
_OTHER_LAB = re.compile(rf"(?<!{re.escape(str(BUILD))})/native/")


def footprint() -> dict[str, set[str]]:
    """Everything comparable, by kind."""
    return {
        "processes": set(_node_processes()),
        "mounts": {point for point in _mounts() if not _BUILDERS_MOUNT.search(point)},
        "links": {path.name for path in Path("/sys/class/net").iterdir()},
        "rules": set(_rules("iptables-save")) | set(_rules("ip6tables-save")),
        "routes": set(_output("ip", "-4", "route").splitlines()),
        "control groups": {str(path) for top in ("kubepods*", "*/kubepods*") for path in _CGROUPS.glob(top)},
        "files": {str(path) for folder in _FOLDERS for path in _walk(Path(folder))},
        "settings": set(_settings()),
    }


def _node_processes() -> Iterator[str]:
    """Processes of nodes and pods: by what they run, and by their control group."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            group = (entry / "cgroup").read_text()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        # A zombie runs nothing any more; init collects it when it gets round to it.
        if state == "Z" or _OTHER_LAB.search(command):
            continue
        if ":/kubepods" in group or re.search(r"containerd|lab/native|kube kubelet|kube kube-proxy", command):
            yield f"{entry.name} {command}"


def _mounts() -> list[str]:
    return [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]


def _rules(command: str) -> Iterator[str]:
    for line in _output(command).splitlines():
        # Built-in chains are there as soon as anybody has looked at a table.
        if line.startswith("-A ") or (line.startswith(":") and line.split()[1] == "-"):
            yield line


def _settings() -> Iterator[str]:
    for name in _SETTINGS:
        for path in _walk(Path("/proc/sys", name)):
            if not str(path.relative_to("/proc/sys")).startswith(_VOLATILE) and os.access(path, os.R_OK):
                try:
                    yield f"{path}={path.read_text().strip()}"
                except OSError:
                    continue


def _walk(path: Path) -> Iterator[Path]:
    """Files, links, sockets and empty folders, except those of another lab that runs."""
    if path.is_dir() and not path.is_symlink():
        inside = sorted(path.iterdir())
        if not inside:
            yield path
        for each in inside:
            yield from _walk(each)
    elif not _is_foreign(path) and (path.exists() or path.is_symlink()):
        yield path


def _is_foreign(path: Path) -> bool:
    if path.is_symlink():
        return bool(_OTHER_LAB.search(os.readlink(path)))
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _output(*argv: str) -> str:
    return subprocess.run([program(argv[0]), *argv[1:]], capture_output=True, text=True, check=True).stdout


# Only additions count among these: what others on the machine end or unmount meanwhile is their affair.
_SHARED = ("processes", "mounts", "control groups", "files")


def differences(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, list[str]]:
    """What came (+) and, where nobody else has a hand in it, what went (-), by kind."""
    changes = {kind: [f"+{each}" for each in sorted(after[kind] - found)] for kind, found in before.items()}
    for kind in before.keys() - set(_SHARED):
        changes[kind] += [f"-{each}" for each in sorted(before[kind] - after[kind])]
    return {kind: change for kind, change in changes.items() if change}
