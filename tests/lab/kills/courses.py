"""The courses that are killed: how a fleet is made, and what happens to it until nothing of a run is open."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lab.scripted.proxy import Fate, Write
from worlds import trying
from worlds.bundled import begin, compressing
from worlds.configured import configure
from worlds.deploying import ALLOWED, deploy
from worlds.phases import drained, let_go
from worlds.replacing import press_one
from worlds.scaling import calm, held, press, spec
from worlds.world import World

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
    Course("a replica more, in vain", lambda world: press(world, "fewer requests, and thrash"), made=ONCE),
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
