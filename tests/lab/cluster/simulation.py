"""Simulated nodes and pods: kwok plays the kubelet by stages, which are data (`stages.yaml`).

A pod chooses how it behaves by annotations `lab.kvmedic.io/NAME`, on the pod template or on a running pod:

* `mode`: `ready` (default), `unready` (runs, never Ready), `crash` (CrashLoopBackOff), `pending` (no image).
* `mode-when`: the mode counts only where this regular expression matches command and args, joined by blanks;
  other pods are `ready`. So a template can say "crash with --max-num-seqs=12" before anyone sets that flag.
* `ready-after`, `crash-after`, `restart-after`, `gone-after`: Go durations (`1.5s`); defaults in `Timing`.
* `exit-code`, `exit-reason`, `exit-message`: of a crash; 1, `Error` and empty.

A delay starts anew when the pod object changes meanwhile (a label put on, say). Simulated pods have an IP and
serve nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.cluster.process import Component

ANNOTATION = "lab.kvmedic.io/"
POD_NETWORK = "10.79.0.0/16"
Stage = dict[str, Any]
# One worker for pods: of several, two may each make the pool of addresses and give two pods the same one
# (kwok 0.8, PodController.ipPool). A configuration gets none of kwok's defaults, so the others are given too.
_CONFIGURATION = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    "options": {
        "podPlayStageParallelism": 1,
        "nodePlayStageParallelism": 4,
        "nodeLeaseParallelism": 4,
        "nodeLeaseDurationSeconds": 40,
        "podsOnNodeSyncParallelism": 1,
    },
}


@dataclass(frozen=True)
class Timing:
    """How long a simulated pod takes when its annotations do not say, as Go durations."""

    ready_after: str = "200ms"
    crash_after: str = "200ms"
    complete_after: str = "500ms"
    restart_after: str = "2s"
    gone_after: str = "200ms"

    def of(self, delay: str) -> str:
        """The default for one delay by its annotation name, such as `ready-after`."""
        return str(getattr(self, delay.replace("-", "_")))


def behaviour(**annotations: str) -> dict[str, str]:
    """Annotations from keywords: `behaviour(mode="crash", mode_when="--max-num-seqs=12")`."""
    return {ANNOTATION + name.replace("_", "-"): value for name, value in annotations.items()}


def stages(timing: Timing) -> list[Stage]:
    """The stages of `stages.yaml` with these defaults, as kwok reads them."""
    data = yaml.safe_load(Path(__file__).with_name("stages.yaml").read_text())
    return [_stage(entry, data["define"], timing) for entry in data["stages"]]


def _stage(entry: dict[str, Any], define: dict[str, str], timing: Timing) -> Stage:
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": entry.get("kind", "Pod")},
        "selector": {"matchExpressions": [_is_true(_expand(each, define)) for each in entry["when"]]},
        "next": {key: entry[key] for key in ("event", "delete") if key in entry},
    }
    if "status" in entry:
        spec["next"]["statusTemplate"] = entry["status"]
    if "delay" in entry:
        spec["delay"] = _delay(entry["delay"], timing.of(entry["delay"]))
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": entry["name"]},
        "spec": spec,
    }


def _expand(expression: str, define: dict[str, str]) -> str:
    names = re.compile(r"\b(" + "|".join(define) + r")\b")
    while names.search(expression):
        expression = names.sub(lambda match: define[match.group()], expression)
    return expression


def _is_true(expression: str) -> dict[str, Any]:
    return {"key": f"({expression}) | tostring", "operator": "In", "values": ["true"]}


def _delay(name: str, default: str) -> dict[str, Any]:
    annotation = f'((.metadata.annotations // {{}})["{ANNOTATION}{name}"] // "{default}")'
    return {"durationFrom": {"expressionFrom": annotation}}


def kwok(binary: Path, directory: Path, kubeconfig: Path, played: Sequence[Stage]) -> Component:
    """The kwok process; it manages every node and opens no port."""
    config = directory / "kwok.yaml"
    config.write_text(yaml.safe_dump_all([_CONFIGURATION, *played]))
    argv = [
        str(binary),
        f"--config={config}",
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=true",
        f"--cidr={POD_NETWORK}",
        "--node-ip=10.77.0.1",
    ]
    return Component("kwok", argv, directory, env={"HOME": str(directory)})


def node(name: str, gpus: int) -> dict[str, Any]:
    """A Ready node with room for everything but GPUs, of which it has `gpus`."""
    room = {
        "cpu": "1k",
        "memory": "1Ti",
        "ephemeral-storage": "1Ti",
        "pods": "10k",
        "nvidia.com/gpu": str(gpus),
    }
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {"capacity": room, "allocatable": room, "conditions": conditions},
    }
