"""`make demo` with SCENARIO=thrash|healthy|bad-canary and ENGINE=lab|vllm; exit 1 for a bad end."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing

from lab.cluster.api import ApiError
from lab.cluster.choice import choose
from lab.cluster.paths import ROOT
from lab.cluster.progress import say

from .play import Play
from .scenario import scenario
from .stage import stage
from .table import table
from .view import view_for

OUT = ROOT / "build" / "demo"


def main() -> int:
    """Set the stage, play, show the table, write the summary."""
    started = time.time()
    try:
        chosen = scenario(os.environ.get("SCENARIO") or "thrash", os.environ.get("ENGINE") or "lab")
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "summary.json").unlink(missing_ok=True)
        with stage(chosen, choose()) as made, closing(view_for(sys.stdout.isatty())) as view:
            result = Play(chosen, made.cluster.access, made.url, view).run(OUT)
    except KeyboardInterrupt:
        say("interrupted; the next `make demo` starts afresh, `make lab-down` removes everything")
        return 130
    except (RuntimeError, OSError, LookupError, ValueError, ApiError) as error:
        say(str(error))
        return 1
    summary = result.as_json() | {"seconds_in_all": round(time.time() - started, 1)}
    (OUT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(table(result))
    say("the fleet stays for a look (kubectl get kvr -A); `make lab-down` removes everything")
    return 1 if result.missed else 0


if __name__ == "__main__":
    sys.exit(main())
