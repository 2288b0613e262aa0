"""Directories that belong to one running process; what a dead one left is removed by the next."""

import os
import shutil
import tempfile
from pathlib import Path


def make(parent: Path) -> Path:
    """A new directory under `parent` for this process; removes those of processes that are gone."""
    parent.mkdir(parents=True, exist_ok=True)
    sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))


def sweep(parent: Path) -> None:
    """Remove the directories of processes that are gone."""
    for leftover in parent.glob("*-*"):
        owner = leftover.name.split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(leftover, ignore_errors=True)
