"""How a fleet was without its method: whose figures count, and where they say nothing of the method."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.model.compression import BundleSetting as Setting
from kvmedic.model.compression import Figures, MethodClass
from kvmedic.model.fleet import ReplicaSet, template_hash
from kvmedic.model.spec import CompressionPolicy, Policy, Runbook, TargetRef
from kvmedic.model.status import LastGood, MethodBaseline, Record
from kvmedic.runbooks.branches import Compressed
from kvmedic.runbooks.compression.savings import find_baseline, with_baseline_on_record
from kvmedic.runbooks.workload import View
from run_builder import NOW, a_fleet
from worlds.asked import a_resource

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


FIGURES = Figures(20.0, 3800.0, 0.1, 0.9, 0.05, 7e10, 9.0, 60.0, 3.0)
GIVEN = "; or give spec.compression.baseline"


def target(before: dict[str, Any], now: dict[str, Any], **changes: Any) -> View:
    """Return a target that was given one template after another."""
    sets = tuple(
        ReplicaSet(f"llm-{number}", template_hash(template), number, 0, 0, 0, observed=True)
        for number, template in enumerate((before, now), 1)
    )
    fleet = a_fleet(revision=template_hash(now), replica_sets=sets)
    return replace(View(fleet, now, {"llm-1": before, "llm-2": now}), **changes)


def good_of(template: dict[str, Any], **changes: Any) -> LastGood:
    """Return what is on record of a healthy look at a fleet with a template."""
    good = LastGood(template_hash(template), {}, 3, 149, NOW, figures=FIGURES)
    return replace(good, **changes)


def a_policy(compression: CompressionPolicy | None = None) -> Policy:
    policy = a_resource().policy
    assert policy is not None
    both = tuple(Runbook)
    return replace(policy, runbooks=both, compression=compression or policy.compression)


def found(
    before: dict[str, Any],
    now: dict[str, Any],
    method: Compressed = TRIATTENTION,
    policy: Policy | None = None,
) -> MethodBaseline:
    """Return the baseline of a fleet whose last healthy look was one at the template of before."""
    known = find_baseline(
        method, Record(last_good=good_of(before)), policy or a_policy(), target(before, now)
    )
    assert known is not None
    return known


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param(OFF, ON, id="by its variable"),
        pytest.param(a_template(env=(BUDGET, OFF_SWITCH)), ON, id="by its switch, with its budget there"),
        pytest.param(a_template("--max-num-seqs=32"), MORE, id="with a lower cap, which costs nothing"),
    ],
)
def test_the_last_healthy_look_without_the_method_is_the_baseline(
    before: dict[str, Any], now: dict[str, Any]
) -> None:
    assert found(before, now) == MethodBaseline("TriAttention", template_hash(before), FIGURES, NOW)


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        pytest.param(UNREADABLE, ON, "cannot be read", id="unreadable"),
        pytest.param(
            a_template("--config", "/c/kv.yaml"), ON, "cannot be read", id="its file is not there any more"
        ),
        pytest.param(
            OFF,
            a_template(name="vllm", workingDir="/x"),
            "the pod template does not show that TriAttention is on",
            id="by the spec alone",
        ),
        pytest.param(ON, MORE, "TriAttention was on at the last healthy look, too", id="it was on before"),
        pytest.param(
            a_template(env=(ELSEWHERE,)),
            ON,
            "variables come from elsewhere than before",
            id="a variable that is set elsewhere",
        ),
        pytest.param(
            a_template(envFrom=[{"secretRef": {"name": "kv"}}]),
            ON,
            "variables come from elsewhere than before",
            id="all variables of a Secret",
        ),
        pytest.param(
            OFF,
            a_template(env=(BUDGET,), image="v0.33.0"),
            "more changed than TriAttention since the last healthy look without it: image ",
            id="with another image",
        ),
        pytest.param(a_template("--max-num-seqs=8"), MORE, ": maxNumSeqs 8 -> 16; ", id="with a higher cap"),
        pytest.param(
            OFF,
            a_template("--kv-cache-dtype=fp8", env=(BUDGET,)),
            "kv_cache_dtype (default) -> fp8",
            id="with another type of the cache",
        ),
        pytest.param(
            a_template(name="server"),
            ON,
            "what changed with TriAttention cannot be read",
            id="another container",
        ),
    ],
)
def test_figures_count_only_where_nothing_but_the_method_changed(
    before: dict[str, Any], now: dict[str, Any], says: str
) -> None:
    known = found(before, now)

    assert says in known.doubt


def test_a_template_that_is_gone_leaves_a_doubt() -> None:
    seen = target(OFF, ON, templates={"llm-2": ON})

    known = find_baseline(TRIATTENTION, Record(last_good=good_of(OFF)), a_policy(), seen)

    assert known is not None
    assert known.doubt == f"pod template {template_hash(OFF)} is gone (revisionHistoryLimit)"


@pytest.mark.parametrize(
    "figures", [None, Figures()], ids=["a replica was too young", "a series was missing"]
)
def test_a_look_without_figures_leaves_a_doubt(figures: Figures | None) -> None:
    record = Record(last_good=good_of(OFF, figures=figures))

    known = find_baseline(TRIATTENTION, record, a_policy(), target(OFF, ON))

    assert known is not None
    assert "not every figure was known" in known.doubt


KNOWN = MethodBaseline("TriAttention", template_hash(OFF), FIGURES, NOW)
LATER = NOW + timedelta(days=2)


@pytest.mark.parametrize(
    ("good", "baseline", "expected"),
    [
        pytest.param(None, None, None, id="no healthy look"),
        pytest.param(good_of(ON, method="TriAttention"), None, None, id="healthy with it alone"),
        pytest.param(good_of(ON, method="TriAttention"), KNOWN, KNOWN, id="healthy with it since"),
        pytest.param(good_of(ON), KNOWN, KNOWN, id="the same template, which says so by now"),
        pytest.param(good_of(OFF), replace(KNOWN, method="fp8"), KNOWN, id="another method before"),
        pytest.param(
            good_of(OFF, recorded_at=LATER), KNOWN, replace(KNOWN, seen_at=LATER), id="off and on again since"
        ),
        pytest.param(
            good_of(OFF), replace(KNOWN, doubt="more changed"), KNOWN, id="what else changed is back"
        ),
    ],
)
def test_a_baseline_is_of_the_newest_look_without_the_method(
    good: LastGood | None, baseline: MethodBaseline | None, expected: MethodBaseline | None
) -> None:
    record = Record(last_good=good, baseline=baseline)

    assert find_baseline(TRIATTENTION, record, a_policy(), target(OFF, ON)) == expected


def test_what_changes_after_the_method_came_is_no_part_of_the_comparison() -> None:
    record = Record(last_good=good_of(OFF), baseline=KNOWN)

    assert (
        find_baseline(TRIATTENTION, record, a_policy(), target(OFF, a_template(env=(BUDGET,), image="x")))
        == KNOWN
    )


def test_fewer_bits_by_a_flag_are_a_method_like_any_other() -> None:
    assert found(OFF, a_template("--kv-cache-dtype=fp8"), FP8).doubt == ""


def test_fewer_bits_and_another_type_of_the_model_are_more_than_the_method() -> None:
    both = a_template("--kv-cache-dtype=fp8", "--dtype=float16")

    assert "dtype (default) -> float16" in found(OFF, both, FP8).doubt


def test_a_declared_method_is_recognised_by_its_declared_settings() -> None:
    settings = (Setting(env="SHRINK", on="yes", off="no"),)
    policy = a_policy(CompressionPolicy("Mine", MethodClass.SCATTERED_EVICTION, settings=settings))
    method = Compressed("Mine", MethodClass.SCATTERED_EVICTION, "spec.compression", settings=settings)
    off, on = (a_template(env=({"name": "SHRINK", "value": value},)) for value in ("no", "yes"))

    assert found(off, on, method, policy).doubt == ""


def test_a_cap_that_belongs_to_a_declared_method_is_its_own() -> None:
    settings = (Setting(env="SHRINK", on="yes", off="no"), Setting(flag="--max-num-seqs", on="16", off="8"))
    method = Compressed("Mine", None, "spec.compression", settings=settings)
    policy = a_policy(CompressionPolicy("Mine", settings=settings[:1]))
    off, on = (
        a_template(f"--max-num-seqs={cap}", env=({"name": "SHRINK", "value": value},))
        for cap, value in (("8", "no"), ("16", "yes"))
    )

    assert found(off, on, method, policy).doubt == ""


def test_the_engines_container_is_the_one_that_the_spec_names() -> None:
    named = replace(a_policy(), target=TargetRef("Deployment", "llm", "elsewhere"))

    assert "the target has no container elsewhere" in found(OFF, ON, policy=named).doubt


def on_record(method: Compressed, record: Record, policy: Policy | None = None) -> Compressed:
    known = with_baseline_on_record(method, record, policy or a_policy(), target(OFF, ON))
    assert known is not None
    return known


def test_the_baseline_fills_what_the_spec_leaves_out() -> None:
    given = Figures(tokens_per_second=2000.0, preemptions_per_request=0.0)
    method = replace(TRIATTENTION, without=given, policy=CompressionPolicy(baseline=given))

    known = on_record(method, Record(last_good=good_of(OFF)))

    assert known.without == replace(
        FIGURES, tokens_per_second=2000.0, preemptions_per_request=0.0, replicas=None, requests_in_flight=None
    )
    whose = f"pod template {template_hash(OFF)}, 3 replicas, at 2026-03-01T03:00:00Z"
    assert known.without_from == f"spec.compression.baseline, the rest of {whose}"
    assert on_record(TRIATTENTION, Record(last_good=good_of(OFF))).without_from == whose


def test_what_the_spec_says_wins() -> None:
    method = replace(TRIATTENTION, without=FIGURES, policy=CompressionPolicy(baseline=FIGURES))

    known = on_record(method, Record(last_good=good_of(OFF, figures=replace(FIGURES, e2e_p95=1.0))))

    assert (known.without, known.without_from) == (FIGURES, "spec.compression.baseline")
    assert known.baseline is not None, "it is kept for the day on which the spec says less"


def test_why_nothing_is_known_is_said() -> None:
    never = on_record(TRIATTENTION, Record())
    doubtful = on_record(TRIATTENTION, Record(last_good=good_of(OFF, figures=None)))

    assert never.no_baseline == f"no healthy look at the fleet without TriAttention is on record{GIVEN}"
    assert doubtful.no_baseline.endswith(f"not every figure was known{GIVEN}")
    assert (doubtful.without, doubtful.without_from) == (Figures(), "")


def test_another_runbook_needs_no_baseline_and_keeps_it() -> None:
    alone = replace(a_policy(), runbooks=(Runbook.PREEMPTION_THRASH,))

    known = on_record(TRIATTENTION, Record(last_good=good_of(OFF)), alone)

    assert (known.baseline, known.without, known.no_baseline) == (KNOWN, Figures(), "")
    assert with_baseline_on_record(None, Record(), alone, target(OFF, ON)) is None
