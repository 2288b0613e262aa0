"""A whole play with a real engine and real clients; only cluster and operator are a script."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.cluster.api import until
from lab.loadgen.record import Outcome
from lab.play import play as playing
from lab.play.figures import Scraper
from lab.play.manifests import MODEL
from lab.play.play import Play
from lab.play.result import Result
from lab.play.schema import FLEET, Incident, Route, Scenario, Stream
from lab.play.story import Notes
from lab.play.traffic import Traffic
from lab.play.witness import Replica, Witness
from lab_engine.engine_process import a_process, until_healthy
from lab_play.plays import CAP, HEALS, a_closed_run, a_plan, a_run, a_scenario, a_status

DEMAND = "FleetWideDemand"
HELD = {"type": "Progressing", "status": "False", "reason": "ObserveOnly", "message": "only shown"}


class ScriptedWitness(Witness):
    """Sees one replica that always serves, and an operator that says what stands in a script, by seconds."""

    def __init__(self, port: int, script: dict[float, dict[str, Any]]) -> None:
        super().__init__(None, "a-namespace")  # type: ignore[arg-type]
        self._script, self._port = script, port
        self._began: float | None = None
        self.chronicle.learn(a_status())
        self.scraper = Scraper(lambda: {"pod-1": "127.0.0.1"}, port)

    def start(self) -> None:
        self._see_slices({"s": serving("uid-1")})
        self.scraper.start()

    def stop(self) -> None:
        self.scraper.stop()

    def arm(self) -> None:
        super().arm()
        self._began = time.time()

    def hear(self) -> list[Any]:
        since = time.time() - (self._began or time.time())
        for at in [each for each in sorted(self._script) if each <= since]:
            self.chronicle.learn(self._script.pop(at))
        return super().hear()

    def replicas(self) -> list[Replica]:
        return [Replica("pod-1", "127.0.0.1", 64, True, False, True, False, "")]

    def workload(self) -> dict[str, Any]:
        return {"metadata": {"name": FLEET, "resourceVersion": "1"}, "spec": {"replicas": 1}}

    def _versions(self) -> dict[str, str]:
        return {FLEET: "1"}


def serving(uid: str) -> dict[str, Any]:
    endpoints = [{"targetRef": {"uid": uid}, "conditions": {"ready": True}}]
    return {"metadata": {"labels": {"kubernetes.io/service-name": FLEET}}, "endpoints": endpoints}


@dataclass
class Others:
    """Notes what was to happen."""

    happened: list[tuple[str, str]] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)

    def meet(self, pods: list[str]) -> None:
        self.pods = pods

    def add_devices(self, pods: list[str]) -> None:
        assert pods == ["pod-1"]

    def device_memory(self) -> dict[str, float]:
        return {}

    def carry_out(self, incident: Incident, digest: str) -> str:
        self.happened.append((incident.do, digest))
        return f"{incident.do} happened"


@pytest.fixture(scope="module")
def engine():
    """Port of an engine that serves."""
    with a_process(f"--served-model-name={MODEL}") as (_, url):
        until_healthy(url)
        yield int(url.rpartition(":")[2])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(playing, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(playing, "ROUTED_SECONDS", 0.0)
    monkeypatch.setattr(playing, "RAMP_SECONDS", 0.0)


def one_replica(expect: dict[str, Any], **changes: Any) -> Scenario:
    return a_scenario(expect, fleet={"replicas": 1, "flags": {"max-num-seqs": 64}}, **changes)


def played(
    scenario: Scenario,
    port: int,
    script: dict[float, dict[str, Any]],
    directory: Path,
    others: Others | None = None,
) -> tuple[Result, Notes]:
    notes = Notes()
    url = f"http://127.0.0.1:{port}"
    play = Play(scenario, ScriptedWitness(port, script), others or Others(), url, notes)
    return play.run(directory), notes


def test_a_fleet_that_is_healed_has_figures_moves_and_a_verdict(engine, tmp_path):
    bounds = {"ratios": {"tokens_per_second": {"at_least": 0.1}}}
    incident = {"at": "plan", "do": "approve"}
    scenario = one_replica({**HEALS, **bounds}, incidents=[incident], limits={"measure": "2s"})
    script = {
        2.0: a_status(DEMAND, plan=a_plan()),
        2.5: a_status(DEMAND, plan=a_plan(), run=a_run()),
        3.0: a_status(DEMAND, run=a_run(settled=True)),
        4.0: a_status("Healthy", history=[a_closed_run()]),
    }
    others = Others()

    result, notes = played(scenario, engine, script, tmp_path, others)

    assert result.missed == []
    assert (result.branch, result.moves, result.verdicts) == (DEMAND, [CAP], ["Recovered"])
    assert result.branches == [DEMAND, "Healthy"]
    assert (result.failed_requests, result.min_in_rotation) == (0, 1)
    assert result.requests > 20
    assert result.before is not None
    assert result.after.tokens_per_second > 0
    assert 5 <= result.seconds < 30
    assert others.happened == [("approve", a_plan()["digest"])]
    assert any("approve happened" in line for line in notes.lines)


def test_a_plan_before_the_pools_are_full_leaves_no_figures_of_before(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(playing, "RAMP_SECONDS", 60.0)
    script = {
        0.5: a_status(DEMAND, run=a_run(settled=True)),
        2.5: a_status("Healthy", history=[a_closed_run()]),
    }

    result, _ = played(one_replica(HEALS, limits={"measure": "1s"}), engine, script, tmp_path)

    assert result.missed == []
    assert result.before is None
    assert result.after is not None


def test_where_nothing_must_happen_it_is_watched_and_ends_early(engine, tmp_path):
    shown = {"branch": DEMAND, "held": "ObserveOnly", "plan": [{"knob": "maxNumSeqs"}], "writes": "untouched"}
    scenario = one_replica(shown, limits={"quiet": "2s"})
    script = {1.0: a_status(DEMAND, plan=a_plan(), conditions=[HELD])}

    result, _ = played(scenario, engine, script, tmp_path)

    assert result.missed == []
    assert result.verdict == "ObserveOnly"
    assert result.seconds < scenario.limits.diagnosis


def test_an_operator_that_acts_where_it_must_not_is_caught(engine, tmp_path):
    scenario = one_replica({"branch": "Healthy", "writes": "none"}, limits={"quiet": "20s"})

    result, _ = played(scenario, engine, {0.5: a_status(DEMAND, run=a_run())}, tmp_path)

    assert result.seconds < 10
    assert result.missed[0].startswith("FleetWideDemand was found, expected Healthy")
    assert "the runs had maxNumSeqs 64 -> 18; expected none" in result.missed


def test_requests_that_are_cut_are_counted(tmp_path):
    shown = {"branch": DEMAND, "held": "ObserveOnly"}
    scenario = one_replica(shown, load=[{"clients": 2, "lengths": "10+400"}], limits={"quiet": "1s"})
    with a_process(f"--served-model-name={MODEL}") as (process, url):
        until_healthy(url)
        threading.Timer(1.5, process.kill).start()
        script = {3.0: a_status(DEMAND, conditions=[HELD])}

        result, _ = played(scenario, int(url.rpartition(":")[2]), script, tmp_path)

    assert result.failed_requests >= 2
    assert any("requests failed or were cut, expected 0" in miss for miss in result.missed)


def test_a_play_can_be_stopped_and_leaves_no_client(engine, tmp_path):
    scenario, stopped = one_replica({"branch": "Healthy"}, limits={"quiet": "60s"}), threading.Event()
    play = Play(scenario, ScriptedWitness(engine, {}), Others(), f"http://127.0.0.1:{engine}", Notes())
    threading.Timer(1.0, stopped.set).start()

    with pytest.raises(RuntimeError, match="it was stopped"):
        play.run(tmp_path, stopped=stopped)

    size = (tmp_path / "requests-0.jsonl").stat().st_size
    time.sleep(0.5)
    assert (tmp_path / "requests-0.jsonl").stat().st_size == size


def test_clients_that_break_off_end_the_play(engine, tmp_path, monkeypatch):
    scenario = one_replica({"branch": "Healthy"}, load=[{"clients": 1, "lengths": "10+10", "to": "replica"}])
    play = Play(scenario, ScriptedWitness(engine, {}), Others(), "ftp://127.0.0.1", Notes())
    monkeypatch.setattr(play, "_urls", lambda: dict.fromkeys(playing.Route, ("ftp://127.0.0.1",)))

    with pytest.raises(RuntimeError, match="the load generator ended with exit code 2"):
        play.run(tmp_path)


@pytest.mark.parametrize(("to", "picks"), [(Route.STICKY, False), (Route.SERVICE, True)])
def test_a_stream_that_no_service_leads_asks_the_replicas_that_it_is_given(engine, tmp_path, to, picks):
    traffic = Traffic(tmp_path, picks=picks)
    traffic.lead([f"http://127.0.0.1:{engine}"])
    traffic.lead([])  # nobody is in rotation for a moment: the last known ones are asked

    traffic.start(0, Stream(clients=2, lengths="8+8", to=to), {to: ("http://127.0.0.1:9",)})
    until(lambda: len(traffic.records()) > 4, 20, "some answers")
    traffic.kill()

    assert {each.outcome for each in traffic.records()} == {Outcome.OK}
