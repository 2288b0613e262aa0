"""A node for kind from what Debian and Go modules give, for machines that cannot pull kind's own image.

It is put together as kind's: the files of its base image, which are in kind's Go module; Debian's systemd,
containerd and CNI plugins; kubelet, kubeadm and the control plane, which are the lab's one binary under many
names; CoreDNS; kube-router for NetworkPolicies. Images that kubeadm asks for lie in the node, and a unit of
its own imports them at boot. The pod network is the `ptp` plugin, as kindnet uses it.
"""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab.cluster.machine import IMAGES, ensure_packages, locked, step
from lab.cluster.network import PODS
from lab.cluster.toolchain import KUBERNETES, Tool, binary, module_directory
from lab.images import IMAGE_PACKAGES, PREFIX, debootstrap, write_image, write_program_image

PACKAGES = [
    "systemd",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iptables",
    "nftables",
    "ipset",
    "conntrack",
    "iproute2",
    "ethtool",
    "util-linux",
    "mount",
    "kmod",
    "procps",
    "ca-certificates",
    "jq",
]
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd")
"""Each an image of its own to kubeadm, and all of them the same one here."""
UNITS = ("containerd", "kubelet", "kind-images", "undo-mount-hacks")
ENTRYPOINT = ["/usr/local/bin/entrypoint", "/sbin/init"]
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WANTS = Path("etc/systemd/system/multi-user.target.wants")
_NOT_IN_A_CONTAINER = (
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "lib/systemd/system/multi-user.target.wants/*",
    "etc/systemd/system/*.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/basic.target.wants/*",
)
"""As in the file that kind's own base image is built by."""
_NOT_OF_A_COMPONENT = ("kind", "usr/lib/systemd", "usr/lib/cni", "usr/bin/containerd*", "usr/bin/ctr")
_IMPORT = """\
[Unit]
Description=Import the images that came with the node
Requires=containerd.service
After=containerd.service
Before=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'for each in /kind/images/*.tar; do ctr --namespace k8s.io images import "$each"; done'
"""
_NETWORK = Path(__file__).with_name("network.yaml")
_POLICIES = f"{PREFIX}/kube-router:node"
"""What enforces NetworkPolicies; one of the components' names."""


def provide_node_image(docker: Callable[..., str]) -> str:
    """Return the image's name; builds it where there is none of the same content, and has Docker know it.

    Args:
        docker: runs Docker's client with these arguments and returns what it prints.

    Raises:
        PermissionError: packages are missing, and only root may install them.
        RuntimeError: with the message of what failed.
    """
    ensure_packages(IMAGE_PACKAGES)
    key = _key()
    reference, archive = f"{PREFIX}/kind-node:{key}", IMAGES / f"kind-node-{key}.tar"
    with locked(IMAGES / "kind-node.lock"):
        if not archive.exists():
            with step("building a node image for kind (about 4 min)"):
                _build(archive)
        if reference.rpartition(":")[2] not in docker("images", "--format={{.Tag}}", f"{PREFIX}/kind-node"):
            changes = (f"ENTRYPOINT {json.dumps(ENTRYPOINT)}", f"ENV container=docker {_PATH}")
            with step("giving the node image to Docker"):
                given = [f"--change={each}" for each in changes]
                docker("import", *given, str(archive), reference)
    return reference


def _key() -> str:
    """Return a hash of all that the image is made of."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + _NETWORK.read_bytes())
    for tool in (Tool.KUBE, Tool.COREDNS, Tool.KUBE_ROUTER, Tool.PAUSE, Tool.KIND):
        digest.update(binary(tool).with_suffix(".key").read_bytes())
    return digest.hexdigest()[:16]


def _build(archive: Path) -> None:
    root = archive.with_suffix("")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    debootstrap(root, PACKAGES)
    base = module_directory(Tool.KIND.value, "sigs.k8s.io/kind") / "images" / "base" / "files"
    _copy_base(base, root)
    images = _images_of_kubeadm()
    _configure(root, images["pause"])
    _add_components(root)
    _add_images(root, images)
    part = archive.with_suffix(".part")
    _run("tar", "-C", str(root), "-cf", str(part), ".")
    shutil.rmtree(root)
    for older in archive.parent.glob("kind-node-*.tar"):
        older.unlink()
    part.rename(archive)


def _copy_base(base: Path, root: Path) -> None:
    """Copy the files of kind's base image; what lies in a folder of programs is made executable."""
    for path in (path for path in base.rglob("*") if path.is_file()):
        name = path.relative_to(base)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, root / name)
        (root / name).chmod(0o755 if name.parent.name == "bin" else 0o644)


def _images_of_kubeadm() -> dict[str, str]:
    """Return the images that kubeadm asks for, by the last part of their name."""
    argv = [str(binary(Tool.KUBE)), "kubeadm", "config", "images", "list"]
    listed = _run(*argv, f"--kubernetes-version={KUBERNETES}").split()
    return {each.rpartition("/")[2].partition(":")[0]: each for each in listed}


def _configure(root: Path, pause: str) -> None:
    """Make Debian a node: units, container runtime and pod network, as kind's base image has them."""
    for pattern in _NOT_IN_A_CONTAINER:
        for path in root.glob(pattern):
            path.unlink()
    units = root / "etc/systemd/system"
    (units / "kind-images.service").write_text(_IMPORT)
    (root / _WANTS).mkdir(parents=True, exist_ok=True)
    for unit in UNITS:
        (root / _WANTS / f"{unit}.service").symlink_to(f"/etc/systemd/system/{unit}.service")
    (units / "systemd-binfmt.service").symlink_to("/dev/null")  # what it registers is the whole kernel's
    # Limits above one's own and a lower OOM score are not for every machine's root to give.
    runtime = units / "containerd.service"
    kept = [line for line in runtime.read_text().splitlines() if not re.match("Limit|OOMScore", line)]
    runtime.write_text("\n".join(kept).replace("/usr/local/bin/containerd", "/usr/bin/containerd") + "\n")
    with (root / "etc/systemd/journald.conf").open("a") as journal:
        journal.write("ReadKMsg=no\n")
    config = root / "etc/containerd/config.toml"
    text = re.sub('sandbox_image = ".*"', f'sandbox_image = "{pause}"', config.read_text())
    config.write_text(text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true"))
    (root / "etc/containerd/cri-base.json").write_text(json.dumps(_container_defaults(root)))
    (root / "opt/cni").mkdir(parents=True)
    (root / "opt/cni/bin").symlink_to("/usr/lib/cni")
    network = root / "etc/cni/net.d"
    network.mkdir(parents=True, exist_ok=True)
    (network / "10-ptp.conflist").write_text(json.dumps(_pod_network(), indent=1))
    (root / "kind/manifests").mkdir()
    manifest = _NETWORK.read_text().replace("IMAGE", _POLICIES)
    (root / "kind/manifests/default-cni.yaml").write_text(manifest)


def _container_defaults(root: Path) -> dict[str, object]:
    """Return what every container of the node starts from, made as kind's base image makes it."""
    spec: dict[str, object] = json.loads(_run("chroot", str(root), "ctr", "oci", "spec"))
    process = spec["process"]
    assert isinstance(process, dict)
    process.pop("rlimits", None)
    return {**spec, "hooks": {"createContainer": [{"path": "/kind/bin/mount-product-files.sh"}]}}


def _pod_network() -> dict[str, object]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    pods = {"type": "ptp", "ipMasq": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "kvmedic-lab", "plugins": [pods, ports]}


def _add_components(root: Path) -> None:
    """Put the lab's binary in, under the names that systemd, kind and kubeadm's pods call it by."""
    shutil.copyfile(binary(Tool.KUBE), root / "usr/bin/kube")
    (root / "usr/bin/kube").chmod(0o755)
    for name in ("kubelet", "kubeadm", "kubectl"):
        (root / "usr/bin" / name).symlink_to("kube")
    for name in COMPONENTS:
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/kube")
    shutil.copyfile(binary(Tool.KUBE_ROUTER), root / "usr/local/bin/kube-router")
    (root / "usr/local/bin/kube-router").chmod(0o755)
    (root / "sbin/init").symlink_to("/usr/lib/systemd/systemd")
    (root / "etc/kubernetes/manifests").mkdir(parents=True)
    (root / "kind/version").write_text(KUBERNETES)


def _add_images(root: Path, images: dict[str, str]) -> None:
    """Lay the images into the node that kubeadm asks for: nothing else there knows their names."""
    folder = root / "kind/images"
    folder.mkdir()
    write_program_image(binary(Tool.PAUSE), images["pause"], folder / "pause.tar")
    write_program_image(binary(Tool.COREDNS), images["coredns"], folder / "coredns.tar")
    layer = folder / "layer"
    left_out = [f"--exclude=./{each}" for each in _NOT_OF_A_COMPONENT]
    _run("tar", "-C", str(root), *left_out, "-cf", str(layer), ".")
    names = [*(images[name] for name in COMPONENTS), _POLICIES]
    write_image(layer, names, {"Env": [_PATH]}, folder / "components.tar")
    layer.unlink()


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv[:3])} failed: {done.stderr.strip()[-1500:]}")
    return done.stdout
