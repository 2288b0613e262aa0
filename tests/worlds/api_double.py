"""An API server on loopback that keeps a few objects, for commands that read and annotate them.

It knows what a resource's path is and merges patches (RFC 7386) and JSON patches of `test`, `add` and
`replace`; it validates nothing. What needs admission, watches or controllers is tested on the light tier.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from typer.testing import CliRunner, Result

from kvmedic.api.status import record_to_wire
from kvmedic.cli.app import app_for
from kvmedic.model.reasons import Reason
from kvmedic.model.run import CostSoFar, StepState
from kvmedic.model.status import Condition, ConditionType, Record, Truth, phase
from run_builder import NOW, a_run, an_intent
from worlds.http_double import Reply, Request, Server

_PATH = re.compile(
    r"/apis?/(?P<version>.+?)(?:/namespaces/(?P<ns>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?"
)
KINDS = {"kvremediations": "KVRemediation", "configmaps": "ConfigMap", "deployments": "Deployment"}
FLEETS = "kvmedic.io/v1alpha1"


CALM = Record(
    observed_generation=3,
    conditions=(
        Condition(ConditionType.READY, Truth.TRUE, Reason.TARGET_FOUND, "found", NOW, 3),
        Condition(ConditionType.DIAGNOSED, Truth.FALSE, Reason.HEALTHY, "0 of 3 replicas", NOW, 3),
    ),
)


def walking() -> Record:
    """Return a record with an open run on two of three replicas."""
    run = replace(
        a_run(StepState.ROLLING_OUT, an_intent(2, "Pulse")), cost_so_far=CostSoFar(NOW, 1, 60.0, 2, 1)
    )
    condition = Condition(
        ConditionType.PROGRESSING, Truth.TRUE, Reason.COMPARING_REPLICAS, "beside old ones", NOW, 3
    )
    return replace(CALM, run=run, conditions=(*CALM.conditions, condition))


def a_resource(
    name: str, record: Record | None = None, namespace: str = "serving", **spec: Any
) -> dict[str, Any]:
    """Return a KVRemediation whose status holds a record."""
    body: dict[str, Any] = {
        "apiVersion": FLEETS,
        "kind": "KVRemediation",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "generation": 3,
            "creationTimestamp": "2026-03-01T00:00:00Z",
        },
        "spec": {"targetRef": {"kind": "Deployment", "name": name}, "mode": "Auto", **spec},
    }
    if record is not None:
        body["status"] = record_to_wire(record, phase(record))
    return body


@dataclass
class ApiDouble:
    """Objects by path; `refuses` names verbs and plurals that are answered with 403."""

    now: datetime
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    refuses: set[tuple[str, str]] = field(default_factory=set)
    writes: list[tuple[str, str, Any]] = field(default_factory=list)
    """Method, path and body of each write that was let through."""
    version: int = 100

    def add(self, *bodies: Mapping[str, Any], plural: str = "kvremediations") -> None:
        for body in bodies:
            self._store(str(body.get("apiVersion", "v1")), plural, dict(body))

    def _store(self, version: str, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        root = "apis" if "/" in version else "api"
        metadata = body["metadata"]
        metadata["resourceVersion"] = str(self.version)
        self.objects[f"/{root}/{version}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"] = (
            body
        )
        return body

    def one(self, plural: str, name: str) -> dict[str, Any]:
        return next(body for path, body in self.objects.items() if path.endswith(f"/{plural}/{name}"))

    def answer(self, request: Request) -> Reply:
        url = urlsplit(request.path)
        where = _PATH.fullmatch(url.path)
        assert where is not None, url.path
        if (request.method, where["plural"]) in self.refuses:
            return self._reply(403, {"kind": "Status", "reason": "Forbidden", "message": "not allowed"})
        query = {key: many[0] for key, many in parse_qs(url.query).items()}
        body = json.loads(request.body) if request.body else {}
        if request.method == "GET" and not where["name"]:
            return self._list(url.path, where, query)
        return self._one(request, url.path, where, body)

    def _list(self, path: str, where: re.Match[str], query: Mapping[str, str]) -> Reply:
        if query.get("watch"):
            return self._reply(410, {"kind": "Status", "reason": "Expired", "code": 410})
        meant = [each for place, each in self.objects.items() if f"/{where['plural']}/" in place]
        found = [each for each in meant if not where["ns"] or each["metadata"]["namespace"] == where["ns"]]
        labels = dict(pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair)
        found = [each for each in found if labels.items() <= each["metadata"].get("labels", {}).items()]
        return self._reply(200, {"items": found, "metadata": {"resourceVersion": str(self.version)}})

    def _one(self, request: Request, path: str, where: re.Match[str], body: Any) -> Reply:
        if request.method == "POST":
            name = body["metadata"]["name"]
            if f"{path}/{name}" in self.objects:
                return self._reply(409, {"kind": "Status", "reason": "AlreadyExists"})
            self.writes.append(("POST", path, body))
            body["metadata"] |= {"namespace": where["ns"], "uid": f"uid-{name}"}
            body["metadata"]["creationTimestamp"] = f"{self.now:%Y-%m-%dT%H:%M:%SZ}"
            return self._reply(201, self._store(where["version"], where["plural"], body))
        known = self.objects.get(path)
        if known is None:
            return self._reply(404, {"kind": "Status", "reason": "NotFound"})
        if request.method == "GET":
            return self._reply(200, known)
        self.writes.append((request.method, path, body))
        if request.method == "DELETE":
            return self._reply(200, self.objects.pop(path))
        expected = (body.get("metadata") or {}).pop("resourceVersion", None)
        if expected not in (None, known["metadata"]["resourceVersion"]):
            return self._reply(409, {"kind": "Status", "reason": "Conflict"})
        return self._reply(200, self._store(where["version"], where["plural"], merged(known, body)))

    def _reply(self, status: int, body: Mapping[str, Any]) -> Reply:
        headers = {"Content-Type": "application/json", "Date": format_datetime(self.now, usegmt=True)}
        return Reply(status, json.dumps(body).encode(), headers)


def merged(known: Any, patch: Any) -> Any:
    """Return what a merge patch makes of a value (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(known) if isinstance(known, dict) else {}
    for key, value in patch.items():
        found[key] = merged(found.get(key), value)
    return {key: value for key, value in found.items() if value is not None}


@dataclass
class CommandLine:
    """The command against an API double, in this process."""

    api: ApiDouble
    kubeconfig: Path

    def __call__(self, *arguments: str, typed: str | None = None, **env: str) -> Result:
        options = ["--kubeconfig", str(self.kubeconfig)]
        argv = [arguments[0], *options, *arguments[1:]]
        return CliRunner().invoke(app_for(argv), argv, input=typed, env=env)


def a_command_line(
    stack: ExitStack, directory: Path, now: datetime, bodies: Iterable[Any] = ()
) -> CommandLine:
    """Return the command with a server of its own, which ends with `stack`."""
    api = ApiDouble(now.astimezone(UTC))
    api.add(*bodies)
    server = stack.enter_context(Server(api.answer))
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "serving"}}],
    }
    (directory / "config").write_text(json.dumps(config))
    return CommandLine(api, directory / "config")
