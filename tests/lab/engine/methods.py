"""KV compression as it is switched on: TriAttention by its own environment, any other by LAB_* variables.

`LAB_PLUGINS` names the plugins that the image has. vLLM loads all of them, or those of `VLLM_PLUGINS` where
that is set; TriAttention is on once it is loaded, but for `ENABLE_TRIATTENTION=0`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.engine.compression import PASS_TOKENS, Compaction, Compression
from lab.engine.eviction import SALIENCE, Eviction, Survival
from lab.engine.settings import number

TRIATTENTION = "triattention"
"""Its entry point in `vllm.general_plugins`."""
BUDGET = 2048
"""TRIATTN_RUNTIME_KV_BUDGET's default, in tokens."""
_OFF = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Method:
    """A method that is on."""

    name: str
    lines: tuple[str, ...]
    """What it logs when it is loaded; it is not one of vLLM's loggers."""
    compression: Compression | None
    """None: it frees no memory, as page selection."""
    says_reclaim: bool = False
    """It logs a line for each pass that gives blocks back."""
    relaxes_length: bool = False
    """A pool that holds less than one request of the greatest length is told of and no more refused."""


def method_of(environ: Mapping[str, str]) -> Method | None:
    """Return the method that an environment switches on, None for none.

    Raises:
        ValueError: a variable is no number or out of its bounds, or a file that one names is not there.
    """
    if _loaded(TRIATTENTION, environ) and environ.get("ENABLE_TRIATTENTION", "1").lower() not in _OFF:
        return _triattention(environ)
    if environ.get("LAB_EVICTION"):
        return Method("eviction", (), _eviction(environ))
    if pages := environ.get("LAB_PAGE_SELECTION"):
        return Method("page selection", (f"[PageSelection] each step reads {pages} pages per head",), None)
    return None


def _loaded(plugin: str, environ: Mapping[str, str]) -> bool:
    allowed = environ.get("VLLM_PLUGINS")
    return plugin in _names(environ.get("LAB_PLUGINS", "")) and (allowed is None or plugin in _names(allowed))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _triattention(environ: Mapping[str, str]) -> Method:
    """Return TriAttention's runtime: it moves survivors together, and gives blocks back where told to."""
    prefix = "TRIATTN_RUNTIME_"
    stats = environ.get(f"{prefix}SPARSE_STATS_PATH", "")
    if stats and not Path(stats).exists():
        raise ValueError(f"{prefix}SPARSE_STATS_PATH={stats!r}: there is no such file")
    reclaims = environ.get(f"{prefix}ENABLE_EXPERIMENTAL_BLOCK_RECLAIM", "0").lower() not in _OFF
    eviction = Eviction(
        budget=int(number(environ, f"{prefix}KV_BUDGET", BUDGET)),
        window=int(number(environ, f"{prefix}WINDOW_SIZE", 0)),
        salience=number(environ, "LAB_SALIENCE", SALIENCE),
    )
    every = int(number(environ, f"{prefix}DIVIDE_LENGTH", PASS_TOKENS))
    return Method(
        "TriAttention",
        ("[TriAttention] Runtime (V2) plugin activated: patch_scheduler=True patch_worker=True",),
        Compression(eviction, every, Compaction.IN_ORDER, gives_back=reclaims),
        says_reclaim=reclaims,
        relaxes_length=True,
    )


def _eviction(environ: Mapping[str, str]) -> Compression:
    """Return what LAB_EVICTION says: scattered, per-head, runs, rescored or recent."""
    budget, keep = environ.get("LAB_EVICTION_BUDGET"), environ.get("LAB_EVICTION_KEEP")
    eviction = Eviction(
        Survival(environ["LAB_EVICTION"]),
        budget=int(number(environ, "LAB_EVICTION_BUDGET", 0)) if budget else None,
        keep=number(environ, "LAB_EVICTION_KEEP", 0) if keep else None,
        heads=int(number(environ, "LAB_EVICTION_HEADS", 8)),
        run=int(number(environ, "LAB_EVICTION_RUN", 8)),
        sinks=int(number(environ, "LAB_EVICTION_SINKS", 0)),
        window=int(number(environ, "LAB_EVICTION_WINDOW", 0)),
        salience=number(environ, "LAB_SALIENCE", SALIENCE),
    )
    compaction = environ.get("LAB_EVICTION_COMPACTION")
    return Compression(
        eviction,
        int(number(environ, "LAB_EVICTION_EVERY", PASS_TOKENS)),
        Compaction(compaction) if compaction else None,
        gives_back=environ.get("LAB_EVICTION_GIVES_BACK", "1").lower() not in _OFF,
    )
