"""KV compression as the environment switches it on, and what the engine then says of itself."""

import pytest

from lab.engine.arguments import parse_serve
from lab.engine.compression import Compaction, Survival
from lab.engine.config import SCORE_BYTES, Attention, ConfigError, DeviceMemory, resolve
from lab.engine.logs import log_engine_start, log_pool
from lab.engine.requests import BlockTable, Request
from lab.engine.scheduler import Step
from lab_engine.engine_process import an_engine

GPU = {"LAB_DEVICE_MEMORY_MIB": "100", "LAB_WEIGHTS_MIB": "80"}
TRIATTENTION = {"LAB_PLUGINS": "triattention"}


def resolved(*argv, **environ):
    return resolve(parse_serve(["serve", "m", "--no-enable-prefix-caching", *argv]), environ)


@pytest.mark.parametrize(
    ("environ", "is_on"),
    [
        ({}, False),
        (TRIATTENTION, True),
        (TRIATTENTION | {"ENABLE_TRIATTENTION": "0"}, False),
        (TRIATTENTION | {"VLLM_PLUGINS": ""}, False),
        (TRIATTENTION | {"VLLM_PLUGINS": "another"}, False),
        (TRIATTENTION | {"VLLM_PLUGINS": "another,triattention"}, True),
        ({"ENABLE_TRIATTENTION": "1"}, False),
    ],
)
def test_triattention_is_on_where_it_is_installed_and_not_switched_off(environ, is_on):
    assert (resolved(**environ).method is not None) is is_on


def test_triattention_takes_its_settings_from_its_own_variables():
    own = {"KV_BUDGET": "512", "DIVIDE_LENGTH": "64", "WINDOW_SIZE": "32"}
    own["ENABLE_EXPERIMENTAL_BLOCK_RECLAIM"] = "1"

    method = resolved(
        **TRIATTENTION, **{f"TRIATTN_RUNTIME_{name}": text for name, text in own.items()}
    ).method

    found = method.compression
    assert (found.eviction.budget, found.eviction.window, found.every) == (512, 32, 64)
    assert found.compaction is Compaction.IN_ORDER
    assert found.gives_back
    assert not resolved(**TRIATTENTION).method.compression.gives_back, "an experiment that is asked for"


def test_other_methods_are_described_by_the_labs_variables():
    described = {"": "per-head", "_KEEP": "0.25", "_HEADS": "4", "_COMPACTION": "fill-holes", "_EVERY": "16"}

    found = resolved(**{f"LAB_EVICTION{name}": text for name, text in described.items()}).method.compression

    assert (found.eviction.survival, found.eviction.keep) == (Survival.PER_HEAD, 0.25)
    assert (found.eviction.heads, found.every) == (4, 16)
    assert found.compaction is Compaction.FILL_HOLES


def test_page_selection_frees_nothing():
    method = resolved(LAB_PAGE_SELECTION="64").method

    assert method.compression is None
    assert method.lines == ("[PageSelection] each step reads 64 pages per head",)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (
            TRIATTENTION | {"TRIATTN_RUNTIME_KV_BUDGET": "many"},
            "TRIATTN_RUNTIME_KV_BUDGET='many' is not a number",
        ),
        (TRIATTENTION | {"TRIATTN_RUNTIME_SPARSE_STATS_PATH": "/no/such"}, "SPARSE_STATS_PATH='/no/such'"),
        ({"LAB_EVICTION": "sideways", "LAB_EVICTION_KEEP": "1"}, "sideways"),
        ({"LAB_EVICTION": "scattered"}, "a budget or a share"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_start(environ, named):
    with pytest.raises(ConfigError, match=named):
        resolved(**environ)


def test_eviction_beside_a_cache_of_prefixes_is_refused_at_start():
    with pytest.raises(ConfigError, match="TriAttention needs prefix caching off"):
        resolve(parse_serve(["serve", "m"]), TRIATTENTION)


def test_a_pool_that_is_too_short_for_one_request_is_logged_instead_of_refused(capsys):
    small = ("--num-gpu-blocks-override=10", "--block-size=16", "--max-model-len=2048")
    with pytest.raises(ConfigError, match="To serve at least one request"):
        resolved(*small)

    log_pool(resolved(*small, **TRIATTENTION), 1.0)

    assert "[TriAttention] KV cache check relaxed: 160 of 2048 tokens\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "environ", "dtype", "backend"),
    [
        ((), GPU, "auto", "FLASH_ATTN"),
        (("--kv-cache-dtype=fp8",), GPU, "fp8", "FLASHINFER"),
        ((), GPU | {"LAB_CHECKPOINT_KV_CACHE_DTYPE": "fp8_e4m3"}, "fp8_e4m3", "FLASHINFER"),
        ((), GPU | {"LAB_EAGER_ATTENTION": "1"}, "auto", "TORCH_SDPA"),
        ((), GPU | {"LAB_EAGER_ATTENTION": "quiet"}, "auto", "FLASH_ATTN"),
        ((), {}, "auto", None),
    ],
)
def test_the_start_up_log_names_the_backend_and_the_type_of_the_cache(capsys, argv, environ, dtype, backend):
    config = resolved(*argv, **environ)

    log_engine_start(config)

    said = capsys.readouterr().out
    assert (f"Using {dtype} data type to store kv cache." in said) is (dtype != "auto")
    assert (f"Using {backend} attention backend out of potential backends" in said) is (backend is not None)
    assert config.labels["cache_dtype"] == dtype


def test_keys_of_eight_bits_have_twice_the_blocks_asked_for_or_by_the_checkpoint():
    plain, asked = resolved(**GPU), resolved("--kv-cache-dtype=fp8", **GPU)
    own = resolved(**GPU, LAB_CHECKPOINT_KV_CACHE_DTYPE="fp8")

    assert [each.pool.total_blocks for each in (asked, own)] == [2 * plain.pool.total_blocks] * 2


def prefill(attention: Attention, prompt: int, chunk: int) -> int:
    """Return the memory of the device that scores took, in bytes, once a prompt was computed in chunks."""
    memory = DeviceMemory(total=1 << 40, reserved=0)
    request = Request("1", [1] * prompt, 1, BlockTable(16))
    while request.computed < prompt:
        tokens = min(chunk, prompt - request.computed)
        request.computed += tokens
        step = Step()
        step.add(request, tokens)
        memory.note(attention.scores_bytes(step))
    return memory.used


def test_without_a_fused_kernel_memory_grows_with_the_square_of_the_prompt():
    eager, fused = Attention("TORCH_SDPA", is_eager=True), Attention("FLASH_ATTN")

    whole = [prefill(eager, prompt, chunk=prompt) for prompt in (1000, 2000, 4000)]
    chunked = [prefill(eager, prompt, chunk=500) for prompt in (1000, 2000, 4000)]

    assert whole == [SCORE_BYTES * prompt**2 for prompt in (1000, 2000, 4000)]
    assert chunked == [SCORE_BYTES * 500 * prompt for prompt in (1000, 2000, 4000)], "in chunks it is a line"
    assert prefill(fused, 4000, chunk=4000) == 0
    assert (eager.slowdown, fused.slowdown) == (1.6, 1.0)


def test_a_device_has_no_more_memory_than_it_has():
    memory = DeviceMemory(total=100, reserved=90)

    memory.note(50)
    memory.note(5)

    assert memory.used == 100


async def test_an_engine_that_compacts_serves_more_tokens_than_its_pool_holds():
    environ = {"LAB_EVICTION": "scattered", "LAB_EVICTION_BUDGET": "32", "LAB_EVICTION_EVERY": "16"}
    environ |= {"LAB_EVICTION_COMPACTION": "in-order"}
    body = {"model": "tiny", "prompt": [1] * 16, "max_tokens": 400, "ignore_eos": True}

    async with an_engine("--no-enable-prefix-caching", environ=environ, step_ms=0.1) as running:
        most = 0.0
        finish = running.scheduler.finish

        def watched(step):
            nonlocal most
            most = max(most, running.scheduler.pool.usage)
            return finish(step)

        running.scheduler.finish = watched
        answer = (await running.http.post("/v1/completions", json=body)).json()

    assert answer["usage"]["completion_tokens"] == 400
    assert running.scheduler.compressor.total.freed > 40
    assert most < 0.15, "32 tokens and those of a few passes, of 512"


async def test_the_memory_of_the_device_is_reported():
    async with an_engine(environ={"LAB_DEVICE_MEMORY_MIB": "1000", "LAB_WEIGHTS_MIB": "100"}) as running:
        memory = (await running.http.get("/lab/device")).json()

    assert memory == {"used": int(0.92 * 1000 * (1 << 20)), "total": 1000 << 20}
