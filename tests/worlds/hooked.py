"""A real admission webhook of somebody else's, which the API server asks about every change of a fleet.

It answers in time, or so late that the API server has stopped waiting.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lab.cluster.pki import Authority
from worlds.http_double import HangUpError, Reply, Request, Server
from worlds.phases import PATIENCE_SECONDS
from worlds.world import World

TIMEOUT_SECONDS = 1
"""How long the API server waits for it: the least that it takes (admissionregistration.k8s.io/v1)."""
LATE_SECONDS = 2.0
WORKLOADS = (("apps", "deployments"), ("", "pods"))


@dataclass
class Webhook:
    """Allows every change, in time or too late."""

    name: str
    world: World
    is_late: bool = False
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.server = Server(self._answer, context=self._tls())

    def turn(self, *, late: bool) -> None:
        """Answer late from now on, or in time; returns once the API server meets it so."""
        self.is_late = late
        self.world.wait(lambda: self._is_met() is late, PATIENCE_SECONDS, f"late is {late}")

    def configuration(self) -> dict[str, Any]:
        """Return what makes the API server ask it, and let nothing through where it does not answer."""
        rules = [
            {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [plural]}
            for group, plural in WORKLOADS
        ]
        here = {"matchLabels": {"kubernetes.io/metadata.name": self.world.namespace}}
        authority = base64.b64encode(self._authority.certificate.read_bytes()).decode()
        webhook = {
            "name": self.name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "clientConfig": {"url": f"{self.server.url}/validate", "caBundle": authority},
            "namespaceSelector": here,
            "rules": rules,
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": f"test-{self.world.namespace}"},
            "webhooks": [webhook],
        }

    @property
    def _authority(self) -> Authority:
        return Authority(self.world.directory / "webhook")

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._authority.sign("webhook", "/CN=webhook", ["IP:127.0.0.1"]))
        return context

    def _answer(self, request: Request) -> Reply:
        if self.is_late:
            self.server.released.wait(LATE_SECONDS)
            raise HangUpError  # the API server has gone by now
        asked = json.loads(request.body)
        response = {"uid": asked["request"]["uid"], "allowed": True}
        body = json.dumps({**asked, "request": None, "response": response}).encode()
        return Reply(body=body, headers={"Content-Type": "application/json"})

    def _is_met(self) -> bool | None:
        """Return whether a change meets a webhook that is late; None: it was not asked at all."""
        asked = len(self.server.requests)
        try:
            self.world.kubectl("annotate", "deployment", "llm", "tried=1", "--overwrite", "--dry-run=server")
        except subprocess.CalledProcessError as error:
            return True if f'failed calling webhook "{self.name}"' in str(error.stderr) else None
        return False if len(self.server.requests) > asked else None


@contextmanager
def asked_of(world: World, name: str) -> Iterator[Webhook]:
    """Have the API server ask a webhook about every change of a fleet and its pods."""
    hook = Webhook(name, world)
    with hook.server:
        made = hook.configuration()
        world.cluster.apply(made)
        try:
            hook.turn(late=False)
            yield hook
        finally:
            world.cluster.api.delete(made["kind"], made["metadata"]["name"])
