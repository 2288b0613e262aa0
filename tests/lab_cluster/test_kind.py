"""What the lab asks of kind and Docker, tried on the real kind with a Docker client that only takes notes.

No engine is needed; that pods run in such a cluster is not shown here.
"""

import base64
import json
import stat

import pytest

from lab.cluster.kind import KindCluster, access_from, docker_answers, gateway
from lab.cluster.native import NativeCluster, choose
from lab.images import DockerBuilder, Image, Recipe, write_program_image

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
  run*) exit 125 ;;
  inspect*kind.role*) echo control-plane ;;
  exec*"containerd config dump") echo 'version = 2'; echo '[plugins."io.containerd.grpc.v1.cri".containerd]'
    echo 'snapshotter = "overlayfs"' ;;
  "ps "*"{{{{.Names}}}}"*) cat {directory}/nodes ;;
  *crictl*) cat {directory}/images ;;
esac
"""


class Docker:
    """The client's notes and answers."""

    def __init__(self, directory):
        self.directory = directory
        for name, answer in {
            "engine": "27.0.0",
            "nodes": "",
            "images": '{"images": []}',
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


def test_kind_refuses_a_field_that_it_does_not_know(docker, kind, tmp_path, monkeypatch):
    wrong = tmp_path / "kind.yaml"
    wrong.write_text(
        "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnetworking: {podSubnett: 10.0.0.0/24}\n"
    )
    monkeypatch.setattr("lab.cluster.kind.CONFIG", wrong)

    with pytest.raises(RuntimeError, match="podSubnett not found"):
        kind.up(2)

    assert docker.asked("run") == []


def test_an_image_that_the_node_has_is_not_loaded_again(docker, kind, tmp_path):
    docker.answer("images", json.dumps({"images": [{"repoTags": [IMAGE]}]}))

    kind.load_image(tmp_path / "engine.tar", IMAGE)

    assert docker.asked(f"exec {NODE} crictl images")
    assert not [line for line in docker.asked("exec") if "import" in line]


def test_an_image_that_the_node_lacks_is_imported_there(docker, kind, tmp_path):
    archive = tmp_path / "engine.tar"
    write_program_image(tmp_path / "docker", IMAGE, archive)
    docker.answer("nodes", NODE)

    kind.load_image(archive, IMAGE)

    (imported,) = [line for line in docker.asked("exec") if "import" in line]
    assert NODE in imported


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
