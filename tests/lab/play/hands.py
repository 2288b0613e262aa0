"""Carries out what a scenario says that happens: by the API server, and by the exporter of the GPUs."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import httpx

from lab.cluster.api import Api
from lab.engine.server import SLOWDOWN
from lab.installation import NAMESPACE
from lab.play.exporter import USED, Exporter
from lab.play.files import merged
from lab.play.manifests import PORT, deployment
from lab.play.schema import (
    FLEET,
    Apply,
    Approve,
    Create,
    Devices,
    Flag,
    Fleet,
    Incident,
    Kill,
    On,
    Patch,
    Resume,
    Slow,
    Stop,
)
from lab.play.witness import EDITOR

STOP: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kvmedic-stop"}}
"""While it exists in the operator's namespace no forward move is made anywhere (the chart's default name)."""
ANSWER_SECONDS = 10.0
"""A thrashing engine on a busy machine answers within a second or two."""


class Hands:
    """Everybody but the operator: the fleet's owner, people at a terminal, the hardware."""

    def __init__(self, api: Api, namespace: str, fleet: Fleet, image: str, exporter: Exporter) -> None:
        self._api, self._namespace, self._image = api, namespace, image
        self._fleet, self._exporter = fleet, exporter
        self._first: tuple[str, ...] = ()

    def meet(self, pods: Sequence[str]) -> None:
        """Note the replicas by age: what happens to the first one happens to the same one to the end."""
        self._first = tuple(pods)

    def tell_devices(self, pods: Sequence[str]) -> None:
        """Give the GPU of each pod that has none yet what the file says of all."""
        if self._fleet.devices is not None:
            self._exporter.meet(self._namespace, pods, self._fleet.devices)

    def device_memory(self) -> dict[str, float]:
        """Return the MiB that each pod's GPU has in use, by its name; empty where nobody measures."""
        return {pod: series[USED] for pod, series in self._exporter.measured(self._namespace).items()}

    def carry_out(self, incident: Incident, digest: str) -> str:
        """Make it happen; return it in one line.

        Raises:
            ApiError: the API server refused.
            HTTPError: an engine did not answer.
        """
        match incident:
            case Devices():
                return self._tell(incident)
            case Slow():
                return self._slow(incident)
            case Kill():
                return self._kill(incident)
            case Patch() | Apply() | Create():
                return self._write(incident)
            case Approve():
                return self._approve(digest)
            case Stop() | Resume():
                return self._stop(incident)
            case _:
                assert_never(incident)

    def _stop(self, incident: Stop | Resume) -> str:
        if isinstance(incident, Resume):
            self.resume()
            return "the operator-wide stop is taken away"
        self._api.apply(STOP, NAMESPACE, manager=EDITOR)
        return "the operator is stopped as a whole"

    def resume(self) -> None:
        """Take the operator-wide stop away; nothing to do where there is none."""
        self._api.delete("ConfigMap", STOP["metadata"]["name"], NAMESPACE)

    def _chosen(self, on: On) -> tuple[str, ...]:
        return {On.FIRST: self._first[:1], On.OTHERS: self._first[1:], On.ALL: self._first}[on]

    def _tell(self, incident: Devices) -> str:
        for pod in self._chosen(incident.on):
            self._exporter.tell(self._namespace, pod, incident.series)
        return f"GPU of {incident.on}: {_told(incident.series)}"

    def _slow(self, incident: Slow) -> str:
        for name in self._chosen(incident.on):
            address = self._api.get("Pod", name, self._namespace)["status"]["podIP"]
            url = f"http://{address}:{PORT}{SLOWDOWN}"
            answer = httpx.post(url, content=str(incident.factor), timeout=ANSWER_SECONDS, trust_env=False)
            answer.raise_for_status()
        return f"engines on {incident.on} replicas take {incident.factor:g} times as long for each step"

    def _kill(self, incident: Kill) -> str:
        gone = self._chosen(incident.on)
        for pod in gone:
            self._api.delete("Pod", pod, self._namespace)
        return f"pods deleted: {', '.join(gone)}"

    def _write(self, incident: Patch | Apply | Create) -> str:
        match incident:
            case Patch():
                return self._patch(incident)
            case Apply():
                return self._apply(incident)
            case Create():
                self._api.create(copy.deepcopy(incident.object), self._namespace)
                return f"{incident.object['kind']} is created"
            case _:
                assert_never(incident)

    def _patch(self, incident: Patch) -> str:
        path = self._api.resource(incident.kind).path(self._namespace, incident.name)
        headers = {"Content-Type": "application/merge-patch+json"}
        params = {"fieldManager": EDITOR}
        self._api.request("PATCH", path, json=incident.patch, headers=headers, params=params)
        return f"{incident.kind}/{incident.name} is edited by hand"

    def _apply(self, incident: Apply) -> str:
        flags: Mapping[str, Flag] = merged(self._fleet.flags, incident.flags)
        self._fleet = self._fleet.model_copy(update={"flags": flags})
        made = deployment(self._fleet, self._image)
        self._api.apply(made, self._namespace, manager=incident.manager)
        return f"Deployment/{FLEET} is applied by {incident.manager}"

    def _approve(self, digest: str) -> str:
        if not digest:
            return "no plan is shown that could be approved"
        approval = {
            "apiVersion": "kvmedic.io/v1alpha1",
            "kind": "KVApproval",
            "metadata": {"generateName": f"{FLEET}-"},
            "spec": {"remediation": FLEET, "digest": digest},
        }
        self._api.create(approval, self._namespace)
        return f"plan {digest} is approved"


def _told(series: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in series.items())
