"""What can go wrong with a call to the API server, sorted by what the caller can do about it.

Messages name the verb, the object, the code and the reason. The server's own text is left out
except where it only speaks of permissions, or is what an admission policy's author wrote: for an invalid
object it quotes the whole object, and a pod template may hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvmedic.model.redaction import redact

RETRIABLE = frozenset({408, 410, 429})
"""Codes below 500 that pass by themselves: a time-out, an expired list page, too many requests."""

NOT_FOUND = 404
CONFLICT = 409
INVALID = 422
FORBIDDEN = 403
DENIALS = ('admission webhook "', "ValidatingAdmissionPolicy '")
"""How an admission policy's words begin, within the server's."""
SILENCE = 'failed calling webhook "'
"""What comes before the name of a webhook that does not answer, within the server's words."""
ENDS = "NamespaceTerminating"
"""Cause of a refused creation (Kubernetes 1.36, apiserver admission plugin namespace/lifecycle)."""
TEXT_LIMIT = 300
"""Characters of a server's text that are kept, so that a message fits into an Event (1,024 bytes)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as messages name it."""

    verb: str
    """`get`, `list`, `patch`, `update`, `create` or `delete`."""
    path: str
    """The object's path on the server, without a query."""

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class ApiError(Exception):
    """A call to the API server did not do what it was asked to; one of three leaves."""

    def __init__(self, call: Call, code: int | None, reason: str) -> None:
        """Name the call, the HTTP code (None when there was no answer) and the reason."""
        answer = reason if code is None else f"{code} {reason}"
        super().__init__(f"{call}: {answer}")
        self.call = call
        self.code = code
        self.reason = reason


class NoCluster(Exception):  # noqa: N818
    """Nothing says where the API server is; the message says where was looked."""


class Unavailable(ApiError):  # noqa: N818 - the name says what to do
    """Nobody knows whether it happened, or the server was too busy: look again later."""


class WebhookSilent(Unavailable):
    """An admission webhook did not answer in time, so nothing was stored: its owner should look."""


class Expired(Unavailable):
    """A watch cannot go on from its version: list anew."""


class Conflict(ApiError):  # noqa: N818
    """The world is not what the call was decided on: look again and decide anew."""


class Refused(ApiError):  # noqa: N818
    """The server will say no again: a person has to change a permission or an object."""


class NamespaceEnds(Refused):
    """Nothing can be created in a namespace that is being deleted; what is in it can be changed still."""


def error_for(call: Call, code: int, body: Mapping[str, Any]) -> ApiError:
    """Return the exception for an answer that is not a success.

    A JSON patch whose `test` failed, or whose path is gone, is answered with code 422 and without
    any `details.causes`, while each validation error has a cause (measured on Kubernetes 1.36;
    apiserver/pkg/endpoints/handlers/patch.go answers the former with NewGenericServerResponse).

    Args:
        body: the `Status` object of the answer; empty where the answer was none.
    """
    reason = str(body.get("reason") or "no reason given")
    if code in RETRIABLE or code >= 500:
        silent = _silent_webhook(body)
        return (WebhookSilent if silent else Unavailable)(call, code, reason + silent)
    if denial := _denial(body):
        return Refused(call, code, redact(f"{reason}: {denial}")[:TEXT_LIMIT])
    if code == CONFLICT:
        return Conflict(call, code, reason)
    if code == INVALID:
        # The cause's own message quotes the value.
        causes = [f"{each.get('field', '?')} {each.get('reason', '?')}" for each in _raw_causes(body)]
        if not causes and call.verb == "patch":
            return Conflict(call, code, "a test of the patch does not hold any more")
        return Refused(call, code, redact(f"{reason}: {', '.join(causes) or 'no field named'}")[:TEXT_LIMIT])
    if code == FORBIDDEN and any(each.get("reason") == ENDS for each in _raw_causes(body)):
        return NamespaceEnds(call, code, "the namespace is being deleted")
    if code == FORBIDDEN:
        return Refused(call, code, redact(f"{reason}: {body.get('message') or 'no message'}")[:TEXT_LIMIT])
    return Refused(call, code, reason)


def _denial(body: Mapping[str, Any]) -> str:
    """Return what an admission policy said, in its own words; empty where none did.

    A webhook answers with any code it likes. Both name themselves first (Kubernetes 1.36,
    apiserver/pkg/admission/plugin: webhook/errors/statuserror.go, policy/validating/dispatcher.go).
    """
    text = str(body.get("message") or "")
    found = [at for sign in DENIALS if (at := text.find(sign)) >= 0]
    return text[min(found) :] if found and " denied " in text else ""


def _silent_webhook(body: Mapping[str, Any]) -> str:
    """Return which webhook the API server could not ask, so that it let nothing through; empty: none.

    Of its text only the name (Kubernetes 1.36, apiserver/pkg/admission/plugin/webhook/{mutating,validating}).
    """
    _, found, rest = str(body.get("message") or "").partition(SILENCE)
    name = rest.partition('"')[0]
    return f": webhook {redact(name)} does not answer"[:TEXT_LIMIT] if found and name else ""


def _raw_causes(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [each for each in causes if isinstance(each, Mapping)] if isinstance(causes, list) else []
