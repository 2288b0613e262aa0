"""One fleet on the light tier, an operator process behind a proxy, and an eye on what goes."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kvmedic.model.fleet import template_hash
from kvmedic.rollout.orphan_drain import draining_value
from lab.cluster.api import ApiError, is_rolled_out
from lab.cluster.light import LightCluster, gpus
from lab.cluster.watch import Mirror, Watches
from lab.scripted.process import Arrangement, Operator
from lab.scripted.proxy import Fate, Proxy, Write

ROOT = Path(__file__).parent.parent.parent
CRD = ROOT / "crds" / "kvmedic.io_kvremediations.yaml"
APPROVALS_CRD = ROOT / "crds" / "kvmedic.io_kvapprovals.yaml"
SPEED = 60.0
"""The operator's clock runs this much faster, so that a window of a minute is one second."""
START_LIMIT_SECONDS = 21_600
"""How long a new replica may take. The API server's times do not run fast: to the operator a pod that is
made ten seconds after the test began is ten minutes old at once, which is the API's default deadline."""
SERVING, DRAINING = "active", "draining"
POLL_SECONDS = 0.2
"""Between two looks at what no watch shows: the operator's log, its process, a Lease."""


def deployment(replicas: int, **annotations: str) -> dict[str, Any]:
    labels = {"app": "llm", "serving": SERVING}
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.32.0",
        "command": ["vllm", "serve", "/models/tiny"],
        "args": ["--max-model-len", "2048", "--max-num-seqs=64", "--block-size=32"],
        "resources": gpus(1),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llm"},
        "spec": {
            "replicas": replicas,
            "progressDeadlineSeconds": START_LIMIT_SECONDS,
            "selector": {"matchLabels": {"app": "llm"}},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
            },
        },
    }


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "llm"},
    "spec": {"selector": {"app": "llm", "serving": SERVING}, "ports": [{"port": 8000}]},
}


def remediation(**spec: Any) -> dict[str, Any]:
    """Return a resource whose runs walk through the fleet without a rest of twelve minutes: most tests are
    about the walk. Those of the comparison say `phases.BESIDE`."""
    return {
        "apiVersion": "kvmedic.io/v1alpha1",
        "kind": "KVRemediation",
        "metadata": {"name": "llm"},
        "spec": {
            "targetRef": {"kind": "Deployment", "name": "llm"},
            "mode": "Auto",
            "trigger": {"window": "1m", "for": "0s"},
            "sizing": {"window": "1m"},
            "verify": {"for": "1m", "sideBySide": "Never"},
            "nodeHealth": "IfAvailable",
            "limits": {"cooldown": "24h"},
            "rollout": {"drainTimeout": "30m", "rotationLabel": {"key": "serving", "draining": DRAINING}},
            **spec,
        },
    }


@dataclass(slots=True)
class Eye:
    """Follows the pods: who went, and whether requests could still reach them."""

    cluster: LightCluster
    namespace: str
    replicas: int
    lost: list[str] = field(default_factory=list)
    """Pods that began to terminate while they were Ready and no drain was on."""
    fewest: int = 10**9
    """The least number of pods that took requests, at any moment."""
    seen: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    cordoned: set[str] = field(default_factory=set)
    """Pods that were out of rotation by our label at any moment."""
    _there: Mirror = field(default_factory=Mirror)
    _listed: bool = False
    _watches: Watches | None = None

    def __enter__(self) -> Eye:
        path = self.cluster.api.resource("Pod").path(self.namespace)
        self._watches = Watches(self.cluster.access, {path: self._take_event})
        self._watches.start()
        self._listed = True
        self._count()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watches is not None:
            self._watches.stop()

    def _take_event(self, event: str, pod: dict[str, Any]) -> None:
        ours = pod["metadata"].get("labels", {}).get("app") == "llm"
        if not ours and pod["metadata"]["name"] not in self.seen:
            return
        self._look(event, pod)
        self._there.handle(event, pod)
        if self._listed:
            self._count()

    def _count(self) -> None:
        self.fewest = min(self.fewest, sum(self._serves(pod) for pod in self._there.objects()))

    def _serves(self, pod: dict[str, Any]) -> bool:
        conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", [])}
        return conditions.get("Ready") == "True" and not is_cordoned(pod) and not _going(pod)

    def _look(self, event: str, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        self.seen.add(name)
        if is_cordoned(pod):
            self.cordoned.add(name)
        if name in self.deleted or not (_going(pod) or event == "DELETED"):
            return
        self.deleted.add(name)
        conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", [])}
        was_ready = conditions.get("Ready") == "True"
        if was_ready and not is_cordoned(pod):
            self.lost.append(name)


@dataclass(slots=True)
class World:
    """A namespace with a fleet, its resource, and one operator process at a time."""

    cluster: LightCluster
    namespace: str
    directory: Path
    proxy: Proxy
    began: float = field(default_factory=time.time)
    operators: list[Operator] = field(default_factory=list)
    starts: int = 0
    speed: float = SPEED
    """Of the operator's clock. 1 where it is compared with the API server's."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sections of the operator's configuration beside the usual ones."""
    ticks: Path | None = None
    """Where the operator writes which files each of its ticks enters; None: nowhere."""
    make_operator: Callable[[Arrangement], Any] = Operator
    """Makes the next process: of this version, or of another (`worlds.versions`)."""
    changed: threading.Event = field(default_factory=threading.Event)
    """Set by whatever changes about the fleet or its resource."""
    _mirrors: dict[str, Mirror] = field(default_factory=dict)
    """The fleet and its resource as the watches last showed them, by kind; empty: nobody watches."""
    _by_watch: bool = False
    """Whether objects are read from the mirrors: for a first answer, which costs the API server nothing."""

    def watches(self) -> Watches:
        """Return the watches that report changes, to be entered."""
        kinds = ("KVRemediation", "Deployment", "Pod", "EndpointSlice")
        self._mirrors = {kind: Mirror(lambda _: self.changed.set()) for kind in kinds}
        callbacks = {
            self.cluster.api.resource(kind).path(self.namespace): mirror.handle
            for kind, mirror in self._mirrors.items()
        }
        return Watches(self.cluster.access, callbacks)

    def _list(self, kind: str, **labels: str) -> list[dict[str, Any]]:
        if not self._by_watch or kind not in self._mirrors:
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            return self.cluster.api.list(kind, self.namespace, selector)
        found = self._mirrors[kind].objects()
        return [each for each in found if labels.items() <= each["metadata"].get("labels", {}).items()]

    def _get(self, kind: str) -> dict[str, Any]:
        if not self._by_watch or kind not in self._mirrors:
            return self.cluster.api.get(kind, "llm", self.namespace)
        for each in self._list(kind):
            if each["metadata"]["name"] == "llm":
                return each
        raise ApiError(404, f"no watch knows a {kind} llm")

    @property
    def script(self) -> Path:
        return self.directory / "script.json"

    @property
    def log(self) -> str:
        path = self.directory / "operator.log"
        return path.read_text() if path.exists() else ""

    def write_script(self, **script: Any) -> None:
        fresh = self.directory / "script.new"
        fresh.write_text(json.dumps(script))
        fresh.replace(self.script)

    def rewrite(self, **changes: Any) -> None:
        """Change some entries of the script and leave the others."""
        self.write_script(**{**json.loads(self.script.read_text()), **changes})

    def start(self, identity: str = "operator-0", proxy: Proxy | None = None) -> Operator:
        kubeconfig = self.directory / f"kubeconfig-{identity}"
        kubeconfig.write_text(_kubeconfig((proxy or self.proxy).url, self.cluster.ca_file))
        settings = {
            "process": {
                "namespace": self.namespace,
                "identity": identity,
                "watch": [self.namespace],
                "liveness": "",
                "telemetryPort": 0,
            },
            "compression": {"variables": ["EVICT_TOKENS", "COMPACT_TOKENS"]},
            "leadership": {
                "duration": "3s",
                "margin": "1s",
                "retry": "500ms",
                "attempt": "1s",
                "notice": "0s",
            },
            "pace": {
                "idle": "1s",
                "verifying": "1s",
                "replica": "100ms",
                "controller": "50ms",
                "spareLimit": "15m",
                "drainQuiet": "5s",
                "drainInterval": "20ms",
                "backoffFirst": "50ms",
                "backoffMost": "500ms",
            },
        }
        settings |= self.settings
        log = self.directory / "operator.log"
        operator: Operator = self.make_operator(
            Arrangement(settings, kubeconfig, self.script, log, self.began, self.speed, self.ticks)
        )
        self.operators.append(operator)
        self.starts += 1
        operator.start()
        return operator

    def kill(self) -> None:
        for operator in self.operators:
            operator.kill()

    def end(self) -> None:
        """Have the process end that was started last."""
        if not self.operators[-1].is_ended:
            self.operators[-1].end()

    def resource(self) -> dict[str, Any]:
        return self._get("KVRemediation")

    def deployment(self) -> dict[str, Any]:
        return self._get("Deployment")

    def args(self) -> list[str]:
        return list(self.deployment()["spec"]["template"]["spec"]["containers"][0]["args"])

    def revision(self) -> str:
        return template_hash(self.deployment()["spec"]["template"])

    def status(self) -> dict[str, Any]:
        return self.resource().get("status") or {}

    def pods(self) -> list[dict[str, Any]]:
        return [p for p in self._list("Pod", app="llm") if not _going(p)]

    def replicas(self) -> int:
        return int(self.deployment()["spec"]["replicas"])

    def step_state(self) -> str:
        """Return the state of the open run's only step; empty when no run is open."""
        run = self.status().get("run")
        return str(run["steps"][0]["state"]) if run else ""

    def outcomes(self) -> list[str]:
        return [run["outcome"] for run in self.status().get("history", [])]

    def condition(self, name: str) -> tuple[str, str]:
        """Return status and reason of a condition; empty when it was never written."""
        for condition in self.status().get("conditions", []):
            if condition["type"] == name:
                return condition["status"], condition["reason"]
        return "", ""

    def endpoints(self) -> int:
        """Return how many Ready endpoints the Service has."""
        slices = self._list("EndpointSlice", **{"kubernetes.io/service-name": "llm"})
        found = [endpoint for each in slices for endpoint in each.get("endpoints") or []]
        return sum(bool(endpoint["conditions"].get("ready")) for endpoint in found)

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments)

    def traces(self) -> list[str]:
        """Return what of the operator's is left on the Deployment and its pods."""
        objects = [self.deployment(), *self.pods()]
        marks = [
            f"{each.get('kind', 'Pod')}: {key}"
            for each in objects
            for key in each["metadata"].get("annotations", {})
            if key.startswith("kvmedic.io/")
        ]
        there = [pod for pod in self._list("Pod") if not _going(pod)]
        cordons = [
            pod["metadata"]["name"]
            for pod in there
            if is_cordoned(pod) or any(key.startswith("kvmedic.io/") for key in pod["metadata"]["labels"])
        ]
        return marks + cordons

    def is_settled(self) -> bool:
        """Return whether the Deployment's rollout is complete and every pod runs its template."""
        deployment = self.deployment()
        return is_rolled_out(deployment) and len(self.pods()) == deployment["spec"]["replicas"]

    def wait(self, claim: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until a claim holds by the watches, and then by the API server itself."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.changed.clear()
            self.revive()
            if self._holds_by_watch(claim) and claim():
                return
            self.changed.wait(POLL_SECONDS)
        try:
            status: object = self.status()
        except ApiError as error:  # the resource is gone
            status = error
        raise AssertionError(f"{what} was not so within {seconds} s; status {status}\n{self.log[-4000:]}")

    def _holds_by_watch(self, claim: Callable[[], bool]) -> bool:
        self._by_watch = True
        try:
            return claim()
        except ApiError:  # the watch has not shown it yet
            return False
        finally:
            self._by_watch = False

    def revive(self) -> None:
        """Start the next process where the last one was killed, or ended as asked.

        The Lease of one that was killed counts as run out; one that ended has given it back.
        """
        if not self.operators or self.operators[-1].is_alive():
            return
        last = self.operators[-1]
        last.join()
        if last.process.exitcode != (0 if last.is_ended else -signal.SIGKILL):
            raise AssertionError(f"the operator ended by itself: {last.process.exitcode}\n{self.log[-4000:]}")
        if not last.is_ended:
            with suppress(ApiError):
                self.cluster.api.delete("Lease", "kvmedic", self.namespace)
        self.start()

    def is_closed(self) -> bool:
        """Return whether a run was closed and nothing of it is left."""
        status = self.status()
        finalizers = self.resource()["metadata"].get("finalizers")
        return bool(status.get("history")) and "run" not in status and not finalizers


def is_cordoned(pod: dict[str, Any]) -> bool:
    """Return whether a pod is out of rotation, by the rotation label or as one that was released."""
    labels = pod["metadata"].get("labels", {})
    is_marked = labels.get("serving", SERVING) != SERVING
    return is_marked or draining_value(pod["metadata"]["uid"]) in labels.values()


def _going(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _kubeconfig(url: str, authority: Path) -> str:
    """Return access by a URL; a process that is named an authority does not load all of this machine's."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "light", "cluster": {"server": url, "certificate-authority": str(authority)}}
            ],
            "users": [{"name": "operator", "user": {"token": "through-the-proxy"}}],
            "contexts": [{"name": "light", "context": {"cluster": "light", "user": "operator"}}],
            "current-context": "light",
        }
    )


def no_harm(write: Write) -> Fate:
    return Fate.PASS


def define(cluster: LightCluster) -> None:
    """Have the API server serve the operator's resources."""
    cluster.apply(CRD.read_text())
    cluster.apply(APPROVALS_CRD.read_text())
    kinds = ("crd/kvremediations.kvmedic.io", "crd/kvapprovals.kvmedic.io")
    cluster.kubectl("wait", "--for=condition=Established", *kinds, "--timeout=10s")


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes a settled fleet and its resource, which end with `stack`."""

    cluster: LightCluster
    namespace: str
    directory: Path
    stack: ExitStack

    def make(
        self,
        replicas: int = 2,
        decide: Callable[[Write], Fate] = no_harm,
        spec: dict[str, Any] | None = None,
        annotations: dict[str, str] | None = None,
        arguments: Sequence[str] = (),
        *,
        speed: float = SPEED,
        change: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    ) -> World:
        """Return the world of a fleet; the operator is started by the caller."""
        light = self.cluster
        proxy = self.stack.enter_context(Proxy(light.url, light.token, decide))
        world = World(light, self.namespace, self.directory, proxy, speed=speed)
        proxy.kill, proxy.end = world.kill, world.end
        self.stack.callback(world.kill)
        # Created, not applied: a field manager that applies the template would own it.
        fleet = deployment(replicas, **(annotations or {}))
        pod = fleet["spec"]["template"]["spec"]
        pod["containers"][0]["args"] += arguments
        if change is not None:
            change(pod["containers"][0], pod)
        for manifest in (fleet, SERVICE):
            light.api.create(manifest, self.namespace)
        self.stack.enter_context(world.watches())
        world.wait(world.is_settled, 30, "the fleet is made")
        world.wait(lambda: world.endpoints() == replicas, 30, "endpoints of every replica")
        world.write_script(old="thrash", new="recovered", revision=world.revision())
        light.apply(remediation(**(spec or {})), self.namespace)
        return world
