"""The engine in a pod template, as no cluster is needed to read it."""

from __future__ import annotations

from collections.abc import Mapping

from kvmedic.engines import ENGINES
from kvmedic.model.config_edits import Sight
from kvmedic.model.fleet import ObjectRef
from kvmedic.runbooks.workload import Workload, workload_of


def a_workload(
    *args: str,
    image: str = "vllm/vllm-openai:v0.32.0",
    uid: str = "uid",
    maps: Mapping[str, Sight] | None = None,
    template: Mapping[str, object] | None = None,
    **container: object,
) -> Workload:
    """Return vLLM with arguments, in a Deployment `llm`; `template` is what its pod template has beside."""
    vllm = {"name": "vllm", "image": image, "args": ["--model=m", *args], **container}
    more = dict(template or {})
    spec = more.pop("spec", {})
    assert isinstance(spec, Mapping)
    body = {"spec": {"containers": [vllm], **spec}, **more}
    found = workload_of(ObjectRef("Deployment", "llm"), uid, body, None, ENGINES, maps)
    assert isinstance(found, Workload), found
    return found
