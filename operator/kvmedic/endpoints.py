"""What is configured of addresses outside: secrets, files, URLs, and where notifications go.

Only an administrator writes them. No message shows a value: the URL of a webhook is a secret itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic.alias_generators import to_camel

from kvmedic.api.rules import within


def _check_readable(path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError(f"{path} is not a readable file: mount it, or correct the path")
    return path


ReadableFile = Annotated[Path, AfterValidator(_check_readable)]
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
        places = [data.get(name) for name in ("file", "env")] if isinstance(data, dict) else []
        if any("://" in place for place in places if isinstance(place, str)):
            raise ValueError("a URL is no path and no variable's name: give it as value")
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


def parse_url(value: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        ValueError: it is none of HTTP, without showing it.
    """
    try:
        parts = urlsplit(value)
    except ValueError:
        raise ValueError("write an http:// or https:// URL with a host") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("write an http:// or https:// URL with a host")
    try:
        is_usable = parts.port is None or parts.port > 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ValueError("write the port as a number from 1 to 65535")
    return parts


_HEADER = re.compile(r"[A-Za-z0-9-]+")
_OWN_HEADERS = frozenset({"connection", "content-length", "content-type", "host", "transfer-encoding"})


def _read_text(secret: Secret) -> str:
    """Return a secret that is one line of text; raises ValueError, which does not show it, and OSError."""
    try:
        text = secret.read()
    except UnicodeError:
        raise ValueError("its file is no text; write the value alone into it") from None
    if not (text.isascii() and text.isprintable()):
        raise ValueError("write printable ASCII characters on one line")
    return text


class NotifyOptions(Section):
    """One destination of notifications: whatever takes a POST with JSON, or Slack's incoming webhooks."""

    url: Secret
    """Whole URL, given in place, in a file or in an environment variable; read for each notification."""
    headers: Mapping[str, Secret] = {}
    """Sent with each notification, such as `Authorization`; read for each, so that rotated ones count."""
    form: Literal["json", "slack"] = "json"
    """Body: `json` (docs/howto/see-it-from-outside.md has its fields), or `slack`, for incoming webhooks."""
    only: Literal["all", "warnings", "pages"] = "warnings"
    """Which are sent. `pages`: that one begins or ends, and all while one lasts. `warnings`: those, and what
    Events of type Warning say. `all`: what every Event says."""
    cluster: Annotated[str, Field(max_length=63, pattern=r"^[-A-Za-z0-9_.]*$")] = ""
    """Name of this cluster, for a destination of several clusters; empty: none is named."""
    timeout: Annotated[timedelta, within("1s", "30s")] = timedelta(seconds=5)
    """How long one try may take. A choice: a distant receiver takes a second to connect and answer."""
    ca_file: ReadableFile | None = None
    """Authorities that may have signed the destination's certificate; without it the public ones."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: Secret) -> Secret:
        try:
            cls._read_url(value)
        except OSError as error:
            raise ValueError(f"its file cannot be read: {error.strerror}; mount it") from None
        return value

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: Mapping[str, Secret]) -> Mapping[str, Secret]:
        for name, secret in value.items():
            if not _HEADER.fullmatch(name):
                raise ValueError("a name has letters, digits and dashes alone; correct it")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"kvmedic sets {name} itself; remove it")
            try:
                _read_text(secret)
            except OSError as error:
                raise ValueError(f"{name}: its file cannot be read: {error.strerror}; mount it") from None
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return value

    @staticmethod
    def _read_url(secret: Secret) -> str:
        url = _read_text(secret)
        if " " in url:
            raise ValueError("write the URL alone, without spaces")
        parts = parse_url(url)
        if parts.username or parts.password:
            raise ValueError("credentials do not belong before the host: use headers")
        return url

    def read_address(self) -> tuple[str, dict[str, str]]:
        """Return the URL and the headers as they are now.

        Raises:
            OSError: a file cannot be read any more.
            ValueError: one cannot be used any more; the message does not show it.
        """
        return self._read_url(self.url), {name: _read_text(each) for name, each in self.headers.items()}
