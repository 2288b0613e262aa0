"""The evaluation as a Job runs it, against lab engines: one request for each sample, a score or a reason."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from lab.engine.requests import NEEDLE_MARK, needle_in
from lab.evaluation.__main__ import Settings, main
from lab.evaluation.samples import samples_of
from lab_engine.engine_process import TESTS, an_engine

SAMPLES, PROMPT, OUTPUT = 60, 40, 12
SCATTERED = {"LAB_EVICTION": "scattered", "LAB_EVICTION_EVERY": "8"}


@asynccontextmanager
async def a_fast_engine(*arguments, **environ):
    flags = ("--no-enable-prefix-caching", *arguments)
    async with an_engine(*flags, step_ms=0.1, environ=environ) as engine:
        yield engine


def environ_of(engine, tmp_path, **changes):
    return {
        "OPENAI_BASE_URL": f"{str(engine.http.base_url).rstrip('/')}/v1",
        "KVMEDIC_MODEL": "tiny",
        "SAMPLES": str(SAMPLES),
        "PROMPT_TOKENS": str(PROMPT),
        "OUTPUT_TOKENS": str(OUTPUT),
        "CONCURRENCY": "4",
        "TERMINATION_LOG": str(tmp_path / "log"),
        **changes,
    }


async def score_of(engine, tmp_path, **changes):
    environ = environ_of(engine, tmp_path, **changes)
    assert await asyncio.to_thread(main, environ) == 0
    result = json.loads((tmp_path / "log").read_text())
    assert result.keys() == {"score", "samples"}
    assert result["samples"] == SAMPLES
    return result["score"]


async def refused(engine, tmp_path, capsys, **changes):
    environ = environ_of(engine, tmp_path, **changes)
    assert await asyncio.to_thread(main, environ) == 1
    assert not (tmp_path / "log").exists(), "half a score is none"
    return capsys.readouterr().err


async def test_each_sample_is_asked_once_and_its_score_is_left(tmp_path, capsys):
    async with a_fast_engine() as engine:
        score = await score_of(engine, tmp_path)
        finished = await engine.metric("request_success_total", finished_reason="length")
        tokens = await engine.metric("prompt_tokens_total"), await engine.metric("generation_tokens_total")

    recall = engine.server.config.recall
    understood = [recall.understands(list(sample.prompt)) for sample in samples_of(SAMPLES, PROMPT)]
    assert finished == SAMPLES
    assert tokens == (SAMPLES * PROMPT, SAMPLES * OUTPUT)
    assert score == round(sum(understood) / SAMPLES, 4)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "60 samples of 40 tokens for tiny"
    assert said[-1] == (tmp_path / "log").read_text()
    assert len(said) == 2 + 10


async def test_the_score_falls_with_what_is_kept_and_known_and_not_where_nothing_is_evicted(tmp_path):
    engines = {
        "whole": ((), {}),
        "half": ((), SCATTERED | {"LAB_EVICTION_KEEP": "0.5", "LAB_SALIENCE": "0", "LAB_COMPETENCE": "1"}),
        "known": ((), SCATTERED | {"LAB_EVICTION_KEEP": "0.05", "LAB_SALIENCE": "1", "LAB_COMPETENCE": "1"}),
        "selected": ((), {"LAB_PAGE_SELECTION": "4"}),
        "eight bits": (("--kv-cache-dtype=fp8",), {}),
        "spoilt": (("--kv-cache-dtype=fp8",), {"LAB_EIGHT_BIT_LOSS": "0.5"}),
    }
    scores = {}
    for name, (flags, environ) in engines.items():
        async with a_fast_engine(*flags, **environ) as engine:
            scores[name] = await score_of(engine, tmp_path)

    assert (scores["known"], scores["selected"]) == (1, scores["whole"])
    assert 0.3 < scores["half"] < 0.7
    assert scores["whole"] - 0.05 <= scores["eight bits"] <= scores["whole"]
    assert scores["spoilt"] < scores["whole"] - 0.2


async def test_the_base_url_may_be_written_as_people_do_the_model_asked_for_and_a_key_shown(tmp_path, capsys):
    async with a_fast_engine("--api-key=hunter2") as engine:
        said = await refused(engine, tmp_path, capsys)
        for suffix in ("", "/", "/v1", "/v1/"):
            url = str(engine.http.base_url).rstrip("/") + suffix
            changes = {"OPENAI_BASE_URL": url, "KVMEDIC_MODEL": "", "OPENAI_API_KEY": "hunter2"}
            assert await score_of(engine, tmp_path, **changes) > 0.5

    assert "no score: HTTP 401" in said


async def test_an_answer_that_fails_ends_it_without_a_score(tmp_path, capsys):
    async with a_fast_engine() as engine:
        assert "HTTP 404" in await refused(engine, tmp_path, capsys, KVMEDIC_MODEL="another")
        assert "HTTP 400" in await refused(engine, tmp_path, capsys, PROMPT_TOKENS="600")
        assert "12 of 500 tokens came, finish reason length" in await refused(
            engine, tmp_path, capsys, PROMPT_TOKENS="500", OUTPUT_TOKENS="500"
        )
        before = await engine.metric("request_success_total", finished_reason="length")
        engine.server.is_draining = True
        assert "0 of 12 tokens came, finish reason abort" in await refused(engine, tmp_path, capsys)
    assert before < SAMPLES, "what had not been sent by then is not sent"
    assert "no score: ConnectionRefusedError" in await refused(engine, tmp_path, capsys)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, "OPENAI_BASE_URL='' is no URL"),
        ({"OPENAI_BASE_URL": "http://x", "SAMPLES": "0"}, "SAMPLES='0' is no number of at least 1"),
        ({"OPENAI_BASE_URL": "http://x", "CONCURRENCY": "few"}, "CONCURRENCY='few' is no number"),
    ],
)
def test_settings_that_cannot_be_are_named(environ, named, capsys):
    assert main(environ) == 1
    assert named in capsys.readouterr().err


def test_nothing_but_the_url_must_be_said():
    found = Settings.from_environ({"OPENAI_BASE_URL": "http://10.0.0.1:8000/v1", "SAMPLES": ""})

    assert (found.model, found.samples, str(found.termination_log)) == ("", 200, "/dev/termination-log")
    assert found.output_tokens > 128, "longer than from one pass to the next"


async def test_it_runs_as_the_job_runs_it(tmp_path):
    async with a_fast_engine() as engine:
        environ = environ_of(engine, tmp_path) | {"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS)}
        argv = [sys.executable, "-S", "-m", "lab.evaluation"]  # -S: nothing but the standard library
        done = await asyncio.to_thread(
            subprocess.run, argv, env=environ, capture_output=True, text=True, check=False
        )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == (tmp_path / "log").read_text()


@pytest.mark.parametrize("tokens", [3, 4, 100])
def test_every_question_has_a_beginning_of_its_own_and_one_needle(tokens):
    samples = list(samples_of(300, tokens))

    assert {len(sample.prompt) for sample in samples} == {tokens}
    assert len({sample.prompt[0] for sample in samples}) == 300
    assert all(sample.prompt.count(NEEDLE_MARK) == 1 for sample in samples)
    assert all(sample.answer == f"w{sample.prompt[needle_in(list(sample.prompt))]}" for sample in samples)


def test_needles_lie_anywhere_behind_the_first_token():
    places = [needle_in(list(sample.prompt)) for sample in samples_of(400, 10)]

    assert {*places} == set(range(2, 10))


def test_a_larger_evaluation_begins_with_the_questions_of_a_smaller_one():
    assert list(samples_of(5, 50)) == list(samples_of(9, 50))[:5]


def test_a_prompt_without_room_is_refused():
    with pytest.raises(ValueError, match="a prompt of 2 tokens holds no needle"):
        next(samples_of(1, 2))
