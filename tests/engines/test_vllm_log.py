"""Lines with which vLLM refuses a type of its KV cache: the phrase is kept, and nothing beside it."""

import pytest

from kvmedic.engines.vllm_log import VLLM_REFUSALS
from kvmedic.rollout.trial import refusal_in

CONFIG = (
    "AttentionSelectorConfig(head_size=128, dtype=torch.bfloat16, kv_cache_dtype=fp8, block_size=None, "
    "use_mla=False, has_sink=False, use_sparse=False, use_mm_prefix=False, attn_type=decoder)"
)
SELECTOR = "kv_cache_dtype not supported"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (
            "(EngineCore_DP0 pid=77) ERROR 11-21 04:50:01 [core.py:936] NotImplementedError: FlashAttention "
            "does not support fp8 kv-cache on this device.",
            "FlashAttention does not support fp8 kv-cache on this device",
        ),
        (
            "ERROR 03-04 17:08:57 [core.py:303] NotImplementedError: FlashAttention V1 with FP8 KV cache not "
            "yet supported",
            "FlashAttention V1 with FP8 KV cache not yet supported",
        ),
        (
            "NotImplementedError: CPUMLAImpl with FP8 KV cache not yet supported",
            "CPUMLAImpl with FP8 KV cache not yet supported",
        ),
        (
            f"ValueError: No valid attention backend found for cuda with {CONFIG}. Reasons: {{FLASH_ATTN: "
            "[kv_cache_dtype not supported], FLASHINFER: [compute capability not supported]}.",
            SELECTOR,
        ),
        (
            "ValueError: Selected backend AttentionBackendEnum.TRITON_ATTN is not valid for this "
            "configuration. Reason: ['kv_cache_dtype not supported']",
            SELECTOR,
        ),
        (
            "ValueError: FP8 KV cache is not supported by the Triton attention backend on NVIDIA GeForce RTX "
            "3090 (compute capability 8.6); native FP8 (fp8e4nv) requires SM89+. Re-run with "
            "--kv-cache-dtype bfloat16.",
            "FP8 KV cache is not supported by the Triton attention backend",
        ),
        (
            """ValueError("type fp8e4nv not supported in this architecture. The supported fp8 dtypes are """
            """('fp8e4b15', 'fp8e5')")""",
            "type fp8e4nv not supported in this architecture",
        ),
        (
            "AssertionError: fp8e4nv data type is not supported on CUDA arch < 89",
            "fp8e4nv data type is not supported on CUDA arch < 89",
        ),
        (
            "NotImplementedError: Torch SDPA backend does not support FP8 KV cache. Please use xFormers.",
            "Torch SDPA backend does not support FP8 KV cache",
        ),
        (
            "NotImplementedError: VLLM_USE_V1=1 is not supported with --kv-cache-dtype.",
            "VLLM_USE_V1=1 is not supported with --kv-cache-dtype",
        ),
        (
            "NotImplementedError: FP8_E5M2 KV Cache on AMD GPU has not been supported yet.",
            "FP8_E5M2 KV Cache on AMD GPU has not been supported yet",
        ),
    ],
    ids=[
        "flash attention",
        "V1 of 0.8",
        "MLA on a CPU",
        "no backend",
        "chosen backend",
        "Triton backend",
        "Triton",
        "Triton of old",
        "SDPA",
        "not on V1",
        "ROCm of old",
    ],
)
def test_a_refusal_is_known_and_only_its_phrase_kept(line, kept):
    assert refusal_in(["Loading weights", line, "RuntimeError: Engine core failed"], VLLM_REFUSALS) == kept


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Cannot use FlashAttention-2 backend for FP8 KV cache.",
        f"No valid attention backend found for cuda with {CONFIG}. Reasons: {{MLA: [sparse not supported]}}.",
        "Some attention backends are not valid for cuda. Reasons: {FLASHMLA: [kv_cache_dtype not supported]}",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "ValueError: No available memory for the cache blocks.",
        "x" * 5000 + " FlashAttention does not support fp8 kv-cache on this device",
    ],
    ids=["empty", "another is taken", "another reason", "some only", "memory", "share", "far out"],
)
def test_another_line_is_no_refusal(line):
    assert refusal_in([line], VLLM_REFUSALS) == ""
