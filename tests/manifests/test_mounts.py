"""Which ConfigMap a container's file comes from."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.manifests.engine_file import MountedFile, mounted_file
from kvmedic.manifests.errors import ErrorReason, ManifestError

PATH = "/etc/vllm/engine.yaml"
LIMITS = {"name": "c", "configMap": {"name": "limits"}}


def found(volume: dict[str, Any], *mounts: dict[str, Any], path: str = PATH, **container: Any) -> Any:
    mounts = mounts or ({"name": "c", "mountPath": "/etc/vllm"},)
    template = {"spec": {"volumes": [{"name": "cache", "emptyDir": {}}, volume]}}
    return mounted_file(template, {"volumeMounts": list(mounts), **container}, path)


def at(key: str = "engine.yaml", source: int | None = None) -> MountedFile:
    return MountedFile("limits", key, "c", 1, source)


def items(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "path": path} for key, path in pairs]


def projecting(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"name": "c", "projected": {"sources": list(sources)}}


WITH_ITEMS = {"name": "c", "configMap": {"name": "limits", "items": items(("k", "engine.yaml"))}}
DEEP = {"name": "c", "configMap": {"name": "limits", "items": items(("k", "a/engine.yaml"))}}
OURS = {"configMap": {"name": "limits"}}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        pytest.param(found(LIMITS), at(), id="a directory"),
        pytest.param(
            found(LIMITS, {"name": "c", "mountPath": PATH, "subPath": "other.yaml"}),
            at("other.yaml"),
            id="subPath: a file under another name",
        ),
        pytest.param(found(WITH_ITEMS), at("k"), id="items"),
        pytest.param(
            found(DEEP, {"name": "c", "mountPath": "/etc/vllm", "subPath": "a"}),
            at("k"),
            id="subPath: a directory of items",
        ),
        pytest.param(
            found(LIMITS, {"name": "cache", "mountPath": "/etc"}, {"name": "c", "mountPath": "/etc/vllm"}),
            at(),
            id="the deepest mount counts",
        ),
        pytest.param(
            found(LIMITS, path="vllm/engine.yaml", workingDir="/etc"), at(), id="from the working directory"
        ),
        pytest.param(
            found(projecting({"secret": {"name": "s", "items": items(("a", "b"))}}, OURS)),
            at(source=1),
            id="projected",
        ),
        pytest.param(
            found(projecting({"configMap": {"name": "limits", "items": items(("k", "engine.yaml"))}})),
            at("k", 0),
            id="projected items",
        ),
        pytest.param(
            found(projecting({"serviceAccountToken": {"path": "token"}}, OURS)),
            at(source=1),
            id="a token beside it",
        ),
    ],
)
def test_a_file_of_one_config_map_is_found(result: object, expected: MountedFile) -> None:
    assert result == expected


@pytest.mark.parametrize(
    ("result", "said"),
    [
        pytest.param(
            found(LIMITS, path="/data/x.yaml"), "no volume is mounted at /data/x.yaml", id="no mount"
        ),
        pytest.param(
            found({"name": "c", "emptyDir": {}}), "which is no ConfigMap", id="an init container's work"
        ),
        pytest.param(
            found({"name": "c", "secret": {"secretName": "s"}}), "which is no ConfigMap", id="a secret"
        ),
        pytest.param(
            found({"name": "d", "configMap": {"name": "x"}}), "which is not in the pod", id="no volume"
        ),
        pytest.param(found(WITH_ITEMS, path="/etc/vllm/k"), "gives no file 'k'", id="not among the items"),
        pytest.param(
            found(LIMITS, {"name": "c", "mountPath": "/etc/vllm", "subPathExpr": "$(POD)"}),
            "subPathExpr, which depends on the pod",
            id="subPathExpr",
        ),
        pytest.param(
            found(LIMITS, {"name": "c", "mountPath": PATH}), "a whole volume", id="a volume for a file"
        ),
        pytest.param(
            found(LIMITS, path="/etc/vllm/a/b.yaml"), "gives no file 'a/b.yaml'", id="no keys in folders"
        ),
        pytest.param(
            found(projecting(OURS, {"secret": {"name": "s"}})),
            "several sources of the volume c (configMap, secret)",
            id="two may give it",
        ),
        pytest.param(
            found(projecting({"secret": {"name": "s"}})),
            "several sources of the volume c (secret)",
            id="a projected secret",
        ),
        pytest.param(
            found(projecting({"downwardAPI": {"items": []}})), "which is no ConfigMap", id="downward"
        ),
    ],
)
def test_what_does_not_lead_to_one_config_map_is_named(result: object, said: str) -> None:
    assert isinstance(result, ManifestError)
    assert result.reason is ErrorReason.IN_CONFIG_FILE
    assert said in result.message
