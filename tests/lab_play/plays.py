"""Scenarios and results for tests; small, and of no file."""

from typing import Any

from lab.play.figures import Figures
from lab.play.result import Result
from lab.play.schema import Expectation, Scenario

SPEC: dict[str, Any] = {
    "targetRef": {"kind": "Deployment", "name": "inference-llm"},
    "mode": "Auto",
    "trigger": {"window": "1m", "for": "0s"},
    "sizing": {"window": "1m"},
    "levers": [{"name": "maxNumSeqs", "min": 4}],
    "verify": {"for": "1m"},
}
HEALS: dict[str, Any] = {
    "branch": "FleetWideDemand",
    "moves": [{"knob": "maxNumSeqs", "after": (10, 30)}],
    "verdicts": ["Recovered"],
}
CAP = {"kind": "FlagStep", "knob": "maxNumSeqs", "before": "64", "after": "18"}
"""A step as the status writes it."""
BEFORE = Figures(
    window_seconds=60,
    requests=600,
    preemptions_per_request=1.5,
    longest_gap_p95=10.0,
    inter_token_p95=0.1,
    ttft_p95=12.0,
    tokens_per_second=2000,
    in_time_per_second=900,
    stalled_share=0.4,
    left_share=0.1,
)


def a_scenario(expect: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    """A scenario with one run that recovers, but for the changes."""
    content: dict[str, Any] = {
        "name": "a-play",
        "title": "a play",
        "fleet": {"replicas": 3, "flags": {"max-num-seqs": 64}},
        "load": [{"clients": 4, "lengths": "10+10"}],
        "remediation": SPEC,
        "expect": expect or HEALS,
    }
    return Scenario.model_validate({**content, **changes})


def a_status(reason: str = "Healthy", **changes: Any) -> dict[str, Any]:
    """A status with a diagnosis."""
    condition = {"type": "Ready", "status": "True", "reason": "TargetFound", "message": "found"}
    return {"diagnosis": {"reason": reason, "message": "so it is"}, "conditions": [condition], **changes}


def a_run(settled: bool = False) -> dict[str, Any]:
    """An open run as the status writes it."""
    step = {"step": CAP, "state": "Verifying" if settled else "RollingOut"}
    step |= {"settledAt": "2026-03-01T03:00:00Z"} if settled else {}
    return {"id": "20260301-025500", "reason": "FleetWideDemand", "message": "64 run", "steps": [step]}


def a_closed_run(outcome: str = "Recovered") -> dict[str, Any]:
    """A run of the history."""
    return {
        "id": "20260301-025500",
        "reason": "FleetWideDemand",
        "outcome": outcome,
        "message": "it is better",
    }


def a_plan() -> dict[str, Any]:
    """A plan that is shown."""
    return {"digest": "0123456789abcdef", "message": "64 run at most", "exact": {"steps": [CAP]}}


def a_result(expect: dict[str, Any] | None = None, **changes: Any) -> Result:
    """What is left of a play that went well, but for the changes."""
    result = Result(
        scenario=a_scenario(expect),
        requests=3000,
        min_in_rotation=3,
        restarts_per_replica=1.0,
        branch="FleetWideDemand",
        branches=["Healthy", "FleetWideDemand"],
        moves=[CAP],
        verdicts=["Recovered"],
    )
    for name, value in changes.items():
        setattr(result, name, value)
    return result


def bounded(**ratios: Any) -> dict[str, Any]:
    """A healing expectation with bounds on ratios; validated, so that a wrong one fails here."""
    expect = {**HEALS, "ratios": ratios}
    Expectation.model_validate(expect)
    return expect
