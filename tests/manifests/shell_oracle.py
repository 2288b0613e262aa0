"""What the engine is really given: the container's command run by the shells of this machine.

`vllm` and Python are stand-ins that write down their arguments. Kubernetes' part, `$(NAME)`, is done
here once more. Shares no code with the editor.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDING = """#!/bin/sh
{ printf '%s\\0' "$@"; printf '\\001\\0'; } >>"$RECORD"
"""
IDLE = ("pip", "ray", "nvidia-smi", "uv", "huggingface-cli", "numactl", "tini")
PASSING = """#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in vllm | sh | bash | python3) break ;; *) shift ;; esac; done
[ $# -gt 0 ] && exec "$@"
exit 0
"""


class ShellOracle:
    """A directory of stand-ins, and runs of containers with it."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.work = directory / "work"
        self.bin.mkdir()
        self.work.mkdir()
        for name in ("vllm", "python3", "python"):
            self._write(name, RECORDING)
        for name in IDLE:
            self._write(name, PASSING)

        # A login shell sets PATH anew, and then reads this.
        (self.work / ".profile").write_text(f'PATH="{self.bin}:$PATH"\n')

    def _write(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def argvs(self, container: Mapping[str, Any]) -> list[list[str]]:
        """Return the argument lists with which a container starts the engine, in order."""
        record = self.work / "record"
        record.unlink(missing_ok=True)
        values: dict[str, str] = {}
        for entry in container.get("env", ()):
            values[entry["name"]] = expanded(entry.get("value", ""), values)
        words = [*container.get("command", ()), *container.get("args", ())]
        program, *rest = (expanded(word, values) for word in words)
        stand_in = self.bin / Path(program).name
        home = {"HOME": str(self.work), "PATH": f"{self.bin}:{os.defpath}"}
        subprocess.run(
            [str(stand_in) if stand_in.exists() else program, *rest],
            env={**home, "RECORD": str(record), **values},
            cwd=self.work,
            capture_output=True,
            timeout=20,
            check=False,
        )
        text = record.read_bytes().decode() if record.exists() else ""
        return [run.split("\0")[:-1] for run in text.split("\1\0")[:-1]]


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Return a text as Kubernetes gives it to the process."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda m: "$" if m[0] == "$$" else values.get(m[1], m[0]), text)


def engine_arguments(argv: Sequence[str]) -> list[str]:
    """Return the words after the start of the engine: `serve`, or `-m MODULE`."""
    rest = list(argv)
    if "-m" in rest[:2]:
        rest = rest[rest.index("-m") + 2 :]
    return rest[1:] if rest[:1] == ["serve"] else rest
