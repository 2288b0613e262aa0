"""Container images for the lab, without a registry: a Python base from Debian's packages, and what needs it.

buildah builds them on a machine without Docker, Docker where its engine answers. An image is named by a hash
of all it is made of, so that unchanged ones are neither built nor loaded again.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lab.cluster.interface import Cluster
from lab.cluster.machine import IMAGE_PACKAGES, IMAGES, ROOT, ensure_packages, locked, program, step

PREFIX = "localhost/kvmedic-lab"
SUITE = "bookworm"
# libnuma1 is for real vLLM on CPU, whose interpreter and packages a pod gets from the host.
PACKAGES = ("python3-venv", "ca-certificates", "libnuma1")
# What no program in a pod reads; 147 of 275 MB.
TRIMMED = (
    "debootstrap",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/zoneinfo",
    "var/cache/apt",
    "var/lib/apt/lists",
)
DOCKER_BASE = "python:3.11-slim"
_KEY_LENGTH = 16
_IGNORED = {"__pycache__", ".pytest_cache"}


@dataclass(frozen=True)
class Image:
    """A built image: its name and the docker-archive that holds it."""

    reference: str
    archive: Path


@dataclass(frozen=True)
class Recipe:
    """What to build: the build argument BASE is added by the builder.

    `inputs` are files and folders of `context` that the image is made of; they and the Containerfile decide
    whether it is built anew.
    """

    name: str
    containerfile: Path
    context: Path = ROOT
    inputs: Sequence[Path] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    """Of the program inside, for those who read it off the tag; empty: the tag is the hash alone."""

    def key(self, base: str) -> str:
        """Hash of everything that goes into the image, bytecode excepted."""
        digest = hashlib.sha256(base.encode())
        for name, value in sorted(self.build_args.items()):
            digest.update(f"{name}={value}\n".encode())
        digest.update(self.containerfile.read_bytes())
        for path in _files(self.inputs or [self.context]):
            digest.update(f"{path.relative_to(self.context)} {path.stat().st_mode}\n".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()[:_KEY_LENGTH]


class Builder(Protocol):
    """Builds images from recipes."""

    def build(self, recipe: Recipe) -> Image:
        """The image; built only when there is none of the same content."""


def builder_for(cluster: Cluster) -> Builder:
    """Docker where it pulls images from a registry, buildah otherwise."""
    return DockerBuilder() if cluster.has_registry else BuildahBuilder()


def provide(cluster: Cluster, recipe: Recipe) -> str:
    """Build the image if needed, load it into the cluster if needed; its reference for a pod's `image`."""
    image = builder_for(cluster).build(recipe)
    cluster.load_image(image.archive, image.reference)
    return image.reference


class BuildahBuilder:
    """Images by buildah in chroot isolation; its storage lies under `build/lab/images`. Needs root."""

    def __init__(self, directory: Path = IMAGES) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        ensure_packages(IMAGE_PACKAGES)

    def build(self, recipe: Recipe) -> Image:
        """The image as a docker-archive under `build/lab/images`; older archives of that name are removed."""
        with locked(self.directory / "lock"):
            base = self._base()
            image = _image(recipe, base, self.directory)
            if not image.archive.exists():
                with step(f"building image {recipe.name}"):
                    self._build(recipe, base, image)
            return image

    def _build(self, recipe: Recipe, base: str, image: Image) -> None:
        arguments = {"BASE": base, **recipe.build_args}
        argv = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        self._buildah(
            "bud", "-q", "-f", str(recipe.containerfile), "-t", image.reference, *argv, str(recipe.context)
        )
        _remove_older(image)
        part = image.archive.with_suffix(".part")
        part.unlink(missing_ok=True)
        self._buildah("push", "-q", image.reference, f"docker-archive:{part}:{image.reference}")
        part.rename(image.archive)

    def _base(self) -> str:
        made_of = " ".join((SUITE, *PACKAGES, *TRIMMED))
        reference = f"{PREFIX}/python:{hashlib.sha256(made_of.encode()).hexdigest()[:_KEY_LENGTH]}"
        if self._has(reference):
            return reference
        with step("building the Python base image from Debian's packages (about 1 min)"):
            context = self.directory / "base"
            shutil.rmtree(context, ignore_errors=True)
            debootstrap(context / "root", PACKAGES)
            (context / "root/usr/bin/python").symlink_to("python3")
            (context / "Containerfile").write_text('FROM scratch\nCOPY root /\nCMD ["python3"]\n')
            self._buildah("bud", "-q", "-t", reference, str(context))
            shutil.rmtree(context)
        return reference

    def _has(self, reference: str) -> bool:
        argv = [*self._command(), "inspect", "--type", "image", reference]
        return subprocess.run(argv, capture_output=True, env=_environment(), check=False).returncode == 0

    def _buildah(self, *arguments: str) -> None:
        done = subprocess.run(
            [*self._command(), *arguments], capture_output=True, text=True, env=_environment(), check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"buildah {arguments[0]} failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")

    def _command(self) -> list[str]:
        # skip_mount_home: otherwise the storage folder itself stays mounted after the build.
        driver = (
            ["overlay", "--storage-opt", "overlay.skip_mount_home=true"]
            if _can_overlay(self.directory)
            else ["vfs"]
        )
        places = ["--root", str(self.directory / "storage"), "--runroot", str(self.directory / "run")]
        return [program("buildah"), *places, "--storage-driver", *driver]


class DockerBuilder:
    """Images by the Docker engine, on its own base image; for kind."""

    def __init__(self, directory: Path = IMAGES) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def build(self, recipe: Recipe) -> Image:
        image = _image(recipe, DOCKER_BASE, self.directory)
        if not image.archive.exists():
            with step(f"building image {recipe.name}"):
                for argv in self.commands(recipe, image):
                    subprocess.run(argv, check=True)
            _remove_older(image)
        return image

    def commands(self, recipe: Recipe, image: Image) -> list[list[str]]:
        arguments = {"BASE": DOCKER_BASE, **recipe.build_args}
        flags = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        build = ["docker", "build", "-q", "-f", str(recipe.containerfile), "-t", image.reference, *flags]
        return [[*build, str(recipe.context)], ["docker", "save", "-o", str(image.archive), image.reference]]


def _image(recipe: Recipe, base: str, directory: Path) -> Image:
    key = recipe.key(base)
    tag = f"v{recipe.version}-{key}" if recipe.version else key
    return Image(f"{PREFIX}/{recipe.name}:{tag}", directory / f"{recipe.name}-{key}.tar")


def _remove_older(image: Image) -> None:
    name = image.archive.stem[: -_KEY_LENGTH - 1]
    for archive in image.archive.parent.glob(f"{name}-{'?' * _KEY_LENGTH}.tar"):
        if archive != image.archive:
            archive.unlink()


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in sorted(paths):
        if path.is_file():
            yield path
        else:
            inside = (each for each in path.rglob("*") if each.is_file() and not _IGNORED & set(each.parts))
            yield from sorted(inside)


def debootstrap(root: Path, packages: Sequence[str]) -> None:
    """Put a small Debian with these packages into a folder, without what no program reads.

    Raises:
        RuntimeError: with the end of debootstrap's output.
    """
    root.mkdir(parents=True, exist_ok=True)
    argv = [program("debootstrap"), "--variant=minbase", f"--include={','.join(packages)}", SUITE, str(root)]
    done = subprocess.run(
        [*argv, *_mirror()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"debootstrap failed:\n{done.stdout[-2000:]}")
    for path in TRIMMED:
        shutil.rmtree(root / path, ignore_errors=True)


def _mirror() -> list[str]:
    """The machine's own Debian mirror, which is the one that it can reach; none on another distribution."""
    for source in [*sorted(Path("/etc/apt").glob("**/*.sources")), Path("/etc/apt/sources.list")]:
        for line in source.read_text().splitlines() if source.exists() else ():
            words = line.split()
            if words[:1] in (["URIs:"], ["deb"]) and words[1].rstrip("/").endswith("/debian"):
                return [words[1]]
    return []


def _can_overlay(directory: Path) -> bool:
    """Whether overlayfs works there: not on another overlay, which is what a container's own root is."""
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=True
    ).stdout
    return "overlay" not in kind and "overlay" in Path("/proc/filesystems").read_text()


def _environment() -> dict[str, str]:
    return {**os.environ, "BUILDAH_ISOLATION": "chroot"}


def write_program_image(binary: Path, reference: str, archive: Path) -> None:
    """An image with nothing but `binary` as its entry point; the same input gives the same bytes."""
    layer = archive.with_suffix(".layer")
    layer.write_bytes(_tar({binary.name: binary.read_bytes()}))
    write_image(layer, [reference], {"Entrypoint": [f"/{binary.name}"]}, archive)
    layer.unlink()


def write_image(layer: Path, references: Sequence[str], config: Mapping[str, object], archive: Path) -> None:
    """A docker-archive of one layer under these names; `config` as in an image's configuration."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    text = json.dumps({"architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs}).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": list(references), "Layers": ["layer.tar"]}]
    with tarfile.open(archive, mode="w") as tar:
        _add(tar, name, text)
        info = tarfile.TarInfo("layer.tar")
        info.size = layer.stat().st_size
        with layer.open("rb") as file:
            tar.addfile(info, file)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            _add(tar, name, content)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o755
    tar.addfile(info, io.BytesIO(content))
