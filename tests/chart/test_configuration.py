"""The rendered configuration is what the operator reads, and no Secret is in it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.generated import CHART
from chart.rendering import EVERYTHING, Rendered, Values, configuration, pod_of, render
from kvmedic import settings

MOUNTED = "/var/run/kvmedic/credentials"


def mounted(rendered: Rendered) -> dict[str, tuple[str, str, str]]:
    """Paths inside the credentials' volume, each with the kind, name and key that it comes from."""
    return {
        item["path"]: (kind, part["name"], item["key"])
        for volume in pod_of(rendered)["volumes"]
        if volume["name"] == "credentials"
        for projection in volume["projected"]["sources"]
        for kind, part in projection.items()
        for item in part["items"]
    }


def load(rendered: Rendered, directory: Path, monkeypatch: pytest.MonkeyPatch) -> settings.Settings:
    """What the operator makes of the configuration, with each mounted file holding its own path."""
    for path in mounted(rendered):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(f"https://{path}" if path.endswith("/url") else path)
    text = rendered["ConfigMap", "kvmedic-config"]["data"]["config.yaml"]
    file = directory / "config.yaml"
    file.write_text(text.replace(MOUNTED, str(directory)))
    monkeypatch.setenv("KVMEDIC_CONFIG", str(file))
    return settings.load_settings()


def test_the_operator_reads_every_option(tmp_path, monkeypatch):
    read = load(render(EVERYTHING), tmp_path, monkeypatch)

    default, batch = read.sources["default"], read.sources["batch"]
    assert default.url == "https://prometheus.monitoring.svc:9090/prefix"
    assert {name: header.read() for name, header in default.headers.items()} == {
        "X-Scope-OrgID": "team-a",
        "X-Api-Key": "default/header-x-api-key",
    }
    assert default.bearer_token() == "default/token"
    assert (default.ca_file, default.key_file) == (tmp_path / "default/ca.crt", tmp_path / "default/tls.key")
    assert default.timeout.total_seconds() == 5
    assert default.labels.pod == "exported_pod"
    assert (batch.basic_auth.username, batch.basic_auth.password.read()) == ("kvmedic", "batch/password")
    pager, chat = read.notify["default"], read.notify["chat"]
    headers = {"X-Team": "serving", "Authorization": "notify.default/header-authorization"}
    assert pager.read_address() == ("https://notify.default/url", headers)
    assert chat.read_address() == ("https://notify.chat/url", {})
    assert (pager.form, pager.only, pager.timeout.total_seconds()) == ("json", "pages", 3)
    assert (chat.form, chat.only, chat.cluster) == ("slack", "all", "prod-a")
    assert pager.ca_file == tmp_path / "notify.default/ca.crt"
    assert (read.scrape.port, read.scrape.url_template) == (8001, "http://{address}:{port}/m")


def health(read: settings.Settings) -> tuple[object, ...]:
    return read.health.nvidia_smi, read.health.timeout.total_seconds(), read.health.at_once


def probe(read: settings.Settings) -> tuple[object, ...]:
    return read.probe.trial_pods, read.probe.api_key, read.probe.evaluations


HEALTH = {"nodeHealth": {"nvidiaSmi": True, "timeout": "5s", "atOnce": 2}}
OPTIONS = {
    "no sources": ({}, lambda read: read.sources, {}),
    "nobody is notified": ({}, lambda read: read.notify, {}),
    "a log as text": ({}, lambda read: read.process.log_format, "text"),
    "a log in JSON": ({"logFormat": "json"}, lambda read: read.process.log_format, "json"),
    "every namespace will do": ({}, lambda read: read.namespaces.require_label, ""),
    "a label on the namespace": (
        {"namespaces": {"requireLabel": "kvmedic.io/heal=true"}},
        lambda read: read.namespaces.require_label,
        "kvmedic.io/heal=true",
    ),
    "drivers are not asked": ({}, health, (False, 10, 8)),
    "drivers are asked": (HEALTH, health, (True, 5, 2)),
    "trial pods, no key": ({"probe": {"trialPods": True}}, probe, (True, None, False)),
    "evaluations": (
        {"probe": {"trialPods": True, "evaluations": True}},
        probe,
        (True, None, True),
    ),
    "no evaluations": (
        {"probe": {"trialPods": True, "evaluations": False}},
        probe,
        (True, None, False),
    ),
}


@pytest.mark.parametrize(("values", "part", "expected"), OPTIONS.values(), ids=OPTIONS)
def test_the_operator_does_only_what_the_values_say(values, part, expected, tmp_path, monkeypatch):
    assert part(load(render(values), tmp_path, monkeypatch)) == expected


TRIALS: Values = {"probe": {"trialPods": True, "apiKeySecret": {"name": "vllm", "key": "api-key"}}}


def test_the_key_for_engines_under_test_is_read_from_its_file(tmp_path, monkeypatch):
    made = render(TRIALS)

    read = load(made, tmp_path, monkeypatch).probe

    assert read.trial_pods
    assert read.api_key.read() == "probe.api-key"
    assert mounted(made) == {"probe.api-key": ("secret", "vllm", "api-key")}


def test_the_key_is_mounted_beside_those_of_sources_and_only_where_trial_pods_are_made():
    off = {"probe": {**TRIALS["probe"], "trialPods": False}}

    assert mounted(render(EVERYTHING | TRIALS)).items() > mounted(render(EVERYTHING)).items()
    assert "credentials" not in {volume["name"] for volume in pod_of(render(off))["volumes"]}
    assert "probe" not in configuration(render(off))


def test_each_secret_is_mounted_from_where_the_value_says():
    assert mounted(render(EVERYTHING)) == {
        "default/token": ("secret", "prometheus", "token"),
        "default/header-x-api-key": ("secret", "api", "key"),
        "default/ca.crt": ("configMap", "authority", "root.pem"),
        "default/tls.crt": ("secret", "client", "tls.crt"),
        "default/tls.key": ("secret", "client", "tls.key"),
        "batch/password": ("secret", "login", "password"),
        "batch/ca.crt": ("secret", "authority", "ca.crt"),
        "notify.default/url": ("secret", "pager", "url"),
        "notify.default/header-authorization": ("secret", "pager", "token"),
        "notify.default/ca.crt": ("configMap", "authority", "root.pem"),
        "notify.chat/url": ("secret", "slack", "webhook"),
        "notify.chat/ca.crt": ("secret", "authority", "ca.crt"),
    }


def test_the_volume_is_mounted_where_the_configuration_points_and_only_when_needed():
    def mounts(values: Values) -> dict[str, Any]:
        return {m["name"]: m["mountPath"] for m in pod_of(render(values))["containers"][0]["volumeMounts"]}

    assert mounts(EVERYTHING)["credentials"] == MOUNTED
    assert "credentials" not in mounts({"sources": {"default": {"url": "http://prometheus:9090"}}})


def test_secrets_reach_the_container_by_files_alone():
    container = pod_of(render(EVERYTHING))["containers"][0]

    assert "envFrom" not in container
    assert not [variable for variable in container["env"] if "secretKeyRef" in str(variable)]
    assert {variable["name"] for variable in container["env"]} == {
        "KVMEDIC_CONFIG",
        "POD_NAME",
        "POD_NAMESPACE",
    }


def test_the_example_in_the_values_is_a_working_one(tmp_path, monkeypatch):
    comments = [
        line[2:] for line in (CHART / "values.yaml").read_text().splitlines() if line.startswith("#  ")
    ]
    example = yaml.safe_load("\n".join(line for line in comments if "scrape" not in line))
    example["sources"]["default"].pop("basicAuth")  # shown beside the token; one of them is allowed

    read = load(render(example), tmp_path, monkeypatch)

    assert set(configuration(render(example))["sources"]) == {"default"} == set(read.sources)
