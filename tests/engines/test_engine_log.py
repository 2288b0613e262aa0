"""What start-up logs of every generation say about the KV cache, and what is never taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvmedic.engines.engine_log import DIFFERENT, LINE_LENGTH, Started, Unread, parse_start, phrases
from kvmedic.engines.vllm_log import VLLM_START
from kvmedic.model.evidence import LoggedSize, SizeUnit
from lab.engine.logs import BACKEND, EIGHT_BIT

RECORDED = Path(__file__).parents[1] / "data" / "vllm" / "startup-0.32-cpu.log"
ARGS = "(APIServer pid=1) INFO 11-21 04:49:50 [api_utils.py:286] non-default args: {'api_key': ['sesame']}"
POOL = "(EngineCore pid=2) INFO 11-21 04:50:01 [kv_cache_utils.py:2327] GPU KV cache size: 4,800 tokens"
READY = "INFO:     Application startup complete."
PLUGIN = "[TriAttention] Runtime (V2) plugin activated: patch_scheduler=True patch_worker=True"
EIGHT = f"(APIServer pid=1) INFO 11-21 04:49:51 [cache.py:232] {EIGHT_BIT.format('fp8')}"


def start_of(*lines: str) -> Started:
    return parse_start(lines, VLLM_START)


def test_the_recorded_start_reports_its_pool_and_nothing_of_compression() -> None:
    found = parse_start(RECORDED.read_text().splitlines(), VLLM_START)

    assert found == Started(size=LoggedSize(4800, SizeUnit.TOKENS), is_whole=True)


def test_a_start_reports_method_type_and_backend() -> None:
    found = start_of(ARGS, PLUGIN, EIGHT, f"INFO {BACKEND.format('FLASHINFER')}", POOL, READY)

    assert found == Started(
        ("[TriAttention] Runtime (V2) plugin activated", "Using fp8 data type to store kv cache"),
        "fp8",
        ("FLASHINFER",),
        LoggedSize(4800, SizeUnit.TOKENS),
        is_whole=True,
    )


BACKENDS = [
    ("0.6, V0", "INFO 03-01 09:00:00 selector.py:120] Using XFormers backend.", "XFormers"),
    ("0.8, V0", "INFO 03-01 09:00:00 [cuda.py:291] Using Flash Attention backend.", "Flash Attention"),
    (
        "0.8, V1",
        "INFO 03-01 09:00:00 [cuda.py:220] Using Flash Attention backend on V1 engine.",
        "Flash Attention",
    ),
    ("0.9, V1", "INFO 03-01 09:00:00 [cuda.py:270] Using FlashInfer backend on V1 engine.", "FlashInfer"),
    ("0.10, V1", "INFO [cuda.py:1] Using Triton backend on V1 engine.", "Triton"),
    ("0.11.1", "INFO 03-01 09:00:00 [cuda.py:408] Using FLASH_ATTN backend.", "FLASH_ATTN"),
    ("0.32", f"INFO {BACKEND.format('TRITON_ATTN')}", "TRITON_ATTN"),
    (
        "0.32, chosen by a person",
        "INFO [cuda.py:446] Using AttentionBackendEnum.FLASHMLA backend.",
        "FLASHMLA",
    ),
]


@pytest.mark.parametrize(("line", "name"), [row[1:] for row in BACKENDS], ids=[row[0] for row in BACKENDS])
def test_the_backend_is_read_as_each_version_names_it(line: str, name: str) -> None:
    assert start_of(ARGS, line, POOL).backends == (name,)


OTHERS = [
    "WARNING [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.",
    "INFO [fp8.py:1] Using FLASHINFER_TRTLLM Fp8 MoE backend out of potential backends: ['TRITON'].",
    "INFO [topk.py:1] Using FlashInfer for top-p & top-k sampling.",
    "INFO [cuda.py:1] Using FLASH_ATTN backend for the vision encoder",
    "INFO [parallel_state.py:1] world_size=1 rank=0 backend=gloo",
    "INFO [config.py:1] Using max model len 2048",
    "INFO [cuda_graph.py:1] CUDA graphs are off: --enforce-eager",
]


@pytest.mark.parametrize("line", OTHERS)
def test_other_lines_name_no_backend(line: str) -> None:
    assert start_of(ARGS, line, POOL).backends == ()


@pytest.mark.parametrize(
    "line",
    ["INFO Avg prompt throughput: 1 tokens/s", 'INFO: 1.2.3.4:5 - "GET /health HTTP/1.1" 200 OK', READY],
)
def test_what_is_written_while_requests_are_served_says_nothing(line: str) -> None:
    quoted = f"INFO Received request a: prompt: '{PLUGIN} {EIGHT} {POOL}'"

    assert start_of(line, quoted) == start_of(quoted) == Started()


@pytest.mark.parametrize("lines", [(ARGS, EIGHT), (EIGHT, POOL), (ARGS,), (POOL, READY)])
def test_a_start_that_is_not_all_there_does_not_say_what_was_not_said(lines: tuple[str, ...]) -> None:
    assert not start_of(*lines).is_whole


def test_nothing_but_known_words_is_kept() -> None:
    secret = "sesame" * 8
    lines = [
        ARGS,
        f"Using fp8{secret} data type to store kv cache",
        f"Using {secret} backend on V1 engine.",
        f"[TriAttention] Runtime (V2) plugin activated: key={secret}",
        POOL,
    ]

    assert "sesame" not in str(start_of(*lines))


def test_a_log_without_end_is_read_in_bounds() -> None:
    names = [f"INFO {BACKEND.format(f'KERNEL{number}_ATTN')}" for number in range(DIFFERENT + 5)]
    far = f"{'x' * LINE_LENGTH} {EIGHT}"

    found = start_of(*names, far)

    assert len(found.backends) == DIFFERENT
    assert found.cache_type == ""


def test_the_phrases_of_a_fleet_are_named_once() -> None:
    one, two = start_of(EIGHT), start_of(PLUGIN, EIGHT)

    assert phrases({"b": two, "a": one, "c": Unread("forbidden"), "d": Started()}) == (
        *one.methods,
        two.methods[0],
    )
