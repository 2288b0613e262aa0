"""`kvmedic doctor --since`: the operator's looks over the history of a real Prometheus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvmedic.cli.app import app_for
from kvmedic.cli.doctor import span_of
from kvmedic.cli.live.cluster_doctor import _nobody
from kvmedic.cli.replay import Found, Replay, replay, replay_as_json, replay_as_text
from kvmedic.doctor.examine import Seen, default_spec, see_documents
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.history import History, is_named_after
from kvmedic.metrics.series import PodKey
from kvmedic.model.reasons import Reason
from kvmedic.settings import ScrapeOptions, SourceOptions
from worlds.documents import a_deployment, a_service, an_engine
from worlds.nights import Nights, Replica
from worlds.prometheus_server import PrometheusServer

END = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=5)
H = 3600.0
OLD, NEW = "llm-7777777777", "llm-8888888888"
PACE = timedelta(minutes=1)
OLD_NIGHT, FIRST, SECOND = (-5.5 * H, -5 * H), (-3.5 * H, -3 * H), (-0.8 * H, -0.4 * H)
GAP = (-2.3 * H, -1.9 * H)
REPLICAS = [
    *(Replica(f"{OLD}-aaaa{number}", -7 * H, gone=-4.5 * H) for number in "bc"),
    Replica(f"{NEW}-aaaab", -4.55 * H),
    Replica(f"{NEW}-aaaac", -4.55 * H, restarted=-1.5 * H),
]
"""Two of a revision that was rolled out of the way, and two of today's."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    directory = tmp_path_factory.mktemp("nights")
    nights = Nights([OLD_NIGHT, FIRST, SECOND], gaps=[GAP])
    nights.tape(END, timedelta(hours=6.5), timedelta(seconds=30), REPLICAS).write(directory)
    with PrometheusServer(directory) as server:
        yield server


def owned(kind: str, name: str, by: tuple[str, str], at: float, **body: Any) -> dict[str, Any]:
    owner = {"kind": by[0], "name": by[1], "uid": f"{by[0]}/default/{by[1]}", "controller": True}
    made = (END + timedelta(seconds=at)).isoformat()
    metadata = {"name": name, "labels": {"app": "llm"}, "creationTimestamp": made, "ownerReferences": [owner]}
    return {
        "apiVersion": "apps/v1" if kind == "ReplicaSet" else "v1",
        "kind": kind,
        "metadata": metadata,
        **body,
    }


def seen(*, keeps_old: bool = True) -> Seen:
    """The fleet as it is today: the revision of now, and that of before where its ReplicaSet is kept."""
    engine = {"image": "vllm/vllm-openai:v0.32.0"}
    today = a_deployment(an_engine("--max-num-seqs=64", **engine))
    before = a_deployment(an_engine("--max-num-seqs=96", **engine))
    bodies = [today, a_service()]
    sets = [(NEW, -4.6 * H, today, "2"), *([(OLD, -20 * H, before, "1")] if keeps_old else [])]
    for name, at, of, number in sets:
        made = owned("ReplicaSet", name, ("Deployment", "llm"), at)
        made["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": number}
        made["spec"] = {"replicas": 2 if name == NEW else 0, "template": of["spec"]["template"]}
        bodies.append(made)
    for replica in REPLICAS[2:]:
        since = (END + timedelta(seconds=replica.born)).isoformat()
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
        pod = owned("Pod", replica.name, ("ReplicaSet", NEW), replica.born - 60)
        pod["spec"] = today["spec"]["template"]["spec"]
        pod["status"] = {"phase": "Running", "conditions": [ready]}
        bodies.append(pod)
    found = see_documents(bodies, "llm", "default", default_spec("llm"))
    assert found is not None
    return found


def run_replay(target: Seen, url: str, hours: float, until: float = 0.0) -> Replay:
    options = SourceOptions(url=url, timeout=timedelta(seconds=20))
    last = END + timedelta(hours=until)

    async def look() -> Replay:
        history = History("default", options, ScrapeOptions(), VLLM_SIGNALS, PodKey("default", "llm"))
        try:
            return await replay(
                target, _nobody("default", target), history, (END - timedelta(hours=hours), last), PACE
            )
        finally:
            await history.close()

    return asyncio.run(look())


def ago(seconds: float) -> datetime:
    return END + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def found(source: PrometheusServer) -> Replay:
    """Six hours of a fleet whose ReplicaSets are all kept."""
    return run_replay(seen(), source.url, 6)


def test_each_night_has_its_run_with_the_flags_of_then_and_the_days_have_none(found):
    runs = replay_as_json(found)["runs"]

    assert (found.ended, found.last) == ("", END)
    assert [(each["plan"][0]["knob"], each["plan"][0]["before"]) for each in runs] == [
        ("maxNumSeqs", "96"),
        ("maxNumSeqs", "64"),
        ("maxNumSeqs", "64"),
    ]
    assert all(8 <= int(each["plan"][0]["after"]) <= 16 for each in runs)
    for opening, night in zip(found.openings, (OLD_NIGHT, FIRST, SECOND), strict=True):
        # The trigger must hold for two minutes, and the evidence be enough.
        assert ago(night[0] + 120) <= opening.at <= ago(night[0] + 1200)
    assert runs[0]["branch"] == "FleetWideDemand"
    assert {each["subject"] for each in runs[1]["findings"]} >= {each.name for each in REPLICAS[2:]}


def test_an_hour_without_samples_is_unknown_and_never_acts(found):
    unknown = [each for each in found.stretches if each.found is Found.UNKNOWN]

    assert {Reason.METRICS_STALE, Reason.METRICS_MISSING} <= {each.reason for each in unknown}
    assert sum((each.length for each in unknown), timedelta(0)) >= timedelta(minutes=20)
    assert not any(ago(GAP[0]) <= each.at <= ago(GAP[1] + 300) for each in found.openings)


def test_the_text_has_the_verdict_first_then_runs_with_figures_and_what_is_not_known(found):
    lines = list(replay_as_text(found, "kvmedic diagnose -n default"))

    assert lines[0].startswith("replay     would have opened 3 runs in mode Auto")
    assert re.search(r"every 1m, \d+ queries, \d+\.\d MiB\)$", lines[0])
    assert lines[1].startswith(f"  RUN      {found.openings[0].at:%Y-%m-%dT%H:%M:%SZ}  PreemptionThrash")
    assert "preemptions per request, limit 0.5" in lines[1]
    assert lines[2].strip().startswith("plan:    Deployment/llm: maxNumSeqs 96 -> ")
    assert any("each later run counts as if those before it had changed nothing" in each for each in lines)
    assert lines[-1].endswith(f"--at {found.openings[0].at:%Y-%m-%dT%H:%M:%SZ}")


def test_a_command_line_that_nobody_keeps_is_said_and_leads_to_no_plan(source):
    found = run_replay(seen(keeps_old=False), source.url, 5.7, until=-4.8)

    held = [each for each in found.stretches if each.found is Found.HELD]
    assert not found.openings
    assert Reason.REVISION_UNREADABLE in {each.reason for each in held}
    assert "the ReplicaSet of the replicas of that time is gone" in "".join(each.message for each in held)


def test_a_source_that_does_not_answer_is_said_and_nothing_else(source):
    found = run_replay(seen(), "http://127.0.0.1:9", 1)

    assert list(replay_as_text(found, "")) == [
        "replay     not looked: the source cannot be reached; check url"
    ]
    assert replay_as_json(found)["complete"] is False


def test_a_replay_ends_at_its_bound_and_says_up_to_when_it_looked(source, monkeypatch):
    monkeypatch.setattr("kvmedic.cli.replay.MOST_QUERIES", 15)

    found = run_replay(seen(), source.url, 6)

    assert END - timedelta(hours=6) < found.last < END
    assert "its bound is reached" in found.ended
    assert any(each.startswith("  ended    ") for each in replay_as_text(found, ""))


@pytest.mark.parametrize(
    ("deployment", "pod", "is_its"),
    [
        ("llm", "llm-7c9bf5d4f6-x2k4p", True),
        ("llm", "llm-large-7c9bf5d4f6-x2k4p", False),
        ("llm", "llm-large-x2k4p", False),
        ("llm", "llm-7c9bf5d4f6", False),
        ("l" * 60, "l" * 58 + "x2k4p", True),
    ],
)
def test_a_pod_is_known_by_its_name_to_be_of_a_deployment(deployment, pod, is_its):
    assert is_named_after(deployment, pod) is is_its


def test_how_far_back_is_said_as_kubectl_says_it():
    assert (span_of("3d"), span_of("90m")) == (timedelta(days=3), timedelta(minutes=90))


@pytest.mark.parametrize("text", ["3", "yesterday", "1m", "30d", "-3d"])
def test_how_far_back_has_bounds_and_an_error_names_the_option(text, capsys):
    with pytest.raises(typer.Exit) as ended:
        span_of(text)

    assert ended.value.exit_code == 2
    assert f"--since {text}: write a duration from 10m to 14d" in capsys.readouterr().err


def test_manifests_have_no_past():
    argv = ["doctor", "-f", "-", "--since", "1d"]

    done = CliRunner().invoke(app_for(argv), argv, input="")

    assert (done.exit_code, "--since needs a cluster" in done.stderr) == (2, True)
