"""The engine in each pod template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests import flags
from kvmedic.model.config_edits import ConfigMap, Contents, Difference
from kvmedic.model.engine import Engine, Knob, Version
from kvmedic.model.evidence import Blocked
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import TargetRef
from kvmedic.runbooks import workload
from kvmedic.runbooks.revisions import differences
from kvmedic.runbooks.workload import View, Workload
from run_builder import a_fleet

TARGET = TargetRef("Deployment", "llm", None)
LIMITS = {"limits": ConfigMap(Contents({"engine.yaml": "max-num-seqs: 8\n"}))}
FEWER = ConfigMap(Contents({"engine.yaml": "max-num-seqs: 4\n"}))


def template(*args: str, image: str = "vllm/vllm-openai:v0.32.0", **labels: str) -> dict[str, Any]:
    mounts = [{"name": "c", "mountPath": "/etc/vllm"}]
    engine = {"name": "vllm", "image": image, "args": ["--model=m", *args], "volumeMounts": mounts}
    volumes = [{"name": "c", "configMap": {"name": "limits"}}]
    return {"metadata": {"labels": labels}, "spec": {"containers": [engine], "volumes": volumes}}


NOW, BEFORE = template("--max-num-seqs=64"), template("--max-num-seqs=32")
CONFIGURED = template("--config", "/etc/vllm/engine.yaml")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each command line was parsed, by its words."""
    found: Counter[str] = Counter()
    parse = flags.parse

    def count(line: Any, engine: Engine) -> Any:
        found[" ".join(token.text for token in line.tokens)] += 1
        return parse(line, engine)

    monkeypatch.setattr(flags, "parse", count)
    return found


def given(view: View, knob: Knob = Knob.MAX_NUM_SEQS, replica_set: str = "") -> object:
    found = view.workload(TARGET, replica_set)
    assert isinstance(found, Workload), found
    return found.value_of(knob)


def test_a_look_parses_each_template_once_for_all_callers(parsed: Counter[str]) -> None:
    own = {**NOW, "metadata": {"labels": {"pod-template-hash": "5b"}}}
    view = View(a_fleet(), NOW, {"llm-5b": own, "llm-4a": BEFORE})

    asked = [given(view), given(view), given(view, replica_set="llm-5b"), given(view, replica_set="llm-4a")]
    changed = differences(view, TARGET, "llm-4a"), differences(view, TARGET, "llm-4a", "llm-5b")
    held = given(replace(view, fleet=a_fleet(replicas=5)))

    assert asked == [64, 64, 64, 32]
    assert changed == ((Difference("maxNumSeqs", "32", "64"),),) * 2
    assert held == 64
    assert parsed == {"--model=m --max-num-seqs=64": 1, "--model=m --max-num-seqs=32": 1}


def test_a_look_knows_a_file_as_soon_as_it_is_read(parsed: Counter[str]) -> None:
    unread = View(a_fleet(), CONFIGURED)
    read = replace(unread, config_maps=LIMITS)

    assert (given(unread), given(read), given(unread)) == (None, 8, None)
    assert parsed.total() == 1


def test_another_state_of_a_fleet_has_what_was_read_of_its_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[object] = []
    real = workload.template_hash
    monkeypatch.setattr(workload, "template_hash", lambda each: hashed.append(each) or real(each))
    view = View(a_fleet(), CONFIGURED, {"llm-4a": BEFORE}, LIMITS)
    asked = [given(view), given(view, replica_set="llm-4a")]

    later = view.with_fleet(a_fleet(replicas=5))

    assert [given(later), given(later, replica_set="llm-4a")] == asked == [8, 32]
    assert hashed == [CONFIGURED, BEFORE]
    assert later.fleet.replicas == 5
    assert given(replace(later, config_maps={"limits": FEWER})) == 4
    assert given(replace(later, template=NOW)) == 64


def test_another_template_is_another_command_line() -> None:
    view = View(a_fleet(), NOW)

    assert (given(view), given(replace(view, template=BEFORE))) == (64, 32)


@pytest.mark.parametrize(("version", "times"), [("0.32.0", 1), ("0.9.0", 2)])
def test_it_is_parsed_again_for_another_version_alone(parsed: Counter[str], version: str, times: int) -> None:
    view, engine = View(a_fleet(), NOW), Engine(VLLM, Version.parse(version))

    found = [view.workload(TARGET), view.workload(TARGET, engines=(engine,))]

    assert [each.engine.version for each in found if isinstance(each, Workload)][1] == engine.version
    assert parsed.total() == times


def test_a_container_that_the_template_lacks_is_named(parsed: Counter[str]) -> None:
    view = View(a_fleet(), NOW)

    faults = [view.workload(replace(TARGET, container=name)) for name in ("a", "b", "a")]

    assert [isinstance(each, Blocked) and each.message.partition(":")[0] for each in faults] == [
        f"the target has no container {name}" for name in ("a", "b", "a")
    ]
    assert not parsed


def test_an_image_that_says_nothing_is_read_as_the_engine_that_the_target_names() -> None:
    view = View(a_fleet(), template("--max-num-seqs=64", image="example.com/llm:7"))
    named = replace(TARGET, engine="vLLM")

    unknown, found = view.workload(TARGET), view.workload(named)

    assert isinstance(unknown, Blocked)
    assert unknown.reason is Reason.ENGINE_UNRECOGNISED
    assert isinstance(found, Workload)
    assert (found.value_of(Knob.MAX_NUM_SEQS), found.engine.version) == (64, None)


def test_of_several_containers_that_may_be_the_named_engine_one_must_be_named() -> None:
    several = template(image="example.com/llm:7")
    several["spec"]["containers"].append({"name": "metrics", "image": "exporter", "args": ["--web=:9100"]})
    view = View(a_fleet(), several)

    either = view.workload(replace(TARGET, engine="vLLM"))

    assert isinstance(either, Blocked)
    assert "spec.targetRef.container" in either.message
    assert isinstance(view.workload(replace(TARGET, engine="vLLM", container="vllm")), Workload)


def test_templates_and_files_are_not_printed() -> None:
    secret: Mapping[str, Any] = template("--api-key=s3cret")
    maps = {"limits": ConfigMap(Contents({"engine.yaml": "api-key: s3cret\n"}))}
    view = View(a_fleet(), secret, {"llm-4a": secret}, maps)

    assert isinstance(view.workload(TARGET), Workload)
    assert "s3cret" not in repr(view)
    assert "s3cret" not in repr(view.workload(TARGET))
