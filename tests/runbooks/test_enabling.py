"""Which revision turned a method on, and whether its figures compare with those of the one before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvmedic.model.compression import BundleSetting as Setting
from kvmedic.model.compression import MethodClass
from kvmedic.model.config_edits import Revision
from kvmedic.model.fleet import ReplicaSet, template_hash
from kvmedic.model.spec import CompressionPolicy, Policy, TargetRef
from kvmedic.runbooks.branches import Compressed
from kvmedic.runbooks.compression.history import Enabled, Run, Untold, run_of
from kvmedic.runbooks.workload import View
from reconcile.asked import a_resource
from run_builder import a_fleet

TRIATTENTION = Compressed(
    "TriAttention",
    MethodClass.COMPACTING_EVICTION,
    "TRIATTN_RUNTIME_KV_BUDGET",
    settings=(Setting(env="ENABLE_TRIATTENTION", on="1", off="0"),),
)
FP8 = Compressed(
    "fp8",
    MethodClass.QUANTIZATION,
    "cache_dtype fp8",
    settings=(Setting(flag="--kv-cache-dtype", on="fp8", off=None),),
)
BUDGET = {"name": "TRIATTN_RUNTIME_KV_BUDGET", "value": "2048"}
OFF_SWITCH = {"name": "ENABLE_TRIATTENTION", "value": "0"}
ELSEWHERE = {"name": "ENABLE_TRIATTENTION", "valueFrom": {"configMapKeyRef": {"name": "kv", "key": "on"}}}


def a_template(*args: str, env: tuple[Any, ...] = (), image: str = "v0.32.0", **more: Any) -> dict[str, Any]:
    container = {
        "name": "vllm",
        "image": f"vllm/vllm-openai:{image}",
        "command": ["vllm", "serve", "/models/tiny"],
        "args": list(args),
        "env": list(env),
        **more,
    }
    return {"spec": {"containers": [container]}}


OFF, ON, MORE = a_template(), a_template(env=(BUDGET,)), a_template("--max-num-seqs=16", env=(BUDGET,))
UNREADABLE = {"spec": {"containers": [{"name": "vllm", "image": "somebody/else:1"}]}}


def kept(*templates: dict[str, Any], numbers: tuple[tuple[int, ...], ...] = ()) -> View:
    """Return a target that was given some templates one after the other; the last one is present.

    The numbers of each, the newest first, where they are not 1, 2, 3.
    """
    counted = numbers or tuple((number,) for number in range(1, len(templates) + 1))
    sets = tuple(
        ReplicaSet(
            f"llm-{index}",
            template_hash(template),
            mine[0],
            0,
            0,
            0,
            observed=True,
            earlier_numbers=tuple(sorted(mine[1:])),
        )
        for index, (template, mine) in enumerate(zip(templates, counted, strict=True), 1)
    )
    present = max(sets, key=lambda each: each.number)
    fleet = a_fleet(revision=present.revision, replica_sets=sets)
    return View(fleet, {}, {f"llm-{index}": template for index, template in enumerate(templates, 1)})


def a_policy(compression: CompressionPolicy | None = None) -> Policy:
    policy = a_resource().policy
    assert policy is not None
    return replace(policy, compression=compression or policy.compression)


def found(target: View, method: Compressed = TRIATTENTION) -> Run:
    return run_of(target, a_policy(), method)


def enabled(run: Run) -> tuple[int, int]:
    """Return the numbers of the revision that turned the method on and of the one before."""
    assert isinstance(run.enabled, Enabled), run.enabled
    return run.enabled.now.number, run.enabled.previous.number


def told(run: Run) -> str:
    assert isinstance(run.enabled, Untold)
    return run.enabled.message


@pytest.mark.parametrize(
    ("target", "numbers", "on"),
    [
        pytest.param(kept(OFF, ON), (2, 1), (2,), id="the present one"),
        pytest.param(kept(OFF, ON, MORE), (2, 1), (3, 2), id="an earlier one, with others since"),
        pytest.param(
            kept(OFF, ON, MORE, numbers=((3, 1), (2,), (4,))),
            (4, 3),
            (4,),
            id="taken back, and turned on anew",
        ),
        pytest.param(
            kept(OFF, ON, numbers=((3, 1), (4, 2))), (4, 3), (4,), id="by the very template of the first time"
        ),
        pytest.param(
            kept(OFF, ON, MORE, numbers=((1,), (4, 2), (3,))),
            (2, 1),
            (4, 3, 2),
            id="changed and changed back",
        ),
        pytest.param(
            kept(a_template(env=(BUDGET, OFF_SWITCH)), ON),
            (2, 1),
            (2,),
            id="by its switch, with its budget there",
        ),
        pytest.param(
            kept(a_template("--max-num-seqs=32"), MORE),
            (2, 1),
            (2,),
            id="with a lower cap, which costs nothing",
        ),
    ],
)
def test_the_newest_beginning_counts(target: View, numbers: tuple[int, int], on: tuple[int, ...]) -> None:
    run = found(target)

    assert enabled(run) == numbers
    assert tuple(each.number for each in run.on) == on


def test_a_revision_is_named_with_what_keeps_it() -> None:
    assert found(kept(OFF, ON)).enabled == Enabled(
        Revision(2, "llm-2", template_hash(ON)), Revision(1, "llm-1", template_hash(OFF))
    )


@pytest.mark.parametrize(
    ("target", "says"),
    [
        pytest.param(kept(ON), "TriAttention is on since the first revision", id="always on"),
        pytest.param(
            kept(ON, MORE, numbers=((4,), (5,))),
            "revision 3 is gone, and TriAttention is on in all that came after (revisionHistoryLimit)",
            id="the one before is gone",
        ),
        pytest.param(
            kept(OFF, ON, numbers=((1,), (3,))), "revision 2 is gone, and", id="one in the middle is gone"
        ),
        pytest.param(kept(UNREADABLE, ON), "the pod template of revision 1 cannot be read", id="unreadable"),
        pytest.param(
            kept(a_template("--config", "/c/kv.yaml"), ON),
            "the pod template of revision 1 cannot be read",
            id="its file is not there any more",
        ),
        pytest.param(
            kept(OFF, a_template()),
            "the pod template does not tell that TriAttention is on",
            id="by the spec alone",
        ),
        pytest.param(
            kept(a_template(env=(ELSEWHERE,)), ON),
            "revision 1 takes other variables from elsewhere than revision 2",
            id="a variable that is set elsewhere",
        ),
        pytest.param(
            kept(a_template(envFrom=[{"secretRef": {"name": "kv"}}]), ON),
            "revision 1 takes other variables from elsewhere",
            id="all variables of a Secret",
        ),
        pytest.param(
            kept(OFF, a_template(env=(BUDGET,), image="v0.33.0")),
            "revision 2 turned TriAttention on and changed more: image vllm/vllm-openai:v0.32.0 -> ",
            id="with another image",
        ),
        pytest.param(
            kept(a_template("--max-num-seqs=8"), MORE),
            "changed more: maxNumSeqs 8 -> 16; ",
            id="with a higher cap",
        ),
        pytest.param(
            kept(OFF, a_template("--kv-cache-dtype=fp8", env=(BUDGET,))),
            "changed more: kv_cache_dtype (default) -> fp8",
            id="with another type of the cache",
        ),
        pytest.param(
            kept(a_template(name="server"), ON),
            "what revision 2 changed cannot be read: the revision before has no container vllm",
            id="in another container",
        ),
    ],
)
def test_nothing_is_guessed(target: View, says: str) -> None:
    assert says in told(found(target))


def test_a_template_that_was_not_read_ends_the_search() -> None:
    target = kept(OFF, ON)

    run = found(replace(target, templates={"llm-2": ON}))

    assert told(run) == "the pod template of revision 1 was not read"
    assert [each.number for each in run.on] == [2]


def test_a_template_without_a_replica_set_has_no_past_yet() -> None:
    target = kept(OFF, ON)
    fleet = replace(target.fleet, revision="e" * 16)

    assert told(found(replace(target, fleet=fleet))) == "the present pod template has no ReplicaSet yet"


def test_fewer_bits_by_a_flag_are_a_method_like_any_other() -> None:
    assert enabled(found(kept(OFF, a_template("--kv-cache-dtype=fp8")), FP8)) == (2, 1)


def test_fewer_bits_and_another_type_of_the_model_are_more_than_the_method() -> None:
    both = a_template("--kv-cache-dtype=fp8", "--dtype=float16")

    assert "changed more: dtype (default) -> float16" in told(found(kept(OFF, both), FP8))


def test_another_method_before_is_not_this_one() -> None:
    fewer = a_template("--kv-cache-dtype=fp8")
    both = a_template("--kv-cache-dtype=fp8", env=(BUDGET,))

    assert enabled(found(kept(fewer, both))) == (2, 1)


def test_a_declared_method_is_told_by_its_declared_settings() -> None:
    settings = (Setting(env="SHRINK", on="yes", off="no"),)
    policy = a_policy(CompressionPolicy("Mine", MethodClass.SCATTERED_EVICTION, settings=settings))
    method = Compressed("Mine", MethodClass.SCATTERED_EVICTION, "spec.compression", settings=settings)
    off, on = (a_template(env=({"name": "SHRINK", "value": value},)) for value in ("no", "yes"))

    assert enabled(run_of(kept(off, on), policy, method)) == (2, 1)


def test_a_cap_that_belongs_to_a_declared_method_is_its_own() -> None:
    settings = (Setting(env="SHRINK", on="yes", off="no"), Setting(flag="--max-num-seqs", on="16", off="8"))
    method = Compressed("Mine", None, "spec.compression", settings=settings)
    policy = a_policy(CompressionPolicy("Mine", settings=settings[:1]))
    off, on = (
        a_template(f"--max-num-seqs={cap}", env=({"name": "SHRINK", "value": value},))
        for cap, value in (("8", "no"), ("16", "yes"))
    )

    assert enabled(run_of(kept(off, on), policy, method)) == (2, 1)


def test_the_engines_container_is_the_one_that_the_spec_names() -> None:
    named = replace(a_policy(), target=TargetRef("Deployment", "llm", "elsewhere"))

    assert "the target has no container elsewhere" in told(run_of(kept(OFF, ON), named, TRIATTENTION))
