"""The HTTP session to one metrics source: who we are, what is accepted as an answer.

`prometheus-api-client` returns `data.result` alone. What it drops (status, warnings, size) is looked
at here, in a hook that sees every response first.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from kvmedic.metrics.options import SourceOptions

_INFO = "PromQL info"
"""Prometheus 2.48 to 2.54 put remarks on style among the warnings, with this prefix."""

_QUOTED = 200
"""Characters of a source's own message that are repeated."""


class QueryError(Exception):
    """A query has no complete answer. The text is for a person, and free of secrets."""


class SourceDownError(QueryError):
    """The source cannot be reached, is too slow or refuses us: no other query will fare better."""


class PartialDataError(QueryError):
    """The source says that its answer lacks data."""


class _Identity(AuthBase):
    """Puts credentials on each request; files are read anew, so that rotated ones count."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name, secret in self._options.headers.items():
            request.headers[name] = secret.read()
        token, basic = self._options.bearer_token(), self._options.basic_auth
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        if basic is not None:
            pair = f"{basic.username}:{basic.password.read()}".encode()
            request.headers["Authorization"] = f"Basic {base64.b64encode(pair).decode('ascii')}"
        return request


class _BoundedBody:
    """A response's body that ends with an error when it is too large or comes too slowly."""

    def __init__(self, raw: Any, limit_bytes: int, deadline: float) -> None:
        self._raw, self._limit, self._deadline = raw, limit_bytes, deadline

    def stream(self, amount: int, decode_content: bool) -> Iterator[bytes]:  # noqa: FBT001 - urllib3's signature
        """Yield the body in pieces."""
        seen = 0
        for piece in self._raw.stream(amount, decode_content=decode_content):
            seen += len(piece)
            if seen > self._limit:
                self._raw.close()
                raise QueryError(
                    f"answered with more than {self._limit >> 20} MiB; raise responseLimitMib, or keep "
                    "fewer series: drop labels and metrics that nobody uses when scraping"
                )
            if time.monotonic() > self._deadline:
                self._raw.close()
                raise SourceDownError("answers too slowly; raise timeout")
            yield piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def session_of(options: SourceOptions) -> requests.Session:
    """Return a session with the source's credentials, certificates and checks.

    Nothing of the environment counts (proxies, .netrc), and redirects are refused: both could hand
    credentials to somebody else.
    """
    # At DEBUG it writes whole URLs, whose parameters may be secret.
    logging.getLogger("urllib3").setLevel(logging.INFO)
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0
    session.auth = _Identity(options)
    session.verify = str(options.ca_file) if options.ca_file else True
    if options.cert_file:
        cert, key = str(options.cert_file), options.key_file
        session.cert = (cert, str(key)) if key else cert
    if options.proxy:
        session.proxies = {"all": options.proxy.get_secret_value()}
    session.hooks["response"] = [_checked(options)]
    return session


def adapter(options: SourceOptions) -> HTTPAdapter:
    """Return the connections: as many as there are queries at once, no retries of their own."""
    return HTTPAdapter(pool_maxsize=options.concurrency, max_retries=0)


def _checked(options: SourceOptions) -> Any:
    """Return the hook that reads a response within bounds and refuses what is no complete answer."""
    limit, seconds = options.response_limit_mib << 20, options.timeout.total_seconds()

    def check(response: requests.Response, **_: object) -> requests.Response:
        if response.is_redirect:
            response.close()
            raise SourceDownError("answered with a redirect; write the URL that it leads to")
        response.raw = _BoundedBody(response.raw, limit, time.monotonic() + seconds)
        body = response.content
        if response.status_code != requests.codes.ok:
            raise _refusal(response.status_code, body)
        # Cheap test first: a large answer is parsed once only, by the client.
        if b'"warnings"' in body:
            _refuse_warnings(body)
        return response

    return check


def _refusal(status: int, body: bytes) -> QueryError:
    """Return why the source refused: 400 and 422 concern the one query, everything else all of them."""
    try:
        told = str(json.loads(body)["error"])[:_QUOTED]
    except (ValueError, KeyError, TypeError):
        told = ""
    text = f"answered {status}" + (f": {told}" if told else "")
    if status in {requests.codes.bad_request, requests.codes.unprocessable}:
        return QueryError(text)
    if status in {requests.codes.unauthorized, requests.codes.forbidden}:
        return SourceDownError(f"{text}; check bearerTokenFile, basicAuth and headers")
    return SourceDownError(text)


def _refuse_warnings(body: bytes) -> None:
    """Refuse an answer with warnings: Thanos and others tell so that data is missing.

    Raises:
        PartialDataError: a warning that is more than a remark on style.
    """
    try:
        warnings = json.loads(body).get("warnings") or []
    except (ValueError, AttributeError):
        return
    serious = [str(one)[:_QUOTED] for one in warnings if not str(one).startswith(_INFO)]
    if serious:
        raise PartialDataError(f"answered with partial data: {serious[0]}")
