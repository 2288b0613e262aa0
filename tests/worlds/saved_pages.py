"""Pages, manifest and spec as people save them, for the commands that need no cluster."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for

DATA = Path(__file__).parent.parent / "data" / "vllm"
IDLE, THRASH, RECOVERED, OTHER = (
    (DATA / f"metrics-{name}.txt").read_text()
    for name in ("idle", "thrash", "recovered", "after-restart-seqs8")
)
STARTED = (DATA / "startup-0.32-cpu.log").read_text()
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        command: [vllm, serve]
        args: [/models/tiny, --max-num-seqs, "64"]
"""
SPEC = """\
apiVersion: kvmedic.io/v1alpha1
kind: KVRemediation
metadata: {name: chat}
spec:
  targetRef: {name: chat}
"""


def diagnose(*arguments: str) -> Result:
    argv = ["diagnose", *arguments]
    return CliRunner().invoke(app_for(argv), argv)


def answer(result: Result) -> Any:
    """What a program gets; an error other than an exit code is shown."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)


def started_later(page: str) -> str:
    """The same page of a replica that started a minute later."""
    return page.replace("1.79523658462e+09", "1.79523664462e+09")
