"""The pod network of the native cluster: one bridge whose address is the node's."""

import ipaddress
import json
import subprocess
from contextlib import suppress
from pathlib import Path

from lab.cluster.machine import program
from lab.cluster.traces import remove_empty

BRIDGE = "kvlab0"
BRIDGE_MAC = "02:6b:76:6c:61:62"
"""A bridge without one of its own takes the lowest of its ports', and whenever that pod comes or goes the
others lose the machine for seconds, until they ask again who has its address."""
NODE_IP = "10.77.0.1"
PODS = "10.77.0.0/24"
SERVICES = "10.78.0.0/24"
CNI_NAME = "kvmedic-lab"

# What kubelet, kube-proxy and the lab change (1.36: kubelet's container_manager_linux.go, proxier.go).
_SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/bridge/bridge-nf-call-iptables",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def read_sysctls() -> dict[str, str]:
    """Present values of the kernel settings that a node changes; absent ones are left out."""
    files = {name: Path("/proc/sys") / name for name in _SYSCTLS}
    return {name: file.read_text().strip() for name, file in files.items() if file.exists()}


def write_sysctls(values: dict[str, str]) -> None:
    """Put settings back that differ; one that the kernel refuses is left as it is."""
    for name, value in values.items():
        file = Path("/proc/sys") / name
        if file.exists() and file.read_text().strip() != value:
            with suppress(OSError):
                file.write_text(value)


def sees_bridged_packets() -> bool:
    """Whether iptables sees packets between pods on the bridge: without, a ClusterIP's replies go astray."""
    with suppress(FileNotFoundError):
        subprocess.run([program("modprobe"), "-q", "br_netfilter"], capture_output=True, check=False)
    return Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()


def refuse_overlap() -> None:
    """Raise when the machine uses addresses of the lab's networks already."""
    for route in json.loads(_ip("-j", "-4", "route")):
        destination = route["dst"] if route["dst"] != "default" else "0.0.0.0/32"
        used = ipaddress.ip_network(destination, strict=False)
        for ours in (PODS, SERVICES):
            if route["dev"] != BRIDGE and used.overlaps(ipaddress.ip_network(ours)):
                raise RuntimeError(f"the lab's {ours} overlaps {route['dst']} on {route['dev']}")


def refuse_second_lab() -> None:
    """Raise when another clone's cluster has the bridge: addresses and chains are the same for all."""
    owner = bridge_owner()
    if owner is not None:
        raise RuntimeError(f"{BRIDGE} belongs to the cluster of {owner}; take that one down first")


def bridge_owner() -> Path | None:
    """The directory of the cluster that made the bridge; None without a bridge."""
    if not _has_bridge():
        return None
    return Path(Path("/sys/class/net", BRIDGE, "ifalias").read_text().strip() or "/nowhere")


def add_bridge(owner: Path) -> None:
    """Make the bridge; service addresses end there too: without kube-proxy none leaves the machine."""
    if not _has_bridge():
        _ip("link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge")
    _ip("addr", "replace", f"{NODE_IP}/24", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up", "alias", str(owner))
    _ip("route", "replace", SERVICES, "dev", BRIDGE)
    write_sysctls({"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"})


def remove_bridge() -> None:
    """Remove the bridge with what is still plugged into it; its routes go with it."""
    if not _has_bridge():
        return
    for port in Path("/sys/class/net", BRIDGE, "brif").iterdir():
        # Ends of pods' links vanish by themselves once the pods' namespaces are gone.
        with suppress(RuntimeError):
            _ip("link", "delete", port.name)
    _ip("link", "delete", BRIDGE)


def write_cni(directory: Path, state: Path) -> None:
    """CNI configuration in `directory`; address leases are kept in `state`."""
    ranges = [[{"subnet": PODS}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": str(state)}
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": ipam}
    directory.mkdir(parents=True, exist_ok=True)
    conflist = {"cniVersion": "1.0.0", "name": CNI_NAME, "plugins": [bridge]}
    (directory / "10-bridge.conflist").write_text(json.dumps(conflist, indent=1))


def remove_cni_results() -> None:
    """libcni caches results under a fixed folder: take out ours, and those of the same loopbacks."""
    folder = Path("/var/lib/cni/results")
    for result in folder.glob(f"{CNI_NAME}-*"):
        sandbox = result.name.removeprefix(f"{CNI_NAME}-").rsplit("-", 1)[0]
        (folder / f"cni-loopback-{sandbox}-lo").unlink(missing_ok=True)
        result.unlink()
    remove_empty(folder, folder.parent)


def _has_bridge() -> bool:
    return Path("/sys/class/net", BRIDGE).exists()


def _ip(*arguments: str) -> str:
    done = subprocess.run([program("ip"), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout or "[]"
