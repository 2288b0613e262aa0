"""The HPA controller asks for external metrics where KEDA registers its adapter; a server stands for that."""

import json
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lab.cluster.api import ApiError, until
from lab.cluster.controlplane import ADMIN
from lab.cluster.light import LightCluster
from lab.cluster.pki import Authority
from lab.keda.installation import NAMESPACE, Ports, aggregation, certified
from worlds.http_double import Reply, Request, Server

PATH = "/apis/external.metrics.k8s.io/v1beta1"
METRIC = "waiting"
FOLLOWED_SECONDS = 60.0
"""The HPA controller looks every 15 s (kube-controller-manager 1.36)."""


def answer(request: Request) -> Reply:
    """As KEDA's adapter answers: what it serves, and three for a metric."""
    if request.path.partition("?")[0] == PATH:
        served = {
            "name": "externalmetrics",
            "singularName": "",
            "namespaced": True,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }
        return a_reply("v1", "APIResourceList", groupVersion=PATH[6:], resources=[served])
    if METRIC not in request.path:
        return Reply(404)
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {"metricName": METRIC, "metricLabels": {}, "timestamp": at, "value": "3"}
    return a_reply(PATH[6:], "ExternalMetricValueList", metadata={}, items=[item])


def a_reply(version: str, kind: str, **fields: Any) -> Reply:
    body = json.dumps({"apiVersion": version, "kind": kind, **fields}).encode()
    return Reply(body=body, headers={"Content-Type": "application/json"})


def serving(authority: Authority, clients: Path) -> ssl.SSLContext:
    """As the adapter serves: with its own certificate, to nobody but the API server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(clients))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(authority.directory / "tls.crt", authority.directory / "tls.key")
    return context


def a_deployment() -> dict[str, Any]:
    labels = {"app": "llm"}
    container = {"name": "vllm", "image": "engine"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llm"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def an_hpa() -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": "1"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "keda-hpa-llm"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
            "minReplicas": 2,
            "maxReplicas": 5,
            "metrics": [{"type": "External", "external": {"metric": {"name": METRIC}, "target": target}}],
        },
    }


def test_a_metric_reaches_the_hpa_controller_through_the_api_server(private_light, tmp_path):
    cluster = private_light(controllers=True)
    authority = certified(tmp_path)
    cluster.create_namespace(NAMESPACE)

    with Server(answer, context=serving(authority, cluster.ca_file)) as adapter:
        ports = Ports(grpc=0, metrics=adapter.port)
        cluster.apply(aggregation(ports, authority.certificate.read_bytes()))
        until(lambda: cluster.api.request("GET", PATH), FOLLOWED_SECONDS, "the adapter is asked")
        cluster.apply([a_deployment(), an_hpa()])
        until(lambda: replicas(cluster) == 3, FOLLOWED_SECONDS, "as many replicas as the metric says")

        asked = [each for each in adapter.requests if METRIC in each.path]
        assert asked[0].headers["X-Remote-User"] == "admin"
        assert asked[0].headers["X-Remote-Group"] == ADMIN
    with pytest.raises(ApiError):
        cluster.api.request("GET", PATH)


def replicas(cluster: LightCluster) -> int:
    return int(cluster.api.get("Deployment", "llm")["spec"]["replicas"])
