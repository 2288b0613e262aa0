"""values.schema.json refuses what the chart or the operator could not use, and names the field."""

import copy
import json
from typing import Any

import pytest
import yaml

from chart.generated import CHART
from chart.rendering import Values, refusal, render
from kvmedic.settings import (
    BudgetOptions,
    CompressionOptions,
    HealthOptions,
    KubernetesOptions,
    LeadershipOptions,
    NotifyOptions,
    PaceOptions,
    ProbeOptions,
    ScrapeOptions,
    SourceOptions,
    StormOptions,
)

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
SOURCE = {"url": "http://prometheus.monitoring.svc:9090"}
FILES = {
    "bearerTokenFile": "bearerTokenSecret",
    "caFile": "ca",
    "certFile": "clientCertificateSecret",
    "keyFile": "clientCertificateSecret",
}
"""The operator's fields that name files, and the values that mount them."""


def without(schema: Values, name: str) -> Values:
    """A schema without a property that is the chart's own matter."""
    return {"properties": {key: value for key, value in schema["properties"].items() if key != name}}


def source(**fields: Any) -> Values:
    return {"sources": {"default": SOURCE | fields}}


def destination(**fields: Any) -> Values:
    return {"notify": {"oncall": {"urlSecret": {"name": "hook", "key": "url"}} | fields}}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"replica": 2}, "'replica'"),
        ({"replicas": "2"}, "/replicas"),
        ({"replicas": 9}, "/replicas"),
        ({"shards": 0}, "/shards"),
        ({"image": {"tags": "1"}}, "'tags'"),
        ({"image": {"repository": ""}}, "/image/repository"),
        ({"image": {"registry": "mirror.example/sub"}}, "/image/registry"),
        ({"image": {"digest": "sha256:1"}}, "/image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"watchNamespaces": "serving"}, "/watchNamespaces"),
        ({"watchNamespaces": ["Serving"]}, "/watchNamespaces/0"),
        ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
        ({"crds": {"enabled": "yes"}}, "/crds/enabled"),
        ({"crds": {"kept": True}}, "'kept'"),
        ({"sources": {"default": {}}}, "'url'"),
        ({"sources": {"De fault": SOURCE}}, "De fault"),
        (source(url="prometheus:9090"), "/sources/default/url"),
        (source(url="http://user:secret@prometheus:9090"), "sources.default.url"),
        (source(url="http://prometheus:9090/?dedup=true"), "/sources/default/url"),
        (source(bearerToken="secret"), "'bearerToken'"),
        (source(bearerTokenFile="/token"), "'bearerTokenFile'"),
        (source(bearerTokenSecret={"name": "a"}), "/sources/default/bearerTokenSecret"),
        (source(basicAuth={"username": "a", "password": "b"}), "'password'"),
        (source(ca={"configMap": {"name": "a", "key": "b"}, "secret": {"name": "a", "key": "b"}}), "/ca"),
        (source(ca={}), "/sources/default/ca"),
        (source(headers={"X Y": "a"}), "X Y"),
        (source(headers={"X-Key": {"secret": {"name": "a"}}}), "/headers/X-Key"),
        (source(proxy="http://user:secret@proxy:3128"), "sources.default.proxy"),
        (source(timeout=10), "/sources/default/timeout"),
        (source(timeout="10 s"), "/sources/default/timeout"),
        (source(concurrency=0), "/sources/default/concurrency"),
        (source(labels={"node": "node"}), "'node'"),
        ({"notify": {"On Call": destination()["notify"]["oncall"]}}, "On Call"),
        ({"notify": {"oncall": {"form": "slack"}}}, "'urlSecret'"),
        (destination(url="https://hooks/hunter2"), "'url'"),
        (destination(urlSecret={"name": "a"}), "/notify/oncall/urlSecret"),
        (destination(form="teams"), "/notify/oncall/form"),
        (destination(only="tickets"), "/notify/oncall/only"),
        (destination(timeout=5), "/notify/oncall/timeout"),
        (destination(cluster="<!here>"), "/notify/oncall/cluster"),
        (destination(headers={"X-Key": {"secret": {"name": "a"}}}), "/headers/X-Key"),
        (destination(ca={}), "/notify/oncall/ca"),
        ({"scrape": {"port": 0}}, "/scrape/port"),
        ({"pace": {"idle": "soon"}}, "/pace/idle"),
        ({"leadership": {"lease": "mine"}}, "'lease'"),
        ({"kubernetes": {"burst": 0}}, "/kubernetes/burst"),
        ({"budgets": {"fleetShare": 0}}, "/budgets/fleetShare"),
        ({"budgets": {"run": 1}}, "'run'"),
        ({"storm": {"window": "an hour"}}, "/storm/window"),
        ({"scrape": {"addressesFile": "/x"}}, "'addressesFile'"),
        ({"nodeHealth": {"nvidiaSmi": "yes"}}, "/nodeHealth/nvidiaSmi"),
        ({"nodeHealth": {"nvidiaSmi": None}}, "/nodeHealth"),
        ({"nodeHealth": {"nvidia": True}}, "'nvidia'"),
        ({"nodeHealth": {"atOnce": 0}}, "/nodeHealth/atOnce"),
        ({"rbac": {"ownerFields": "yes"}}, "/rbac/ownerFields"),
        ({"probe": {"trialPods": "yes"}}, "/probe/trialPods"),
        ({"probe": {"trialPods": None}}, "/probe"),
        ({"probe": {"trialPods": True, "evaluations": "yes"}}, "/probe/evaluations"),
        ({"probe": {"evaluations": True}}, "probe.evaluations needs probe.trialPods: set both"),
        ({"probe": {"apiKey": "hunter2"}}, "'apiKey'"),
        ({"probe": {"apiKeySecret": {"name": "a"}}}, "/probe/apiKeySecret"),
        ({"monitoring": {"prometheusRule": {"enabled": 1}}}, "/monitoring/prometheusRule/enabled"),
        ({"networkPolicy": {"egress": {}}}, "/networkPolicy/egress"),
        ({"namespaces": {"requireLabel": "kvmedic.io/heal"}}, "/namespaces/requireLabel"),
        ({"terminationGracePeriodSeconds": 1}, "/terminationGracePeriodSeconds"),
        ({"fullnameOverride": "x" * 49}, "/fullnameOverride"),
        ({"fullnameOverride": "9lives"}, "/fullnameOverride"),
        ({"image": {"repository": "kvmedic:1"}}, "/image/repository"),
        ({"image": {"tag": "a b"}}, "/image/tag"),
        ({"serviceAccount": {"name": "My_Account"}}, "/serviceAccount/name"),
        ({"priorityClassName": "High"}, "/priorityClassName"),
        ({"logFormat": "xml"}, "/logFormat"),
        ({"commonLabels": {"team": "a b"}}, "/commonLabels/team"),
        ({"podLabels": {"-team": "a"}}, "'-team' does not match"),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "commonLabels: the chart sets the label"),
        ({"podLabels": {"kvmedic.io/shard": "1"}}, "podLabels: the chart sets the label kvmedic.io/shard"),
        ({"extraEnv": [{"value": "a"}]}, "/extraEnv/0"),
        ({"extraEnv": [{"name": "KVMEDIC_CONFIG"}]}, "extraEnv[0].name: the chart sets KVMEDIC_CONFIG"),
        ({"extraVolumes": [{"name": "config"}]}, "extraVolumes[0].name: there is a volume config already"),
        (
            {"extraVolumeMounts": [{"name": "a", "mountPath": "/a"}]},
            "a is none of extraVolumes; add it there",
        ),
        ({"extraVolumeMounts": [{"name": "a", "mountPath": "a"}]}, "/extraVolumeMounts/0/mountPath"),
        ({"monitoring": {"podMonitor": {"every": "1s"}}}, "'every'"),
        ({"monitoring": {"prometheusRule": {"runbookBase": "docs"}}}, "/prometheusRule/runbookBase"),
        (
            {"monitoring": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
            "enable serviceMonitor or podMonitor",
        ),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_a_bad_value_is_refused_by_name(values, field):
    message = refusal(values)

    assert field in message
    assert "secret@" not in message
    assert "hunter2" not in message


def test_a_missing_service_account_is_asked_for():
    assert "serviceAccount.name" in refusal({"serviceAccount": {"create": False}})


def test_two_identities_for_one_source_are_refused():
    token = {"name": "a", "key": "b"}

    message = refusal(source(bearerTokenSecret=token, basicAuth={"username": "u", "passwordSecret": token}))

    assert "sources.default" in message
    assert "bearerTokenSecret" in message


def test_every_object_of_the_schema_is_closed():
    open_on_purpose = {"global", "affinity", "items", "strings", "quantities"}

    def closed(name: str, node: Any) -> None:
        if not isinstance(node, dict):
            return
        if node.get("type") == "object" and name not in open_on_purpose:
            assert node.get("additionalProperties") is not None, name
        for key, child in node.items():
            closed(key, child)

    closed("values", SCHEMA)


@pytest.mark.parametrize(
    ("options", "schema", "elsewhere"),
    [
        (SourceOptions, SCHEMA["definitions"]["source"], FILES),
        (NotifyOptions, SCHEMA["definitions"]["destination"], {"url": "urlSecret", "caFile": "ca"}),
        (ScrapeOptions, SCHEMA["properties"]["scrape"], {"addressesFile": None}),
        (PaceOptions, SCHEMA["properties"]["pace"], {}),
        (LeadershipOptions, SCHEMA["properties"]["leadership"], {"lease": None}),
        (KubernetesOptions, SCHEMA["properties"]["kubernetes"], {}),
        (HealthOptions, SCHEMA["properties"]["nodeHealth"], {}),
        (
            ProbeOptions,
            without(SCHEMA["properties"]["probe"], "createPriorityClass"),
            {"apiKey": "apiKeySecret"},
        ),
        (BudgetOptions, SCHEMA["properties"]["budgets"], {}),
        (StormOptions, SCHEMA["properties"]["storm"], {"over": None}),
        (CompressionOptions, SCHEMA["properties"]["compression"], {}),
    ],
    ids=[
        "source",
        "notify",
        "scrape",
        "pace",
        "leadership",
        "kubernetes",
        "nodeHealth",
        "probe",
        "budgets",
        "storm",
        "compression",
    ],
)
def test_every_setting_of_the_operator_has_its_value(options, schema, elsewhere):
    settings = set(options.model_json_schema(by_alias=True)["properties"])
    expected = {name for setting in settings if (name := elsewhere.get(setting, setting))}

    assert set(schema["properties"]) == expected


def test_the_defaults_satisfy_the_schema_and_cover_every_property():
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    assert set(defaults) == set(SCHEMA["properties"]) - {"global"}
    assert render(copy.deepcopy(defaults)) == render()
