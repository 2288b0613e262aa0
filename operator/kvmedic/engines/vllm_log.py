"""What vLLM logs: lines of its start, refusals of a type of the KV cache, and a GPU's memory that ran out.

The lines were recorded from vLLM 0.32.0 (`tests/data/vllm`); their history is from reading the releases from
0.5.5 to 0.33.0. What is kept of a line is a word of one form or one of a list, and short: lines hold
configuration and paths too.
"""

from __future__ import annotations

import re

from kvmedic.engines.engine_log import StartForms
from kvmedic.engines.kv_methods import METHODS
from kvmedic.model.evidence import LogForms, SizeUnit

POOL_LINES = LogForms(
    sizes=(
        (re.compile(r"KV cache size: (\d[\d,]{0,17}) tokens"), SizeUnit.TOKENS),
        (re.compile(r"# \w{1,40} blocks: (\d{1,18})(?!\d)"), SizeUnit.BLOCKS),
    ),
    serving=re.compile(
        r"Application startup complete|Avg prompt throughput: |Received request |HTTP/1\.[01]\" \d{3}"
    ),
)
"""`# GPU blocks: 1234, # CPU blocks: 2048` on V0 and V1 up to 0.7.3, from 0.7.3 to 0.10.2 with the device's
name on V0 (`# cuda blocks: …`, `executor_base.py`); `GPU KV cache size: 1,234 tokens` on V1 from 0.8.0, from
0.30 with `CPU`, `XPU` or `GPU + host` before it (`v1/core/kv_cache_utils.py`).
A number has 18 digits at most, as any that a device has room for, and words are bounded too, lest a search
take the square of a line's length: anyone who writes a log can write what suits a pattern worst.
After `Application startup complete` requests are taken; where that was rotated away, statistics, requests and
the access log show that they were."""


_NAMES = (
    r"Flash ?Attention(?:-\d)?|FlashInfer|XFormers|Triton(?: Attention)?|(?:Flash|Triton |Cutlass )MLA"
    r"|FlexAttention|Torch SDPA|Pallas(?: V1)?|ROCmFlashAttention|AITER(?: MLA)?"
    r"|[A-Z0-9_]{0,40}(?:ATTN|ATTENTION|MLA|FLASHINFER|XFORMERS|SDPA|PALLAS)[A-Z0-9_]{0,40}"
)
"""What computes attention; the same words stand before `backend` for experts and sampling too, with more
between: `Using FLASHINFER_TRTLLM Fp8 MoE backend out of potential backends: […]`."""


VLLM_START = StartForms(
    pool=POOL_LINES,
    begins=re.compile(r"vLLM API server version |non-default args: |args: Namespace\("),
    cache_type=re.compile(r"Using (\w{1,24}) data type to store kv cache"),
    backends=(
        re.compile(
            r"Using (?:AttentionBackendEnum\.)?(\w{1,40}) attention backend out of potential backends"
        ),
        re.compile(r"Using AttentionBackendEnum\.(\w{1,40}) backend(?:\.|\s*$)"),
        re.compile(rf"Using (?:the )?({_NAMES}) backend(?: on V1 engine)?(?:\.|\s*$)"),
    ),
    methods=tuple(re.compile(each) for method in METHODS for each in (method.log, method.denial) if each),
)
"""Notes on single ones:

* The arguments are logged first, by the API server (`utils/argparse_utils.py`, before that `api_server.py`).
* The type is named where the cache is not of the model's own type (`config/cache.py`, `config.py` of old),
  also where the checkpoint asks for it and `cache_dtype` says `auto`.
* Backends: up to 0.11.0 `Using Flash Attention backend on V1 engine.` and its kin, `Using XFormers backend.`;
  0.11.1 `Using FLASH_ATTN backend.`; later `Using FLASH_ATTN attention backend out of potential backends:
  […].`, and where a person chose it `Using AttentionBackendEnum.FLASH_ATTN backend.` (`platforms/cuda.py`).
  The CPU build names none. `Enforce eager set` is about CUDA graphs and compilation, not about attention.
"""


VLLM_REFUSALS = (
    re.compile(r"\b\w{1,40} does not support fp8 kv-cache on this device", re.IGNORECASE),
    re.compile(r"\b\w{1,40}(?: V1)? with FP8 KV cache not yet supported"),
    re.compile(
        r"\A(?:(?!No valid attention backend found for|is not valid for this configuration).)*+"
        r"(?:No valid|is not valid).*(kv_cache_dtype not supported)"
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


VLLM_OUT_OF_MEMORY = re.compile(
    r"torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP) out of memory|CUDA error: out of memory"
    r"|Cuda failure(?: \d+)? '?out of memory"
    r"|Free memory on device .{0,120}? is less than desired GPU memory utilization"
)
"""How vLLM, torch and NCCL say that a GPU's memory ran out: at start-up also that other processes hold
what the engine was to take (vLLM 0.32). `No available memory for the cache blocks` is not among them: that
engine needs a larger share, not a smaller one."""
