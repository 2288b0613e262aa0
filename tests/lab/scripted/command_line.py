"""The command `kvmedic` as a process of its own, forked from the one that operators are forked from.

A fresh interpreter takes more than a second of a processor to import what the command needs.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from kvmedic.__main__ import main
from kvmedic.cli.app import SUBCOMMANDS
from kvmedic.cli.options import WORK
from lab.scripted.process import FORKS

for place, _ in SUBCOMMANDS.values():
    import_module(place.partition(":")[0])
for place in WORK.values():
    import_module(place.partition(":")[0])
gc.freeze()  # a forked process never walks over what was imported


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the command; both outputs go to files of `directory`."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    typed: str
    """The file that standard input is read from."""

    def enter(self) -> None:
        """Become the command; ends this process with its exit code."""
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(self.directory / name, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(self.typed, os.O_RDONLY | os.O_NOCTTY), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = ["kvmedic", *self.arguments]
        main()


def run_command(
    arguments: Sequence[str], environment: Mapping[str, str], typed: str = os.devnull
) -> subprocess.CompletedProcess[str]:
    """Run `kvmedic` with exactly this environment; what it reads is what the file `typed` holds."""
    with TemporaryDirectory() as directory:
        call = Call(arguments, environment, Path(directory), typed)
        process = FORKS.Process(target=call.enter, daemon=True)
        process.start()
        process.join()
        out, err = ((call.directory / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(list(arguments), process.exitcode or 0, out, err)
