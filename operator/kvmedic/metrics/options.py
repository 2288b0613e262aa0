"""What an installation may say about its metrics sources and about scraping replicas directly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from kvmedic.metrics.promql import MATCHER
from kvmedic.sections import ReadableFile, Secret, Section, within


def _has_usable_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


class BasicAuth(Section):
    """HTTP basic authentication."""

    username: str
    """Who asks."""
    password: Secret
    """Given in place, in a file or in an environment variable."""


class Labels(Section):
    """Names of the labels that tell whose a series is.

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
                "be told apart safely, because addresses are reused: relabel them when scraping"
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
    """Names of the labels that tell whose a series is."""
    matchers: tuple[str, ...] = ()
    """In every selector that is sent, such as `cluster="a"` where the source holds several clusters."""
    device_matchers: tuple[str, ...] = ('job=~".*dcgm.*"',)
    """In every selector of a GPU's series, beside `matchers`: the exporters that are believed. Any pod's
    page may carry another pod's name and show a fault of its GPU; a target's `job` and, without
    `honorLabels`, its `namespace` are Prometheus' own words. The default fits the jobs that the charts of
    the DCGM exporter and the GPU operator make (`dcgm-exporter`, `nvidia-dcgm-exporter`). Empty: whoever
    shows such series is believed."""

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
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("write an http:// or https:// URL with a host")
        if not _has_usable_port(parts):
            raise ValueError("write the port as a number from 1 to 65535")
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
    """Make such pods. Off: it needs the right to create pods, and each takes
    a replica's devices for a while."""
    evaluations: bool = False
    """Let Jobs evaluate such pods, made of suspended CronJobs of the target's namespace. Off: it needs the
    right to create Jobs."""
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
