"""What counts as a good end of the demo, and that each miss is named."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kvmedic.api.pending import not_implemented
from kvmedic.api.spec import KVRemediationSpec
from lab.demo.figures import Figures
from lab.demo.goals import Result, misses
from lab.demo.manifests import deployment, remediation
from lab.demo.scenario import BAD_CANARY, HEALTHY, REAL, THRASH, Scenario, scenario
from lab.demo.table import table

BEFORE = Figures(
    window_seconds=60,
    requests=600,
    preemptions_per_request=1.5,
    longest_gap_p95=10.0,
    inter_token_p95=0.1,
    ttft_p95=12.0,
    tokens_per_second=2000,
    goodput_per_second=900,
    stalled_share=0.4,
)
AFTER = replace(
    BEFORE, preemptions_per_request=0.1, longest_gap_p95=1.0, tokens_per_second=1950, goodput_per_second=1900
)


def healed(**changes: object) -> Result:
    """A play that went well, but for the changes."""
    result = Result(
        scenario=THRASH,
        before=BEFORE,
        after=AFTER,
        requests=3000,
        min_in_rotation=3,
        restarts_per_replica=1.0,
        plan="Deployment inference-llm: --max-num-seqs 64 -> 16",
        verdict="Recovered",
    )
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def test_a_healed_fleet_misses_nothing() -> None:
    assert misses(healed()) == []


def test_real_vllm_on_two_cores_has_looser_goals_of_its_own() -> None:
    after = replace(AFTER, longest_gap_p95=4.9, tokens_per_second=1701)
    half = {"scenario": REAL, "after": after, "verdict": "Improved", "min_in_rotation": 2}

    assert misses(healed(**half)) == []
    assert len(misses(healed(**{**half, "after": replace(after, longest_gap_p95=5.1)}))) == 1
    assert len(misses(healed(**{**half, "after": replace(after, tokens_per_second=1699)}))) == 1
    assert misses(healed(**{**half, "verdict": "NotRecovered"})) == [
        "the verdict is NotRecovered, expected Recovered or Improved"
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"verdict": "NotRecovered"}, "the verdict is NotRecovered, expected Recovered"),
        ({"verdict": ""}, "the verdict is missing"),
        ({"failed_requests": 1, "failures": ["aborted: cut"]}, "1 requests failed or were aborted"),
        ({"min_in_rotation": 2}, "only 2 replicas were in rotation"),
        ({"restarts_per_replica": 4 / 3}, "1.33 restarts per replica, expected 1"),
        ({"after": replace(AFTER, longest_gap_p95=2.51)}, "the p95 of the longest gap is 3.98 times shorter"),
        ({"after": replace(AFTER, longest_gap_p95=math.nan)}, "the p95 of the longest gap is nan"),
        ({"after": replace(AFTER, tokens_per_second=1899)}, "tokens/s are 0.950 of before"),
        ({"after": replace(AFTER, goodput_per_second=900)}, "goodput did not rise"),
        ({"after": None}, "figures before or after are missing"),
        ({"requests": 0}, "no request was answered"),
    ],
)
def test_each_miss_of_a_healed_fleet_is_named(changes: dict[str, object], named: str) -> None:
    found = misses(healed(**changes))

    assert len(found) == 1
    assert found[0].startswith(named)


@pytest.mark.parametrize(
    "changes",
    [{"after": replace(AFTER, longest_gap_p95=2.5)}, {"after": replace(AFTER, tokens_per_second=1900)}],
    ids=["gap", "throughput"],
)
def test_the_bounds_themselves_are_good_enough(changes: dict[str, object]) -> None:
    assert misses(healed(**changes)) == []


def calm(**changes: object) -> Result:
    """A healthy fleet that was left alone, but for the changes."""
    unplanned = {"scenario": HEALTHY, "before": None, "after": None, "plan": "", "verdict": "Healthy"}
    return healed(**{**unplanned, "restarts_per_replica": 0.0, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ""),
        ({"plan": "--max-num-seqs 64 -> 16"}, "a plan was made"),
        ({"foreign_writers": ["kvmedic"]}, "somebody wrote to the Deployment or its pods: kvmedic"),
        ({"rewritten": ["inference-llm"]}, "their resourceVersion is another than before: inference-llm"),
        ({"template_changed": True}, "the Deployment is not as it was before"),
        ({"restarts_per_replica": 1 / 3}, "0.33 restarts per replica, expected 0"),
    ],
)
def test_a_healthy_fleet_must_be_left_alone(changes: dict[str, object], named: str) -> None:
    assert [miss[: len(named)] for miss in misses(calm(**changes))] == ([named] if named else [])


def test_a_bad_canary_must_leave_the_old_fleet_untouched() -> None:
    good = {"scenario": BAD_CANARY, "after": None, "verdict": "CanaryFailed", "restarts_per_replica": 0.0}

    assert misses(healed(**good)) == []
    assert misses(healed(**good, template_changed=True)) == ["the Deployment is not as it was before"]
    assert misses(healed(**good, plan="")) == ["no plan was made"]


def test_the_table_shows_both_sides_and_every_miss() -> None:
    result = healed(failed_requests=2)
    result.missed = misses(result)

    shown = table(result)

    assert "preemptions per request" in shown
    assert "1.50        0.10     x0.07" in shown
    assert "MISSED   2 requests failed" in shown
    assert "as it should be" in table(healed())


def test_the_summary_has_the_promised_fields_and_no_nan() -> None:
    summary = healed(after=replace(AFTER, ttft_p95=math.nan)).as_json()

    promised = {"before", "after", "failed_requests", "min_in_rotation", "replicas", "restarts_per_replica"}
    assert promised | {"plan", "verdict", "seconds"} <= summary.keys()
    assert summary["after"]["ttft_p95"] is None


@pytest.mark.parametrize(
    ("name", "engine", "message"),
    [
        ("thrush", "lab", "SCENARIO=thrush: there are thrash, healthy, bad-canary"),
        ("thrash", "sglang", "ENGINE=sglang: there are lab, vllm"),
        ("healthy", "vllm", "SCENARIO=healthy has no variant with ENGINE=vllm; thrash has"),
    ],
)
def test_what_there_is_not_is_refused_by_name(name: str, engine: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenario(name, engine)


@pytest.mark.parametrize("played", [THRASH, HEALTHY, BAD_CANARY, REAL], ids=lambda each: each.title)
def test_the_resource_of_every_play_is_one_that_the_operator_takes(played: Scenario) -> None:
    spec = KVRemediationSpec.model_validate(remediation(played)["spec"])

    assert not_implemented(spec) == ()


def test_real_vllm_gets_what_it_needs_and_nothing_else_changes() -> None:
    real = scenario("thrash", "vllm").fleet
    pod = deployment(real, "image")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert container["args"] == list(real.args)
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in container["volumeMounts"]}
    assert all(each["readOnly"] for each in container["volumeMounts"] if each["name"] not in ("shm", "tmp"))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "volumes" not in deployment(scenario("thrash", "lab").fleet, "image")["spec"]["template"]["spec"]
