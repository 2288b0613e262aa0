"""Another version of the operator: this package with another number, which writes another status.

It is made from the work tree, so that no history is needed, and runs in interpreters of its own. What it
differs in is what versions differ in by the rules of `api/status.py`: fields come, and fields that may be
absent were not there before.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.cluster.process import REAPER
from lab.scripted.process import Arrangement
from worlds.world import ROOT

PACKAGE = ROOT / "operator"
LACKED = ("runSpec", "costSoFar", "ownerPatch", "mayLack", "gpus", "regains", "timedOut")
"""Of an open run, what an earlier version did not write and does not read: each may be absent."""
LACKED_OF_INTENT = ("wasFrozen", "fieldsBefore", "fieldsAfter")
ADDED = "ofLater"
"""What a later version writes into each part of an open run, and this one does not know."""

EARLIER, LATER = "0.0.9", "9.9.0"
DIFFERENCE = {
    EARLIER: f"""
def _in_this_version(run):
    for name in {LACKED}:
        run.pop(name, None)
    for name in {LACKED_OF_INTENT}:
        run.get("intent", {{}}).pop(name, None)
""",
    LATER: f"""
def _in_this_version(run):
    for part in (run, run.get("intent"), *run["steps"], *run.get("drainingPods", [])):
        if part is not None:
            part["{ADDED}"] = {{"by": "{LATER}"}}
""",
}
"""What each version does with an open run as it is stored."""
WRAPPED = """

_write_wire, _read_wire = record_to_wire, record_from_wire


def record_to_wire(record, phase):
    wire = _write_wire(record, phase)
    if "run" in wire:
        _in_this_version(wire["run"])
    return wire


def record_from_wire(status):
    status = copy.deepcopy(dict(status))
    if status.get("run"):
        _in_this_version(status["run"])
    return _read_wire(status)
"""
SERVER = """
import os, pickle, sys, traceback
import kvmedic
from lab.scripted.process import run

def start(arrangement):
    child = os.fork()
    if child:
        return child
    try:
        with arrangement.log.open("a") as log:
            print(f"this is kvmedic {kvmedic.__version__}", file=log)
        run(arrangement)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

def poll(child):
    done, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None

asked, answers = sys.stdin.buffer, sys.stdout.buffer
while asked.peek(1):
    what, given = pickle.load(asked)
    pickle.dump({"start": start, "poll": poll}[what](given), answers)
    answers.flush()
"""


def make_version(version: str, directory: Path) -> Path:
    """Write another version's package into a directory, and return that."""
    shutil.copytree(PACKAGE / "kvmedic", directory / "kvmedic", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "kvmedic" / "__init__.py").write_text(
        f'"""Another version."""\n\n__version__ = "{version}"\n'
    )
    status = directory / "kvmedic" / "api" / "status.py"
    status.write_text(f"{status.read_text()}\nimport copy\n{DIFFERENCE[version]}{WRAPPED}")
    return directory


class Version:
    """An interpreter that has one version's package imported, and from which its operators are forked."""

    def __init__(self, package: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{package}:{ROOT / 'tests'}"}
        argv = [sys.executable, "-c", SERVER]
        self._popen = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        REAPER.watch(self._popen.pid)
        self._lock = threading.Lock()

    def ask(self, what: str, given: object) -> Any:
        """Have it `start` an operator, or `poll` one: its exit code, None while it lives."""
        asked, answers = self._popen.stdin, self._popen.stdout
        assert asked is not None
        assert answers is not None
        with self._lock:
            pickle.dump((what, given), asked)
            asked.flush()
            return pickle.load(answers)

    def close(self) -> None:
        self._popen.kill()
        self._popen.communicate()
        REAPER.forget(self._popen.pid)

    def operator(self, arrangement: Arrangement) -> Any:
        """Return a process of this version, which is not started yet."""
        return VersionProcess(arrangement, self)


@dataclass
class VersionProcess:
    """One process of the operator of a version; used like `Operator`."""

    arrangement: Arrangement
    version: Version
    is_ended: bool = False
    exitcode: int | None = None
    _pid: int = 0

    def start(self) -> None:
        self._pid = self.version.ask("start", self.arrangement)

    @property
    def process(self) -> VersionProcess:
        return self

    def is_alive(self) -> bool:
        if self._pid and self.exitcode is None:
            self.exitcode = self.version.ask("poll", self._pid)
        return bool(self._pid) and self.exitcode is None

    def kill(self) -> None:
        if self.is_alive():
            os.kill(self._pid, signal.SIGKILL)

    def end(self) -> None:
        self.is_ended = True
        os.kill(self._pid, signal.SIGTERM)

    def join(self) -> None:
        for _ in range(100):
            if not self.is_alive():
                return
            time.sleep(0.1)
