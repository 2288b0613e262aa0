"""vLLM: the lines of its start-up log.

Lines of 0.32.0 were recorded (`tests/data/vllm/startup-0.32-cpu.log`); their history is from reading the
releases from 0.5.5 to 0.33.0. What is kept of a line is a word of one form or one of a list, and short.
"""

from __future__ import annotations

import re

from kvmedic.core.logged_pool import LogForms, SizeUnit
from kvmedic.core.started import StartForms
from kvmedic.engines.kv_methods import METHODS

POOL_LINES = LogForms(
    sizes=(
        (re.compile(r"KV cache size: ([\d,]+) tokens"), SizeUnit.TOKENS),
        (re.compile(r"# \w+ blocks: (\d+)"), SizeUnit.BLOCKS),
    ),
    serving=re.compile(
        r"Application startup complete|Avg prompt throughput: |Received request |HTTP/1\.[01]\" \d{3}"
    ),
)
"""`# GPU blocks: 1234, # CPU blocks: 2048` on V0 and V1 up to 0.7.3, from 0.7.3 to 0.10.2 with the device's
name on V0 (`# cuda blocks: …`, `executor_base.py`); `GPU KV cache size: 1,234 tokens` on V1 from 0.8.0, from
0.30 with `CPU`, `XPU` or `GPU + host` before it (`v1/core/kv_cache_utils.py`).
After `Application startup complete` requests are taken; where that was rotated away, statistics, requests and
the access log show that they were."""

_NAMES = (
    r"Flash ?Attention(?:-\d)?|FlashInfer|XFormers|Triton(?: Attention)?|(?:Flash|Triton |Cutlass )MLA"
    r"|FlexAttention|Torch SDPA|Pallas(?: V1)?|ROCmFlashAttention|AITER(?: MLA)?"
    r"|[A-Z0-9_]*(?:ATTN|ATTENTION|MLA|FLASHINFER|XFORMERS|SDPA|PALLAS)[A-Z0-9_]*"
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
