"""How many files a reader comes by who follows one tick."""

from __future__ import annotations

import json

import pytest

MOST_AS_A_RUN_OPENS = 101
MOST_OF_A_ROLLOUT = 65
"""Files of the package in which a function is entered: 101 and 65 when this was written, where 60 and 25
are desired. One of the 101 judges the runbooks, for saved pages too. Six ask before a run whether a spare
finds a place, and what the owner does with a change; four of them, and two of the 65, distinguish a
StatefulSet or a LeaderWorkerSet from a Deployment; two of the 101 are what a calm look reads from, and one
reads in threads what tenants write. Another of the 65 is how much is served in time, by which a run without
objectives is graded, and one of both writes Events, which nobody looked for in `record/telemetry`; so it is
with four of the 101: symptoms, runs at once, policies on pods, and which settings a spec may name. Figures
are scripted here, so `metrics/` is not among them; an import does not count."""


@pytest.mark.timeout(120)
def test_a_tick_can_be_followed_through_a_few_files(a_world, tmp_path):
    world = a_world(replicas=1)
    world.ticks = tmp_path / "ticks"

    world.start()
    world.wait(world.is_closed, 60, "the run closes")

    # The process goes on, and may be in the middle of a line.
    whole = world.ticks.read_text().rpartition("\n")[0]
    ticks = [json.loads(line) for line in whole.splitlines()]
    opens = files_of(ticks, "open_run")
    walks = files_of(ticks, "walking_move")
    print(f"a tick that opens a run enters {len(opens)} files, one of a rollout {len(walks)}")
    print("\n".join([*opens, "", *walks]))
    assert 0 < len(opens) <= MOST_AS_A_RUN_OPENS
    assert 0 < len(walks) <= MOST_OF_A_ROLLOUT


def files_of(ticks, function):
    """Return the files of that tick with a function in it which enters the most."""
    found = [
        sorted({file for file, _ in tick}) for tick in ticks if any(name == function for _, name in tick)
    ]
    return max(found, key=len, default=[])
