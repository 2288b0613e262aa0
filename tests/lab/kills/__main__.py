"""`make random-kills`: play whole runs, kill the operator at random moments, and compare how they end.

KILLS=200 is how many kills there are at least, SEED=7 draws the same ones again, COURSES="bundle" plays those
whose name has the word. Each course is played once undisturbed; exit 1 when one ended otherwise with kills,
a replica went undrained, anything of the operator was left, or there were fewer kills.
"""

import os
import sys
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from lab.cluster.light import LightCluster
from lab.cluster.progress import Stopwatch
from lab.kills.courses import COURSES, Course, RandomKiller
from lab.kills.ending import differences, ending, harm
from worlds.world import Eye, Maker, World, define

KILLS = 200
OF_ONE_RUN = 6
GPUS = 256
SETTLING_SECONDS = 90
"""How long what follows the end of a run may take: conditions of the next look, pods on their way out."""
UNDISTURBED = RandomKiller(Random(0), kills=0, writes=0, seconds=0.0)


@dataclass(slots=True)
class Played:
    """One course, played to its end."""

    eye: Eye
    end: dict[str, object]
    writes: int
    seconds: float
    kills: int = 0


@dataclass(slots=True)
class Row:
    """All plays of one course."""

    course: Course
    undisturbed: Played
    kills: int = 0
    at_moments: int = 0
    plays: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def line(self) -> str:
        said = "same end" if not self.wrong else f"{len(self.wrong)} DIFFERENCES"
        kills = f"{self.kills:5} ({self.at_moments:3} at moments)"
        return f"{self.course.name:28} {self.plays:4} {kills} {self.seconds:6.0f} s  {said}"


def play(cluster: LightCluster, course: Course, killer: RandomKiller, undisturbed: Played | None) -> Played:
    """Play a course in a namespace of its own; wait until it ended as undisturbed, or may have."""
    namespace = cluster.create_namespace(f"kills-{uuid.uuid4().hex[:10]}")
    try:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory()))
            world = Maker(cluster, namespace, directory, stack).make(2, killer.decide, **course.made)
            course.prepare(world)
            eye = stack.enter_context(Eye(world.cluster, namespace, 2))
            watch = Stopwatch()
            killer.kill = lambda: _kill(world)
            killer.begin()
            stack.callback(killer.end)
            course.play(world)
            killer.end()
            writes, seconds = len(world.proxy.writes), watch.seconds
            end = _settled(world, undisturbed)
            return Played(eye, end, writes, seconds, world.starts - 1)
    finally:
        cluster.api.delete("Namespace", namespace)


def _kill(world: World) -> bool:
    alive = bool(world.operators) and world.operators[-1].is_alive()
    world.kill()
    return alive


def _settled(world: World, undisturbed: Played | None) -> dict[str, object]:
    """Return how a course ended, once that is so: as undisturbed, or as it stays."""
    deadline, quiet_since, end = time.monotonic() + SETTLING_SECONDS, time.monotonic(), ending(world)
    while time.monotonic() < deadline:
        if undisturbed is not None and end == undisturbed.end:
            return end
        if undisturbed is None and time.monotonic() - quiet_since > 3:
            return end
        world.revive()
        time.sleep(0.2)
        now = ending(world)
        quiet_since, end = (quiet_since if now == end else time.monotonic()), now
    return end


def again(cluster: LightCluster, row: Row, random: Random, kills: int) -> None:
    """Play a course with kills, and note what is otherwise than undisturbed."""
    killer = RandomKiller(random, kills, row.undisturbed.writes, row.undisturbed.seconds)
    watch = Stopwatch()
    try:
        played = play(cluster, row.course, killer, row.undisturbed)
    except (AssertionError, KeyError) as error:
        row.wrong.append(f"it does not end: {error}")
        row.kills += killer.count()
    else:
        row.wrong += differences(played.end, row.undisturbed.end) + harm(played.eye, row.undisturbed.eye)
        row.kills += played.kills
    row.plays, row.at_moments = row.plays + 1, row.at_moments + killer.at_moments
    row.seconds += watch.seconds
    print(row.line(), flush=True)
    for line in row.wrong:
        print("    " + line)
    if row.wrong:
        print("    killed:", *killer.at_writes, f"{killer.at_moments} at moments", sep="\n      ", flush=True)


def main() -> int:
    """Play until there were as many kills as were asked for."""
    wanted = int(os.environ.get("KILLS") or KILLS)
    seed = int(os.environ.get("SEED") or time.time())
    chosen = [course for course in COURSES if os.environ.get("COURSES", "") in course.name]
    random, rows = Random(seed), []
    print(f"{wanted} kills in {len(chosen)} courses, SEED={seed}", flush=True)
    with LightCluster(controllers=True, kwok=True, node_gpus=GPUS) as cluster:
        define(cluster)
        for course in islice(cycle(chosen), wanted):
            killed = sum(row.kills for row in rows)
            if killed >= wanted:
                break
            row = next((row for row in rows if row.course is course), None)
            if row is None:
                row = Row(course, play(cluster, course, UNDISTURBED, None))
                rows.append(row)
            again(cluster, row, random, min(OF_ONE_RUN, wanted - killed))
    print(f"\n{'course':28} runs kills", *(row.line() for row in rows), sep="\n")
    wrong = [row.course.name for row in rows if row.wrong]
    killed = sum(row.kills for row in rows)
    print(f"{killed} of {wanted} kills, SEED={seed}; otherwise: {', '.join(wrong) or 'none'}")
    return bool(wrong) or killed < wanted


if __name__ == "__main__":
    sys.exit(main())
