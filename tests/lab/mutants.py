"""How many small faults in what decides do the tests notice? (`make bench-mutants`)

mutmut changes one place of a copy of the package at a time (`build/mutants`) and runs the tests that reach
that function. What is drawn is the same for the same seed and the same code.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mutmut.stats import status_by_exit_code
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
"""The repository."""
COPY = ROOT / "build" / "mutants"
"""Where mutmut works: a copy in the layout that it knows, the package under `src`."""
COPIED = (
    "tests",
    "docs",
    "crds",
    "deploy",
    "charts",
    "pyproject.toml",
    "Makefile",
    "README.md",
    "CHANGELOG.md",
)
"""What the tests read beside the package."""
NOTHING = "no such mutant: *"
"""Matches no mutant, so that mutmut makes them all and tries none."""
FATES = ("killed", "timeout", "survived", "no tests")
"""What becomes of a mutant, in mutmut's words; all else is counted as `otherwise`."""


def main() -> int:
    """Draw MUTANTS (200) by SEED (1), run them, print the table; returns 0, as a score is no failure."""
    count, seed = int(os.environ.get("MUTANTS") or 200), int(os.environ.get("SEED") or 1)
    lay_out()
    run_mutmut([NOTHING])
    names = sorted(name for name, _, _ in read_results())
    drawn = random.Random(seed).sample(names, min(count, len(names)))
    run_mutmut(drawn)
    chosen = frozenset(drawn)
    print_table([(file, fate) for name, file, fate in read_results() if name in chosen], len(names))
    return 0


def lay_out() -> None:
    """Copy the repository into the layout that mutmut knows, without anything of an earlier run."""
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "operator", COPY / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in COPIED:
        source, place = ROOT / name, COPY / name
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place)


def run_mutmut(names: Sequence[str]) -> None:
    """Run the mutants of these names; its own progress goes to the terminal. Raises where mutmut fails."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(os.cpu_count() or 1), *names]
    ended = subprocess.run(command, cwd=COPY, env={**os.environ, "PYTHONPATH": "tests"}, check=False)
    if ended.returncode and names != [NOTHING]:
        raise SystemExit(f"mutmut ended with code {ended.returncode}: see what it printed above")


def read_results() -> Iterator[tuple[str, str, str]]:
    """Yield each mutant that was made: its name, the file that it is in, and what became of it."""
    made = COPY / "mutants" / "src" / "kvmedic"
    for page in sorted(made.rglob("*.meta")):
        file = str(page.relative_to(made)).removesuffix(".meta")
        for name, code in json.loads(page.read_text())["exit_code_by_key"].items():
            yield name, file, status_by_exit_code[code]


def print_table(fates: Sequence[tuple[str, str]], made: int) -> None:
    table = Table("file", *FATES, "otherwise")
    for file in sorted({file for file, _ in fates}):
        table.add_row(file, *count_fates(fate for at, fate in fates if at == file))
    table.add_row(f"{len(fates)} of {made}", *count_fates(fate for _, fate in fates), style="bold")
    Console(width=110).print(table)


def count_fates(fates: Iterable[str]) -> Iterator[str]:
    """Yield how often each of FATES occurs, and last how often anything else."""
    counted = Counter(fates)
    yield from (str(counted[fate]) for fate in FATES)
    yield str(sum(number for fate, number in counted.items() if fate not in FATES))


if __name__ == "__main__":
    sys.exit(main())
