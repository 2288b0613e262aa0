"""The pool as logs of every generation give it, and lines that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.model.evidence import LoggedSize, Pool, SizeUnit, logged_size

FORMS = VLLM_SIGNALS.pool.logged
RECORDED = Path(__file__).parents[1] / "data" / "vllm" / "startup-0.32-cpu.log"
READY = "INFO:     Application startup complete."

LINES = [
    pytest.param(
        "INFO 03-01 09:00:00 gpu_executor.py:122] # GPU blocks: 27898, # CPU blocks: 2048",
        LoggedSize(27898, SizeUnit.BLOCKS),
        id="V0",
    ),
    pytest.param(
        "INFO 03-01 09:00:00 executor_base.py:111] # cuda blocks: 1234, # CPU blocks: 2048",
        LoggedSize(1234, SizeUnit.BLOCKS),
        id="V0 with the device's name",
    ),
    pytest.param(
        "INFO 03-01 09:00:00 kv_cache_utils.py:395] # GPU blocks: 1234",
        LoggedSize(1234, SizeUnit.BLOCKS),
        id="V1 0.7",
    ),
    pytest.param(
        "INFO 03-01 09:00:00 [kv_cache_utils.py:634] GPU KV cache size: 446,368 tokens",
        LoggedSize(446_368, SizeUnit.TOKENS),
        id="V1 0.8",
    ),
    pytest.param(
        "(EngineCore_DP0 pid=9) INFO 03-01 09:00:00 [kv_cache_utils.py:1229] GPU KV cache size: "
        "1,446,368 tokens, Maximum concurrency for 2,048 tokens per request: 706.24x",
        LoggedSize(1_446_368, SizeUnit.TOKENS),
        id="V1 0.28",
    ),
    pytest.param(
        "INFO 03-01 09:00:00 [kv_cache_utils.py:2327] GPU + host KV cache size: 4,800 tokens",
        LoggedSize(4800, SizeUnit.TOKENS),
        id="with host memory",
    ),
]


@pytest.mark.parametrize(("line", "size"), LINES)
def test_every_form_is_read(line: str, size: LoggedSize) -> None:
    assert FORMS is not None
    assert logged_size(["starting", line, READY], FORMS) == size


def test_the_recorded_log_says_what_the_metric_says() -> None:
    assert FORMS is not None

    size = logged_size(RECORDED.read_text().splitlines(), FORMS)

    assert size == LoggedSize(4800, SizeUnit.TOKENS)
    assert size.as_pool(32, 1, 1) == Pool(149, 32)


def test_the_smallest_of_several_ranks_counts() -> None:
    assert FORMS is not None
    ranks = [f"GPU KV cache size: {tokens} tokens" for tokens in ("4,832", "4,800", "4,816")]

    assert logged_size(ranks, FORMS) == LoggedSize(4800, SizeUnit.TOKENS)


def test_what_a_request_says_later_is_no_pool() -> None:
    assert FORMS is not None
    quoted = "INFO Received request: prompt: 'GPU KV cache size: 9,999,999 tokens'"

    assert logged_size([READY, quoted], FORMS) is None
    assert logged_size(["GPU KV cache size: 4,800 tokens", READY, quoted], FORMS) == LoggedSize(
        4800, SizeUnit.TOKENS
    )


@pytest.mark.parametrize("lines", [[], ["loading"], ["KV cache size: many tokens"], ["# blocks: 7"]])
def test_a_log_that_says_nothing(lines: list[str]) -> None:
    assert FORMS is not None
    assert logged_size(lines, FORMS) is None


def test_two_ways_of_counting_are_not_mixed() -> None:
    assert FORMS is not None
    assert logged_size(["# GPU blocks: 10", "GPU KV cache size: 9,000 tokens"], FORMS) is None


@pytest.mark.parametrize(
    ("size", "block_tokens", "engines", "expected"),
    [
        (LoggedSize(4800, SizeUnit.TOKENS), 32, 1, Pool(149, 32)),
        (LoggedSize(4815, SizeUnit.TOKENS), 16, 1, Pool(299, 16)),
        (LoggedSize(4800, SizeUnit.TOKENS), 32, 2, Pool(298, 32)),
        (LoggedSize(150, SizeUnit.BLOCKS), 16, 1, Pool(149, 16)),
        (LoggedSize(16, SizeUnit.TOKENS), 16, 1, None),
        (LoggedSize(0, SizeUnit.BLOCKS), 16, 1, None),
    ],
)
def test_null_blocks_are_none_of_it(
    size: LoggedSize, block_tokens: int, engines: int, expected: Pool | None
) -> None:
    assert size.as_pool(block_tokens, engines, 1) == expected
