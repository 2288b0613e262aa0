"""What a native cluster leaves on a machine outside its directory, and how to remove exactly that.

Processes are found by a marker in their environment (containerd passes it on to its shims) and as descendants
of those; nothing depends on a list of process ids that a crash could have left incomplete.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from lab.cluster.machine import program

MARKER = "KVMEDIC_LAB"
CGROUPS = Path("/sys/fs/cgroup")
_GONE_SECONDS = 20.0
_MNT_DETACH = "-l"


def processes(directory: Path) -> dict[int, str]:
    """Names by process id: what was started for `directory`, with all descendants (pods' containers)."""
    marked = [pid for pid in _pids() if f"{MARKER}={directory}".encode() in _environment(pid)]
    return {pid: _name(pid) for pid in _with_descendants(marked)}


def is_running(pid: int) -> bool:
    """Whether a process is there and not just waiting to be collected by its parent."""
    return bool(stat := _stat(pid)) and stat[0] != "Z"


def end_processes(find: Callable[[], Iterable[int]]) -> None:
    """Kill what `find` returns until it returns nothing."""
    deadline = time.monotonic() + _GONE_SECONDS
    while left := sorted(find()):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes survive SIGKILL: {left}")
        time.sleep(0.05)


def mounts(directory: Path) -> list[str]:
    """Mount points under `directory`, deepest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].replace("\\040", " ") for line in lines]
    return sorted((p for p in points if Path(p).is_relative_to(directory)), key=len, reverse=True)


def unmount(directory: Path) -> None:
    """Unmount everything under `directory`, lazily where something still holds it."""
    while points := mounts(directory):
        for point in points:
            if subprocess.run(["umount", point], capture_output=True, check=False).returncode:
                subprocess.run(["umount", _MNT_DETACH, point], capture_output=True, check=True)


PODS_GROUP = "kubepods"


def control_groups(name: str = PODS_GROUP) -> list[Path]:
    """The control groups under one of that name, the kubelet's, in every hierarchy, deepest first."""
    tops = [*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")]
    found = {path for top in tops if not top.parent.is_symlink() for path in [top, *_folders(top)]}
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def pod_processes() -> list[int]:
    """Processes in the kubelet's control groups, for those whose shim is gone."""
    found: set[int] = set()
    for group in control_groups():
        with suppress(OSError):
            found.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
    return sorted(found)


def remove_cgroups(name: str = PODS_GROUP) -> None:
    """Remove the control groups under one of that name; they are empty once their processes are gone."""
    for group in control_groups(name):
        for _ in range(20):
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                # The kernel empties a group a moment after its last process ended.
                time.sleep(0.05)


def remove_links_to(directory: Path, folder: Path) -> None:
    """Remove symbolic links in `folder` that lead into `directory`, and the folder when it is empty then."""
    for link in folder.glob("*"):
        if link.is_symlink() and Path(os.readlink(link)).is_relative_to(directory):
            link.unlink()
    remove_empty(folder)


def remove_dead_sockets(folder: Path) -> None:
    """Remove Unix sockets in `folder` that nobody serves: shims leave theirs when they are killed.

    Each is asked: the kernel's list of sockets shows those of one network namespace only.
    """
    for path in folder.glob("*"):
        if path.is_socket() and not _is_served(path):
            path.unlink()
    remove_empty(folder, folder.parent)


def remove_empty(*folders: Path) -> None:
    """Remove those folders that are empty, in this order."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def remove_tree(directory: Path) -> None:
    """Delete a tree; refuses while something is mounted in it, which would delete what is mounted."""
    if left := mounts(directory):
        raise RuntimeError(f"still mounted: {left}")
    shutil.rmtree(directory, ignore_errors=True)


def clean_iptables() -> None:
    """Remove the chains of kube-proxy and kubelet (`KUBE-*`) and every rule that leads to them."""
    for family in ("iptables", "ip6tables"):
        for table in ("filter", "nat", "mangle", "raw"):
            _clean_table(family, table)


def kube_chains() -> list[str]:
    """Names of the `KUBE-*` chains that exist now, as `iptables/nat/KUBE-SERVICES`."""
    found = []
    for family in ("iptables", "ip6tables"):
        for table, line in _rules(family):
            if line.startswith(":KUBE-"):
                found.append(f"{family}/{table}/{line[1:].split()[0]}")
    return found


def _clean_table(family: str, table: str) -> None:
    lines = [line for where, line in _rules(family) if where == table]
    chains = [line[1:].split()[0] for line in lines if line.startswith(":KUBE-")]
    if not chains:
        return
    jumps = [line for line in lines if line.startswith("-A ") and "KUBE-" in line.split(" -j ")[-1]]
    builtin = [line.replace("-A", "-D", 1) for line in jumps if not line.startswith("-A KUBE-")]
    script = [f"*{table}", *(f":{chain} - [0:0]" for chain in chains), *builtin]
    script += [*(f"-X {chain}" for chain in chains), "COMMIT", ""]
    subprocess.run(
        [program(f"{family}-restore"), "--noflush"], input="\n".join(script), text=True, check=True
    )


def _rules(family: str) -> Iterator[tuple[str, str]]:
    saved = subprocess.run([program(f"{family}-save")], capture_output=True, text=True, check=False).stdout
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        yield table, line


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    return words[1] if Path(words[0]).name == "kube" and len(words) > 1 else Path(words[0]).name


def _with_descendants(roots: list[int]) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    states = {}
    for pid in _pids():
        if stat := _stat(pid):
            states[pid] = stat[0]
            children[int(stat[1])].append(pid)
    found, todo = set[int](), list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children[pid])
    return [pid for pid in found if states.get(pid, "Z") not in "ZX" and pid != os.getpid()]


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def _folders(top: Path) -> list[Path]:
    return [Path(root) for root, _, _ in os.walk(top)]
