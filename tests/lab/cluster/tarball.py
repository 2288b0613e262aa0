"""Writes an image of one static program as a docker-archive, without any image builder."""

import hashlib
import io
import json
import tarfile
from pathlib import Path


def write_program_image(program: Path, reference: str, archive: Path) -> None:
    """An image with nothing but `program` as its entry point; the same input gives the same bytes."""
    layer = _tar({program.name: program.read_bytes()})
    config = json.dumps(_config(layer, program.name)).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    files = {config_name: config, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    archive.write_bytes(_tar(files))


def _config(layer: bytes, entry: str) -> dict[str, object]:
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{entry}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
