"""The operator on the lab's cluster: its own image, by its chart, under restricted Pod Security."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from lab.cluster.api import Api, until
from lab.cluster.interface import Cluster
from lab.cluster.machine import KUBECONFIG, ROOT, step
from lab.cluster.toolchain import Tool, binary
from lab.images import Recipe, provide

NAMESPACE = "kvmedic-system"
RELEASE = "kvmedic"
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
DENY_ALL = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}
"""What many administrators have in each namespace: the chart's own policy must allow all that is needed. The
native cluster's network does not enforce policies; kind's does."""
CHART = ROOT / "charts" / "kvmedic"
WHEELS = ROOT / "build" / "wheels"
_UPGRADED = "podAnnotations.lab/upgraded=yes"


def recording_rules() -> list[dict[str, Any]]:
    """Return the groups of rules that the chart brings for a Prometheus."""
    return list(yaml.safe_load((CHART / "files" / "recordings.yaml").read_text())["groups"])


def operator_image(cluster: Cluster) -> str:
    """Build the operator's image from this work tree and load it; its reference.

    The image's build fetches nothing: what it installs was fetched with this machine's own pip.
    """
    subprocess.run(["make", "-s", "-C", str(ROOT), "wheels"], check=True)
    inputs = [ROOT / "requirements.lock", ROOT / "operator" / "kvmedic", WHEELS]
    return provide(cluster, Recipe("operator", ROOT / "Containerfile", ROOT, inputs))


def install(cluster: Cluster, values: dict[str, Any], kubeconfig: Path = KUBECONFIG) -> None:
    """Install or upgrade the operator and wait until it is Ready.

    Args:
        cluster: a cluster that is up.
        values: the chart's values, the image's excepted.
        kubeconfig: the administrator's.

    Raises:
        RuntimeError: with helm's message, or the operator's log when it does not become Ready.
    """
    reference = operator_image(cluster)
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": RESTRICTED},
    }
    with Api(cluster.access) as api:
        api.apply(namespace)
        api.apply(DENY_ALL, NAMESPACE)
    with step("installing the operator by its chart"):
        clear_unfinished(kubeconfig)
        _helm(
            kubeconfig,
            "upgrade",
            "--install",
            RELEASE,
            str(CHART),
            "--wait",
            "--timeout=90s",
            values=values | {"image": _image(reference)},
        )


def uninstall(cluster: Cluster, kubeconfig: Path = KUBECONFIG) -> None:
    """Remove the operator; harmless when there is none. The CRD and its resources stay."""
    _helm(kubeconfig, "uninstall", RELEASE, "--wait", "--ignore-not-found")
    with Api(cluster.access) as api:
        until(lambda: not api.list("Pod", NAMESPACE), 60, "the operator's pods are gone")


def upgrade(kubeconfig: Path = KUBECONFIG) -> None:
    """Upgrade the release to the same with another pod template, and wait for nothing."""
    _helm(kubeconfig, "upgrade", RELEASE, str(CHART), "--reuse-values", f"--set-string={_UPGRADED}")


def roll_back(kubeconfig: Path = KUBECONFIG) -> None:
    """Put the release back to its revision before, and wait for nothing."""
    _helm(kubeconfig, "rollback", RELEASE)


def take_away(kubeconfig: Path = KUBECONFIG) -> dict[str, Any]:
    """Uninstall the release, wait for nothing, and return the values that it had."""
    values: dict[str, Any] = json.loads(_helm(kubeconfig, "get", "values", RELEASE, "--output=json"))
    _helm(kubeconfig, "uninstall", RELEASE)
    return values


def install_again(values: dict[str, Any], kubeconfig: Path = KUBECONFIG) -> None:
    """Install the release with the values that it had, and wait for nothing."""
    _helm(kubeconfig, "install", RELEASE, str(CHART), values=values)


def _image(reference: str) -> dict[str, str]:
    """The chart's image values for a reference that is loaded on the node and in no registry."""
    registry, _, rest = reference.partition("/")
    repository, _, tag = rest.rpartition(":")
    return {"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "Never"}


def clear_unfinished(kubeconfig: Path = KUBECONFIG) -> None:
    """Uninstall a release that a killed helm left in the middle, because helm refuses every upgrade of it."""
    if json.loads(_helm(kubeconfig, "list", "--pending", "--output=json")):
        _helm(kubeconfig, "uninstall", RELEASE, "--wait")


def _helm(kubeconfig: Path, *arguments: str, values: dict[str, Any] | None = None) -> str:
    argv = [str(binary(Tool.HELM)), *arguments, f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}"]
    text = None if values is None else json.dumps(values)
    given = [] if values is None else ["--values=-"]
    done = subprocess.run([*argv, *given], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"helm {arguments[0]}: {done.stderr.strip()}\n{_log(kubeconfig)}")
    return done.stdout


def _log(kubeconfig: Path) -> str:
    """The end of the operator's log, or why there is none."""
    argv = [
        str(binary(Tool.KUBE)),
        "kubectl",
        f"--kubeconfig={kubeconfig}",
        f"--namespace={NAMESPACE}",
        "logs",
    ]
    argv += [f"--selector=app.kubernetes.io/instance={RELEASE}", "--tail=20", "--prefix"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
