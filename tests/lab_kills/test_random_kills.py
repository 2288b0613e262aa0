"""What `make random-kills` draws, and what it takes for another end."""

from random import Random

from lab.kills import RandomKiller, differences
from lab.scripted.proxy import Fate, Write

LEASE = Write("PATCH", "leases", "no run")
WRITES = [Write("PATCH", "deployments", f"RollingOut #{number}") for number in range(200)]


def played(seed: int) -> RandomKiller:
    killer = RandomKiller(Random(seed), kills=6, writes=len(WRITES), seconds=3600.0, kill=lambda: True)
    killer.begin()
    for write in WRITES:
        assert killer.decide(LEASE) is Fate.PASS
        killer.decide(write)
    killer.end()
    return killer


def test_no_more_kills_are_drawn_than_were_asked_for():
    counts = [played(seed).count() for seed in range(50)]

    assert max(counts) == 6


def test_a_process_that_is_asked_to_end_kills_no_more():
    killer = played(1)

    killer.begin()

    assert {killer.decide(write) for write in WRITES} == {Fate.PASS}


def test_each_part_of_another_end_is_named_with_both_values():
    one = {"Deployment": {"paused": True, "replicas": 2}, "traces": []}
    other = {"Deployment": {"replicas": 2}, "traces": []}

    assert differences(one, one) == []
    assert differences(one, other) == ["/Deployment/paused: True, undisturbed None"]
