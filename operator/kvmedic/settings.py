"""The operator's own configuration: one YAML file, overridden by environment variables.

`KVMEDIC_CONFIG` names the file (a mounted ConfigMap). A variable overrides one field of it, with two
underscores between levels: `KVMEDIC_SOURCES__DEFAULT__URL`. Fields are camelCase in the file, as in
every Kubernetes object, and snake_case in variables. Read once and passed down; files with secrets
are named here and read when they are used, so that rotated ones count.

How the operator's process runs: its pace, its limits, who leads. Sections of the configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableVariable
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.metrics.options import ProbeOptions, ScrapeOptions, SourceOptions
from kvmedic.model.redaction import names_secret
from kvmedic.sections import Section, within


class PaceOptions(Section):
    """How soon the next look at a resource follows."""

    idle: Annotated[timedelta, within("1s", "10m")] = timedelta(seconds=30)
    """While no run is open. Twice the usual scrape interval's freshness (15 s) loses nothing, and the
    queries are shared by all resources of a source."""
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
    spare_limit: Annotated[timedelta, within("5s", "24h")] = timedelta(minutes=5)
    """How long a new replica may stay unschedulable; a node group that scales up needs 2-4 minutes."""
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
    requests_per_second: Annotated[float, Field(gt=0, le=10000)] = 50.0
    """In the long run. One look at a fleet is six reads."""
    burst: Annotated[int, Field(ge=1, le=10000)] = 100


class HealthOptions(Section):
    """How the health of replicas' GPUs is known where no series tells of it."""

    nvidia_smi: bool = False
    """Run `nvidia-smi` in the engines' containers. Off: it needs the right to run commands in pods."""
    timeout: Annotated[timedelta, within("1s", "30s")] = timedelta(seconds=10)
    """How long one answer may take. Without persistence mode the driver wakes each GPU first, which takes
    seconds; at most as long as a look waits for everybody (30s)."""
    at_once: Annotated[int, Field(ge=1, le=64)] = 8
    """Replicas that are asked side by side: a choice, so that a large fleet does not take all connections."""


class CompressionOptions(Section):
    """What specs may name as settings of a method of compression, beside those of known methods.

    Whoever may create a KVRemediation can have them set or removed on a Deployment of the same namespace.
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
    """Name of the Lease in the operator's namespace."""
    duration: Annotated[timedelta, within("2s", "5m")] = timedelta(seconds=15)
    """How long others leave a Lease alone that does not change; whole seconds."""
    margin: Annotated[timedelta, within("100ms", "2m")] = timedelta(seconds=5)
    """How much earlier its holder stops to act: longer than a write takes to arrive."""
    retry: Annotated[timedelta, within("100ms", "1m")] = timedelta(seconds=2)
    """Between two tries to take or renew it."""
    attempt: Annotated[timedelta, within("100ms", "1m")] = timedelta(seconds=4)
    """How long one try may take."""


class BudgetOptions(Section):
    """How many runs may be open at once. The defaults are choices, not measurements: each open run takes a
    spare replica's devices and holds a change that nobody has judged yet, so that a wrong one should meet
    few fleets. Ways back are never counted."""

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
    watch: tuple[str, ...] = ()
    """Namespaces whose resources are looked after; empty: all."""
    stop: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)] = "kvmedic-stop"
    """Name of the ConfigMap that stops every forward move while it exists."""
    liveness: str = "http://0.0.0.0:8080/healthz"
    """Address of the liveness endpoint; empty: no endpoint."""
    telemetry_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    """Port of the operator's own metrics; 0: no endpoint."""


FILE_VARIABLE = "KVMEDIC_CONFIG"
"""Names the configuration file; without it only environment variables count."""

PREFIX = "KVMEDIC_"
_LEVELS = "__"

_SOURCE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
"""The same as a resource's `spec.metrics.source`."""


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
    scrape: ScrapeOptions = ScrapeOptions()
    pace: PaceOptions = PaceOptions()
    kubernetes: KubernetesOptions = KubernetesOptions()
    health: HealthOptions = HealthOptions()
    probe: ProbeOptions = ProbeOptions()
    compression: CompressionOptions = CompressionOptions()
    leadership: LeadershipOptions = LeadershipOptions()
    budgets: BudgetOptions = BudgetOptions()
    storm: StormOptions = StormOptions()
    process: ProcessOptions = Field(default_factory=lambda: ProcessOptions())  # noqa: PLW0108 - mypy cannot see the defaults of a class used as a factory

    @field_validator("sources")
    @classmethod
    def _names(cls, value: Mapping[str, SourceOptions]) -> Mapping[str, SourceOptions]:
        for name in value:
            if not _SOURCE_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} cannot be named by a resource: use lower-case letters, digits, dashes"
                )
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
