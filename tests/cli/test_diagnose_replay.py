"""`kvmedic diagnose --prometheus URL --at TIME`: an incident of the past, from a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvmedic.api.resource import policy_of, spec_from_wire
from kvmedic.cli.app import app_for
from kvmedic.cli.live.past_figures import Asked, PastFigures, read_figures
from kvmedic.metrics.page import parse_page
from kvmedic.settings import Settings, SourceOptions
from worlds.metric_tape import Tape
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import DATA, END

Diagnose = Callable[..., Result]
BEFORE = END - timedelta(minutes=20)
SPEC = """\
apiVersion: kvmedic.io/v1alpha1
kind: KVRemediation
metadata: {name: chat}
spec:
  targetRef: {name: chat}
  trigger: {window: 1m, for: 0s}
  sizing: {window: 5m}
"""
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec: {template: {spec: {containers: [{name: vllm, image: "vllm/vllm-openai:v0.32.0",
  args: [--model=tiny, --max-num-seqs=64]}]}}}
"""


def page(name: str) -> Any:
    """A recorded page with as many requests in the engine's hands at the first moment as at the last.

    The recording's clients sent again once they were answered. Of those the engine ran 11 when the page was
    taken, and 14 on average.
    """
    text = (DATA / f"metrics-{name}.txt").read_text()
    for gauge, value in (("running", 13.0), ("waiting", 10.0)):
        text = re.sub(rf"^(vllm:num_requests_{gauge}{{.*}}) .*$", rf"\1 {value}", text, flags=re.MULTILINE)
    return parse_page(text, END)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A Prometheus that saw two replicas idle for twenty minutes and thrash for the last five."""
    directory = tmp_path_factory.mktemp("past")
    tape = Tape(END, length=timedelta(minutes=25), step=timedelta(seconds=15))
    for pod in ("chat-7c9-x1", "chat-7c9-x2"):
        target = {"namespace": "serving", "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}
        tape.replay(page("idle"), page("thrash"), target, since=-300)
    target = {"namespace": "other", "pod": "code-7c9bdf-abcde", "instance": "code:8000", "job": "vllm"}
    tape.replay(page("idle"), page("thrash"), target, since=-300)
    tape.write(directory)
    with PrometheusServer(directory) as server:
        yield server


@pytest.fixture
def diagnose(past: PrometheusServer, tmp_path: Path) -> Diagnose:
    (tmp_path / "kvr.yaml").write_text(SPEC)
    (tmp_path / "chat.yaml").write_text(MANIFEST)

    def run(*arguments: str, url: str = past.url) -> Result:
        files = ["--spec", str(tmp_path / "kvr.yaml"), "--manifest", str(tmp_path / "chat.yaml")]
        argv = ["diagnose", "--prometheus", url, "-n", "serving", *files, *arguments, "-o", "json"]
        return CliRunner().invoke(app_for(argv), argv)

    return run


@pytest.mark.parametrize("at", [END.isoformat(), f"{END.timestamp():.0f}"], ids=["RFC 3339", "Unix"])
def test_an_incident_is_replayed_with_evidence_branch_and_plan(diagnose: Diagnose, at: str) -> None:
    done = diagnose("--at", at, "--pod-regex", "chat-.*")

    found = json.loads(done.stdout)
    assert (done.exit_code, found["branch"]) == (0, "FleetWideDemand"), found
    assert sorted(found["evidence"]) == ["chat-7c9-x1", "chat-7c9-x2"]
    [change] = found["plan"]
    assert (change["knob"], change["before"], change["object"]) == ("maxNumSeqs", "64", "chat")
    assert 8 <= int(change["after"]) <= 16


def test_the_end_of_the_incident_is_no_part_of_an_earlier_moment(diagnose: Diagnose) -> None:
    done = diagnose("--at", BEFORE.isoformat())

    found = json.loads(done.stdout)
    assert done.exit_code == 3
    assert found["reason"] == "NoReplicas"
    assert "at that time it knew no replica of an engine" in found["notes"][0]


def test_replicas_that_do_not_match_are_named(diagnose: Diagnose) -> None:
    done = diagnose("--at", END.isoformat(), "--pod-regex", "other-.*")

    found = json.loads(done.stdout)
    assert (done.exit_code, found["reason"]) == (3, "NoReplicas")
    assert "serving/chat-7c9-x1, serving/chat-7c9-x2" in found["notes"][0]


def test_a_prometheus_that_does_not_answer_is_reported(diagnose: Diagnose) -> None:
    done = diagnose("--at", END.isoformat(), url="http://127.0.0.1:9")

    found = json.loads(done.stdout)
    assert done.exit_code == 3
    assert found["reason"] == "SourceUnavailable"
    assert "cannot be reached" in found["message"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--at", "yesterday"), "RFC 3339"),
        (("--at", "2026-01-01T00:00:00"), "time zone"),
        (("--at", "2999-01-01T00:00:00Z"), "is in the future"),
        (("--at", "2026-01-01T00:00:00Z", "--pod-regex", "("), "--pod-regex"),
        (("chat", "--at", "2026-01-01T00:00:00Z"), "say what to look at"),
        (("chat",), "leave --spec, --manifest and --engine-version out"),
    ],
)
def test_wrong_usage_ends_with_2(diagnose: Diagnose, arguments: tuple[str, ...], expected: str) -> None:
    done = diagnose(*arguments)

    assert done.exit_code == 2
    assert expected in done.stderr


def the_report_of(past: PrometheusServer, name: str, minutes: int = 20) -> PastFigures:
    settings = Settings(sources={"default": SourceOptions(url=past.url)})
    policy = policy_of(spec_from_wire({"targetRef": {"name": name}}))
    asked = Asked(END - timedelta(minutes=minutes), END, END - timedelta(minutes=1), is_taken_back=False)
    return asyncio.run(read_figures(settings, "other", policy, asked))


def test_a_report_shows_the_trouble_when_it_was_and_nothing_before(past: PrometheusServer) -> None:
    found = the_report_of(past, "code")

    shown = {each["at"]: each for each in found.moments}
    unseen = [each for at, each in shown.items() if at < f"{END - timedelta(minutes=6):%Y-%m-%dT%H:%M:%SZ}"]
    late = [each for at, each in shown.items() if at > f"{END - timedelta(minutes=2):%Y-%m-%dT%H:%M:%SZ}"]
    assert (found.trouble, len(shown), len(unseen)) == ("", 61, 42)
    assert {(each["replicas"], each["running"], each["why"]) for each in unseen} == {
        (None, None, "no replica reported anything")
    }
    assert {each["replicas"] for each in late} == {1}
    assert all(each["preemptionsPerSecond"] > 0.5 for each in late)
    assert 0 < late[-1]["servedInTime"] <= 1
    assert late[-1]["silentSecondsPerRequest"] > 0
    assert (0 < late[-1]["servedInTimeOfOld"] <= 1, late[-1]["servedInTimeOfNew"]) == (True, None)


def test_a_report_on_a_fleet_that_nobody_scraped_says_so(past: PrometheusServer) -> None:
    assert "knew no replica of gone" in the_report_of(past, "gone", minutes=4).trouble
