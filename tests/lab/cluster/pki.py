"""Keys, certificates and tokens of one cluster, made by openssl in its own directory."""

import json
import os
import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_CONFIG = """\
[req]
distinguished_name = dn
prompt = no
[dn]
[ca]
basicConstraints = critical,CA:true
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical,CA:false
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
_EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """A certificate authority of one cluster and the leaves that it signs; existing files are kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "openssl.cnf").write_text(_CONFIG)
        if not self.certificate.exists():
            self._request("ca", ["-extensions", "ca", "-subj", "/CN=kvmedic-lab"])

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.crt"

    def sign(self, name: str, subject: str, names: Sequence[str] = ()) -> tuple[Path, Path]:
        """A certificate and its key for `subject`; `names` are alternative names such as `IP:127.0.0.1`."""
        certificate = self.directory / f"{name}.crt"
        if not certificate.exists():
            alternatives = ["-addext", "subjectAltName=" + ",".join(names)] if names else []
            signer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-extensions", "leaf"]
            self._request(name, [*signer, "-subj", subject, *alternatives])
        return certificate, self.directory / f"{name}.key"

    def signing_key(self) -> Path:
        """The key that signs service account tokens."""
        key = self.directory / "sa.key"
        if not key.exists():
            self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key.name)
        return key

    def _request(self, name: str, extra: list[str]) -> None:
        files = ["-keyout", f"{name}.key", "-out", f"{name}.crt"]
        self._openssl("req", "-x509", "-config", "openssl.cnf", "-days", "365", *_EC, *extra, *files)

    def _openssl(self, *arguments: str) -> None:
        argv = ["openssl", *arguments]
        done = subprocess.run(argv, cwd=self.directory, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {arguments[0]}: {done.stderr.strip()}")


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
    config = yaml.safe_load(path.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return Access(cluster["server"], Path(cluster["certificate-authority"]), user["token"])
