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
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as UnreadableVariable
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.frame import (
    BudgetOptions,
    CompressionOptions,
    HealthOptions,
    KubernetesOptions,
    LeadershipOptions,
    PaceOptions,
    ProcessOptions,
    StormOptions,
)
from kvmedic.metrics.options import ProbeOptions, ScrapeOptions, SourceOptions

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


def load() -> Settings:
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
        raise SettingsError(_told(error, origin)) from None
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


def _told(error: ValidationError, origin: str) -> str:
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
