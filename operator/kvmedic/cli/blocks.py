"""`kvmedic blocks`: how many blocks of a paged KV cache an eviction of tokens frees. No cluster."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from kvmedic.cli.app import USAGE, Form, end_command
from kvmedic.model.compression import (
    KV_HEADS,
    Compacted,
    Eviction,
    Freed,
    InRuns,
    NoEvictionError,
    Pattern,
    PerHead,
    Scattered,
    freed_blocks,
)

LEAST_SPREAD = 0.05
"""In blocks; less is not worth a word."""
PATTERNS = "scattered, per-head, runs:LENGTH or compact"
_RUNS = re.compile(r"runs:(\d{1,9})")


def command(
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of the sequence before the eviction.")],
    evict: Annotated[int, typer.Option("--evict", help="How many of them are evicted.")],
    pattern: Annotated[
        str,
        typer.Option(
            "--pattern",
            help="Where survivors are: scattered (the same for all heads), per-head (each head has its own), "
            "runs:8 (in runs of 8 tokens), compact (moved together).",
        ),
    ] = "scattered",
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens of one block.")] = 16,
    heads: Annotated[
        int, typer.Option("--kv-heads", help="KV heads that share a block; only per-head asks.")
    ] = KV_HEADS,
    layers: Annotated[
        int,
        typer.Option("--layers", help="Layers that share a block table and each choose their own survivors."),
    ] = 1,
    output: Annotated[Form, typer.Option("--output", "-o", help="text or json.")] = Form.TEXT,
) -> None:
    """Say how many blocks become free when tokens are evicted, which is what an engine can use again."""
    try:
        eviction = Eviction(tokens, block_size, evict)
        where = _pattern(pattern, heads)
        found, of_one = freed_blocks(eviction, where, layers), freed_blocks(eviction, where)
    except NoEvictionError as error:
        end_command(f"kvmedic blocks: {error}", USAGE)
    if output is Form.JSON:
        print(json.dumps({**_as_json(eviction, pattern, found), "layers": layers}))
        return
    print(_blocks_text(eviction, found))
    if layers > 1:
        print(f"else       {of_one.mean:.1f} if one choice counted for all {layers} layers")


def _pattern(text: str, heads: int) -> Pattern:
    runs = _RUNS.fullmatch(text)
    if runs:
        return InRuns(int(runs[1]))
    named: dict[str, Pattern] = {
        "scattered": Scattered(),
        "per-head": PerHead(heads),
        "compact": Compacted(),
    }
    if text not in named:
        raise NoEvictionError(f"pattern is {text!r}: {PATTERNS} may be")
    return named[text]


def _blocks_text(eviction: Eviction, found: Freed) -> str:
    share = 100 * found.mean / eviction.blocks
    shown = found.deviation is not None and found.deviation >= LEAST_SPREAD
    spread = f", give or take {found.deviation:.1f}" if shown else ""
    return (
        f"evicted    {eviction.evicted} of {eviction.tokens} tokens "
        f"({100 * eviction.evicted / eviction.tokens:.1f} %)\n"
        f"free       {found.mean:.1f} of {eviction.blocks} blocks ({share:.1f} %){spread}"
    )


def _as_json(eviction: Eviction, pattern: str, found: Freed) -> dict[str, object]:
    return {
        "tokens": eviction.tokens,
        "blockTokens": eviction.block_tokens,
        "evictedTokens": eviction.evicted,
        "pattern": pattern,
        "blocks": eviction.blocks,
        "freeBlocks": found.mean,
        "freeBlocksDeviation": found.deviation,
    }
