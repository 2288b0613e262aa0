"""vLLM: the lines of a failed start that say that a type of the KV cache is not supported here.

Each is a line of an exception, at the end of a log. What is kept is fixed words and the name of a backend;
whatever a line has besides (configuration, device, paths) is not.
"""

from __future__ import annotations

import re

VLLM_REFUSALS = (
    re.compile(r"\b\w{1,40} does not support fp8 kv-cache on this device", re.IGNORECASE),
    re.compile(r"\b\w{1,40}(?: V1)? with FP8 KV cache not yet supported"),
    re.compile(
        r"(?:No valid attention backend found for|is not valid for this configuration).*"
        r"(kv_cache_dtype not supported)"
    ),
    re.compile(r"FP8 KV cache is not supported by the \w{1,40} attention backend"),
    re.compile(r"type fp8\w{1,12} not supported in this architecture"),
    re.compile(r"fp8\w{1,12} data type is not supported on CUDA arch < \d{1,3}"),
    re.compile(r"\b(?:IPEX|Torch SDPA) backend does not support FP8 KV cache"),
    re.compile(r"VLLM_USE_V1=1 is not supported with --kv-cache-dtype"),
    re.compile(r"FP8_E5M2 KV Cache on AMD GPU has not been supported yet"),
)
"""In this order:

* `FlashAttention does not support fp8 kv-cache on this device.` (`v1/attention/backends/flash_attn.py`,
  `FlashAttentionImpl`; seen on compute capability 12.0).
* `FlashAttention V1 with FP8 KV cache not yet supported`, and so `TritonMLA`, `FlashMLA`, `CutlassMLA`,
  `FlashAttnMLA`, `CPUMLAImpl` (from 0.8.0, github.com/vllm-project/vllm/pull/14221 and issues/18888).
* `No valid attention backend found for cuda with AttentionSelectorConfig(…). Reasons: {FLASH_ATTN:
  [kv_cache_dtype not supported], …}` and, where a person chose the backend, `Selected backend
  AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: ['kv_cache_dtype not
  supported']` (`platforms/cuda.py`; issues/40094 and github.com/vllm-project/recipes/issues/565). The same
  reasons at level INFO or DEBUG (`Some attention backends are not valid …`) refuse nothing.
* `FP8 KV cache is not supported by the Triton attention backend on NVIDIA GeForce RTX 3090 (compute
  capability 8.6); native FP8 (fp8e4nv) requires SM89+.` (`v1/attention/backends/triton_attn.py`).
* `type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')`:
  Triton, before vLLM asked itself (issues/26431 on compute capability 8.6, issues/13147 on RDNA3); the next
  one is Triton of old (issues/7714).
* `Torch SDPA backend does not support FP8 KV cache.` and `IPEX backend …` (V0,
  `attention/backends/torch_sdpa.py` and `ipex_attn.py`).
* `VLLM_USE_V1=1 is not supported with --kv-cache-dtype.` (0.8, `engine/arg_utils.py`).
* `FP8_E5M2 KV Cache on AMD GPU has not been supported yet.` (0.3, `config.py`)."""
