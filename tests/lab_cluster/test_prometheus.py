"""The lab's Prometheus labels, forgets and remembers as an installation does."""

import re
import signal
import time
import urllib.error

import pytest

from lab.cluster.api import until
from lab.prometheus import PodScrape, Prometheus, cluster_prometheus
from worlds.http_double import Reply, Server

LABELS = {"namespace": "serving", "pod": "a-1", "container": "vllm", "job": "lab/engines"}


def test_series_carry_their_targets_labels_go_stale_with_it_and_outlive_a_restart():
    page = Reply(body=b"vllm:num_requests_running 3\n", headers={"Content-Type": "text/plain"})
    exporter = Server(lambda _: page)
    targets = {exporter.address: LABELS}
    with exporter, Prometheus(static_targets=targets, scrape_interval="1s") as prometheus:
        (series,) = prometheus.await_samples("vllm:num_requests_running")
        prometheus.set_targets({})
        until(lambda: not prometheus.query("vllm:num_requests_running"), 40, "the series is stale")
        assert prometheus.active_targets() == []

        url = prometheus.url
        prometheus.stop(signal.SIGTERM)
        with pytest.raises(urllib.error.URLError):
            prometheus.query("up")
        prometheus.start()
        (again,) = prometheus.query("last_over_time(vllm:num_requests_running[5m])")

    labels = {"instance": exporter.address, **LABELS}
    assert series["metric"] == {"__name__": "vllm:num_requests_running", **labels}
    assert (series["value"][1], again["value"][1], prometheus.url) == ("3", "3", url)


def test_a_history_is_there_from_the_start():
    now = int(time.time())
    samples = "".join(
        f'vllm:num_preemptions_total{{pod="a-1"}} {i} {now - 600 + i * 10}\n' for i in range(60)
    )
    history = f"# TYPE vllm:num_preemptions counter\n{samples}# EOF\n"

    with Prometheus(history=history) as prometheus:
        (series,) = prometheus.query(f"rate(vllm:num_preemptions_total[5m] @ {now})")

    assert float(series["value"][1]) == pytest.approx(0.1, rel=0.02)


def test_a_rule_that_prometheus_would_refuse_is_refused_before_it_starts():
    rule = {"name": "g", "rules": [{"record": "a", "expr": "sum("}]}

    with pytest.raises(ValueError, match="parse error"), Prometheus(rules=[rule]):
        pass


def test_pods_are_found_and_labelled_as_prometheus_operator_does(api, cluster, real_namespace, probe_image):
    code = (
        "import http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'lab_answer 42\\n')\n"
        "h.HTTPServer(('', 8000), H).serve_forever()\n"
    )
    container = {
        "name": "vllm",
        "image": probe_image,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", code],
        "ports": [{"name": "http", "containerPort": 8000}],
    }
    other = {"name": "sidecar", "image": probe_image, "imagePullPolicy": "Never", "command": ["sleep", "600"]}
    spec = {"containers": [container, other], "terminationGracePeriodSeconds": 1}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a-1"}, "spec": spec}, real_namespace)
    found = cluster_prometheus(cluster, [PodScrape(job="lab/probe")], "1s")
    found.port = 0

    with found as prometheus:
        (series,) = prometheus.await_samples(
            f'lab_answer{{namespace="{real_namespace}"}}', timeout_seconds=60
        )

    labels = series["metric"]
    assert re.fullmatch(r"[\d.]+:8000", labels.pop("instance"))
    assert labels == {
        "__name__": "lab_answer",
        "namespace": real_namespace,
        "pod": "a-1",
        "container": "vllm",
        "job": "lab/probe",
        "endpoint": "http",
    }
