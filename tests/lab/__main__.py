"""`python -m lab up|down|status|load|tools|keda|lws`: the lab's real cluster from the command line."""

import argparse
import subprocess
import sys
from pathlib import Path

import httpx

from lab.browser import ensure_browser
from lab.cluster.interface import Cluster
from lab.cluster.machine import KUBECONFIG, PROMETHEUS_PACKAGES, ensure_packages
from lab.cluster.native import choose
from lab.cluster.toolchain import Tool, binary

DEFAULT_GPUS = 8
PROGRAMS = {
    "tools": (Tool.KUBE, Tool.KWOK, Tool.HELM),
    "lws": (Tool.KUBE, Tool.HELM, Tool.LEADER_WORKER_SET),
    "keda": (Tool.KUBE, Tool.HELM, Tool.KEDA_OPERATOR, Tool.KEDA_ADAPTER),
}
"""What each of these commands builds."""
EXPECTED = (RuntimeError, OSError, LookupError, ValueError, subprocess.SubprocessError, httpx.HTTPError)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; expected failures are one line on standard error and exit code 1."""
    options = _parser().parse_args(arguments)
    try:
        return _build(options.command) if options.command in PROGRAMS else _run(options, choose())
    except EXPECTED as error:
        print(f"[lab] {error}", file=sys.stderr)
        return 1


def _build(command: str) -> int:
    """Install and build what tests or scenarios need, so that none of them has to wait for it."""
    ensure_packages(PROMETHEUS_PACKAGES)
    if command == "tools":
        ensure_browser()
    for tool in PROGRAMS[command]:
        binary(tool)
    return 0


def _run(options: argparse.Namespace, cluster: Cluster) -> int:
    if options.command == "up":
        cluster.up(options.gpus)
    elif options.command == "down":
        cluster.down()
    elif options.command == "load":
        cluster.load_image(options.archive, options.reference)
    elif not cluster.is_up():
        print("down")
        return 1
    else:
        print(f"up; kubeconfig {KUBECONFIG}; pods reach this machine at {cluster.host_address}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring the cluster up; harmless when it is up")
    up.add_argument("--gpus", type=int, default=DEFAULT_GPUS, help="nvidia.com/gpu of the node (%(default)s)")
    commands.add_parser("down", help="take the cluster down and remove every trace of it")
    commands.add_parser("tools", help="install and build what the tests need")
    commands.add_parser("lws", help="build what the scenarios of a LeaderWorkerSet need as well")
    commands.add_parser("keda", help="build what the scenarios with KEDA need as well; they do it otherwise")
    commands.add_parser("status", help="say whether it is up; exit 1 when not")
    load = commands.add_parser("load", help="make an image available to pods")
    load.add_argument(
        "archive", type=Path, help="a docker-archive, as `buildah push` or `docker save` writes it"
    )
    load.add_argument("reference", help="the image's name and tag in that archive")
    return parser


if __name__ == "__main__":
    sys.exit(main())
