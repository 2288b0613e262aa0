"""`kvmedic probe`: does a running engine get blocks of evicted tokens back? Asked as a trial pod is, by hand.

One long generation, alone on the engine, while its used blocks are read. The operator's own code watches it
and judges it. No cluster is needed, and nothing but that one request is sent.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import typer

from kvmedic.cli.app import REFUSED, USAGE, Form, end_command
from kvmedic.cli.saved import ScrapeError
from kvmedic.cli.scraping import Engine as Place
from kvmedic.cli.scraping import engine_named
from kvmedic.engines import VOCABULARIES
from kvmedic.metrics.generation import PROMPT, Course, Engine, Rhythm, generate, limit_of
from kvmedic.metrics.page import METRICS
from kvmedic.metrics.probes import api_of
from kvmedic.metrics.scrape import PodAddress, Scraper, load_authorities, model_of
from kvmedic.metrics.series import PodKey
from kvmedic.model.compression import Keep
from kvmedic.model.evidence import Measured, Missing
from kvmedic.model.trial import Interrupted, Reclaim, Watched
from kvmedic.rollout.trial import judge_generation, say_judged, thin_readings
from kvmedic.runbooks.compression.probes import Judged, Reclamation, Trace, least_tokens, picture_of
from kvmedic.settings import ScrapeOptions

SCHEMA = "kvmedic.io/probe/v1"
NOT_RETURNED = 1
"""Exit code for: fewer blocks come back than where survivors are moved together."""
RHYTHM = Rhythm()
PROGRESS_SECONDS = 10.0
"""Between two lines that say how far the generation is."""
NO_KEY = "it wants an API key, or another one: give --api-key-file FILE"
SAYS = {
    Reclaim.RECLAIMS: "as many blocks come back as where kept tokens are moved together, or nearly",
    Reclaim.IN_PART: "blocks come back, but clearly more stay in use than kept tokens need",
    Reclaim.SCATTERED: "few blocks come back: kept tokens stand in nearly all of them",
    Reclaim.PER_HEAD: "hardly a block comes back: each head keeps tokens of its own",
    Reclaim.NONE: "no block comes back: each head keeps tokens of its own, or nothing is evicted",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of an engine."""

    place: Place
    tokens: int
    keep: Keep | None
    """None: nobody said what the method keeps."""
    key: str
    """Sent to the engine and shown nowhere; empty: none."""

    @property
    def address(self) -> str:
        """Return the engine's address as everybody may read it, as it was typed."""
        return self.place.shown.removesuffix(METRICS)


@dataclass(frozen=True, slots=True)
class Seen:
    """What an engine did."""

    asked: Asked
    model: str
    watched: Watched
    judged: Judged | None
    """None: without what the method keeps nothing can be judged."""

    @property
    def whole_blocks(self) -> int:
        """Return the blocks that all tokens would fill at the end."""
        return -(-self.watched.samples[-1].tokens // self.watched.block_tokens)

    @property
    def freed_share(self) -> float:
        """Return the share of these blocks that was free at the end."""
        return max(0.0, 1 - self.watched.samples[-1].used / self.whole_blocks)

    @property
    def exit_code(self) -> int:
        """Return what a script gets."""
        if self.judged is None:
            return 0
        if not isinstance(self.judged, Reclamation):
            return REFUSED
        return 0 if self.judged.reclaim is Reclaim.RECLAIMS else NOT_RETURNED


def command(url: str, tokens: int, keep: str, api_key_file: str, output: Form) -> None:
    """Probe an engine and print what it showed."""
    try:
        asked = Asked(engine_named(url, "URL"), tokens, keep_named(keep), _read_key(api_key_file))
    except ScrapeError as error:
        end_command(error, USAGE)
    needed = least_tokens(asked.keep) if asked.keep else 1
    if tokens < needed:
        end_command(f"--tokens {tokens} shows nothing: give {needed} or more", USAGE)
    try:
        seen = asyncio.run(probe(asked))
    except ScrapeError as error:
        end_command(error, USAGE)
    if isinstance(seen, Interrupted):
        end_command(f"nothing is shown: {seen.why}", REFUSED)
    print(
        json.dumps(describe_probe(seen), indent=2) if output is Form.JSON else "\n".join(describe_lines(seen))
    )
    raise typer.Exit(seen.exit_code)


def keep_named(text: str) -> Keep | None:
    """Return what a method keeps of a sequence, as `2048` tokens or as `25%`.

    Raises:
        ScrapeError: it is neither.
    """
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,7})|(\d{1,3}(?:\.\d+)?)%", text)
    if found and found[1] and int(found[1]) > 0:
        return Keep(budget=int(found[1]))
    if found and found[2] and 0 < float(found[2]) < 100:
        return Keep(share=float(found[2]) / 100)
    raise ScrapeError(f"--keep {text}: give tokens, such as 2048, or a share under 100%, such as 25%")


def _read_key(file: str) -> str:
    if not file:
        return ""
    try:
        key = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise ScrapeError(f"--api-key-file {file}: {getattr(error, 'strerror', 'no text')}") from None
    if not (key.isascii() and key.isprintable() and key):
        raise ScrapeError(f"--api-key-file {file}: a key is one line of printable ASCII")
    return key


async def probe(asked: Asked) -> Seen | Interrupted:
    """Return what an engine shows, or why it shows nothing.

    Raises:
        ScrapeError: it cannot be reached, or cannot be asked for so many tokens.
    """
    url, table = str(asked.place.url), VOCABULARIES[0].signals
    where = PodAddress(PodKey("", asked.place.name), "")
    scraper = Scraper(ScrapeOptions(), table, lambda _: url)
    headers = {"Authorization": f"Bearer {asked.key}"} if asked.key else {}
    try:
        async with httpx.AsyncClient(verify=load_authorities(), trust_env=False) as http:
            pages = partial(scraper.page, where)
            engine = Engine(http, api_of(url), headers, table, pages, NO_KEY)
            model = await _model_to_ask(asked, engine)
            busy = await scraper.count_in_flight(where)
            if isinstance(busy, Measured) and busy.value > 0:
                return Interrupted(f"it has {busy.value:.0f} in hand: ask an engine that serves nobody else")
            watched = await _watch(asked, engine, model)
    finally:
        await scraper.close()
    if isinstance(watched, Interrupted):
        return watched
    if not watched.samples:
        return Interrupted("no reading of used blocks came in time: generate more tokens")
    judged = judge_generation(watched, asked.keep) if asked.keep else None
    return Seen(asked, model, watched, judged)


async def _model_to_ask(asked: Asked, engine: Engine) -> str:
    """Return the name under which an engine serves, once it is known to take so many tokens."""
    page = await engine.pages()
    if isinstance(page, Missing):
        raise ScrapeError(
            f"{asked.address} cannot be read: give the URL of an engine whose port is forwarded, "
            "as by kubectl port-forward POD 8000"
        )
    model = model_of(page, engine.table)
    if model is None:
        raise ScrapeError(f"{asked.address} reports no model of a known engine: it is no vLLM's page")
    limit = await limit_of(engine)
    if limit is not None and asked.tokens + len(PROMPT) > limit:
        raise ScrapeError(
            f"--tokens {asked.tokens}: with a prompt of {len(PROMPT)} the engine takes {limit} in all "
            "(max_model_len); start it with more, or generate fewer"
        )
    return model


async def _watch(asked: Asked, engine: Engine, model: str) -> Watched | Interrupted:
    """Let the engine generate, and say on standard error how far it is."""
    course = Course()
    running = asyncio.ensure_future(generate(engine, model, asked.tokens, course, RHYTHM))
    try:
        while True:
            done, _ = await asyncio.wait({running}, timeout=PROGRESS_SECONDS)
            if done:
                return running.result()
            print(f"{course.tokens} of {asked.tokens} tokens", file=sys.stderr)
    finally:
        running.cancel()


def describe_lines(seen: Seen) -> Iterator[str]:
    """Yield what was seen for a person: the verdict, the course, the engine, what to type next."""
    watched, judged, keep = seen.watched, seen.judged, seen.asked.keep
    if isinstance(judged, Reclamation):
        yield f"verdict    {judged.reclaim}: {SAYS[judged.reclaim]}"
    else:
        yield "verdict    none"
    if judged is not None:
        yield f"because    {watched.generated} tokens {say_judged(judged, '--keep')}"
    else:
        yield (
            f"because    {seen.freed_share:.0%} of {seen.whole_blocks} blocks were free at the end; what "
            "that says of a method depends on what it keeps"
        )
    yield f"engine     {seen.asked.address} serves {seen.model} from {watched.blocks} blocks"
    if keep is not None:
        yield from (
            f"           {line}".rstrip()
            for line in picture_of(Trace(thin_readings(watched.samples), watched.block_tokens, keep))
        )
    yield f"next       {_next_command(seen)}"


def _next_command(seen: Seen) -> str:
    tokens, keep = seen.asked.tokens, seen.asked.keep
    if keep is None:
        return f"kvmedic probe {seen.asked.address} --tokens {tokens} --keep TOKENS"
    if seen.exit_code == 0:
        return f"kvmedic diagnose --url {seen.asked.address}"
    length = tokens + len(PROMPT)
    evicted = length - keep.tokens_of(length)
    return (
        f"kvmedic blocks --tokens {length} --evict {evicted} --block-size {seen.watched.block_tokens} "
        "--pattern compact"
    )


def describe_probe(seen: Seen) -> dict[str, Any]:
    """Return what was seen for a program; what is not known is null, and `why` says why."""
    watched, judged, keep = seen.watched, seen.judged, seen.asked.keep
    shown = judged if isinstance(judged, Reclamation) else None
    why = None if shown else say_judged(judged, "--keep") if judged else "nobody said what is kept: --keep"
    return {
        "schema": SCHEMA,
        "url": seen.asked.address,
        "model": seen.model,
        "tokens": watched.generated,
        "keepTokens": keep.budget if keep else None,
        "keepRatio": keep.share if keep else None,
        "blocks": watched.blocks,
        "blockTokens": watched.block_tokens,
        "freedShare": round(seen.freed_share, 4),
        "reclaim": str(shown.reclaim) if shown else None,
        "confidence": round(shown.confidence, 4) if shown else None,
        "growth": round(shown.slope, 4) if shown else None,
        "predictedGrowth": {str(each): round(slope, 4) for each, slope in shown.predicted.items()}
        if shown
        else None,
        "overCompaction": round(shown.ratio.mean, 3) if shown else None,
        "message": f"{watched.generated} tokens {say_judged(judged, '--keep')}" if judged else None,
        "why": why,
        "readings": [{"tokens": each.tokens, "usedBlocks": each.used} for each in watched.samples],
    }
