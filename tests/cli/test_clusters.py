"""Which cluster a command asks, and that what is wrong on the way there is said in a sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for
from kvmedic.cli.plan import hint_at_source
from kvmedic.kube.errors import NoCluster
from kvmedic.kube.kubeconfig import ClusterChoice, namespace_of
from kvmedic.manifests.errors import LONGEST_MESSAGE

CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "serving"}},
        {"name": "there", "context": {"cluster": "c", "user": "u"}},
    ],
}


def kvmedic(*arguments: str) -> Result:
    return CliRunner().invoke(app_for(arguments), list(arguments))


def a_config(path: Path, **changes: object) -> Path:
    file = path / "config"
    file.write_text(json.dumps({**CONFIG, **changes}))
    return file


def a_context(**fields: object) -> list[object]:
    return [{"name": "here", "context": {"cluster": "c", "user": "u", **fields}}]


def a_cluster(**fields: object) -> list[object]:
    return [{"name": "c", "cluster": {"server": "https://192.0.2.1:1", **fields}}]


BAD = {
    "no current context": ({"current-context": ""}, "has no current-context: name a context (here, there)"),
    "an unknown context": ({"current-context": "gone"}, "has no context gone; its contexts are: here, there"),
    "an unknown cluster": (
        {"contexts": a_context(cluster="gone")},
        "names the cluster gone, which is not in it",
    ),
    "an unknown user": ({"contexts": a_context(user="gone")}, "names the user gone, which is not in it"),
    "a CA file that is gone": (
        {"clusters": a_cluster(**{"certificate-authority": "/gone.pem"})},
        "/gone.pem",
    ),
    "a CA that is none": (
        {"clusters": a_cluster(**{"certificate-authority-data": "bm9uZQ=="})},
        "certificate",
    ),
    "a CA that is no text": (
        {"clusters": a_cluster(**{"certificate-authority-data": "%"})},
        "cannot be used",
    ),
    "contexts that are none": ({"contexts": 7}, "has no context here"),
}


@pytest.mark.parametrize("command", ["diagnose", "plan", "explain", "approve"])
@pytest.mark.parametrize(("changes", "said"), BAD.values(), ids=BAD)
def test_a_kubeconfig_that_cannot_be_used_is_named_in_a_sentence(tmp_path, command, changes, said):
    result = kvmedic(command, "chat", "--kubeconfig", str(a_config(tmp_path, **changes)))

    assert result.exit_code == 2, result.exception
    assert said in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"a: [", "is not YAML"),
        (b"\xff\xfe", "is not YAML"),
        (b"7", "is no kubeconfig"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named_in_a_sentence(tmp_path, monkeypatch, content, said):
    file = tmp_path / "config"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("KUBECONFIG", str(file))

    result = kvmedic("explain", "chat")

    assert result.exit_code == 2, result.exception
    assert said in result.stderr


def test_the_namespace_is_the_contexts_own(tmp_path, monkeypatch):
    file, other = a_config(tmp_path), tmp_path / "other"
    other.write_text(json.dumps({**CONFIG, "current-context": "there"}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(file), str(tmp_path / "gone"), str(other)]))

    assert namespace_of(ClusterChoice()) == "serving"
    assert namespace_of(ClusterChoice(context="there")) == "default"
    assert namespace_of(ClusterChoice(kubeconfig=str(other))) == "default"
    with pytest.raises(NoCluster, match="no context elsewhere"):
        namespace_of(ClusterChoice(context="elsewhere"))


@pytest.mark.parametrize(
    "url", ["nonsense", "http://", "ftp://x", "http://user:secret@x", "http://[::1", "http://x:y"]
)
@pytest.mark.parametrize(
    "rest", [["plan", "chat"], ["diagnose", "--at", "0"], ["diagnose", "chat"]], ids=" ".join
)
def test_a_url_that_is_none_of_a_prometheus_is_refused_in_a_sentence(tmp_path, url, rest):
    result = kvmedic(*rest, "--kubeconfig", str(a_config(tmp_path)), "--prometheus", url)

    assert result.exit_code == 2, result.exception
    assert "--prometheus: " in result.stderr
    assert "secret" not in result.stderr


def test_a_prometheus_that_cannot_be_reached_is_reported_as_such():
    result = kvmedic("diagnose", "--at", "1700000000", "-n", "x", "--prometheus", "http://127.0.0.1:1")

    assert result.exit_code == 3
    assert "SourceUnavailable" in result.stdout
    assert "cannot be reached" in result.stdout
    assert "NoReplicas" not in result.stdout
    assert "scale" not in result.stdout


@pytest.mark.parametrize(
    ("reason", "given", "is_shown"),
    [("SourceUnavailable", "", True), ("SourceUnavailable", "http://p:9090", False), ("Healthy", "", False)],
)
def test_who_cannot_reach_the_operators_source_sees_how_to_name_another(reason, given, is_shown, capsys):
    hint_at_source(reason, given)

    assert ("--prometheus http://localhost:9090" in capsys.readouterr().err) is is_shown


def test_two_engines_in_a_manifest_are_distinguished_in_a_way_that_diagnose_has(tmp_path):
    page, manifest = tmp_path / "page.txt", tmp_path / "two.yaml"
    page.write_text("vllm:num_requests_running 1\n")
    engines = [
        {"name": name, "image": f"vllm/vllm-openai:v0.{minor}.0", "args": ["--model=m"]}
        for name, minor in (("a", 11), ("b", 32))
    ]
    spec = {"template": {"spec": {"containers": engines}}}
    with manifest.open("w") as file:
        YAML().dump({"kind": "Deployment", "metadata": {"name": "chat"}, "spec": spec}, file)

    result = kvmedic("diagnose", *["--scrape", str(page)] * 2, "--manifest", str(manifest))

    assert "--container" not in result.output
    assert "--name" not in result.output


def a_process(
    *arguments: str, out: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvmedic", *arguments],
        stdout=subprocess.PIPE if out is None else out,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        encoding="utf-8",
        check=False,
    )


@pytest.mark.parametrize("arguments", [["crd"], ["blocks", "--help"]], ids=" ".join)
def test_a_full_disk_is_reported_in_a_sentence(arguments):
    with Path("/dev/full").open("w") as full:
        found = a_process(*arguments, out=full.fileno())

    assert found.returncode == 5
    assert "could not be written" in found.stderr
    assert "No space left" in found.stderr
    assert "Traceback" not in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_terminal_that_knows_only_ascii_gets_the_rest_escaped(tmp_path):
    manifest = tmp_path / "gr\u00f6\u00dfe.yaml"
    container = {
        "name": "gr\u00f6\u00dfe",
        "command": ["vllm", "serve", "m"],
        "args": ["--max-num-seqs", "x" * 5_000],
    }
    pod = {"kind": "Pod", "metadata": {"name": "\u6a21\u578b"}, "spec": {"containers": [container]}}
    manifest.write_text(json.dumps(pod, ensure_ascii=False), "utf-8")

    found = a_process(
        "flags", "show", "-f", str(manifest), PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0"
    )

    assert found.returncode == 3
    assert "\\u6a21" in found.stderr
    assert "Traceback" not in found.stderr
    assert len(found.stderr) < LONGEST_MESSAGE + 200
