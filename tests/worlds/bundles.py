"""Pod templates with a method of compression on, and what is planned for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvmedic.engines.kv_methods import TRIATTENTION
from kvmedic.engines.vllm import VLLM
from kvmedic.model.compression import BundleSetting as Setting
from kvmedic.model.fleet import ObjectRef
from kvmedic.model.reasons import Reason
from kvmedic.runbooks.branches import TurnOff
from kvmedic.runbooks.workload import Workload, workload_of

TARGET = ObjectRef("Deployment", "chat")
SECRET = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
BUDGET, RECLAIM, SWITCH, FLAG = (
    "TRIATTN_RUNTIME_KV_BUDGET",
    "TRIATTN_RUNTIME_ENABLE_EXPERIMENTAL_BLOCK_RECLAIM",
    "ENABLE_TRIATTENTION",
    "--no-enable-prefix-caching",
)


def env(**values: str) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def a_template(args: list[str], variables: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": args}
    container |= {"env": variables} if variables else {}
    return {"spec": {"containers": [{"name": "proxy"}, container | more]}}


def a_workload(template: Mapping[str, Any]) -> Workload:
    found = workload_of(TARGET, "uid-1", template, "vllm", (VLLM,))
    assert isinstance(found, Workload), found
    return found


def off(*settings: Setting, method: str = "fp8") -> TurnOff:
    return TurnOff(method, settings, Reason.COMPRESSION_REVERTED, "it saves nothing")


TRI = off(*TRIATTENTION.settings, method="TriAttention")
TUNED = [*env(**{BUDGET: "4096"}), SECRET, *env(**{RECLAIM: "1", SWITCH: "1"})]
