"""The runbooks as people read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(runbook: str) -> str:
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", runbook).lower()
    return (ROOT / "docs" / "runbooks" / f"{name}.md").read_text(encoding="utf-8")
