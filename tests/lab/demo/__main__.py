"""`make demo`: one scenario of `lab/scenarios` in a terminal; exit 1 for an end that is not the expected one.

SCENARIO=thrash|healthy|bad-canary|compression or any other name of a file there; ENGINE=lab|vllm.
"""

import json
import os
import sys
import time
from contextlib import closing

from lab.cluster.api import ApiError
from lab.cluster.choice import choose
from lab.cluster.paths import ROOT
from lab.cluster.progress import say
from lab.demo.view import table, view_for
from lab.play.files import names, read
from lab.play.lanes import most_gpus
from lab.play.play import Play
from lab.play.schema import Engine, Scenario
from lab.play.stage import stage
from lab.play.witness import Witness

OUT = ROOT / "build" / "demo"
NAMESPACE = "serving"
"""Where the fleet stays afterwards, for a look."""


def main() -> int:
    """Set the stage, play, show the table, write the summary."""
    started = time.time()
    try:
        chosen = scenario(os.environ.get("SCENARIO") or "thrash", os.environ.get("ENGINE") or "lab")
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "summary.json").unlink(missing_ok=True)
        with (
            stage(choose(), [chosen], most_gpus([chosen], 1)) as made,
            made.place(chosen, NAMESPACE) as place,
            closing(view_for(sys.stdout.isatty())) as view,
        ):
            witness = Witness(place.access, NAMESPACE)
            result = Play(chosen, witness, place.hands, place.url, view).run(OUT)
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


def scenario(name: str, engine: str) -> Scenario:
    """Return a scenario; that of real vLLM stands in a file of its own, `NAME-vllm.yaml`.

    Raises:
        ValueError: there is none of that name, or none with that engine; or its file cannot be played.
    """
    if engine not in tuple(Engine):
        raise ValueError(f"ENGINE={engine}: there are {', '.join(Engine)}")
    if engine == Engine.LAB:
        return read(name)
    if f"{name}-{engine}" not in names():
        real = [each.removesuffix(f"-{engine}") for each in names() if each.endswith(f"-{engine}")]
        raise ValueError(f"SCENARIO={name} has no variant with ENGINE={engine}; {', '.join(real)} has")
    return read(f"{name}-{engine}")


if __name__ == "__main__":
    sys.exit(main())
