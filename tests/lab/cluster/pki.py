"""Keys, certificates and tokens of one cluster, made by openssl in its own directory."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

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
