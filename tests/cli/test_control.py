"""`stop`, `resume`, `suspend`, `keep` and `rollback`: what is written, what is said, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmedic.cli.live.control import Futile, what_a_rollback_does, what_keeping_does
from kvmedic.model.reasons import Reason
from kvmedic.model.run import Outcome, StepState
from kvmedic.model.status import ClosedRun, Wish
from kvmedic.record.store import resource_of
from run_builder import NOW, REPLACE, a_run, an_intent
from worlds.api_double import CALM, CommandLine, a_command_line, a_resource, walking

RUN = "20260301-025500"
ENDED = ClosedRun(
    id="20260228-010000",
    reason=Reason.FLEET_WIDE_DEMAND,
    outcome=Reason.RECOVERED,
    message="0.2 preemptions per request",
    steps=("Deployment/calm: maxNumSeqs 64 -> 16: Kept",),
    started_at=NOW,
    ended_at=NOW,
)


def an_operator(namespace: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "kvmedic"}
    return {
        "apiVersion": "apps/v1",
        "metadata": {"namespace": namespace, "name": "kvmedic", "labels": labels},
    }


@pytest.fixture
def kvmedic(tmp_path: Path) -> Iterator[CommandLine]:
    bodies = (a_resource("chat", walking()), a_resource("calm", replace(CALM, history=(ENDED,))))
    with ExitStack() as stack:
        made = a_command_line(stack, tmp_path, NOW, bodies)
        made.api.add(an_operator("ops"), plural="deployments")
        yield made


def wish_of(kvmedic: CommandLine) -> Wish:
    """What the operator reads on the resource."""
    return resource_of(kvmedic.api.one("kvremediations", "chat")).wish


@pytest.mark.parametrize(("verb", "wish"), [("rollback", Wish.ROLL_BACK), ("keep", Wish.KEEP)])
def test_the_operator_reads_what_was_asked_and_nothing_else_is_written(kvmedic, verb, wish):
    done = kvmedic(verb, "chat")

    assert done.exit_code == 0, done.output
    assert wish_of(kvmedic) is wish
    [(method, _, body)] = kvmedic.api.writes
    assert (method, body) == ("PATCH", {"metadata": {"annotations": {f"kvmedic.io/{verb}": RUN}}})
    assert done.stdout.splitlines()[0].startswith("done  asked the operator to")
    assert f"run {RUN} of serving/chat" in done.stdout
    assert "\nnext  " in done.stdout
    assert "\ntype  kvmedic watch chat -n serving" in done.stdout


@pytest.mark.parametrize("verb", ["rollback", "keep"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("calm",), "no run of serving/calm is open; the last one, 20260228-010000, ended as Recovered"),
        (("chat", "--run", "20260101-000000"), f"is {RUN}, not 20260101-000000"),
    ],
    ids=["none is open", "another one is"],
)
def test_what_would_change_nothing_is_refused(kvmedic, verb, arguments, said):
    done = kvmedic(verb, *arguments)

    assert (done.exit_code, done.stdout) == (3, "")
    assert said in done.stderr
    assert kvmedic.api.writes == []


def test_a_change_is_not_kept_after_its_rollback_was_asked_for(kvmedic):
    assert kvmedic("rollback", "chat").exit_code == 0

    done = kvmedic("keep", "chat")

    assert done.exit_code == 3
    assert "a rollback of run" in done.stderr
    assert wish_of(kvmedic) is Wish.ROLL_BACK


def in_state(state: StepState, *, begun: bool = True, ending: Outcome | None = None, step: Any = None) -> Any:
    run = a_run(state, an_intent(2, "Pulse") if begun else None, ending)
    return run if step is None else replace(run, steps=(replace(run.current, step=step),))


TAKEN = Outcome(Reason.NOT_RECOVERED, "no")


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (in_state(StepState.PENDING, begun=False), "nothing was changed yet"),
        (in_state(StepState.ROLLING_OUT), "one drained replica at a time"),
        (in_state(StepState.VERIFYING), "one drained replica at a time"),
        (in_state(StepState.VERIFYING, step=REPLACE), "nothing is left to take back"),
        (in_state(StepState.ROLLING_BACK, ending=TAKEN), "being taken back already (NotRecovered)"),
        (in_state(StepState.KEPT, ending=Outcome(Reason.RECOVERED, "yes")), None),
    ],
    ids=["planned", "rolling out", "verifying", "a replaced replica", "on its way back", "kept"],
)
def test_a_rollback_says_what_follows(run, said):
    if said is None:
        with pytest.raises(Futile, match="ending already, as Recovered"):
            what_a_rollback_does(run)
    else:
        assert said in what_a_rollback_does(run)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (in_state(StepState.ROLLING_OUT), "waits for no comparison"),
        (in_state(StepState.VERIFYING), "stays without a verdict"),
        (in_state(StepState.ROLLING_BACK, ending=TAKEN), None),
    ],
    ids=["rolling out", "verifying", "on its way back"],
)
def test_keeping_says_what_follows(run, said):
    if said is None:
        with pytest.raises(Futile, match="NotRecovered"):
            what_keeping_does(run)
    else:
        assert said in what_keeping_does(run)


def test_a_fleet_is_suspended_and_goes_on(kvmedic):
    held = kvmedic("suspend", "chat")
    suspended = kvmedic.api.one("kvremediations", "chat")["spec"]["suspend"]
    again = kvmedic("suspend", "chat")
    on = kvmedic("resume", "chat")

    assert (held.exit_code, again.exit_code, on.exit_code) == (0, 0, 0), held.output + on.output
    assert suspended is True
    assert kvmedic.api.one("kvremediations", "chat")["spec"]["suspend"] is False
    assert len(kvmedic.api.writes) == 2
    assert f"run {RUN} stands still with every replica in rotation" in held.stdout
    assert "type  kvmedic resume chat -n serving" in held.stdout
    assert f"run {RUN} goes on where it stood" in on.stdout


def test_what_applies_the_resource_is_named(kvmedic):
    body = kvmedic.api.one("kvremediations", "calm")
    body["metadata"]["labels"] = {
        "kustomize.toolkit.fluxcd.io/name": "fleets",
        "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
    }

    done = kvmedic("suspend", "calm")

    assert "Flux Kustomization flux-system/fleets applies this resource" in done.stdout


def test_a_fleet_that_goes_on_under_the_stop_is_said_to_be_held(kvmedic):
    assert kvmedic("stop").exit_code == 0

    done = kvmedic("resume", "chat")

    assert "it is still held: Stopped" in done.stdout


def test_the_stop_is_made_where_operators_are_and_taken_away_again(kvmedic):
    kvmedic.api.add(an_operator("ops-2"), plural="deployments")

    on = kvmedic("stop", "--why", "incident 4711")
    made = [
        kvmedic.api.objects[f"/api/v1/namespaces/{each}/configmaps/kvmedic-stop"] for each in ("ops", "ops-2")
    ]
    off = kvmedic("resume", "--yes")

    assert (on.exit_code, off.exit_code) == (0, 0), on.output + off.output
    assert [each["data"] for each in made] == [{"why": "incident 4711"}] * 2
    assert "1 open: serving/chat; each stands still" in on.stdout
    assert "stop  ops/kvmedic-stop since 2026-03-01T03:00:00Z: incident 4711" in off.stdout
    assert "1 open: serving/chat; each goes on" in off.stdout
    assert not [path for path in kvmedic.api.objects if "configmaps" in path]


def test_a_stop_that_is_on_stays_on(kvmedic):
    first, second = kvmedic("stop", "--why", "first"), kvmedic("stop", "--why", "second")

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "was there already" in second.stderr
    assert kvmedic.api.one("configmaps", "kvmedic-stop")["data"] == {"why": "first"}


def test_a_stop_nobody_would_read_is_not_made(kvmedic):
    del kvmedic.api.objects["/apis/apps/v1/namespaces/ops/deployments/kvmedic"]

    done, named = kvmedic("stop"), kvmedic("stop", "--operator-namespace", "elsewhere")

    assert done.exit_code == 4
    assert "--operator-namespace" in done.stderr
    assert (named.exit_code, kvmedic.api.one("configmaps", "kvmedic-stop")["metadata"]["namespace"]) == (
        0,
        "elsewhere",
    )


def test_without_the_right_to_look_for_operators_the_usual_place_is_taken_and_said(kvmedic):
    kvmedic.api.refuses.add(("GET", "deployments"))

    done = kvmedic("stop")

    assert done.exit_code == 0
    assert "the stop is on: ConfigMap kvmedic-system/kvmedic-stop" in done.stdout
    assert "whether the operator is in kvmedic-system is not known" in done.stdout


@pytest.mark.parametrize(
    ("stopped", "code", "said"), [(True, 2, "say --yes"), (False, 3, "the stop is not on")]
)
def test_nobody_lets_everything_go_on_by_a_name_that_was_left_out(kvmedic, stopped, code, said):
    if stopped:
        kvmedic("stop")

    done = kvmedic("resume", typed="y\n")

    assert done.exit_code == code
    assert said in done.stderr
    assert bool([path for path in kvmedic.api.objects if "configmaps" in path]) is stopped


@pytest.mark.parametrize("verb", ["suspend", "rollback", "keep", "resume"])
def test_who_may_not_change_a_resource_sees_why(kvmedic, verb):
    kvmedic.api.refuses.add(("PATCH", "kvremediations"))
    kvmedic.api.one("kvremediations", "chat")["spec"]["suspend"] = verb == "resume"

    done = kvmedic(verb, "chat")

    assert done.exit_code == 4
    assert "Forbidden" in done.stderr
    assert done.stdout == ""


def test_a_run_that_cannot_be_read_gets_no_command(kvmedic):
    kvmedic.api.one("kvremediations", "chat")["status"]["run"]["startedAt"] = "yesterday"

    done = kvmedic("rollback", "chat")

    assert done.exit_code == 3
    assert "cannot be read" in done.stderr
    assert kvmedic.api.writes == []
