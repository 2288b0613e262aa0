"""`make random-kills`: play whole runs, kill the operator at random moments, and compare how they end.

KILLS=200 is how many kills there are at least, SEED=7 draws the same ones again, COURSES="bundle" plays those
whose name has the word. Each course is played once undisturbed; exit 1 when one ended otherwise with kills, a
replica went undrained, anything of the operator was left, or there were fewer kills.
"""

import os
import re
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from lab.cluster.api import Object
from lab.cluster.light import LightCluster
from lab.cluster.machine import Stopwatch
from lab.scripted.proxy import Fate, Write
from worlds import trying
from worlds.bundled import begin, compressing
from worlds.configured import configure, copies, text_of
from worlds.deploying import ALLOWED, deploy
from worlds.phases import drained, let_go
from worlds.replacing import press_one
from worlds.scaling import calm, held, press, spec
from worlds.trying import trial_pods
from worlds.world import Eye, Maker, World, define

SECONDS = 400
"""How long one step of a course may take on a busy machine, its kills included."""


def _nothing(world: World) -> None:
    """Leave a fleet as it was made."""


@dataclass(frozen=True, slots=True)
class Course:
    """One kind of run, forth or forth and back."""

    name: str
    prepare: Callable[[World], None] = _nothing
    """Comes before the operator is started."""
    middle: Callable[[World], None] = _nothing
    """What people and traffic do while it goes on."""
    runs: int = 1
    made: dict[str, Any] = field(default_factory=dict)
    """How the fleet and its resource differ from the usual ones."""

    def play(self, world: World) -> None:
        """Start the operator, and return when all runs are closed and nothing of them is open."""
        world.start()
        self.middle(world)
        closed = lambda: len(world.outcomes()) >= self.runs and world.is_closed()  # noqa: E731
        world.wait(closed, SECONDS, "every run closes")


def _script(**changes: Any) -> Callable[[World], None]:
    return lambda world: world.rewrite(**changes)


def _file(**script: Any) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        configure(world, history=0)
        world.rewrite(**script)

    return prepare


def _hold_and_proceed(world: World) -> None:
    """Wait until a person is asked, as no drain ends in its time, and answer as one."""
    asked = ("True", "DrainTimedOut")
    world.wait(lambda: world.condition("ActionRequired") == asked, SECONDS, "a person is asked")
    world.wait(lambda: world.endpoints() == world.replicas() + 1, SECONDS, "all serve, and the spare")
    patch = {"spec": {"rollout": {"onDrainTimeout": "Proceed"}}}
    world.cluster.api.patch("KVRemediation", "llm", patch, world.namespace)


def _pressed(world: World) -> None:
    press_one(world)


def _pressed_and_busy(world: World) -> None:
    press_one(world)
    world.rewrite(inFlight=1)


def _roll_back(world: World) -> None:
    """Ask for the way back while a replica is drained."""
    world.wait(lambda: bool(drained(world)), SECONDS, "a replica is drained")
    world.kubectl("annotate", "kvr", "llm", f"kvmedic.io/rollback={world.status()['run']['id']}")
    let_go(world)


def _calm_once_grown(world: World) -> None:
    world.wait(lambda: bool(held(world)) and "run" not in world.status(), SECONDS, "a replica is added")
    calm(world)


def _trial(world: World) -> None:
    trying.allow(world)
    world.rewrite(probe="Scattered")


COMPRESSING = {"change": compressing}
ONCE = {"spec": spec(limits={"cooldown": "24h", "maxRunsPerDay": 10})}
TRIED = {"spec": trying.alone(trying.spec(allowedFixes=[])), "change": trying.evicting}
COURSES = (
    Course("a cap, kept"),
    Course("a cap, taken back", _script(new="worse")),
    Course(
        "a cap past busy replicas",
        _script(inFlight=37),
        _hold_and_proceed,
        made={"spec": {"rollout": {"drainTimeout": "10s"}}},
    ),
    Course("a cap, taken back by hand", _script(inFlight=1), _roll_back),
    Course("a method off, kept", lambda world: begin(world, new="recovered"), made=COMPRESSING),
    Course("a method off, taken back", lambda world: begin(world, new="worse"), made=COMPRESSING),
    Course("a file, kept", _file()),
    Course("a file, taken back", _file(new="worse")),
    Course("a revision, kept", deploy, made={"spec": ALLOWED}),
    Course("a revision, taken back", lambda world: deploy(world, new="worse"), made={"spec": ALLOWED}),
    Course("a replacement, kept", _pressed),
    Course("a replacement, called off", _pressed_and_busy, _roll_back),
    Course("a replica more, given back", press, _calm_once_grown, runs=2, made={"spec": spec()}),
    Course(
        "a replica more that does not help",
        lambda world: press(world, "fewer requests, and thrash"),
        made=ONCE,
    ),
    Course("a trial", _trial, made=TRIED),
)


UNBOUNDED = frozenset({"leases"})
"""Objects that are written for as long as the process lives."""
AT_A_MOMENT = 0.4
"""Share of the kills that no write is asked about."""
SPREAD = 1.3
"""How far one kill may be from the one before, in even shares of a run: a run that ends before its last kill
was drawn too wide, and one that has all of them in its first half too narrow."""


@dataclass(slots=True)
class RandomKiller:
    """Kills so many times; what it draws is spread over a run as it goes undisturbed."""

    random: Random
    kills: int
    writes: int
    """Of an undisturbed run."""
    seconds: float
    """That an undisturbed run takes."""
    kill: Callable[[], bool] = lambda: False
    """Kills the process and says whether there was one."""
    at_writes: list[str] = field(default_factory=list)
    at_moments: int = 0
    _left: int = -1
    """Writes that pass before the next one is killed; below 0: a moment was drawn instead."""
    _timer: threading.Timer | None = None

    def begin(self) -> None:
        """Draw the first kill, and the next one after each."""
        if self._timer is not None:
            self._timer.cancel()
        self._left = -1
        if self.count() >= self.kills:
            return
        if self.random.random() < AT_A_MOMENT:
            self._timer = threading.Timer(
                self.random.uniform(0.0, SPREAD * self.seconds / self.kills), self._at_a_moment
            )
            self._timer.daemon = True
            self._timer.start()
        else:
            self._left = self.random.randrange(max(1, round(SPREAD * self.writes / self.kills)))

    def end(self) -> None:
        self.kills = 0
        self.begin()

    def count(self) -> int:
        return len(self.at_writes) + self.at_moments

    def decide(self, write: Write) -> Fate:
        if write.object in UNBOUNDED or self._left < 0:
            return Fate.PASS
        self._left -= 1
        if self._left >= 0:
            return Fate.PASS
        fate = self.random.choice((Fate.KILL_BEFORE, Fate.KILL_AFTER))
        self.at_writes.append(f"{fate.value}: {write}")
        self.begin()
        return fate

    def _at_a_moment(self) -> None:
        self.at_moments += self.kill()
        self.begin()


OURS = "kvmedic.io/"
_NAME = re.compile(r"\bllm-[0-9a-z]+-[0-9a-z]+\b")
NOT_OF_THE_END = frozenset(
    {"observedGeneration", "conditions", "history", "diagnosis", "lastGood", "urgency"}
)
"""Fields of a status that describe the last look, or hold times; conditions and history are separate."""


def ending(world: World) -> dict[str, Any]:
    deployment, pods, resource = world.deployment(), world.pods(), world.resource()
    status = resource.get("status", {})
    return {
        "Deployment": _without_copies(world, deployment["spec"]),
        "pods": sorted(Counter(map(_pod, pods)).items()),
        "revisions": _live_sets(world),
        "endpoints": world.endpoints(),
        "traces": world.traces() + [key for each in (deployment, *pods) for key in _ours(each)],
        "finalizers": resource["metadata"].get("finalizers", []),
        "outcomes": world.outcomes(),
        "steps": [[_NAME.sub("POD", step) for step in run["steps"]] for run in status.get("history", [])],
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", [])},
        "status": sorted(set(status) - NOT_OF_THE_END),
        "copies": sorted(text_of(world, each["metadata"]["name"]) for each in copies(world)),
        "trial pods": len(trial_pods(world)),
        "leases": [each["metadata"]["name"] for each in world.cluster.api.list("Lease", world.namespace)],
        "terminating": len(world.cluster.api.list("Pod", world.namespace)) - len(pods),
    }


def harm(eye: Eye, undisturbed: Eye) -> list[str]:
    """Return what clients of a fleet felt of the kills."""
    found = [f"{name} went undrained" for name in eye.lost if not undisturbed.lost]
    if eye.fewest < undisturbed.fewest:
        found.append(f"{eye.fewest} replicas in rotation, {undisturbed.fewest} undisturbed")
    if len(eye.seen) != len(undisturbed.seen):
        found.append(f"{len(eye.seen)} replicas were made, {len(undisturbed.seen)} undisturbed")
    return found


def differences(now: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """Return each part that is another, with both values."""
    return [
        f"{path}: {one!r}, undisturbed {other!r}" for path, one, other in _differing("", now, undisturbed)
    ]


def _differing(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _differing(f"{path}/{key}", one.get(key), other.get(key))
    elif one != other:
        yield path, one, other


def _pod(pod: Object) -> str:
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if key != "pod-template-hash"}
    ready = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}.get("Ready")
    return f"Ready {ready}, labels {labels}"


def _ours(each: Object) -> list[str]:
    return [key for key in each["metadata"].get("labels", {}) if key.startswith(OURS)]


def _without_copies(world: World, spec: Object) -> Object:
    """Return a Deployment's spec with the text of a ConfigMap in place of its name, which is drawn anew."""
    volumes = spec["template"]["spec"].get("volumes", [])
    for volume in volumes:
        if "configMap" in volume:
            volume["configMap"]["name"] = text_of(world, volume["configMap"]["name"])
    return spec


def _live_sets(world: World) -> int:
    sets = world.cluster.api.list("ReplicaSet", world.namespace, "app=llm")
    return sum(bool(each["spec"]["replicas"]) for each in sets)


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
    desired = int(os.environ.get("KILLS") or KILLS)
    seed = int(os.environ.get("SEED") or time.time())
    chosen = [course for course in COURSES if os.environ.get("COURSES", "") in course.name]
    random, rows = Random(seed), []
    print(f"{desired} kills in {len(chosen)} courses, SEED={seed}", flush=True)
    with LightCluster(controllers=True, kwok=True, node_gpus=GPUS) as cluster:
        define(cluster)
        for course in islice(cycle(chosen), desired):
            killed = sum(row.kills for row in rows)
            if killed >= desired:
                break
            row = next((row for row in rows if row.course is course), None)
            if row is None:
                row = Row(course, play(cluster, course, UNDISTURBED, None))
                rows.append(row)
            again(cluster, row, random, min(OF_ONE_RUN, desired - killed))
    print(f"\n{'course':28} runs kills", *(row.line() for row in rows), sep="\n")
    wrong = [row.course.name for row in rows if row.wrong]
    killed = sum(row.kills for row in rows)
    print(f"{killed} of {desired} kills, SEED={seed}; otherwise: {', '.join(wrong) or 'none'}")
    return bool(wrong) or killed < desired


if __name__ == "__main__":
    sys.exit(main())
