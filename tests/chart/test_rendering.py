"""The chart's objects with each option."""

import copy

import pytest
import yaml

from chart.generated import CHART
from chart.rendering import Object, Rendered, Values, configuration, helm, hook, kustomize, pod_of, render

DEFAULT_KINDS = [
    "ClusterRole",
    "ClusterRole",
    "ClusterRole",
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "CustomResourceDefinition",
    "CustomResourceDefinition",
    "Deployment",
    "NetworkPolicy",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
]


def test_the_chart_is_clean_by_helms_own_rules():
    done = helm(["lint", "--strict", str(CHART)])

    assert done.returncode == 0, done.stdout


def test_the_defaults_make_what_an_installation_needs_and_nothing_else():
    assert render().kinds() == DEFAULT_KINDS


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"podDisruptionBudget": {"enabled": True}}, "PodDisruptionBudget"),
        ({"monitoring": {"serviceMonitor": {"enabled": True}}}, "ServiceMonitor"),
        ({"monitoring": {"podMonitor": {"enabled": True}}}, "PodMonitor"),
        ({"monitoring": {"prometheusRule": {"enabled": True}}}, "PrometheusRule"),
        ({"probe": {"trialPods": True}}, "PriorityClass"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_adds_its_object(values, kind):
    assert render(values).kinds() == sorted([*DEFAULT_KINDS, kind])


@pytest.mark.parametrize(
    ("values", "absent"),
    [
        ({"crds": {"enabled": False}}, {"CustomResourceDefinition"}),
        ({"fence": {"enabled": False}}, {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}),
        ({"serviceAccount": {"create": False, "name": "mine"}}, {"ServiceAccount"}),
        (
            {"rbac": {"create": False, "aggregateToDefaultRoles": False}},
            {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"},
        ),
    ],
    ids=["crds", "fence", "serviceAccount", "rbac"],
)
def test_an_option_leaves_its_objects_out(values, absent):
    assert set(render(values).kinds()) == set(DEFAULT_KINDS) - absent


def test_the_crd_is_kept_on_uninstall_by_default():
    crd = ("CustomResourceDefinition", "kvremediations.kvmedic.io")

    kept, given_up = render()[crd], render({"crds": {"keep": False}})[crd]

    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "helm.sh/resource-policy" not in given_up["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "kvmedic:0.1.0"),
        ({"tag": "2"}, "kvmedic:2"),
        (
            {"registry": "mirror.example:5000", "repository": "ops/kvmedic"},
            "mirror.example:5000/ops/kvmedic:0.1.0",
        ),
        ({"tag": "2", "digest": f"sha256:{'0' * 64}"}, f"kvmedic@sha256:{'0' * 64}"),
    ],
    ids=["default", "tag", "registry", "digest wins"],
)
def test_the_image_is_named_by_its_parts(image, expected):
    assert pod_of(render({"image": image}))["containers"][0]["image"] == expected


def test_the_release_gives_its_name_and_an_override_wins():
    assert ("Deployment", "prod-kvmedic") in render(release="prod")
    assert ("Deployment", "healer") in render({"fullnameOverride": "healer"}, release="prod")


def test_scheduling_options_reach_the_pod():
    options: Values = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": 45,
        "imagePullSecrets": [{"name": "mirror"}],
    }

    pod = pod_of(render(options))

    assert {name: pod[name] for name in options} == options


def test_labels_and_annotations_reach_their_objects_and_selectors_stay():
    values: Values = {
        "commonLabels": {"team": "ml", "cost/center": "12"},
        "podLabels": {"team": "serving"},
        "podAnnotations": {"note": "x"},
        "deploymentAnnotations": {"note": "y"},
        "monitoring": {"podMonitor": {"enabled": True, "labels": {"team": "watch"}}},
    }

    made = render(values)

    deployment = made["Deployment", "kvmedic"]
    pod = deployment["spec"]["template"]["metadata"]
    assert {each["metadata"]["labels"]["cost/center"] for each in made.values()} == {"12"}
    assert {key for key, each in made.items() if each["metadata"]["labels"]["team"] != "ml"} == {
        ("PodMonitor", "kvmedic")
    }
    assert pod["labels"].items() >= {"team": "serving", "cost/center": "12"}.items()
    assert (pod["annotations"]["note"], deployment["metadata"]["annotations"]["note"]) == ("x", "y")
    assert deployment["spec"]["selector"] == render()["Deployment", "kvmedic"]["spec"]["selector"]


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_a_monitor_asks_as_its_values_say(kind):
    asked = {
        "interval": "10s",
        "scrapeTimeout": "5s",
        "relabelings": [{"action": "replace", "targetLabel": "cluster", "replacement": "a"}],
        "metricRelabelings": [{"action": "labeldrop", "regex": "pod_template_hash"}],
    }
    name = kind[0].lower() + kind[1:]

    made = render({"monitoring": {name: {"enabled": True, **asked}}})[kind, "kvmedic"]["spec"]

    endpoints = made["endpoints" if kind == "ServiceMonitor" else "podMetricsEndpoints"]
    assert endpoints == [{"port": "metrics", **asked}]


def test_what_is_given_beside_the_charts_own_parts_reaches_the_container():
    token = {"name": "token", "projected": {"sources": []}}
    mount = {"name": "token", "mountPath": "/var/run/token", "readOnly": True}
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}
    before = pod_of(render())

    pod = pod_of(
        render(
            {"extraEnv": [proxy], "extraArgs": ["-v"], "extraVolumes": [token], "extraVolumeMounts": [mount]}
        )
    )

    (container,), (plain,) = pod["containers"], before["containers"]
    assert container["args"] == [*plain["args"], "-v"]
    assert container["env"] == [*plain["env"], proxy]
    assert pod["volumes"] == [*before["volumes"], token]
    assert container["volumeMounts"] == [*plain["volumeMounts"], mount]


def test_a_changed_configuration_is_a_rollout_and_an_unchanged_one_is_not():
    def digest(values: Values) -> str:
        template = render(values)["Deployment", "kvmedic"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["kvmedic.io/config-hash"])

    source = {"sources": {"default": {"url": "http://a:9090"}}}
    assert digest(source) != digest({})
    assert digest(source) == digest(source | {"replicas": 2})


def test_services_monitors_budgets_and_policies_select_the_operators_pods():
    made = render(
        {
            "podDisruptionBudget": {"enabled": True},
            "monitoring": {"serviceMonitor": {"enabled": True}},
        }
    )

    labels = made["Deployment", "kvmedic"]["spec"]["template"]["metadata"]["labels"]
    assert made["Deployment", "kvmedic"]["spec"]["selector"]["matchLabels"] == labels
    assert made["Service", "kvmedic-metrics"]["spec"]["selector"] == labels
    assert made["PodDisruptionBudget", "kvmedic"]["spec"]["selector"]["matchLabels"] == labels
    assert made["NetworkPolicy", "kvmedic"]["spec"]["podSelector"]["matchLabels"] == labels
    monitored = made["ServiceMonitor", "kvmedic"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= made["Service", "kvmedic-metrics"]["metadata"]["labels"].items()


def egress_of(**values: object) -> list[Object]:
    return list(render(values)["NetworkPolicy", "kvmedic"]["spec"]["egress"])


def ports_of(rules: list[Object]) -> list[set[int]]:
    return [{port["port"] for port in rule.get("ports", ())} for rule in rules]


def in_namespaces(*names: str) -> Object:
    selected = (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}} for name in names
    )
    return {"to": list(selected)}


def test_the_operator_reaches_names_the_api_server_engines_and_nothing_else_by_default():
    rules = egress_of()

    assert ports_of(rules) == [{53, 5353}, {443, 6443, 8443, 16443}, set(), {8000}]
    assert "to" not in rules[1], "an ipBlock selects no node under Cilium, where the API server may be on one"
    assert rules[2] == {"to": [{"namespaceSelector": {}}]}


def test_the_way_to_a_source_is_its_port_and_of_few_namespaces_its_own_as_well():
    def ways(url: str, **values: object) -> list[Object]:
        return egress_of(sources={"default": {"url": url}}, **values)[4:]

    few = {"watchNamespaces": ["serving", "batch"]}
    assert ports_of(ways("http://prometheus.monitoring.svc:9090")) == [{9090}]
    assert ports_of(ways("https://metrics.example.org/api")) == [{443}]
    assert ports_of(ways("http://10.0.0.7")) == [{80}]
    assert egress_of(**few)[2] == in_namespaces("serving", "batch")
    assert ways("http://prometheus.monitoring:80", **few)[1:] == [in_namespaces("monitoring")]
    assert ways("http://prometheus.monitoring.svc.cluster.local:80", **few)[1:] == [
        in_namespaces("monitoring")
    ]
    assert ways("http://prometheus:9090", **few)[1:] == [in_namespaces("kvmedic-system")]
    assert ways("https://metrics.example.org", **few)[1:] == []
    assert ways("http://[fd00::7]:9090", **few)[1:] == []


def test_a_network_policy_takes_rules_beside_its_own_and_can_be_left_out():
    everywhere = [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]
    scraper = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    api = {"ports": [26443], "to": everywhere[0]["to"]}

    spec = render({"networkPolicy": {"egress": everywhere, "metricsFrom": scraper, "apiServer": api}})[
        "NetworkPolicy", "kvmedic"
    ]["spec"]

    assert spec["egress"][1]["to"] == api["to"]
    assert ports_of(spec["egress"])[1] == {26443}
    assert spec["egress"][4:] == everywhere
    named, tests = spec["ingress"]
    assert named["from"] == scraper
    assert tests["ports"] == named["ports"]
    (let_in,) = tests["from"]
    assert let_in["podSelector"]["matchLabels"].items() <= hook()["metadata"]["labels"].items()
    assert ("NetworkPolicy", "kvmedic") not in render({"networkPolicy": {"enabled": False}})


def test_the_operator_gets_the_namespaces_to_watch():
    assert configuration(render({"watchNamespaces": ["serving"]}))["process"]["watch"] == ["serving"]
    assert "watch" not in configuration(render())["process"]


def test_each_shard_is_a_deployment_that_knows_its_number_and_may_have_its_lease():
    made = render({"shards": 2})

    roots = {name: each["spec"] for (kind, name), each in made.items() if kind == "Deployment"}
    assert sorted(roots) == ["kvmedic-shard-0", "kvmedic-shard-1"]
    for index, root in enumerate(roots[name] for name in sorted(roots)):
        selected = root["selector"]["matchLabels"]
        env = {each["name"]: each.get("value") for each in root["template"]["spec"]["containers"][0]["env"]}
        assert selected["kvmedic.io/shard"] == str(index)
        assert selected.items() <= root["template"]["metadata"]["labels"].items()
        assert (env["KVMEDIC_SHARD__INDEX"], env["KVMEDIC_SHARD__COUNT"]) == (str(index), "2")
    named = [
        each["resourceNames"] for each in made["Role", "kvmedic-own"]["rules"] if "resourceNames" in each
    ]
    assert ["kvmedic-shard-0", "kvmedic-shard-1"] in named
    assert ["kvmedic"] not in named


def test_the_operator_listens_where_its_container_says():
    made = render()

    ports = {port["name"]: port["containerPort"] for port in pod_of(made)["containers"][0]["ports"]}
    process = configuration(made)["process"]
    assert process["liveness"] == f"http://0.0.0.0:{ports['health']}/healthz"
    assert process["telemetryPort"] == ports["metrics"]


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
    if left["kind"].startswith("ValidatingAdmissionPolicy"):
        # kustomize does not know that they belong to the whole cluster; the API server drops it.
        metadata.pop("namespace", None)
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
