"""What a manifest says about a workload: the pod counts, not the engine's container alone."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from kvmedic.cli.given import policy_in, workload_in
from kvmedic.core.supply import GIB
from kvmedic.runbooks.host_memory import host_terms
from kvmedic.runbooks.planning import Workload

_MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  template:
    spec:
      containers:
      - {name: proxy, image: envoy}
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: ["--model=m"]
        resources: {limits: {memory: 32Gi}}
        volumeMounts: [{name: shm, mountPath: /dev/shm}]
"""


@pytest.mark.parametrize(
    ("volumes", "holds"),
    [
        ("[{name: shm, emptyDir: {medium: Memory}}]", inf),
        ("[{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]", 8 * GIB),
        ("[{name: shm, emptyDir: {}}]", None),
    ],
)
def test_shared_memory_is_told_by_the_volumes_of_the_pod(
    tmp_path: Path, volumes: str, holds: float | None
) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text(f"{_MANIFEST}      volumes: {volumes}\n")

    workload = workload_in(str(file), policy_in(""))

    assert isinstance(workload, Workload)
    template, container = workload.template, workload.container
    assert host_terms(template, container, workload.engine).shared_bytes == holds
