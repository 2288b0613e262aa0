"""Notifications: what Events say, sent to addresses that the administrator named and nobody else.

Events are the record, and a notification is a copy of one: what a kill or a full queue loses is lost. A look
waits for none: each destination has a bounded queue and a task of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any
from uuid import uuid4

import httpx
from prometheus_client import Counter

from kvmedic.endpoints import NotifyOptions
from kvmedic.kube.objects import JsonObject
from kvmedic.model.reasons import Reason
from kvmedic.model.redaction import redact
from kvmedic.model.status import Resource, Severity
from kvmedic.record.events import NOTE_LIMIT, EventSink, Note

LOG = logging.getLogger("kvmedic.notifications")
SCHEMA = "kvmedic.io/notification/v1"
"""Version of the JSON body: fields are added under it, and none is taken away or changes its meaning."""
PAGE_ENDS = (Reason.OBJECTIVES_MET, Reason.SERVED_IN_TIME)
"""That a page is one no more, for those who were notified that it began."""
MOST_WAITING = 256
"""Notifications that wait for one destination, at most. A choice: ten fleets that each go through a run, and
0.5 MB. Beyond it the oldest is dropped: the newest says what is true now."""
PAUSES = (1.0, 4.0, 16.0)
"""Seconds before each further try. A choice: a receiver that is restarted is back within them."""
LONGEST_PAUSE = 60.0
"""Seconds that a destination may ask to be left alone for before a further try (Retry-After), at most."""
LAST_SECONDS = 2.0
"""How long what is queued is still sent once the process is asked to end, of the 10 s that it has."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who notifies."""

    installation: str
    """Namespace and release of the operator."""
    now: Callable[[], datetime]


def is_reported_to(note: Note, only: str) -> bool:
    """Return whether a destination gets a note; see `NotifyOptions.only`."""
    if only == "all" or note.severity is Severity.PAGE or note.reason in PAGE_ENDS:
        return True
    return only == "warnings" and note.warning


def notification(resource: Resource, note: Note, sender: Sender, cluster: str = "") -> JsonObject:
    """Return the JSON body about one note; its text is that of the Event."""
    target = resource.policy.target if resource.policy else None
    return {
        "schema": SCHEMA,
        "id": uuid4().hex,
        "time": sender.now().astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "cluster": cluster or None,
        "installation": sender.installation,
        "namespace": resource.namespace,
        "name": resource.name,
        "target": {"kind": target.kind, "name": target.name} if target else None,
        "reason": note.reason.value,
        "type": "Warning" if note.warning else "Normal",
        "severity": note.severity.value if note.severity else None,
        "run": note.run or None,
        "message": redact(note.message).encode()[:NOTE_LIMIT].decode(errors="ignore"),
        # A stand-in's resource is gone, and there is nothing to explain.
        "next": None if resource.is_stand_in else f"kvmedic explain {resource.name} -n {resource.namespace}",
    }


def slack_message(body: JsonObject) -> JsonObject:
    """Return a notification as Slack's incoming webhooks take it.

    Whatever a tenant wrote stands in code, where nothing becomes a link, a mention or a heading.
    """
    target = body["target"]
    page = "[page] " if body["severity"] == Severity.PAGE.value else ""
    parts = [f"*{page}{body['reason']}*", _code(f"{body['namespace']}/{body['name']}")]
    parts += [_code(f"{target['kind']} {target['name']}")] if target else []
    parts += [f"on {_code(body['cluster'])}"] if body["cluster"] else []
    lines = [" ".join(parts), f"```{_escape_text(body['message'])}```"]
    lines += [_code(body["next"])] if body["next"] else []
    return {"text": "\n".join(lines), "link_names": False, "unfurl_links": False, "unfurl_media": False}


def _code(text: str) -> str:
    return f"`{_escape_text(text)}`"


def _escape_text(text: str) -> str:
    """Return a text that ends no code and in which Slack sees no link and no mention (its three escapes)."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("`", "'")


@lru_cache(maxsize=8)
def load_context(file: str, changed: int) -> ssl.SSLContext:
    """Return what a certificate is checked by; loading takes 40 ms.

    Args:
        file: with authorities; empty: the public ones.
        changed: when, so that a rotated file counts.

    Raises:
        OSError: the file cannot be read, or has no certificates.
    """
    del changed
    return ssl.create_default_context(cafile=file) if file else httpx.create_ssl_context(trust_env=False)


@dataclass(frozen=True, slots=True)
class _Request:
    """Where one notification goes, as the files say it now."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    context: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why a try brought nothing. The text is for a person, and free of secrets."""

    text: str
    may_pass: bool = False
    """Surely nobody took it, and another try may fare better."""
    pause: float = 0.0
    """Seconds that the destination asked for."""


class _Destination:
    """Sends what one destination is to get, one after the other."""

    def __init__(
        self, name: str, options: NotifyOptions, results: Counter, pauses: tuple[float, ...]
    ) -> None:
        self.options = options
        self._name, self._pauses = name, pauses
        self._results = {
            result: results.labels(destination=name, result=result)
            for result in ("sent", "failed", "dropped")
        }
        self._seconds = options.timeout.total_seconds()
        self._waiting: deque[bytes] = deque()
        self._more, self._ends = asyncio.Event(), False
        self._trouble, self._is_full = "", False

    def take(self, body: JsonObject) -> None:
        """Have a notification sent, in the place of the oldest where too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._results["dropped"].inc()
            if not self._is_full:
                text = "notification destination %s: %d wait, and the oldest are dropped; Events have them"
                LOG.warning(text, self._name, MOST_WAITING)
            self._is_full = True
        self._waiting.append(json.dumps(body, ensure_ascii=False).encode())
        self._more.set()

    async def deliver(self) -> None:
        """Send what waits and what comes, until the destination is asked to end."""
        while True:
            while self._waiting:
                await self._send_with_retries(self._waiting.popleft())
            self._is_full = False
            if self._ends:
                return
            self._more.clear()
            await self._more.wait()

    def end(self) -> None:
        """Let `deliver` return once nothing waits."""
        self._ends = True
        self._more.set()

    def drop_waiting(self) -> None:
        """Count what nobody sends any more."""
        self._results["dropped"].inc(len(self._waiting))
        self._waiting.clear()

    async def _send_with_retries(self, body: bytes) -> None:
        """Send one, again where that may help, and say what came of it."""
        result = "failed"
        try:
            trouble = await self._try(body)
            for pause in self._pauses:
                if trouble is None or not trouble.may_pass:
                    break
                await asyncio.sleep(max(pause, trouble.pause))
                trouble = await self._try(body)
            self._report_change(trouble.text if trouble else "")
            result = "failed" if trouble else "sent"
        finally:
            self._results[result].inc()

    async def _try(self, body: bytes) -> _Trouble | None:
        try:
            request = await asyncio.to_thread(self._prepare)
        except ValueError as error:
            return _Trouble(f"has a URL or header that cannot be used: {error}")
        except OSError:
            return _Trouble("has a file of url, headers or caFile that cannot be read any more")
        was_sent = False

        async def note_progress(event: str, _: Any) -> None:
            nonlocal was_sent
            was_sent = was_sent or event.startswith("http11.send_request")

        try:
            async with asyncio.timeout(self._seconds):
                return await self._post(request, body, {"trace": note_progress})
        except (TimeoutError, httpx.TimeoutException):
            return _Trouble(f"did not answer within {self._seconds:g} s", may_pass=not was_sent)
        except httpx.InvalidURL:
            return _Trouble("has a URL that cannot be used")
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                return _Trouble("has a certificate that was refused; check caFile", may_pass=True)
            text = "closed the connection before it answered" if was_sent else "cannot be reached"
            return _Trouble(text, may_pass=not was_sent)

    def _prepare(self) -> _Request:
        file = self.options.ca_file
        context = load_context(str(file), file.stat().st_mtime_ns) if file else load_context("", 0)
        return _Request(*self.options.read_address(), context)

    async def _post(self, request: _Request, body: bytes, extensions: dict[str, Any]) -> _Trouble | None:
        """Post once by a connection of its own, and read nothing of the answer but its head.

        An idle connection may be closed at the other end when it is used again, of which nobody could know
        whether the notification arrived. Nothing of the environment counts (proxies, .netrc).
        """
        headers = {**request.headers, "Content-Type": "application/json"}
        async with (
            httpx.AsyncClient(
                verify=request.context, timeout=self._seconds, trust_env=False, follow_redirects=False
            ) as client,
            client.stream(
                "POST", request.url, content=body, headers=headers, extensions=extensions
            ) as answer,
        ):
            if answer.is_success:
                return None
            if answer.has_redirect_location:
                return _Trouble("answered with a redirect; write the URL that it leads to")
            code = answer.status_code
            may_pass = code == httpx.codes.TOO_MANY_REQUESTS or answer.is_server_error
            return _Trouble(
                f"answered {code}", may_pass, requested_pause(answer.headers.get("Retry-After", ""))
            )

    def _report_change(self, trouble: str) -> None:
        """Log what changed about the destination since the last notification."""
        if trouble and trouble != self._trouble:
            text = "notification destination %s %s; Events have what it misses"
            LOG.warning(text, self._name, trouble)
        elif self._trouble and not trouble:
            LOG.info("notification destination %s takes notifications again", self._name)
        self._trouble = trouble


def requested_pause(header: str) -> float:
    """Return the seconds that a Retry-After asks for, bounded; 0 where it is none."""
    if re.fullmatch(r"[0-9]{1,9}", header):
        return min(float(header), LONGEST_PAUSE)
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    left = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(left, 0.0), LONGEST_PAUSE)


class Notifications:
    """Publishes Events, and sends notifications of them beside."""

    def __init__(
        self,
        events: EventSink,
        destinations: Mapping[str, NotifyOptions],
        sender: Sender,
        results: Counter,
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        # At INFO and DEBUG they write whole URLs and headers, which are secret.
        for name in ("httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._events, self._sender = events, sender
        self._destinations = [
            _Destination(name, options, results, pauses) for name, options in destinations.items()
        ]

    async def publish(self, resource: Resource, note: Note) -> None:
        """Queue a note's notifications and write its Events."""
        for destination in self._destinations:
            options = destination.options
            if is_reported_to(note, options.only):
                body = notification(resource, note, self._sender, options.cluster)
                destination.take(slack_message(body) if options.form == "slack" else body)
        await self._events.publish(resource, note)

    def companions(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return what must run beside; nothing where there is no destination."""
        return (self.send_until_cancelled(),) if self._destinations else ()

    async def send_until_cancelled(self) -> None:
        """Send until cancelled, and then what is queued for a moment more."""
        tasks = [asyncio.create_task(each.deliver(), name="notifications") for each in self._destinations]
        try:
            await asyncio.wait(tasks)
        finally:
            for destination in self._destinations:
                destination.end()
            try:
                await asyncio.wait(tasks, timeout=LAST_SECONDS)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for destination in self._destinations:
                    destination.drop_waiting()
