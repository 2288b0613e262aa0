"""A registry of the lab, from which a node pulls the engine's image, and which may refuse for a while.

It serves one docker-archive under any name, by the parts of the distribution API that a pull asks for. A name
that is refused gets 429, as a registry with limits answers. containerd asks `localhost` without TLS.

The image is another one than the archive's, by a word in its configuration: once the kubelet has pulled an
image it no longer takes the same one for preloaded, and pods that name that are refused (kubelet 1.36).
"""

import hashlib
import json
import tarfile
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST = "localhost"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"
"""Not compressed, as the archive has it."""
CHUNK = 1 << 20


class Registry:
    """Serves an archive on a free port of loopback; a context manager."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._refused: set[str] = set()
        self._blobs: dict[str, tuple[str, int]] = {}
        self._manifest = self._read()

    def __enter__(self) -> "Registry":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="registry", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reference(self, name: str, tag: str) -> str:
        """Return the image under a name, for a pod's `image`."""
        return f"{HOST}:{self._server.server_port}/{name}:{tag}"

    def refuse(self, reference: str, *, refuses: bool) -> None:
        """Refuse whatever is asked of an image's name, or answer again."""
        name = reference.partition("/")[2].rpartition(":")[0]
        self._refused = self._refused | {name} if refuses else self._refused - {name}

    def answer(self, path: str) -> tuple[HTTPStatus, str, int, Iterator[bytes]]:
        """Return status, content type, length and content of what is asked for."""
        name, _, what = path.removeprefix("/v2/").rpartition("/")
        name, _, kind = name.rpartition("/")
        if name in self._refused:
            return HTTPStatus.TOO_MANY_REQUESTS, "text/plain", 0, iter(())
        if path == "/v2/":
            return HTTPStatus.OK, "application/json", 2, iter([b"{}"])
        if kind == "manifests":
            return HTTPStatus.OK, MANIFEST, len(self._manifest), iter([self._manifest])
        if kind == "blobs" and what == _digest(self._config):
            return HTTPStatus.OK, CONFIG, len(self._config), iter([self._config])
        if kind == "blobs" and what in self._blobs:
            member, size = self._blobs[what]
            return HTTPStatus.OK, "application/octet-stream", size, self._content(member)
        return HTTPStatus.NOT_FOUND, "text/plain", 0, iter(())

    def _read(self) -> bytes:
        """Learn where each blob lies in the archive; return the manifest."""
        with tarfile.open(self._archive) as tar:
            (image,) = json.loads(_bytes(tar, "manifest.json"))
            config = json.loads(_bytes(tar, image["Config"]))
            layers: list[dict[str, Any]] = []
            for digest, member in zip(config["rootfs"]["diff_ids"], image["Layers"], strict=True):
                self._blobs[digest] = member, tar.getmember(member).size
                layers.append({"mediaType": LAYER, "size": self._blobs[digest][1], "digest": digest})
        self._config = json.dumps({**config, "author": "the lab's registry"}).encode()
        own = {"mediaType": CONFIG, "size": len(self._config), "digest": _digest(self._config)}
        whole = {"schemaVersion": 2, "mediaType": MANIFEST, "config": own, "layers": layers}
        return json.dumps(whole).encode()

    def _content(self, member: str) -> Iterator[bytes]:
        with tarfile.open(self._archive) as tar:
            file = tar.extractfile(member)
            while file is not None and (chunk := file.read(CHUNK)):
                yield chunk

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._send()

            def do_GET(self) -> None:
                for chunk in self._send():
                    self.wfile.write(chunk)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

            def _send(self) -> Iterator[bytes]:
                status, kind, length, content = registry.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(length))
                if kind == MANIFEST:
                    self.send_header("Docker-Content-Digest", _digest(registry._manifest))
                self.end_headers()
                return content

        return Handler


def _bytes(tar: tarfile.TarFile, member: str) -> bytes:
    file = tar.extractfile(member)
    if file is None:
        raise LookupError(f"the archive has no file {member}")
    return file.read()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
