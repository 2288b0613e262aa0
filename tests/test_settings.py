"""The operator's configuration: what is refused says which field and how to mend it, and shows no secret."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pytest

from kvmedic.settings import (
    BasicAuth,
    Labels,
    ProbeOptions,
    ScrapeOptions,
    Section,
    SettingsError,
    ShardOptions,
    SourceOptions,
    load_settings,
)

Writer: TypeAlias = Callable[[str], Path]

FULL = """
sources:
  default:
    url: http://prometheus.monitoring.svc:9090/
    headers: {X-Scope-OrgID: team-a}
    bearerTokenFile: {token}
    params: {dedup: "true"}
    timeout: 7s
    freshness: 90s
    resolution: 500ms
    labels: {pod: exported_pod}
  thanos-2:
    url: https://thanos.example/prefix
    basicAuth: {username: me, password: {env: THANOS_PASSWORD}}
scrape:
  port: 9000
  timeout: 6s
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    def written(text: str) -> Path:
        token = tmp_path / "token"
        token.write_text("t0ken\n")
        path = tmp_path / "config.yaml"
        path.write_text(text.replace("{token}", str(token)))
        monkeypatch.setenv("KVMEDIC_CONFIG", str(path))
        return path

    monkeypatch.delenv("KVMEDIC_CONFIG", raising=False)
    return written


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THANOS_PASSWORD", "pa55")


def test_without_a_file_there_are_no_sources(write: Writer) -> None:
    settings = load_settings()

    assert settings.sources == {}
    assert settings.scrape.port == 8000


def test_a_file_is_read_in_kubernetes_spelling(write: Writer) -> None:
    write(FULL)

    settings = load_settings()

    default, thanos = settings.sources["default"], settings.sources["thanos-2"]
    assert default.url == "http://prometheus.monitoring.svc:9090"
    assert default.bearer_token() == "t0ken"
    assert default.timeout == timedelta(seconds=7)
    assert default.resolution == timedelta(milliseconds=500)
    assert (default.labels.namespace, default.labels.pod) == ("namespace", "exported_pod")
    assert thanos.basic_auth.password.read() == "pa55"
    assert (settings.scrape.port, settings.scrape.timeout) == (9000, timedelta(seconds=6))


def test_a_variable_overrides_one_field_of_the_file(write: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    write(FULL)
    monkeypatch.setenv("KVMEDIC_SOURCES__DEFAULT__URL", "http://127.0.0.1:9090")
    monkeypatch.setenv("KVMEDIC_SOURCES__DEFAULT__FRESHNESS", "30s")
    monkeypatch.setenv("KVMEDIC_SOURCES__DEFAULT__RESPONSE_LIMIT_MIB", "5")
    monkeypatch.setenv("KVMEDIC_SOURCES__OTHER__URL", "http://127.0.0.1:9091")

    settings = load_settings()

    default = settings.sources["default"]
    assert (default.url, default.freshness) == ("http://127.0.0.1:9090", timedelta(seconds=30))
    assert default.response_limit_mib == 5
    assert default.timeout == timedelta(seconds=7), "what no variable names stays as the file has it"
    assert settings.sources["other"].url == "http://127.0.0.1:9091"


def test_a_variable_wins_over_a_field_that_the_file_spells_in_its_own_way(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(FULL)
    other = tmp_path / "other"
    other.write_text("other-token")
    monkeypatch.setenv("KVMEDIC_SOURCES__DEFAULT__BEARER_TOKEN_FILE", str(other))

    assert load_settings().sources["default"].bearer_token() == "other-token"


def test_service_links_of_kubernetes_are_no_settings(write: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"KVMEDIC_PORT": "tcp://10.0.0.1:80", "KVMEDIC_SERVICE_HOST": "10.0.0.1"}.items():
        monkeypatch.setenv(name, value)

    assert load_settings().sources == {}


HOOK = "notify: {{oncall: {{url: 'https://hooks/T0', {}}}}}"
SOURCE = "sources: {{default: {{url: 'http://p:9090', {}}}}}"
BAD = [
    *(
        (
            f"the matcher {matcher}",
            SOURCE.format(f"matchers: ['cluster=\"a\"', '{matcher}']"),
            f"'{matcher}' is no",
        )
        for matcher in (
            "cluster=a",
            "cluster",
            '{cluster="a"}',
            'a="b", c="d"',
            'a="b"} or up{a="b"',
            '="a"',
            'a=="b"',
        )
    ),
    ("not YAML", "sources: [", "not valid YAML"),
    ("no mapping", "- sources", "write a mapping with"),
    ("an unknown field at the top", "source: {}", "source: no such field; correct its spelling"),
    ("an unknown field of a source", SOURCE.format("token: x"), "sources.default.token: no such field"),
    ("no URL", "sources: {default: {timeout: 1s}}", "sources.default.url: is required; add it"),
    (
        "a name that no resource can use",
        "sources: {Team_A: {url: 'http://p'}}",
        "'Team_A' is no name: use lower-case letters",
    ),
    (
        "another scheme",
        "sources: {default: {url: 'ftp://p'}}",
        "sources.default.url: write an http:// or https:// URL",
    ),
    (
        "no host",
        "sources: {default: {url: 'http://'}}",
        "sources.default.url: write an http:// or https:// URL",
    ),
    ("a query", "sources: {default: {url: 'http://p/?a=b'}}", "query parameters belong in params"),
    (
        "a number for a duration",
        SOURCE.format("timeout: 10"),
        "sources.default.timeout: write a duration such as",
    ),
    ("no duration", SOURCE.format("timeout: soon"), "sources.default.timeout: 'soon' is not a duration"),
    (
        "too short",
        SOURCE.format("freshness: 1s"),
        "sources.default.freshness: 1s is out of bounds: use 5s to 10m",
    ),
    (
        "too many",
        SOURCE.format("concurrency: 99"),
        "sources.default.concurrency: Input should be less than or equal to 16",
    ),
    (
        "a file that is not there",
        SOURCE.format("caFile: /nowhere/ca.crt"),
        "sources.default.caFile: /nowhere/ca.crt is not a readable file",
    ),
    ("a directory", SOURCE.format("bearerTokenFile: /tmp"), "/tmp is not a readable file: mount it"),
    (
        "two identities",
        SOURCE.format("headers: {authorization: x}, bearerTokenFile: {token}"),
        "give only one of bearerTokenFile, basicAuth",
    ),
    ("a key without a certificate", SOURCE.format("keyFile: {token}"), "keyFile needs certFile"),
    (
        "a variable that is not set",
        SOURCE.format("headers: {X: {env: NOT_SET}}"),
        "sources.default.headers.X: the environment variable NOT_SET is not set",
    ),
    ("no origin", SOURCE.format("headers: {X: {}}"), "headers.X: give exactly one of value, file and env"),
    (
        "two origins",
        SOURCE.format("headers: {X: {value: a, env: THANOS_PASSWORD}}"),
        "give exactly one of value, file and env",
    ),
    ("no pod label", SOURCE.format("labels: {pod: ''}"), "sources.default.labels.pod: name a label"),
    (
        "a scrape time-out under what an engine needs",
        "scrape: {timeout: 1s}",
        "scrape.timeout: 1s is out of bounds: use 5s to 1m",
    ),
    (
        "an unknown part of the template",
        "scrape: {urlTemplate: 'http://{ip}/'}",
        "scrape.urlTemplate: use only {address}",
    ),
    (
        "a part of the template without a name",
        "scrape: {urlTemplate: 'http://{}/'}",
        "scrape.urlTemplate: use only {address}",
    ),
    ("no URL to notify", "notify: {oncall: {only: all}}", "notify.oncall.url: is required; add it"),
    (
        "another scheme to notify by",
        "notify: {oncall: {url: 'mailto:me@p'}}",
        "notify.oncall.url: write an http:// or https:// URL",
    ),
    (
        "a file without a URL to notify by",
        "notify: {oncall: {url: {file: {token}}}}",
        "notify.oncall.url: write an http:// or https:// URL",
    ),
    (
        "two lines to notify by",
        'notify: {oncall: {url: "http://p\\nhttp://q"}}',
        "notify.oncall.url: write printable ASCII characters on one line",
    ),
    ("a space", "notify: {oncall: {url: 'http://p /'}}", "notify.oncall.url: write the URL alone"),
    ("a port", "notify: {oncall: {url: 'http://p:0'}}", "notify.oncall.url: write the port as a number"),
    (
        "a URL in the place of a file",
        "notify: {oncall: {url: {file: 'http://p'}}}",
        "notify.oncall.url: a URL is no path and no variable's name: give it as value",
    ),
    (
        "a name that is no label's",
        "notify: {On_Call: {url: 'http://p'}}",
        "'On_Call' is no name: use lower-case letters",
    ),
    ("an unknown form", HOOK.format("form: teams"), "notify.oncall.form: Input should be 'json' or 'slack'"),
    ("an unknown choice", HOOK.format("only: tickets"), "notify.oncall.only: Input should be 'all', 'warn"),
    ("too long to wait", HOOK.format("timeout: 1m"), "notify.oncall.timeout: 1m is out of bounds: use 1s to"),
    (
        "a header of ours",
        HOOK.format("headers: {host: x}"),
        "notify.oncall.headers: kvmedic sets host itself",
    ),
    ("no header", HOOK.format("headers: {'a b': x}"), "notify.oncall.headers: a name has letters, digits"),
    ("two lines", HOOK.format('headers: {X: "a\\nb"}'), "notify.oncall.headers: X: write printable ASCII"),
    ("a cluster's name", HOOK.format("cluster: '<!here>'"), "notify.oncall.cluster: String should match"),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_file_is_refused_with_the_field_and_the_fix(write: Writer, text: str, expected: str) -> None:
    path = write(text)

    with pytest.raises(SettingsError) as refused:
        load_settings()

    assert expected in str(refused.value)
    assert str(path) in str(refused.value)


def test_every_fault_is_named_at_once(write: Writer) -> None:
    write("sources: {a: {url: x}, b: {timeout: 1s}}")

    with pytest.raises(SettingsError) as refused:
        load_settings()

    assert "sources.a.url" in str(refused.value)
    assert "sources.b.url" in str(refused.value)


def test_a_file_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVMEDIC_CONFIG", "/nowhere/config.yaml")

    with pytest.raises(SettingsError, match=r"KVMEDIC_CONFIG=/nowhere/config.yaml: No such file"):
        load_settings()


def test_an_empty_file_is_an_empty_configuration(write: Writer) -> None:
    write("# nothing yet\n")

    assert load_settings().sources == {}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("KVMEDIC_SORUCES__DEFAULT__URL", "x", "KVMEDIC_SORUCES__DEFAULT__URL: no such field; there are"),
        ("KVMEDIC_SOURCES", "{not json", "write JSON, or set one field"),
        ("KVMEDIC_SCRAPE__PORT", "http", "scrape.port: Input should be a valid integer"),
        ("KVMEDIC_SCRAPE__PROT", "1", "scrape.prot: no such field"),
    ],
)
def test_a_bad_variable_is_refused(
    write: Writer, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(SettingsError) as refused:
        load_settings()

    assert expected in str(refused.value)


SECRETS = [
    SOURCE.format("headers: {X: s3cr3t}, timeout: 1h"),
    SOURCE.format("headers: {X: {value: s3cr3t, file: /nowhere}}"),
    SOURCE.format("params: {key: [s3cr3t]}"),
    SOURCE.format("headers: {X: [s3cr3t]}"),
    SOURCE.format("basicAuth: {username: u, password: s3cr3t, realm: s3cr3t}"),
    "sources: {default: {url: 'http://user:s3cr3t@p:9090'}}",
    "sources: {default: {url: 'http://p:9090', proxy: [s3cr3t]}}",
    "sources: s3cr3t",
    "sources: [s3cr3t",
    "probe: {apiKey: [s3cr3t]}",
    "probe: {apiKey: {value: s3cr3t, env: HOME}}",
    "notify: {a: {url: 'ftp://hooks/s3cr3t'}}",
    "notify: {a: {url: 'http://me:s3cr3t@hooks/'}}",
    "notify: {a: {url: 'http://s3cr3t\u2100/'}}",
    "notify: {a: {url: 'http://[s3cr3t/'}}",
    "notify: {a: {url: ['http://hooks/s3cr3t']}}",
    "notify: {a: {url: {file: 'https://hooks/s3cr3t'}}}",
    "notify: {a: {url: {env: 'https://hooks/s3cr3t'}}}",
    HOOK.format('headers: {X: "s3cr3t\\n"}'),
    HOOK.format("headers: {X: [s3cr3t]}"),
    HOOK.format("token: s3cr3t"),
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_refusal_shows_no_secret(write: Writer, text: str) -> None:
    write(text)

    with pytest.raises(SettingsError) as refused:
        load_settings()

    assert "s3cr3t" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_settings_print_without_secrets(write: Writer) -> None:
    write(SOURCE.format("headers: {X: s3cr3t}, params: {k: s3cr3t}, proxy: 'http://u:s3cr3t@proxy'"))

    settings = load_settings()

    assert "s3cr3t" not in f"{settings!r}{settings}{settings.model_dump()}"
    assert settings.sources["default"].secrets() == ("http://u:s3cr3t@proxy", "s3cr3t")


def test_a_destination_is_read_from_where_it_is_kept(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    file.write_text("https://hooks.example/services/s3cr3t?a=b\n")
    write(
        f"notify: {{chat: {{url: {{file: {file}}}, form: slack}}, pager: {{url: 'http://p', only: pages}}}}"
    )
    monkeypatch.setenv("KVMEDIC_NOTIFY__PAGER__URL", "http://[::1]:9000/s3cr3t")
    monkeypatch.setenv("KVMEDIC_NOTIFY__PAGER__HEADERS__TOKEN__ENV", "THANOS_PASSWORD")

    notify = load_settings().notify

    assert notify["chat"].read_address() == ("https://hooks.example/services/s3cr3t?a=b", {})
    assert notify["pager"].read_address() == ("http://[::1]:9000/s3cr3t", {"token": "pa55"})
    assert (notify["chat"].only, notify["pager"].only) == ("warnings", "pages")
    assert "s3cr3t" not in f"{notify!r}{notify}"
    file.write_text("nothing")
    with pytest.raises(ValueError, match="write an http:// or https:// URL"):
        notify["chat"].read_address()


def test_trial_pods_are_off_and_nobody_has_a_key_by_default(write: Writer) -> None:
    probe = load_settings().probe

    assert not probe.trial_pods
    assert not probe.evaluations
    assert probe.api_key is None


def test_settings_of_methods_are_allowed_by_name_or_beginning_and_never_secrets(write: Writer) -> None:
    write("compression: {flags: [--evict], variables: [EVICT, LAB_*]}")
    allowed = load_settings().compression

    write("compression: {variables: [MY_API_KEY]}")
    with pytest.raises(
        SettingsError, match=r"compression\.variables: a flag or variable of a secret"
    ) as refused:
        load_settings()
    write('compression: {variables: ["*"]}')
    with pytest.raises(SettingsError, match=r"compression\.variables"):
        load_settings()

    assert (allowed.flags, allowed.variables) == (("--evict",), ("EVICT", "LAB_*"))
    assert "MY_API_KEY" not in str(refused.value)


def test_evaluations_need_trial_pods(write: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    write("probe: {evaluations: true}")

    with pytest.raises(SettingsError, match=r"probe: evaluations needs trialPods: set both"):
        load_settings()

    monkeypatch.setenv("KVMEDIC_PROBE__TRIAL_PODS", "true")
    assert load_settings().probe.evaluations


@pytest.mark.parametrize("origin", ["s3cr3t", "{value: s3cr3t}", "{file: '{token}'}", "{env: THE_KEY}"])
def test_the_key_for_engines_under_test_comes_from_where_it_is_said(
    write: Writer, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    monkeypatch.setenv("THE_KEY", "s3cr3t")
    write(f"probe: {{trialPods: true, apiKey: {origin}}}").with_name("token").write_text("s3cr3t\n")

    settings = load_settings()

    assert settings.probe.trial_pods
    assert settings.probe.api_key.read() == "s3cr3t"
    assert "s3cr3t" not in f"{settings!r}{settings.model_dump()}"


@pytest.mark.parametrize("model", [SourceOptions, ScrapeOptions, ProbeOptions, BasicAuth, Labels])
def test_every_field_is_described(model: type[Section]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_each_namespace_is_one_shards(write: Writer) -> None:
    shards = [ShardOptions(index=index, count=3) for index in range(3)]
    namespaces = [f"team-{number}" for number in range(300)]

    held = [[each for each in namespaces if shard.covers(each)] for shard in shards]

    assert sorted(each for one in held for each in one) == sorted(namespaces)
    assert all(70 < len(one) < 130 for one in held)
    assert not any(shard.covers("") for shard in shards), "all together are nobody's"
    # For ever: a process of another version, or on another machine, says the same.
    assert [shard.covers("serving") for shard in shards] == [False, True, False]


@pytest.mark.parametrize("label", ["heal", "heal=", "=true", "a/b/c=true", "a=b=c", "a b=c"])
def test_what_is_no_label_with_a_value_is_refused_with_how_to_write_it(write: Writer, label: str) -> None:
    write(f"namespaces: {{requireLabel: '{label}'}}")

    with pytest.raises(SettingsError, match=r"namespaces\.requireLabel: .* write key=value, such as"):
        load_settings()


def test_a_shard_that_there_is_none_of_is_refused(write: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    write("shard: {count: 3}")
    monkeypatch.setenv("KVMEDIC_SHARD__INDEX", "2")
    assert (load_settings().shard.index, load_settings().shard.count) == (2, 3)

    monkeypatch.setenv("KVMEDIC_SHARD__INDEX", "3")
    with pytest.raises(SettingsError, match=r"shard: index 3 is none of 3 shards: count from 0, or raise"):
        load_settings()
