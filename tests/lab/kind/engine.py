"""The Docker engine that kind needs: the machine's own, or one of the lab's where there is none.

The lab's own is Debian's `docker.io`, and needs root. Everything of it lies in `build/lab/docker`; what it
must change elsewhere (a bridge, control groups, kernel settings that a node changes) is taken back, after a
crash too. It writes no iptables rules: there is nothing outside that its containers would have to reach.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.cluster import network, traces
from lab.cluster.machine import BUILD, ensure_packages, program, step
from lab.cluster.process import Component

DIRECTORY = BUILD / "docker"
GROUP = "kvmedic-lab-docker"
NETWORK, BRIDGE = "kind", "kvlab1"
SUBNET, GATEWAY = "10.79.0.0/24", "10.79.0.1"
"""The network that kind puts its nodes into, made before it makes one without a name for its bridge."""
_ANSWER_SECONDS = 10
_CAP_SYS_RESOURCE = 24


def environment() -> dict[str, str]:
    """Return the environment for Docker's client: it leads to the lab's engine where that one runs."""
    if _socket().exists():
        return {**os.environ, "DOCKER_HOST": f"unix://{_socket()}"}
    return dict(os.environ)


def docker_answers() -> bool:
    """Return whether a Docker engine serves this user; a client without an engine does not count."""
    if shutil.which("docker") is None:
        return False
    argv = ["docker", "info", "--format", "{{.ServerVersion}}"]
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_ANSWER_SECONDS, env=environment(), check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def ensure_docker() -> None:
    """Have a Docker engine answer; starts the lab's own where the machine has none.

    Raises:
        PermissionError: there is none, and only root may start one.
        ComponentDiedError: the engine does not come up; with the end of its log.
    """
    if docker_answers():
        return
    if os.geteuid() != 0:
        raise PermissionError("no Docker engine answers: start one, or run this as root, which does")
    ensure_packages(("docker.io",))
    stop_own_engine()
    with step("starting a Docker engine of the lab's own"):
        DIRECTORY.mkdir(parents=True)
        # Written before the first change: shows the next start or stop that there is something to undo.
        _before().write_text(json.dumps(network.read_sysctls()))
        _start()


def stop_own_engine() -> None:
    """End the lab's own engine with all containers and remove its traces; harmless when there is none."""
    if not _before().exists():
        return
    with step("stopping the lab's Docker engine"):
        traces.end_processes(lambda: traces.processes(DIRECTORY))
        traces.unmount(DIRECTORY)
        traces.remove_cgroups(GROUP)
        if Path("/sys/class/net", BRIDGE).exists():
            subprocess.run([program("ip"), "link", "delete", BRIDGE], check=True)
        traces.remove_dead_sockets(Path("/run/containerd/s"))
        network.write_sysctls(json.loads(_before().read_text()))
        traces.remove_tree(DIRECTORY)


def _socket() -> Path:
    return DIRECTORY / "sock"


def _before() -> Path:
    return DIRECTORY / "before.json"


def _start() -> None:
    argv = [
        program("dockerd"),
        f"--host=unix://{_socket()}",
        f"--data-root={DIRECTORY / 'data'}",
        f"--exec-root={DIRECTORY / 'exec'}",
        f"--pidfile={DIRECTORY / 'pid'}",
        f"--cgroup-parent=/{GROUP}",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--ip-forward=false",
    ]
    if not _may_raise_limits():
        argv += [f"--add-runtime=lab={_write_runtime()}", "--default-runtime=lab"]
    engine = Component("dockerd", argv, DIRECTORY, env={traces.MARKER: str(DIRECTORY)}, outlives_owner=True)
    engine.start()
    engine.await_ready(docker_answers)
    addresses = (f"--subnet={SUBNET}", f"--gateway={GATEWAY}")
    bridge = f"--opt=com.docker.network.bridge.name={BRIDGE}"
    create = ["docker", "network", "create", bridge, *addresses, NETWORK]
    subprocess.run(create, env=environment(), check=True, capture_output=True)


def _may_raise_limits() -> bool:
    """Return whether this machine's root has CAP_SYS_RESOURCE, which that of some virtual ones lacks."""
    lines = Path("/proc/self/status").read_text().splitlines()
    bounding = next(int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:"))
    return bool(bounding >> _CAP_SYS_RESOURCE & 1)


def _write_runtime() -> Path:
    path = DIRECTORY / "runc"
    path.write_text(_RUNTIME.format(python=sys.executable, runc=program("runc")))
    path.chmod(0o755)
    return path


# A privileged container gets every capability, and runc dies of one that it may not give: "unable to apply
# caps: operation not permitted". The same for limits above one's own and for a lower OOM score.
_RUNTIME = """\
#!{python} -IS
import json, os, sys

arguments = sys.argv[1:]


def take_out(process):
    for held in (process.get("capabilities") or {{}}).values():
        held[:] = [each for each in held if each != "CAP_SYS_RESOURCE"]
    process.pop("rlimits", None)
    process.pop("oomScoreAdj", None)


def rewrite(path, inner=None):
    with open(path) as file:
        content = json.load(file)
    take_out(content[inner] if inner else content)
    with open(path, "w") as file:
        json.dump(content, file)


if "create" in arguments or "run" in arguments:
    bundle = arguments[arguments.index("--bundle") + 1] if "--bundle" in arguments else "."
    rewrite(os.path.join(bundle, "config.json"), "process")
if "exec" in arguments and "--process" in arguments:
    rewrite(arguments[arguments.index("--process") + 1])
os.execv("{runc}", ["runc", *arguments])
"""
