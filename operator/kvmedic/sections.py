"""What all parts of the operator's configuration are made of: durations, files, secrets."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr, model_validator
from pydantic.alias_generators import to_camel

from kvmedic.api.rules import format_duration, parse_duration


def within(low: str, high: str) -> BeforeValidator:
    """Return the rule that a field is a duration in Kubernetes' grammar within bounds, both included."""

    def checked(value: object) -> timedelta:
        if isinstance(value, str):
            value = parse_duration(value)
        if not isinstance(value, timedelta):
            raise ValueError("write a duration such as 500ms, 15s or 2m")  # noqa: TRY004 - pydantic's protocol
        if not parse_duration(low) <= value <= parse_duration(high):
            raise ValueError(f"{format_duration(value)} is out of bounds: use {low} to {high}")
        return value

    return BeforeValidator(checked)


def _readable(path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError(f"{path} is not a readable file: mount it, or correct the path")
    return path


ReadableFile = Annotated[Path, AfterValidator(_readable)]
"""A file that can be read when the operator starts."""


class Section(BaseModel):
    """A part of the configuration. Unknown fields are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _variables_win(cls, data: object) -> object:
        """Drop the file's spelling of a field that a variable sets too."""
        if not isinstance(data, dict):
            return data
        doubled = {to_camel(name) for name in cls.model_fields if name in data and to_camel(name) != name}
        return {key: value for key, value in data.items() if key not in doubled}


class Secret(Section):
    """A value that is never shown: given in place, in a file or in an environment variable."""

    value: SecretStr | None = None
    file: ReadableFile | None = None
    """Read each time it is used; white space at the ends is dropped."""
    env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_text(cls, data: object) -> object:
        return {"value": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if [self.value, self.file, self.env].count(None) != 2:
            raise ValueError("give exactly one of value, file and env")
        if self.env is not None and self.env not in os.environ:
            raise ValueError(f"the environment variable {self.env} is not set: set it, or correct its name")
        return self

    def read(self) -> str:
        """Return the secret as it is now.

        Raises:
            OSError: the file cannot be read any more.
        """
        if self.value is not None:
            return self.value.get_secret_value()
        if self.file is not None:
            return self.file.read_text(encoding="utf-8").strip()
        return os.environ.get(self.env or "", "")
