"""How a play reads engines, pods and EndpointSlices."""

from pathlib import Path
from typing import Any

import pytest

from kvmedic.rollout.orphan_drain import draining_value
from lab.loadgen.record import ConnectionMode, Outcome, Record
from lab.play.figures import Sample, figures, increase, parse, rate
from lab.play.picker import Picker, pool_of
from lab.play.schema import FLEET, Cue, Pool
from lab.play.witness import Witness, cap_of

THRASH_PAGE = Path(__file__).parents[1] / "data" / "vllm" / "metrics-thrash.txt"


def sample(at: float, preemptions: float, finished: float) -> Sample:
    return Sample(at, preemptions, finished, generated=0, running=0, waiting=0, usage=0)


def test_a_page_of_real_vllm_is_read():
    text = THRASH_PAGE.read_text()

    seen = parse(text, 5.0)

    line = next(line for line in text.splitlines() if line.startswith("vllm:num_preemptions_total{"))
    assert seen.preemptions == float(line.split()[-1]) > 0
    assert seen.finished > 0
    assert seen.generated > 0
    assert 0 < seen.usage <= 1
    assert seen.at == 5.0


def test_increases_are_counted_per_replica_within_the_window():
    samples = {
        "old": [sample(0, 10, 5), sample(10, 20, 10), sample(20, 26, 14)],
        "new": [sample(15, 0, 0), sample(20, 1, 2)],
        "gone": [sample(1, 100, 100)],
    }

    assert increase(samples, 10, 30) == (16 + 1, 9 + 2)


def test_a_replica_that_is_made_anew_under_its_name_counts_from_0():
    kept = [sample(0, 10, 5), sample(10, 20, 10), sample(20, 3, 1), sample(30, 5, 4)]

    assert increase({"llm-2": kept}, 5, 40) == (10 + 3 + 2, 5 + 1 + 3)
    assert rate(kept, 20) == (3 + 2) / 20


def test_a_rate_needs_two_samples():
    assert rate([], 10) == 0
    assert rate([sample(0, 3, 0)], 10) == 0
    assert rate([sample(0, 3, 0), sample(5, 8, 0), sample(10, 18, 0)], 5) == 2


@pytest.mark.parametrize(
    ("args", "cap"),
    [
        (["serve", "--max-num-seqs", "64"], 64),
        (["--max-num-seqs=16"], 16),
        (["serve"], None),
        (["--max-num-seqs"], None),
    ],
)
def test_the_cap_is_read_from_a_command_line(args, cap):
    assert cap_of(args) == cap


def record(outcome: Outcome, ended_at: float, gap_ms: float) -> Record:
    return Record(1, outcome, ConnectionMode.FRESH, ended_at - 5, ended_at, ended_at - 4, 10, 2, (gap_ms,))


def test_figures_join_what_clients_and_engines_saw():
    records = [record(Outcome.OK, 15, 500.0), record(Outcome.OK, 16, 3000.0), record(Outcome.OK, 40, 9000.0)]
    samples = {"a": [sample(9, 0, 0), sample(20, 4, 2)]}

    seen = figures((10, 20), records, samples, limit=1.0)

    assert seen.requests == 2
    assert seen.preemptions_per_request == 2
    assert seen.longest_gap_p95 == 3.0
    assert seen.stalled_share == 0.5
    assert 0 < seen.in_time_per_second < seen.tokens_per_second
    assert figures((10, 20), records, samples, limit=0.9).in_time_per_second == 0


def piece(*ready: tuple[str, bool], service: str = FLEET) -> dict[str, Any]:
    endpoints = [{"targetRef": {"uid": uid}, "conditions": {"ready": state}} for uid, state in ready]
    return {"metadata": {"labels": {"kubernetes.io/service-name": service}}, "endpoints": endpoints}


def witness() -> Witness:
    """A witness that gets its events by hand; it never connects."""
    return Witness(None, "a-namespace")  # type: ignore[arg-type]


def test_the_shortest_dip_of_rotation_is_kept():
    seen = witness()
    seen._see_slices({"s": piece(("a", True), ("b", True), ("c", True))})
    seen.arm()

    seen._see_slices({"s": piece(("a", True), ("b", True), ("c", False))})
    seen._see_slices({"s": piece(("a", True), ("b", True), ("c", True), ("d", True))})
    seen._see_slices({"s": piece(("a", True), ("b", True)), "other": piece(("x", True), service="other")})
    seen._see_slices({"s": piece(("a", True), ("b", True)), "t": piece(("c", True))})

    assert seen.facts.fewest_in_rotation == 2
    assert seen.facts.served == {"a", "b", "c", "d"}


def a_pod(uid: str, labels: dict[str, str], ready: str = "True", **changes: Any) -> dict[str, Any]:
    metadata = {"uid": uid, "name": uid, "labels": {"app": FLEET, **labels}, **changes}
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def test_where_no_service_is_a_picker_says_who_is_in_rotation():
    seen = Witness(None, "a-namespace", Picker(pool=Pool.RELEASED))  # type: ignore[arg-type]
    pods = {
        "a": a_pod("a", {}),
        "b": a_pod("b", {}, ready="False"),
        "c": a_pod("c", {}, deletionTimestamp="now"),
        "d": a_pod("d", {"app": "another"}),
    }
    for pod in pods.values():
        seen._pods.handle("ADDED", pod)
    before = seen.facts.in_rotation

    seen._see_pools({"p": pool_of(Pool.RELEASED, {"app": FLEET}, (8080, 8081))})
    seen._see_slices({"s": piece(("z", True))})

    assert (before, seen.facts.in_rotation) == (set(), {"a"})
    assert seen.picker.ports == (8080, 8081)
    seen._see_pods({"a": a_pod("a", {"app": draining_value("12345678")})})
    assert seen.facts.in_rotation == set()


def test_a_pool_of_the_older_group_and_a_router_are_followed_too():
    picker = Picker(pool=Pool.OLDER)
    picker.follow([pool_of(Pool.OLDER, {"app": FLEET}, (8080,))])
    router = Picker({"served-by": "ours"}, (8080,))

    assert (picker.selector, picker.ports) == ({"app": FLEET}, (8080,))
    assert router.pick([a_pod("a", {"served-by": "ours"}), a_pod("b", {})]) == {"a"}


def test_what_becomes_of_pods_is_a_cue_and_a_fact():
    seen = witness()
    released = a_pod("a", {"pod-template-hash": "kvmedic-67d"})
    seen._see_pods({"a": released, "b": a_pod("b", {}), "c": a_pod("c", {}, deletionTimestamp="now")})
    assert seen.facts.cues == {Cue.RELEASED}

    drained = a_pod("a", {"pod-template-hash": "kvmedic-67d", "tier": draining_value("a")})
    drained["status"] = {"phase": "Failed", "reason": "DeadlineExceeded"}
    seen._see_pods({"a": drained, "b": a_pod("b", {})})

    assert seen.facts.cues == {Cue.RELEASED, Cue.DRAINING}
    assert (seen.facts.expired, seen.facts.most_pods) == ({"a"}, 2)


def test_what_happened_before_the_fleet_was_whole_does_not_count():
    seen = witness()
    seen._see_slices({"s": piece(("a", True))})
    seen._see_slices({"s": piece(("a", True), ("b", True))})

    seen.arm()

    assert seen.facts.fewest_in_rotation == 2


def test_the_operators_events_are_returned_once():
    event = {
        "metadata": {"uid": "1"},
        "type": "Normal",
        "reason": "Planned",
        "note": "run 1",
        "reportingController": "kvmedic.io/operator",
        "regarding": {"kind": "KVRemediation"},
    }
    seen = witness()

    seen._see_events(
        {"1": event, "2": {**event, "metadata": {"uid": "2"}, "regarding": {"kind": "Deployment"}}}
    )
    seen._see_events({"1": event})

    assert [(said.reason, said.note) for said in seen.hear()] == [("Planned", "run 1")]
    assert seen.hear() == []


def test_who_wrote_to_a_pod_is_noted_also_when_it_is_gone():
    pod = {
        "metadata": {
            "labels": {"app": FLEET},
            "managedFields": [{"manager": "kubelet"}, {"manager": "kvmedic"}],
        },
        "status": {"containerStatuses": [{"restartCount": 2}]},
    }
    seen = witness()

    seen._see_pods({"1": pod})
    seen._see_pods({})

    assert seen.facts.managers == {"kubelet", "kvmedic"}
    assert seen.facts.restarts == {"1": 2}


def test_each_state_of_the_fleets_resource_is_learnt_and_no_others():
    seen = witness()

    for reason in ("Healthy", "FleetWideDemand"):
        status = {"diagnosis": {"reason": reason}}
        seen._see_resources(
            {
                "1": {"metadata": {"name": FLEET}, "status": status},
                "2": {"metadata": {"name": "another"}, "status": {"diagnosis": {"reason": "GpuFault"}}},
            }
        )

    assert seen.chronicle.branches == ["Healthy", "FleetWideDemand"]
