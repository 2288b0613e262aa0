"""`kvmedic probe`: a long generation on an engine of the lab, judged by the operator's own code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvmedic.cli.app import app_for
from kvmedic.cli.live import probe as command
from kvmedic.cli.live.probe import keep_named
from kvmedic.metrics.generation import Rhythm
from kvmedic.model.compression import Keep
from lab_engine.engine_process import an_engine
from worlds.http_double import Reply, Server
from worlds.saved_pages import IDLE

LONG = (
    "--no-enable-prefix-caching",
    "--max-model-len=20000",
    "--block-size=16",
    "--num-gpu-blocks-override=1300",
)
EVICTS = {"LAB_MODEL_MAX_LEN": "20000", "LAB_EVICTION_BUDGET": "1024", "LAB_EVICTION": "scattered"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(command, "RHYTHM", Rhythm(interval_seconds=0.05, silence_seconds=20))
    monkeypatch.setattr(command, "PROGRESS_SECONDS", 0.2)


@contextmanager
def engine_beside(*arguments: str, busy: bool = False, **environ: str) -> Iterator[str]:
    """Serve by a thread of its own, as the command has an event loop of its own; yields the URL."""
    found: list[str] = []
    ready, over = Event(), Event()

    async def serve() -> None:
        async with an_engine(*LONG, *arguments, step_ms=0.1, environ={**EVICTS, **environ}) as running:
            found.append(str(running.http.base_url).rstrip("/"))
            body = {"model": "tiny", "prompt": "a", "max_tokens": 19000, "ignore_eos": True}
            other = asyncio.create_task(running.http.post("/v1/completions", json=body)) if busy else None
            await asyncio.sleep(0.1 if busy else 0)
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.02)
            if other:
                other.cancel()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        over.set()
        thread.join()


def run_probe(*arguments: str) -> Result:
    return CliRunner().invoke(app_for(["probe"]), ["probe", *arguments])


def test_a_method_that_scatters_is_shown_with_its_course_and_what_to_type():
    with engine_beside() as url:
        done = run_probe(url, "--tokens", "16400", "--keep", "1024")

    lines = done.stdout.splitlines()
    assert done.exit_code == 1, done.output
    assert lines[0].startswith("verdict    Scattered: few blocks come back")
    assert lines[1].startswith("because    16400 tokens left ")
    assert lines[2] == f"engine     {url} serves tiny from 1299 blocks"
    assert any("blocks that came back (o seen" in each for each in lines)
    assert lines[-1] == (
        "next       kvmedic blocks --tokens 16432 --evict 15408 --block-size 16 --pattern compact"
    )
    assert " of 16400 tokens" in done.stderr


def test_without_what_is_kept_readings_are_printed_and_nothing_is_judged():
    with engine_beside() as url:
        done = run_probe(url, "--tokens", "2000", "-o", "json")

    report: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    assert (report["schema"], report["model"], report["tokens"]) == ("kvmedic.io/probe/v1", "tiny", 2000)
    assert (report["reclaim"], report["message"]) == (None, None)
    assert report["why"] == "nobody said what is kept: --keep"
    assert (report["blocks"], report["blockTokens"]) == (1299, 16)
    assert 0 <= report["freedShare"] < 1
    assert report["readings"][0].keys() == {"tokens", "usedBlocks"}


def test_an_engine_that_serves_others_is_left_alone():
    with engine_beside(busy=True) as url:
        done = run_probe(url, "--tokens", "500")

    assert done.exit_code == 3, done.output
    assert done.stderr == "nothing is shown: it has 1 in hand: ask an engine that serves nobody else\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tokens", "16383", "--keep", "1024"), "--tokens 16383 shows nothing: give 16384 or more"),
        (("--tokens", "16384", "--keep", "8000"), "--tokens 16384 shows nothing: give 32000 or more"),
        (("--tokens", "16384", "--keep", "0"), "--keep 0: give tokens, such as 2048, or a share"),
        (("--tokens", "16384", "--keep", "100%"), "--keep 100%: give tokens"),
        (("--tokens", "9", "--api-key-file", "/gone"), "--api-key-file /gone: No such file"),
        (("--tokens", "9"), "http://127.0.0.1:9 cannot be read"),
        (("--tokens", "0"), "--tokens"),
    ],
)
def test_what_cannot_be_asked_names_the_option_and_sends_nothing(arguments, said):
    done = run_probe("http://127.0.0.1:9", *arguments)

    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert done.stdout == ""


def test_a_place_that_is_no_url_is_named_without_its_secret():
    done = run_probe("engine:8000", "--tokens", "9")

    assert done.exit_code == 2
    assert done.stderr.startswith("URL engine:8000: write http://HOST:PORT")


def test_more_than_the_engine_takes_is_refused_before_it_is_sent():
    with engine_beside() as url:
        done = run_probe(url, "--tokens", "19969")

    assert done.exit_code == 2, done.output
    assert "with a prompt of 32 the engine takes 20000 in all (max_model_len)" in done.stderr


def test_a_key_that_is_missing_is_asked_for_and_one_that_is_given_is_sent(tmp_path):
    (tmp_path / "key").write_text("s3cret\n")
    with Server(
        lambda request: Reply(200, IDLE.encode()) if request.path == "/metrics" else Reply(401, b"")
    ) as engine:
        done = run_probe(engine.url, "--tokens", "9", "--api-key-file", str(tmp_path / "key"))

    sent = [request for request in engine.requests if request.path == "/v1/completions"]
    assert done.exit_code == 3, done.output
    assert "the engine answered 401: it wants an API key, or another one: give --api-key-file" in done.stderr
    assert [request.headers["Authorization"] for request in sent] == ["Bearer s3cret"]
    assert "s3cret" not in done.output


@pytest.mark.parametrize(
    ("text", "keep"),
    [("2048", Keep(budget=2048)), ("25%", Keep(share=0.25)), ("12.5%", Keep(share=0.125)), ("", None)],
)
def test_what_is_kept_is_tokens_or_a_share(text, keep):
    assert keep_named(text) == keep
