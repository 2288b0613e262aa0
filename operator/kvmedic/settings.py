"""The operator's own configuration: one YAML file, overridden by environment variables.

`KVMEDIC_CONFIG` names the file (a mounted ConfigMap). A variable overrides one field of it, with two
underscores between levels: `KVMEDIC_SOURCES__DEFAULT__URL`. Fields are camelCase in the file, as in
every Kubernetes object, and snake_case in variables. Read once and passed down; files with secrets
are named here and read when they are used, so that rotated ones count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zlib import crc32

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableVariable
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.api.rules import LabelPair, within
from kvmedic.endpoints import NotifyOptions, ReadableFile, Secret, Section, parse_url
from kvmedic.model.redaction import names_secret

MATCHER = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*(?:=~|!~|!=|=)"(?:[^"\\\n]|\\[^\n])*"')
"""One matcher as PromQL writes it."""


class BasicAuth(Section):
    """HTTP basic authentication."""

    username: str
    """Who asks."""
    password: Secret
    """Given in place, in a file or in an environment variable."""


class Labels(Section):
    """Names of the labels that say whose a series is.

    prometheus-operator sets `namespace` and `pod`; other scrape configurations use names of their own,
    and where an exporter has a label of the same name it becomes `exported_namespace`, `exported_pod`.
    """

    namespace: str = "namespace"
    """Label with the pod's namespace."""
    pod: str = "pod"
    """Label with the pod's name."""

    @field_validator("namespace", "pod")
    @classmethod
    def _label_name(cls, value: str) -> str:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", value):
            raise ValueError(
                "name a label of the source's series, such as pod or exported_pod; without one they cannot "
                "be distinguished safely, because addresses are reused: relabel them when scraping"
            )
        return value


class SourceOptions(Section):
    """One Prometheus, or anything that answers its query API (Thanos, Mimir, VictoriaMetrics)."""

    url: str
    """Base URL, without credentials: `http://prometheus-operated.monitoring.svc:9090`."""
    headers: Mapping[str, Secret] = {}
    """Sent with each query, such as `X-Scope-OrgID`."""
    bearer_token_file: ReadableFile | None = None
    """Read for each query, so that a rotated token counts."""
    basic_auth: BasicAuth | None = None
    """HTTP basic authentication."""
    ca_file: ReadableFile | None = None
    """Authorities that may have signed the source's certificate; without it the public ones (certifi)."""
    cert_file: ReadableFile | None = None
    """Client certificate."""
    key_file: ReadableFile | None = None
    """Key of the client certificate."""
    proxy: SecretStr | None = None
    """URL of an HTTP proxy; those in the environment do not count."""
    params: Mapping[str, SecretStr] = {}
    """Sent with each query, such as `namespace`, or Thanos' `dedup`."""
    timeout: Annotated[timedelta, within("1s", "2m")] = timedelta(seconds=10)
    """How long one query may take. The largest, a histogram of 1,000 replicas over 5 m, took 0.5 s
    (Prometheus 2.42 on two busy cores)."""
    freshness: Annotated[timedelta, within("5s", "10m")] = timedelta(minutes=2)
    """Oldest that a replica's newest sample may be. Two missed scrapes at one minute: a busy engine
    answered a scrape after up to 3.6 s (vLLM 0.32), so one that failed says nothing."""
    resolution: Annotated[timedelta, within("100ms", "1m")] = timedelta(seconds=15)
    """Step at which a hold and presence are sampled; at most the scrape interval."""
    reuse: Annotated[timedelta, within("100ms", "1m")] = timedelta(seconds=10)
    """How long one answer serves everybody who asks the same."""
    concurrency: Annotated[int, Field(ge=1, le=16)] = 4
    """Queries at the same time, at most."""
    response_limit_mib: Annotated[int, Field(ge=1, le=1024)] = 12
    """Size of one answer, at most. A histogram of 1,000 replicas was 7 MB. Memory holds six times as much of
    an answer: four of this size at once, and 100 MiB beside, fit into the 512 MiB that the chart allows."""
    labels: Labels = Labels()
    """Names of the labels that say whose a series is."""
    matchers: tuple[str, ...] = ()
    """In every selector that is sent, such as `cluster="a"` where the source holds several clusters."""
    device_matchers: tuple[str, ...] = ('job=~".*dcgm.*"',)
    """In every selector of a GPU's series, beside `matchers`: the exporters that are believed. Any pod's
    page may carry another pod's name and show a fault of its GPU; a target's `job` and, without
    `honorLabels`, its `namespace` are Prometheus' own words. The default fits the jobs that the charts of
    the DCGM exporter and the GPU operator make (`dcgm-exporter`, `nvidia-dcgm-exporter`). Empty: any
    source of such series is believed."""

    @field_validator("matchers", "device_matchers")
    @classmethod
    def _label_matchers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for matcher in value:
            if not MATCHER.fullmatch(matcher):
                raise ValueError(
                    f"{matcher!r} is no label matcher: write a label, one of = != =~ !~, and a text in "
                    'double quotes, such as cluster="a"'
                )
        return value

    @field_validator("url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        parts = parse_url(value)
        if parts.username or parts.password:
            raise ValueError("credentials do not belong in the URL: use basicAuth")
        if parts.query or parts.fragment:
            raise ValueError("remove what follows ? or #: query parameters belong in params")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        header = any(name.lower() == "authorization" for name in self.headers)
        if [self.bearer_token_file is not None, self.basic_auth is not None, header].count(True) > 1:
            raise ValueError("give only one of bearerTokenFile, basicAuth and a header Authorization")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("keyFile needs certFile: name the client certificate too")
        return self

    def secrets(self) -> tuple[str, ...]:
        """Return every secret text that can be read now, longest first, to keep them out of messages."""
        texts = {text.get_secret_value() for text in (*self.params.values(), *filter(None, [self.proxy]))}
        held = [*self.headers.values(), *([self.basic_auth.password] if self.basic_auth else [])]
        for read in (*(secret.read for secret in held), self.bearer_token):
            with suppress(OSError, UnicodeError):
                texts.add(read())
        return tuple(sorted(texts - {""}, key=len, reverse=True))

    def bearer_token(self) -> str:
        """Return the token as its file holds it now; empty without a file.

        Raises:
            OSError: the file cannot be read any more.
        """
        return self.bearer_token_file.read_text(encoding="utf-8").strip() if self.bearer_token_file else ""


class ScrapeOptions(Section):
    """How a replica's own `/metrics` is read, to count its requests while it drains."""

    timeout: Annotated[timedelta, within("5s", "1m")] = timedelta(seconds=10)
    """At least 5 s: a busy engine answered after up to 3.6 s (vLLM 0.32)."""
    url_template: str = "http://{address}:{port}/metrics"
    """Where a pod's metrics are; `{address}`, `{port}`, `{namespace}` and `{name}` are filled in."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """vLLM's default."""
    addresses_file: ReadableFile | None = None
    """YAML or JSON: `namespace/name` of a pod to the URL of its metrics. Read anew for each scrape; a
    pod that is not listed is asked by the template."""
    response_limit_mib: Annotated[int, Field(ge=1, le=64)] = 1
    """Size of one page, at most. A page of vLLM 0.32 is 0.05 MB, and grows by as much per engine."""

    @field_validator("url_template")
    @classmethod
    def _known_fields(cls, value: str) -> str:
        try:
            value.format(address="127.0.0.1", port=8000, namespace="ns", name="pod")
        except (KeyError, IndexError, ValueError):
            raise ValueError("use only {address}, {port}, {namespace} and {name} in braces") from None
        return value


class ProbeOptions(Section):
    """Tests on trial pods: copies of a target's pod template that nobody leads requests to."""

    trial_pods: bool = False
    """Make such pods. Off: it needs the right to create pods, and each takes a replica's devices a while."""
    evaluations: bool = False
    """Let suspended CronJobs of a target's namespace evaluate them. Off: needs the right to create Jobs."""
    api_key: Secret | None = None
    """Key for engines that ask for one and whose pod template does not have it in plain text. It is sent to
    trial pods alone; who may change a target's template or image can read it there."""

    @model_validator(mode="after")
    def _something_to_evaluate(self) -> Self:
        if self.evaluations and not self.trial_pods:
            raise ValueError(
                "evaluations needs trialPods: set both, because an evaluation is one of a trial pod"
            )
        return self


class PaceOptions(Section):
    """How soon the next look at a resource follows."""

    idle: Annotated[timedelta, within("1s", "10m")] = timedelta(seconds=30)
    """While no run is open. Twice the usual scrape interval (15 s) loses nothing, and queries are shared."""
    verifying: Annotated[timedelta, within("1s", "5m")] = timedelta(seconds=15)
    """While the sustained window is open."""
    replica: Annotated[timedelta, within("100ms", "1m")] = timedelta(seconds=2)
    """While a replica starts or drains."""
    controller: Annotated[timedelta, within("20ms", "10s")] = timedelta(milliseconds=200)
    """Right after an effect: the deployment controller needs 0.2-0.4 s for a pulse (measured on 1.36)."""
    drain_quiet: Annotated[timedelta, within("0s", "5m")] = timedelta(seconds=5)
    """From leaving rotation to the first count of requests: proxies need a moment to see the
    EndpointSlice, and clients with an open connection may send once more."""
    drain_interval: Annotated[timedelta, within("0s", "1m")] = timedelta(seconds=1)
    """Between the two counts of zero that end a drain: one step of a slow engine."""
    spare_limit: Annotated[timedelta, within("5s", "24h")] = timedelta(minutes=15)
    """How long a new replica may stay unschedulable, where `rollout.spareLimit` does not say. Nodes with GPUs
    that an autoscaler adds need 5-10 minutes; where no room is sure, nothing waits."""
    backoff_first: Annotated[timedelta, within("10ms", "1m")] = timedelta(seconds=1)
    """After a look that failed."""
    backoff_most: Annotated[timedelta, within("100ms", "1h")] = timedelta(minutes=1)
    """After many looks that failed in a row."""
    workers: Annotated[int, Field(ge=1, le=256)] = 16
    """Resources that are looked at side by side; each waits for the API most of the time."""


class KubernetesOptions(Section):
    """How the API server is asked."""

    connect_timeout: Annotated[timedelta, within("100ms", "1m")] = timedelta(seconds=5)
    total_timeout: Annotated[timedelta, within("1s", "2m")] = timedelta(seconds=20)
    requests_per_second: Annotated[float, Field(gt=0, le=10000)] = 100.0
    """In the long run. The first look at a fleet is three requests: at a thousand they take half a minute."""
    burst: Annotated[int, Field(ge=1, le=10000)] = 200


class HealthOptions(Section):
    """How the health of replicas' GPUs is known where no series reports it."""

    nvidia_smi: bool = False
    """Run `nvidia-smi` in the engines' containers. Off: it needs the right to run commands in pods."""
    timeout: Annotated[timedelta, within("1s", "30s")] = timedelta(seconds=10)
    """How long one answer may take. Without persistence mode the driver wakes each GPU first, which takes
    seconds; at most as long as a look waits for everybody (30s)."""
    at_once: Annotated[int, Field(ge=1, le=64)] = 8
    """Replicas that are asked side by side: a choice, so that a large fleet does not take all connections."""


class CompressionOptions(Section):
    """What specs may name as settings of a method of compression, beside those of known methods.

    Anyone who may create a KVRemediation can have them set or removed on a Deployment of the same namespace.
    """

    flags: tuple[Annotated[str, Field(pattern=r"^--[A-Za-z][A-Za-z0-9._-]*$", max_length=63)], ...] = ()
    """Flags of the engine, with their dashes."""
    variables: tuple[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(_\*)?$", max_length=63)], ...
    ] = ()
    """Variables of its container; one that ends with `_*` allows all names that begin so, but for those by
    which other code or secrets would come in."""

    @field_validator("flags", "variables")
    @classmethod
    def _no_secrets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(names_secret(name) for name in value):
            raise ValueError("a flag or variable of a secret cannot be allowed, as statuses would show it")
        return value


class LeadershipOptions(Section):
    """Which of several processes acts. The defaults are those of Kubernetes' own controllers."""

    lease: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)] = "kvmedic"
    """Name of the Lease in the operator's namespace; that of one shard of several ends with its index."""
    duration: Annotated[timedelta, within("2s", "5m")] = timedelta(seconds=15)
    """How long others leave a Lease alone that does not change; whole seconds."""
    margin: Annotated[timedelta, within("100ms", "2m")] = timedelta(seconds=5)
    """How much earlier its holder stops to act: longer than a write takes to arrive."""
    retry: Annotated[timedelta, within("100ms", "1m")] = timedelta(seconds=2)
    """Between two tries to take or renew it."""
    attempt: Annotated[timedelta, within("100ms", "1m")] = timedelta(seconds=4)
    """How long one try may take."""
    notice: Annotated[timedelta, within("0s", "5m")] = timedelta(seconds=40)
    """How long a new installation of some namespaces waits for one of the whole cluster to object."""


SHARDS = 64
"""Shards, at most: each is a process, and asks each metrics source for everybody."""


class ShardOptions(Section):
    """Which namespaces this operator looks after, where several share a cluster. By default all."""

    index: Annotated[int, Field(ge=0, lt=SHARDS)] = 0
    """Which shard this is; the first is 0."""
    count: Annotated[int, Field(ge=1, le=SHARDS)] = 1
    """How many there are. Every one must have the same; where it changes, end all of them first."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.index >= self.count:
            raise ValueError(
                f"index {self.index} is none of {self.count} shards: count from 0, or raise count"
            )
        return self

    def covers(self, namespace: str) -> bool:
        """Return whether a namespace is this shard's, as every process says; all together are nobody's."""
        return bool(namespace) and crc32(namespace.encode()) % self.count == self.index


class NamespaceOptions(Section):
    """What a namespace must have before a fleet in it is changed."""

    require_label: LabelPair = ""
    """Label as key=value, such as kvmedic.io/heal=true. Fleets of a namespace without it are only diagnosed:
    no run is opened; a run that is open goes on. Empty: every namespace will do."""


class BudgetOptions(Section):
    """How many runs may be open at once. The defaults are choices, not measurements: each open run takes a
    spare replica's devices and holds a change that nobody has judged yet, so that a wrong one should meet
    few fleets. Ways back are never counted. Each shard has budgets of its own."""

    runs: Annotated[int, Field(ge=1, le=1000)] = 4
    """Of this operator."""
    runs_per_namespace: Annotated[int, Field(ge=1, le=1000)] = 2
    """Of one namespace."""
    fleet_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of all targets that this operator looks after (ratio); rounded down, and one run may always be open."""


class StormOptions(Section):
    """When so many runs end badly that no new one is opened anywhere. Open runs are ended, forward or back.

    The bounds keep everything that counts within the 24 hours that a resource's ten closed runs cover."""

    runs: Annotated[int, Field(ge=1, le=100)] = 3
    """Bad ends that trip the breaker. A choice: one is chance, two may be one fleet, three are a pattern."""
    window: Annotated[timedelta, within("1m", "12h")] = timedelta(hours=1)
    """Time between the first and the last of them, at most. With the usual cooldown (30m) one fleet alone
    hardly gets there."""
    lasts: Annotated[timedelta, within("1m", "12h")] = timedelta(hours=1)
    """How long after the last of them no run is opened: time for a person to look."""
    over: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)] = (
        "kvmedic-storm-over"
    )
    """Name of the ConfigMap in the operator's namespace by which an administrator says that it is over."""


class ProcessOptions(Section):
    """The process itself."""

    namespace: str = Field(default_factory=lambda: os.environ.get("POD_NAMESPACE", "kvmedic-system"))
    """The operator's own namespace: its Lease and the stop ConfigMap are there."""
    identity: str = Field(default_factory=lambda: os.environ.get("POD_NAME", f"kvmedic-{os.getpid()}"))
    """This process among others; the pod's name."""
    release: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)] = "kvmedic"
    """The installation that this process and its shards belong to: the release's name."""
    watch: tuple[str, ...] = ()
    """Namespaces whose resources are looked after; empty: all."""
    stop: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)] = "kvmedic-stop"
    """Name of the ConfigMap that stops every forward move while it exists."""
    liveness: str = "http://0.0.0.0:8080/healthz"
    """Address of the liveness endpoint; empty: no endpoint."""
    telemetry_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    """Port of the operator's own metrics; 0: no endpoint."""
    log_format: Literal["text", "json"] = "text"
    """Form of a log line: `text` is key=value, `json` one object with time, level, logger and message."""


FILE_VARIABLE = "KVMEDIC_CONFIG"
"""Names the configuration file; without it only environment variables count."""
PREFIX = "KVMEDIC_"
_LEVELS = "__"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
"""Of a source, the same as a resource's `spec.metrics.source`, and of a destination."""


class SettingsError(ValueError):
    """The configuration cannot be used; the message names each field at fault and the fix, and no value."""


class Settings(BaseSettings):
    """Everything that an installation may set. A field at this level is one word, so that its
    environment variable is the prefix and that word."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=_LEVELS,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    sources: Mapping[str, SourceOptions] = {}
    """Metrics sources by the name that resources use. A resource without a name uses `default`."""
    notify: Mapping[str, NotifyOptions] = {}
    """Where notifications of what Events say are sent, by a name for logs and metrics. Empty: nowhere."""
    scrape: ScrapeOptions = ScrapeOptions()
    pace: PaceOptions = PaceOptions()
    kubernetes: KubernetesOptions = KubernetesOptions()
    health: HealthOptions = HealthOptions()
    probe: ProbeOptions = ProbeOptions()
    compression: CompressionOptions = CompressionOptions()
    leadership: LeadershipOptions = LeadershipOptions()
    shard: ShardOptions = ShardOptions()
    namespaces: NamespaceOptions = NamespaceOptions()
    budgets: BudgetOptions = BudgetOptions()
    storm: StormOptions = StormOptions()
    process: ProcessOptions = Field(default_factory=lambda: ProcessOptions())  # noqa: PLW0108 - mypy cannot see the defaults of a class used as a factory

    @field_validator("sources", "notify")
    @classmethod
    def _names(cls, value: Mapping[str, Section]) -> Mapping[str, Section]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name: use lower-case letters, digits and dashes")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the origins: variables win over the file, which is given as arguments."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings


def load_settings() -> Settings:
    """Return the configuration of this process.

    Raises:
        SettingsError: the file or a variable cannot be used.
    """
    path = os.environ.get(FILE_VARIABLE, "")
    content = _content(Path(path)) if path else {}
    origin = path or "the environment"
    _refuse_unknown_variables(os.environ)
    try:
        return Settings(**content)
    except ValidationError as error:
        raise SettingsError(_validation_text(error, origin)) from None
    except UnreadableVariable as error:
        raise SettingsError(f"environment variables: {error}; write JSON, or set one field of it") from None


def _content(path: Path) -> dict[str, Any]:
    """Return a YAML file's mapping."""
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{FILE_VARIABLE}={path}: {error.strerror}; mount the file or unset it") from None
    except (YAMLError, UnicodeDecodeError):
        raise SettingsError(f"{FILE_VARIABLE}={path}: not valid YAML; check it with a linter") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"{FILE_VARIABLE}={path}: write a mapping with {_fields()} at the top")
    return content


def _refuse_unknown_variables(environment: Iterable[str]) -> None:
    """Refuse misspelt variables. Those without two underscores may be Kubernetes' own service links."""
    for name in environment:
        field = name.removeprefix(PREFIX).split(_LEVELS)[0].lower()
        if name.startswith(PREFIX) and _LEVELS in name and field not in Settings.model_fields:
            raise SettingsError(f"{name}: no such field; there are {_fields()}")


def _fields() -> str:
    return ", ".join(sorted(Settings.model_fields))


def _validation_text(error: ValidationError, origin: str) -> str:
    """Return what is wrong, one field after the other, without any value that was given."""
    faults = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in fault["loc"]) or "the whole"
        faults.append(f"{place}: {_sentence(fault['type'], fault['msg'])}")
    return f"configuration from {origin}: " + "; ".join(faults)


def _sentence(kind: str, message: str) -> str:
    match kind:
        case "extra_forbidden":
            return "no such field; correct its spelling or remove it"
        case "missing":
            return "is required; add it"
        case _:
            return message.removeprefix("Value error, ")
