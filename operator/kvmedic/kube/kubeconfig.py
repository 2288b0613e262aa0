"""Which cluster is meant, as kubectl finds it, and what is wrong with a kubeconfig that names none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from kvmedic.kube.errors import NoCluster

DEFAULT_NAMESPACE = "default"
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod finds its own namespace (Kubernetes, serviceaccount admission)."""


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """What a person says about the cluster; empty: as kubectl finds it."""

    kubeconfig: str = ""
    context: str = ""


AS_KUBECTL = ClusterChoice()


@dataclass(frozen=True, slots=True)
class Context:
    """One context of a kubeconfig."""

    name: str
    namespace: str


def find_kubeconfig(choice: ClusterChoice) -> str | None:
    """Return where kubectl looks: what is given, KUBECONFIG, ~/.kube/config; None: the pod's own cluster."""
    given = choice.kubeconfig or os.environ.get("KUBECONFIG", "")
    if given:
        return given
    own = Path.home() / ".kube" / "config"
    return str(own) if own.is_file() or choice.context else None


def namespace_of(choice: ClusterChoice) -> str:
    """Return the namespace that kubectl would use.

    Raises:
        NoCluster: the kubeconfig cannot be used.
    """
    kubeconfig = find_kubeconfig(choice)
    if kubeconfig is not None:
        return find_context(kubeconfig, choice.context).namespace
    return POD_NAMESPACE.read_text("utf-8").strip() if POD_NAMESPACE.is_file() else DEFAULT_NAMESPACE


async def load_configuration(kubeconfig: str | None, context: str = "") -> Configuration:
    """Return what a client needs for the cluster of a context, or of the pod that this process is in.

    Args:
        kubeconfig: one path, or several that are merged, as in KUBECONFIG; None: the pod's own cluster.

    Raises:
        NoCluster: the configuration is missing or incomplete.
    """
    configuration = Configuration()
    if kubeconfig is None:
        try:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            where = "this is no pod, and there is no ~/.kube/config"
            raise NoCluster(f"no cluster: {where}: {error}; set KUBECONFIG") from error
        return configuration
    found = find_context(kubeconfig, context)
    try:
        await load_kube_config(  # type: ignore[no-untyped-call]
            kubeconfig, context=found.name, client_configuration=configuration, persist_config=False
        )
    except (ConfigException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoCluster(
            f"no cluster: context {found.name} of {kubeconfig} cannot be used: {error}"
        ) from error
    return configuration


def unreadable_certificate(configuration: Configuration, error: OSError) -> NoCluster:
    """Return what is said where the certificates of a cluster cannot be used."""
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    named = ", ".join(str(file) for file in files if file)
    why = error.strerror or str(error)
    return NoCluster(
        f"no cluster: a certificate or key cannot be used ({named}): {why}; correct the kubeconfig"
    )


def find_context(kubeconfig: str, name: str) -> Context:
    """Return a context of a kubeconfig; without a name the current one.

    Raises:
        NoCluster: there is none, or what it names is not there.
    """
    bodies = _bodies(kubeconfig)
    current = name or next((str(one["current-context"]) for one in bodies if one.get("current-context")), "")
    contexts = _entries_by_name(bodies, "contexts")
    known = ", ".join(contexts) or "none"
    if not current:
        raise NoCluster(
            f"no cluster: {kubeconfig} has no current-context: name a context ({known}) with --context, "
            "or with kubectl config use-context"
        )
    if current not in contexts:
        raise NoCluster(f"no cluster: {kubeconfig} has no context {current}; its contexts are: {known}")
    context = contexts[current].get("context")
    context = context if isinstance(context, Mapping) else {}
    for key, kind in (("cluster", "clusters"), ("user", "users")):
        desired = context.get(key)
        if (desired or key == "cluster") and str(desired) not in _entries_by_name(bodies, kind):
            raise NoCluster(
                f"no cluster: context {current} of {kubeconfig} names the {key} {desired}, which is not in it"
            )
    return Context(current, str(context.get("namespace") or DEFAULT_NAMESPACE))


def _bodies(kubeconfig: str) -> list[Mapping[str, object]]:
    """Return the files of a kubeconfig; as with kubectl, of several not each has to be there."""
    paths = [Path(each).expanduser() for each in kubeconfig.split(os.pathsep) if each]
    found = [path for path in paths if path.exists()]
    if not found:
        raise NoCluster(f"no cluster: {kubeconfig} does not exist: correct --kubeconfig or KUBECONFIG")
    bodies: list[Mapping[str, object]] = []
    for path in found:
        try:
            body = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
        except OSError as error:
            raise NoCluster(f"no cluster: {path}: {error.strerror}") from error
        except (YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise NoCluster(f"no cluster: {path} is not YAML: correct --kubeconfig or KUBECONFIG") from error
        if not isinstance(body, Mapping):
            raise NoCluster(f"no cluster: {path} is no kubeconfig: correct --kubeconfig or KUBECONFIG")
        bodies.append(body)
    return bodies


def _entries_by_name(bodies: Sequence[Mapping[str, object]], kind: str) -> dict[str, Mapping[str, object]]:
    """Return the entries of a list by name; as with kubectl the first file wins."""
    found: dict[str, Mapping[str, object]] = {}
    for body in bodies:
        entries = body.get(kind)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, Mapping):
                found.setdefault(str(entry.get("name")), entry)
    return found
