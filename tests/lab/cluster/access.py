"""How a client reaches a cluster: address, authority, token, kubeconfig."""

import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Access:
    """One identity on one cluster, by bearer token or by client certificate and key."""

    url: str
    ca_file: Path
    token: str = ""
    client: tuple[Path, Path] | None = None

    def ssl_context(self) -> ssl.SSLContext:
        """Trust in the cluster's own authority and nothing else; the client certificate if there is one."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if self.client:
            context.load_cert_chain(*self.client)
        return context

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def kubeconfig(self) -> dict[str, Any]:
        """A kubeconfig that names the authority by file, as kubectl, kopf and the Go clients read it."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
            "current-context": "lab",
        }

    def write_kubeconfig(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self.kubeconfig(), file, indent=1)
        return path


def read_kubeconfig(path: Path) -> Access:
    """The access that `Access.write_kubeconfig` wrote."""
    config = yaml.safe_load(path.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return Access(cluster["server"], Path(cluster["certificate-authority"]), user["token"])
