"""`kubectl apply -k deploy` installs what the chart installs with its defaults."""

import copy

import pytest
import yaml

from chart.rendering import Object, Rendered, kustomize, render

pytestmark = pytest.mark.light

HELMS_OWN = {"helm.sh/chart", "app.kubernetes.io/managed-by"}
CONFIG_HASH = "kvmedic.io/config-hash"


def plain(rendered: Rendered) -> dict[tuple[str, str], Object]:
    """The objects without what only Helm, or only kustomize's generator, puts on them."""
    config = next(name for kind, name in rendered if kind == "ConfigMap")
    return {
        (kind, "config" if name == config else name): _plain(document, config)
        for (kind, name), document in rendered.items()
        if kind != "Namespace"
    }


def _plain(document: Object, config: str) -> Object:
    left = copy.deepcopy(document)
    metadata = left["metadata"]
    metadata["labels"] = {k: v for k, v in metadata.get("labels", {}).items() if k not in HELMS_OWN}
    metadata.get("annotations", {}).pop("helm.sh/resource-policy", None)
    if left["kind"] == "ConfigMap":
        metadata["name"] = "config"
        left["data"] = {name: yaml.safe_load(text) for name, text in left["data"].items()}
    if left["kind"] == "CustomResourceDefinition":
        metadata["labels"] = {}
    if left["kind"] == "Deployment":
        template = left["spec"]["template"]
        assert template["spec"]["volumes"][0]["configMap"]["name"] == config
        template["spec"]["volumes"][0]["configMap"]["name"] = "config"
        template["metadata"]["labels"].pop("app.kubernetes.io/version", None)
        template["metadata"].pop("annotations", None)
    return left | {"metadata": {key: value for key, value in metadata.items() if value}}


def test_kustomize_and_chart_make_the_same_objects():
    chart, base = plain(render()), plain(kustomize())

    assert base.keys() == chart.keys()
    assert {key: base[key] for key in base if base[key] != chart[key]} == {}


def test_the_namespace_of_the_base_admits_restricted_pods_only():
    labels = kustomize()["Namespace", "kvmedic-system"]["metadata"]["labels"]

    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
