"""What a revision changed that the KV cache depends on, and what is of no interest."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.model.config_edits import ConfigMap, Contents, Difference, Sight
from kvmedic.model.evidence import Inconclusive
from kvmedic.model.spec import TargetRef
from kvmedic.runbooks.revisions import Compared, differences
from kvmedic.runbooks.workload import View
from run_builder import a_fleet

IMAGE = "vllm/vllm-openai:v0.32.0"
ARGS = ("--model=m", "--max-num-seqs=64", "--max-model-len", "8192")


def template(*args: str, image: str = IMAGE, labels: dict[str, str] | None = None, **container: Any) -> Any:
    spec = {"name": "vllm", "image": image, "args": list(args or ARGS), **container}
    return {"metadata": {"labels": labels or {"app": "llm"}}, "spec": {"containers": [spec]}}


def compared(before: Any, after: Any, container: str | None = "vllm", **files: str) -> Compared:
    """Compare two templates; `files` are ConfigMaps by name, with what `engine.yaml` is in each."""
    maps: dict[str, Sight] = {
        name: ConfigMap(Contents({"engine.yaml": text})) for name, text in files.items()
    }
    view = View(a_fleet(), after, {"llm-1": before}, maps)
    return differences(view, TargetRef("Deployment", "llm", container), "llm-1")


def configured(config_map: str, *args: str, **container: Any) -> Any:
    """Return a template whose engine reads its configuration from a ConfigMap."""
    made = template("--model=m", "--config", "/etc/vllm/engine.yaml", *args, **container)
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "c", "mountPath": "/etc/vllm"}]
    made["spec"]["volumes"] = [{"name": "c", "configMap": {"name": config_map}}]
    return made


def flags(*more: str) -> Any:
    return template("--model=m", *more)


RAISED = [
    pytest.param(
        flags("--max-num-seqs=16"),
        flags("--max-num-seqs=17"),
        Difference("maxNumSeqs", "16", "17"),
        id="a cap by one",
    ),
    pytest.param(
        flags("--max-num-seqs", "16"),
        flags("--max-num-seqs=256"),
        Difference("maxNumSeqs", "16", "256"),
        id="a cap, written otherwise",
    ),
    pytest.param(
        flags("--max-num-seqs=127"),
        flags(),
        Difference("maxNumSeqs", "127", None),
        id="a cap under what every engine takes by itself was removed",
    ),
    pytest.param(
        flags(),
        flags("--max-num-seqs=2049"),
        Difference("maxNumSeqs", None, "2049"),
        id="a cap over what any engine takes by itself was added",
    ),
    pytest.param(
        flags("--max-model-len=4k"),
        flags("--max-model-len=8k"),
        Difference("maxModelLen", "4000", "8000"),
        id="the length",
    ),
    pytest.param(
        flags("--max-model-len=4096"),
        flags(),
        Difference("maxModelLen", "4096", None),
        id="the length's limit was removed",
    ),
    pytest.param(
        flags("--kv-cache-dtype=fp8"),
        flags(),
        Difference("kv_cache_dtype", "fp8", None),
        id="the type of the cache is the model's own again",
    ),
    pytest.param(
        flags("--dtype=bfloat16"),
        flags("--dtype=float32"),
        Difference("dtype", "bfloat16", "float32"),
        id="the type of the weights",
    ),
    pytest.param(
        flags("--quantization=awq"),
        flags("-q=fp8"),
        Difference("quantization", "awq", "fp8"),
        id="the quantisation, by its short name",
    ),
    pytest.param(
        template(image="vllm/vllm-openai:v0.31.0"),
        template(),
        Difference("image", "vllm/vllm-openai:v0.31.0", IMAGE),
        id="the image",
    ),
    pytest.param(
        template("--model=m", "--max-num-seqs=$(CAP)", env=[{"name": "CAP", "value": "16"}]),
        template("--model=m", "--max-num-seqs=$(CAP)", env=[{"name": "CAP", "value": "64"}]),
        Difference("maxNumSeqs", "16", "64"),
        id="a variable that the command line uses",
    ),
    pytest.param(
        template(command=["sh", "-c", "exec vllm serve m --max-num-seqs=16"], args=[]),
        template(command=["sh", "-c", "exec vllm serve m --max-num-seqs=64"], args=[]),
        Difference("maxNumSeqs", "16", "64"),
        id="in a script",
    ),
]


@pytest.mark.parametrize(("before", "after", "expected"), RAISED)
def test_what_costs_cache_is_named(before: Any, after: Any, expected: Difference) -> None:
    assert compared(before, after) == (expected,)


OF_NO_INTEREST = [
    pytest.param(template(), template(), id="nothing"),
    pytest.param(template(), template(labels={"app": "llm", "version": "2"}), id="a label"),
    pytest.param(template(), template(env=[{"name": "LOG", "value": "debug"}]), id="a variable"),
    pytest.param(template(), template(resources={"limits": {"cpu": "4"}}), id="resources"),
    pytest.param(flags("--max-num-seqs=64"), flags("--max-num-seqs=16"), id="a lowered cap"),
    pytest.param(flags("--max-model-len=8192"), flags("--max-model-len=4096"), id="a lowered length"),
    pytest.param(flags(), flags("--max-model-len=4096"), id="a length's limit where there was none"),
    pytest.param(flags("--max-num-seqs=128"), flags(), id="a cap removed that may have been no cap"),
    pytest.param(flags(), flags("--max-num-seqs=2048"), id="a cap added that may be a cap"),
    pytest.param(flags("--max-model-len=4096"), flags("--max-model-len=-1"), id="a length that fits"),
    pytest.param(flags(), flags("--kv-cache-dtype=auto"), id="the type that it has by itself"),
    pytest.param(flags("--seed=1"), flags("--seed=2"), id="a flag of no interest"),
    pytest.param(flags("--gpu-memory-utilization=0.9"), flags("--gpu-memory-utilization=0.8"), id="memory"),
    pytest.param(
        flags("--dtype=auto", "--max-num-seqs=8"),
        flags("--max-num-seqs", "8"),
        id="the same, written otherwise",
    ),
]


@pytest.mark.parametrize(("before", "after"), OF_NO_INTEREST)
def test_what_costs_none_is_not(before: Any, after: Any) -> None:
    assert compared(before, after) == ()


def test_several_changes_are_all_named() -> None:
    before = template("--model=m", "--max-num-seqs=16", image="vllm/vllm-openai:v0.31.0")
    after = template("--model=m", "--max-num-seqs=64", "--kv-cache-dtype=fp8")

    found = compared(before, after)

    assert not isinstance(found, Inconclusive)
    assert [one.what for one in found] == ["maxNumSeqs", "kv_cache_dtype", "image"]


UNREADABLE = [
    pytest.param(
        flags("--max-num-seqs=16", "--config", "/c.yaml"),
        flags("--max-num-seqs=64", "--config", "/c.yaml"),
        "/c.yaml",
        id="a configuration file that is in no ConfigMap may say more",
    ),
    pytest.param(
        configured("gone"),
        configured("here"),
        "the revision before: /etc/vllm/engine.yaml is in ConfigMap/gone",
        id="the file of the revision before is gone",
    ),
    pytest.param(
        configured("here"),
        configured("gone"),
        "/etc/vllm/engine.yaml is in ConfigMap/gone",
        id="the file of this revision is gone",
    ),
    pytest.param(
        template("--model=m", "--max-num-seqs=$(A)", env=[{"name": "A", "valueFrom": {}}]),
        template("--model=m", "--max-num-seqs=$(B)", env=[{"name": "B", "valueFrom": {}}]),
        "max_num_seqs comes from a variable",
        id="a variable from elsewhere",
    ),
    pytest.param(
        {"spec": {"containers": [{"name": "engine", "image": IMAGE, "args": ["--model=m"]}]}},
        template(),
        "no container vllm",
        id="the container has another name",
    ),
    pytest.param(
        template(image="busybox", command=["sleep"], args=["1"]),
        template(),
        "the revision before: container vllm does not start vLLM",
        id="another program ran before",
    ),
    pytest.param(
        template(),
        template(image="busybox", command=["sleep"], args=["1"]),
        "container vllm does not start vLLM",
        id="another program runs now",
    ),
]


@pytest.mark.parametrize(("before", "after", "words"), UNREADABLE)
def test_what_is_not_known_is_never_taken_for_nothing(before: Any, after: Any, words: str) -> None:
    found = compared(before, after, here="max-num-seqs: 64")

    assert isinstance(found, Inconclusive)
    assert words in found.message


FILES = {
    "low": "max-num-seqs: 16\n",
    "high": "max-num-seqs: 64\ndtype: auto\n",
    "fp8": "kv-cache-dtype: fp8\n",
}
IN_FILES = [
    pytest.param(configured("low"), configured("high"), [("maxNumSeqs", "16", "64")], id="another file"),
    pytest.param(configured("high"), configured("low"), [], id="a lower cap"),
    pytest.param(
        configured("low"),
        configured("low", "--max-num-seqs=32"),
        [("maxNumSeqs", "16", "32")],
        id="the command line beats the file",
    ),
    pytest.param(
        configured("low", "--max-num-seqs=8"),
        configured("high", "--max-num-seqs=8"),
        [],
        id="and then what the file gives is of no interest",
    ),
    pytest.param(
        template("--model=m", "--max-num-seqs=16"), configured("low"), [], id="the flag moved into a file"
    ),
    pytest.param(
        template("--model=m", "--max-num-seqs=16"),
        configured("high"),
        [("maxNumSeqs", "16", "64")],
        id="the flag moved into a file and rose",
    ),
    pytest.param(
        configured("high"),
        template("--model=m", "--max-num-seqs=65"),
        [("maxNumSeqs", "64", "65")],
        id="the flag moved out of a file and rose",
    ),
    pytest.param(
        configured("low"),
        configured("fp8", "--max-num-seqs=16"),
        [("kv_cache_dtype", None, "fp8")],
        id="a type in the file",
    ),
]


@pytest.mark.parametrize(("before", "after", "expected"), IN_FILES)
def test_what_a_file_gives_counts(before: Any, after: Any, expected: list[Any]) -> None:
    assert compared(before, after, **FILES) == tuple(Difference(*one) for one in expected)


def test_of_a_file_nothing_else_is_shown() -> None:
    secret = "max-num-seqs: {}\napi-key: s3cret\n"

    found = compared(configured("a"), configured("b"), a=secret.format(1), b=secret.format(2))

    assert found == (Difference("maxNumSeqs", "1", "2"),)
    assert "s3cret" not in repr(View(a_fleet(), {}, {}, {"a": ConfigMap(Contents({"engine.yaml": secret}))}))


def test_a_file_does_not_matter_where_nothing_else_changed() -> None:
    before = flags("--config", "/c.yaml")
    after = {**before, "metadata": {"labels": {"app": "llm", "version": "2"}}}

    assert compared(before, after) == ()


def test_a_file_from_another_volume_matters() -> None:
    before, after = flags("--config", "/c.yaml"), flags("--config", "/c.yaml")
    after["spec"]["volumes"] = [{"name": "c", "configMap": {"name": "another"}}]

    assert isinstance(compared(before, after), Inconclusive)


def test_of_several_containers_the_named_one_counts() -> None:
    before, after = template(), template("--model=m", "--max-num-seqs=65", "--max-model-len", "8192")
    for each in (before, after):
        each["spec"]["containers"].append({"name": "other", "image": IMAGE, "args": ["--model=m"]})

    assert compared(before, after, "vllm") == (Difference("maxNumSeqs", "64", "65"),)
    assert compared(before, after, "other") == ()
    assert isinstance(compared(before, after, None), Inconclusive)
