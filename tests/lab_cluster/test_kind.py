"""What the lab asks of kind and Docker, tried on the real kind with a Docker client that only takes notes.

No engine is needed; that pods run in such a cluster `make test-kind` shows.
"""

import base64
import json
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from lab.cluster import network
from lab.cluster.native import NativeCluster, choose
from lab.images import BuildahBuilder, DockerBuilder, Image, Recipe, builder_for, write_program_image
from lab.kind import engine
from lab.kind.cluster import CONFIG, KindCluster, access_from, gateway
from lab.kind.engine import docker_answers

POLICIES = CONFIG.with_name("network.yaml")
NODE = "kvmedic-lab-control-plane"
IMAGE = "localhost/kvmedic-lab/engine:0123456789abcdef"
INFO = {
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "MemoryLimit": True,
    "PidsLimit": True,
    "CPUShares": True,
}
DOCKER = """\
#!/bin/sh
echo "$@" >>{notes}
case "$*" in
  -v) echo "Docker version 27.0.0, build abc" ;;
  "info --format {{{{.ServerVersion}}}}") cat {directory}/engine ;;
  info*) echo '{info}' ;;
  "run --rm"*) ;;
  run*) exit 125 ;;
  inspect*kindest*|pull*) exit $(cat {directory}/pull) ;;
  inspect*Config.Image*) cat {directory}/image ;;
  inspect*IPAddress*) echo 172.18.0.2 ;;
  inspect*kind.role*) echo control-plane ;;
  exec*"containerd config dump") echo 'version = 2'; echo '[plugins."io.containerd.grpc.v1.cri".containerd]'
    echo 'snapshotter = "overlayfs"' ;;
  "ps "*"{{{{.Names}}}}"*) cat {directory}/nodes ;;
  *"images list"*) cat {directory}/images ;;
esac
"""


class Docker:
    """The client's notes and answers."""

    def __init__(self, directory):
        self.directory = directory
        for name, answer in {
            "engine": "27.0.0",
            "nodes": "",
            "images": "",
            "image": "kindest/node:v1.36.1",
            "pull": "0",
            "notes": "",
        }.items():
            self.answer(name, answer)
        script = DOCKER.format(notes=directory / "notes", directory=directory, info=json.dumps(INFO))
        (directory / "docker").write_text(script)
        (directory / "docker").chmod(0o755)

    def answer(self, name, text):
        (self.directory / name).write_text(text)

    def asked(self, start):
        return [
            line for line in (self.directory / "notes").read_text().splitlines() if line.startswith(start)
        ]


@pytest.fixture
def docker(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("LAB_CLUSTER", raising=False)
    monkeypatch.setattr(network, "bridge_owner", lambda: None)
    monkeypatch.setattr(engine, "DIRECTORY", tmp_path / "own")
    return Docker(tmp_path)


@pytest.fixture
def kind(tmp_path):
    return KindCluster(tmp_path / "kind", tmp_path / "kubeconfig")


def test_up_asks_for_one_node_whose_api_server_is_on_loopback(docker, kind):
    with pytest.raises(RuntimeError, match="kind create cluster"):
        kind.up(2)

    (run,) = docker.asked("run")
    assert f"--name {NODE} " in run
    assert "--publish=127.0.0.1:" in run
    assert "kindest/node:v1.36." in run


def test_kind_has_the_addresses_of_the_native_cluster():
    networking = yaml.safe_load(CONFIG.read_text())["networking"]
    (daemons,) = (each for each in yaml.safe_load_all(POLICIES.read_text()) if each["kind"] == "DaemonSet")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]

    assert (networking["podSubnet"], networking["serviceSubnet"]) == (network.PODS, network.SERVICES)
    assert f"--service-cluster-ip-range={network.SERVICES}" in container["command"]


def test_kind_refuses_a_field_that_it_does_not_know(docker, kind, tmp_path, monkeypatch):
    wrong = tmp_path / "kind.yaml"
    wrong.write_text(
        "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnetworking: {podSubnett: 10.0.0.0/24}\n"
    )
    monkeypatch.setattr("lab.kind.cluster.CONFIG", wrong)

    with pytest.raises(RuntimeError, match="podSubnett not found"):
        kind.up(2)

    assert docker.asked("run") == []


def test_an_image_that_the_node_has_is_not_loaded_again(docker, kind, tmp_path):
    docker.answer("images", f"{IMAGE}\n")

    kind.load_image(tmp_path / "engine.tar", IMAGE)

    assert docker.asked(f"exec {NODE} ctr --namespace=k8s.io images list")
    assert not [line for line in docker.asked("exec") if "import" in line]


def test_an_image_that_the_node_lacks_is_imported_there(docker, kind, tmp_path):
    archive = tmp_path / "engine.tar"
    write_program_image(tmp_path / "docker", IMAGE, archive)
    docker.answer("nodes", NODE)

    kind.load_image(archive, IMAGE)

    (imported,) = [line for line in docker.asked("exec") if "import" in line]
    assert NODE in imported


def test_a_node_image_that_cannot_be_pulled_is_built(docker, kind, monkeypatch):
    docker.answer("pull", "1")
    monkeypatch.setattr("lab.kind.cluster.provide_node_image", lambda run: IMAGE)

    with pytest.raises(RuntimeError, match="kind create cluster"):
        kind.up(2)

    (run,) = docker.asked("run")
    assert run.endswith(IMAGE)


def test_kind_is_refused_beside_a_native_cluster_whose_addresses_it_would_take(docker, kind, monkeypatch):
    monkeypatch.setattr(network, "bridge_owner", lambda: Path("/elsewhere"))

    with pytest.raises(RuntimeError, match="belongs to the cluster of /elsewhere"):
        kind.up(2)

    assert docker.asked("run") == []


@pytest.mark.parametrize("reached", [True, False], ids=["reached", "Docker in a virtual machine"])
def test_pods_and_services_are_led_to_the_node(docker, kind, monkeypatch, reached):
    monkeypatch.setattr("lab.kind.cluster._answers", lambda address: reached)
    monkeypatch.setattr("lab.kind.cluster._REACHED_SECONDS", 0)

    if reached:
        kind._lead_to_pods()
    else:
        with pytest.raises(RuntimeError, match=r"cannot be reached .* LAB_CLUSTER=native"):
            kind._lead_to_pods()

    lead = "run --rm --net=host --cap-add=NET_ADMIN --entrypoint=ip kindest/node:v1.36.1 route replace"
    assert docker.asked("run") == [
        f"{lead} {each} via 172.18.0.2" for each in ("10.77.0.0/24", "10.78.0.0/24")
    ]


@pytest.mark.parametrize(
    ("image", "expected"),
    [("kindest/node:v1.36.1", DockerBuilder), ("localhost/kvmedic-lab/kind-node:abc", BuildahBuilder)],
    ids=["pulled", "built here"],
)
def test_images_are_made_by_docker_only_where_it_can_pull_their_base(
    docker, kind, image, expected, monkeypatch
):
    docker.answer("image", image)
    monkeypatch.setattr("lab.images.ensure_packages", lambda packages: None)

    assert isinstance(builder_for(kind), expected)


def test_the_lab_s_own_engine_is_asked_where_it_runs(docker):
    assert engine.environment().get("DOCKER_HOST") is None
    engine.DIRECTORY.mkdir()
    (engine.DIRECTORY / "sock").touch()

    assert engine.environment()["DOCKER_HOST"] == f"unix://{engine.DIRECTORY}/sock"


def test_a_container_is_given_nothing_that_this_machine_s_root_lacks(docker, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "program", lambda name: str(tmp_path / name))
    (tmp_path / "runc").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n')
    (tmp_path / "runc").chmod(0o755)
    engine.DIRECTORY.mkdir()
    held = ["CAP_CHOWN", "CAP_SYS_RESOURCE"]
    process = {"capabilities": {"bounding": held, "effective": held}, "rlimits": [{}], "oomScoreAdj": -9}
    (tmp_path / "config.json").write_text(json.dumps({"process": process, "hostname": "a"}))

    subprocess.run([engine._write_runtime(), "create", "--bundle", str(tmp_path), "a"], check=True)

    given = {"capabilities": {"bounding": ["CAP_CHOWN"], "effective": ["CAP_CHOWN"]}}
    assert json.loads((tmp_path / "config.json").read_text()) == {"process": given, "hostname": "a"}
    assert (tmp_path / "asked").read_text() == f"create --bundle {tmp_path} a\n"


def test_without_an_engine_it_is_down_and_there_is_nothing_to_take_down(docker, kind):
    docker.answer("engine", "")
    docker.answer("nodes", NODE)

    kind.down()

    assert not kind.is_up()
    assert docker.asked("rm") == []


def test_a_client_without_an_engine_does_not_count(docker):
    assert docker_answers()
    docker.answer("engine", "")
    assert not docker_answers()


@pytest.mark.parametrize(
    ("engine", "wish", "expected"),
    [
        ("27.0.0", "", KindCluster),
        ("", "", NativeCluster),
        ("27.0.0", "native", NativeCluster),
        ("", "kind", KindCluster),
    ],
    ids=["engine: kind", "no engine: native", "native by wish", "kind by wish"],
)
def test_the_engine_decides_unless_the_environment_does(docker, monkeypatch, engine, wish, expected):
    docker.answer("engine", engine)
    monkeypatch.setenv("LAB_CLUSTER", wish)

    assert isinstance(choose(), expected)


def test_an_unknown_wish_is_refused_with_the_choices(docker, monkeypatch):
    monkeypatch.setenv("LAB_CLUSTER", "minikube")

    with pytest.raises(ValueError, match="give native or kind"):
        choose()


def test_inline_credentials_become_files_that_only_the_owner_reads(tmp_path):
    inline = base64.b64encode(b"pem").decode()
    user = {"client-certificate-data": inline, "client-key-data": inline}
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": inline}

    access = access_from({"clusters": [{"cluster": cluster}], "users": [{"user": user}]}, tmp_path / "kind")

    assert access.url == "https://127.0.0.1:6443"
    assert access.headers() == {}
    assert [path.read_bytes() for path in (access.ca_file, *access.client)] == [b"pem"] * 3
    assert stat.S_IMODE((tmp_path / "kind").stat().st_mode) == 0o700


def test_pods_reach_this_machine_at_the_ipv4_gateway():
    config = [
        {"Subnet": "fc00::/64", "Gateway": "fc00::1"},
        {"Subnet": "172.18.0.0/16", "Gateway": "172.18.0.1"},
    ]

    assert gateway([{"IPAM": {"Config": config}}]) == "172.18.0.1"
    with pytest.raises(LookupError, match="no IPv4 gateway"):
        gateway([{"IPAM": {"Config": config[:1]}}])


def test_docker_builds_on_its_own_base_and_saves_the_archive(tmp_path):
    recipe = Recipe("engine", tmp_path / "Containerfile", context=tmp_path, build_args={"EXTRA": "1"})

    build, save = DockerBuilder(tmp_path).commands(recipe, Image(IMAGE, tmp_path / "engine.tar"))

    assert build == [
        *("docker", "build", "-q", "-f", str(tmp_path / "Containerfile"), "-t", IMAGE),
        *("--build-arg=BASE=python:3.11-slim", "--build-arg=EXTRA=1", str(tmp_path)),
    ]
    assert save == ["docker", "save", "-o", str(tmp_path / "engine.tar"), IMAGE]
