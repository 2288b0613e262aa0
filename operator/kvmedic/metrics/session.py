"""The HTTP session to one metrics source: who we are, what is accepted as an answer.

`prometheus-api-client` returns `data.result` alone. What it drops (status, warnings, size) is looked
at here, in a hook that sees every response first.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from typing import Any

import requests
from requests.auth import AuthBase
from urllib3.exceptions import ReadTimeoutError

from kvmedic.core.redaction import redact
from kvmedic.metrics.deadline import TimedAdapter
from kvmedic.metrics.options import SourceOptions

_INFO = "PromQL info"
"""Prometheus 2.48 to 2.54 put remarks on style among the warnings, with this prefix."""

_IDENTITY = "identity"
_PARTIAL = b'"isPartial":true'
"""How a cluster of VictoriaMetrics says it (its documentation, "cluster availability"); within a text the
quotes would have backslashes."""

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

    def __init__(self, raw: Any, limit_bytes: int) -> None:
        self._raw, self._limit = raw, limit_bytes

    def stream(self, amount: int, decode_content: bool) -> Iterator[bytes]:  # noqa: FBT001 - urllib3's signature
        """Yield the body in pieces."""
        seen = 0
        try:
            for piece in self._raw.stream(amount, decode_content=decode_content):
                seen += len(piece)
                if seen > self._limit:
                    self._raw.close()
                    raise QueryError(
                        f"answered with more than {self._limit >> 20} MiB; raise responseLimitMib, or keep "
                        "fewer series: drop labels and metrics that nobody uses when scraping"
                    )
                yield piece
        except ReadTimeoutError:
            raise SourceDownError("answers too slowly; raise timeout") from None

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
    # What is encoded may grow beyond every bound before its size is seen: gzip within gzip.
    session.headers["Accept-Encoding"] = _IDENTITY
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


def adapter(options: SourceOptions) -> TimedAdapter:
    """Return the connections: as many as there are queries at once, no retries of their own."""
    return TimedAdapter(pool_maxsize=options.concurrency, max_retries=0)


def _checked(options: SourceOptions) -> Any:
    """Return the hook that reads a response within bounds and refuses what is no complete answer."""
    limit = options.response_limit_mib << 20

    def check(response: requests.Response, **_: object) -> requests.Response:
        if response.is_redirect:
            response.close()
            raise SourceDownError("answered with a redirect; write the URL that it leads to")
        if response.headers.get("Content-Encoding", _IDENTITY).strip().lower() not in {"", _IDENTITY}:
            response.close()
            raise SourceDownError(
                "answered with an encoding, which was not accepted; let no proxy compress its answers"
            )
        response.raw = _BoundedBody(response.raw, limit)
        body = response.content
        if response.status_code != requests.codes.ok:
            raise _refusal(response.status_code, body)
        # Cheap test first: a large answer is parsed once only, by the client.
        if b'"warnings"' in body:
            _refuse_warnings(body)
        if _PARTIAL in body:
            raise PartialDataError("answered with partial data: isPartial")
        return response

    return check


def _refusal(status: int, body: bytes) -> QueryError:
    """Return why the source refused: 400 and 422 concern the one query, everything else all of them."""
    try:
        told = redact(str(json.loads(body)["error"]))[:_QUOTED]
    except (ValueError, KeyError, TypeError, RecursionError):
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
        told = json.loads(body).get("warnings") or []
    except (ValueError, AttributeError, RecursionError):
        return
    warnings = told if isinstance(told, list) else [told]
    serious = [str(one)[:_QUOTED] for one in warnings if not str(one).startswith(_INFO)]
    if serious:
        raise PartialDataError(f"answered with partial data: {serious[0]}")
