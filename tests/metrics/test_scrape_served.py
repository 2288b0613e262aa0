"""What an engine says of its work, from the pages of several generations of vLLM."""

from __future__ import annotations

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import parse_page
from kvmedic.metrics.scrape import read_finished_counts, read_served
from kvmedic.model.trial import Counted, Served
from worlds.recorded import AT, RECORDED

URL = "http://10.0.0.7:8000"
THRASH = Counted(183, 11_712.0 + 79_360.0)
GENERATIONS = ("v0-0.8", "v1-0.8.0", "v1-0.8.5", "v1-0.9.1", "v1-0.10.0", "v1-0.11.0", "v1-0.32.0")
UNKNOWN_POOL = {"v1-0.8.0", "v1-0.8.5"}
"""V1 of 0.8 does not show its number of blocks, so that its pool counts as unknown, and with it the type."""


def page_of(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def served(text: str) -> Served | str:
    return read_served(parse_page(text, AT), VLLM_SIGNALS, URL)


def counted(text: str) -> Counted | None:
    return read_finished_counts(parse_page(text, AT), VLLM_SIGNALS)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_reports_its_model_type_and_work(generation: str) -> None:
    found = served(page_of(f"generations/{generation}-thrash.txt"))

    assert found == Served(URL, "tiny", "" if generation in UNKNOWN_POOL else "auto", THRASH)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_before_its_first_request_every_generation_has_done_nothing(generation: str) -> None:
    found = served(page_of(f"generations/{generation}-before.txt"))

    assert isinstance(found, Served), found
    assert found.counted == Counted(0, 0.0)


@pytest.mark.parametrize(
    ("page", "done"),
    [
        ("metrics-idle.txt", Counted(0, 0.0)),
        ("metrics-thrash.txt", THRASH),
        ("metrics-recovered.txt", Counted(255, 16_320.0 + 116_224.0)),
        ("metrics-apiserver2.txt", Counted(24, 1536.0 + 1536.0)),
        ("generations/v1-0.10.0-servers-thrash.txt", THRASH),
        ("generations/v1-0.32.0-engines-thrash.txt", Counted(2 * 183, 2 * THRASH.tokens)),
    ],
)
def test_all_servers_and_engines_of_a_replica_count(page: str, done: Counted) -> None:
    found = served(page_of(page))

    assert isinstance(found, Served), found
    assert (found.model, found.counted) == ("tiny", done)


def test_an_engine_without_statistics_reports_nothing() -> None:
    found = served(page_of("generations/v1-0.32.0-no-stats-thrash.txt"))

    assert found == "the engine's metrics do not report its model"


def test_requests_that_were_not_answered_do_not_count() -> None:
    text = page_of("metrics-thrash.txt")
    for reason in ("abort", "error"):
        zero = f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="tiny"}} 0.0'
        assert zero in text
        text = text.replace(zero, zero.removesuffix("0.0") + "5.0")

    assert counted(text) == THRASH


@pytest.mark.parametrize("number", ["NaN", "+Inf"])
@pytest.mark.parametrize("series", ["request_success_total", "request_prompt_tokens_sum"])
def test_a_number_that_is_none_is_not_taken_for_one(number: str, series: str) -> None:
    lines = page_of("metrics-thrash.txt").splitlines()
    spoilt = [
        f"{line.rpartition(' ')[0]} {number}" if line.startswith(f"vllm:{series}{{") else line
        for line in lines
    ]
    text = "\n".join([*spoilt, ""])

    assert counted(text) is None
    assert served(text) == "the engine's metrics do not report its finished requests"


def test_the_type_of_a_compressed_cache_is_reported() -> None:
    text = page_of("metrics-thrash.txt").replace('cache_dtype="auto"', 'cache_dtype="fp8_e4m3"')

    found = served(text)

    assert isinstance(found, Served), found
    assert found.cache_type == "fp8_e4m3"
