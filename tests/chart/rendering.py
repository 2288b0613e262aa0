"""The chart and the kustomize base as objects."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from chart.generated import CHART, NAMESPACE, ROOT
from lab.cluster.toolchain import KUBERNETES, Tool, binary

Object = dict[str, Any]
Values = dict[str, Any]
RELEASE = "kvmedic"
EVERYTHING: Values = {
    "sources": {
        "default": {
            "url": "https://prometheus.monitoring.svc:9090/prefix",
            "headers": {"X-Scope-OrgID": "team-a", "X-Api-Key": {"secret": {"name": "api", "key": "key"}}},
            "params": {"dedup": "true"},
            "bearerTokenSecret": {"name": "prometheus", "key": "token"},
            "ca": {"configMap": {"name": "authority", "key": "root.pem"}},
            "clientCertificateSecret": {"name": "client"},
            "proxy": "http://proxy:3128",
            "timeout": "5s",
            "freshness": "1m30s",
            "resolution": "5s",
            "reuse": "5s",
            "concurrency": 2,
            "responseLimitMib": 64,
            "labels": {"namespace": "exported_namespace", "pod": "exported_pod"},
            "matchers": ['cluster="a"', 'replica!~"b|c"'],
            "deviceMatchers": ['job="nvidia-dcgm-exporter"', 'namespace="gpu-operator"'],
        },
        "batch": {
            "url": "http://batch:9090",
            "basicAuth": {"username": "kvmedic", "passwordSecret": {"name": "login", "key": "password"}},
            "ca": {"secret": {"name": "authority", "key": "ca.crt"}},
        },
    },
    "notify": {
        "default": {
            "urlSecret": {"name": "pager", "key": "url"},
            "headers": {"X-Team": "serving", "Authorization": {"secret": {"name": "pager", "key": "token"}}},
            "only": "pages",
            "timeout": "3s",
            "ca": {"configMap": {"name": "authority", "key": "root.pem"}},
        },
        "chat": {
            "urlSecret": {"name": "slack", "key": "webhook"},
            "form": "slack",
            "only": "all",
            "cluster": "prod-a",
            "ca": {"secret": {"name": "authority", "key": "ca.crt"}},
        },
    },
    "scrape": {
        "timeout": "6s",
        "urlTemplate": "http://{address}:{port}/m",
        "port": 8001,
        "responseLimitMib": 4,
    },
}
"""Values with every option of `sources`, `notify` and `scrape`."""


class Rendered(dict[tuple[str, str], Object]):
    """Objects by kind and name; two of the same kind and name stand under `name.namespace`."""

    def kinds(self) -> list[str]:
        """Every kind, once per object, sorted."""
        return sorted(kind for kind, _ in self)


def helm(arguments: Sequence[str], values: Values | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm; values go in by standard input."""
    argv = [str(binary(Tool.HELM)), *arguments, *([] if values is None else ["--values", "-"])]
    text = None if values is None else json.dumps(values)
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=False)


def template(
    values: Values | None = None, release: str = RELEASE, namespace: str = NAMESPACE
) -> subprocess.CompletedProcess[str]:
    """`helm template` without the hook of `helm test`, whatever comes of it."""
    argv = ["template", release, str(CHART), "--namespace", namespace, "--kube-version", KUBERNETES]
    argv.append("--skip-tests")
    return helm(argv, values or {})


def render(values: Values | None = None, release: str = RELEASE, namespace: str = NAMESPACE) -> Rendered:
    """The chart's objects with these values."""
    done = template(values, release, namespace)
    if done.returncode:
        raise AssertionError(done.stderr)
    return objects(done.stdout)


def hook(values: Values | None = None) -> Object:
    """The pod that `helm test` makes."""
    where = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    argv = ["template", RELEASE, str(CHART), *where, "--show-only", "templates/tests/acts.yaml"]
    return dict(yaml.safe_load(helm(argv, values or {}).stdout))


def refusal(values: Values) -> str:
    """What helm says when it does not take the values."""
    done = template(values)
    if done.returncode == 0:
        raise AssertionError(f"helm took {values}")
    return done.stderr


def kustomize(folder: Path = ROOT / "deploy") -> Rendered:
    """The objects of a kustomization."""
    argv = [str(binary(Tool.KUBE)), "kubectl", "kustomize", str(folder)]
    return objects(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def objects(text: str) -> Rendered:
    """A stream of YAML documents by kind and name."""
    rendered = Rendered()
    for document in yaml.load_all(text, Loader=yaml.CSafeLoader):
        if document:
            metadata = document["metadata"]
            key = (document["kind"], metadata["name"])
            rendered[key if key not in rendered else (key[0], f"{key[1]}.{metadata['namespace']}")] = document
    return rendered


def pod_of(rendered: Rendered, name: str = RELEASE) -> Object:
    """The pod template's spec of the operator's Deployment."""
    return dict(rendered["Deployment", name]["spec"]["template"]["spec"])


def configuration(rendered: Rendered) -> Object:
    """The operator's configuration file, parsed."""
    return dict(yaml.safe_load(rendered["ConfigMap", f"{RELEASE}-config"]["data"]["config.yaml"]))
