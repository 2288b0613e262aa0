"""Methods that compress vLLM's KV cache, and the types in which it stores keys and values in fewer bits.

vLLM itself evicts no tokens: those methods are plugins or forks. Sources are papers by their numbers on
arXiv, and for what is configured the packages themselves. Types are named as by `--kv-cache-dtype` from 0.5.5
to 0.33.0 (`vllm_options.tsv`). Ratios are over 16 bits, for heads of 128 and whole layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvmedic.model.compression import OFF_WORDS, ON_WORDS, Method, MethodClass, OffSwitch
from kvmedic.model.compression import BundleSetting as Setting

TRIATTENTION = Method(
    "TriAttention",
    MethodClass.COMPACTING_EVICTION,
    needs_scores=False,
    source="package triattention, c3744ee6 of 2026-04-22: plugin.py, runtime/config.py, "
    "runtime/integration_monkeypatch.py, runtime/selector_hf.py",
    settings=(
        Setting(flag="--no-enable-prefix-caching", on="", off=None),
        Setting(env="TRIATTN_RUNTIME_KV_BUDGET", on="2048", off=None),
        Setting(env="TRIATTN_RUNTIME_ENABLE_EXPERIMENTAL_BLOCK_RECLAIM", on="1", off=None),
        Setting(env="ENABLE_TRIATTENTION", on="1", off="0"),
    ),
    prerequisites=(
        "the image has the plugin: an entry point triattention in vllm.general_plugins",
        "the file that TRIATTN_RUNTIME_SPARSE_STATS_PATH names is in the container, with the statistics of "
        "this very model",
        "prefix caching is off",
    ),
    variables=(
        "TRIATTN_RUNTIME_[A-Z_]+",
        "ENABLE_TRIATTENTION",
        "TRIATTENTION_(KV_BUDGET|DIVIDE_LENGTH|WINDOW_SIZE|LOG_DECISIONS|STATS_PATH|PRUNING_MODE)",
    ),
    plugin="triattention",
    switch="ENABLE_TRIATTENTION",
    log=r"\[TriAttention\] Runtime \(V2\) plugin activated(?!.*=False)|TriAttention block reclaim: ",
    budget="TRIATTN_RUNTIME_KV_BUDGET",
    default_budget=2048,
    every="TRIATTN_RUNTIME_DIVIDE_LENGTH",
    off_switches=(
        OffSwitch("TRIATTN_RUNTIME_DISABLE_COMPRESSION", ON_WORDS, "TRIATTN_RUNTIME_ENABLE_KV_USAGE_TRIGGER"),
        OffSwitch("TRIATTENTION_INTERFACE", frozenset({"legacy", "legacy_custom", "v1", "custom"})),
        OffSwitch("TRIATTN_RUNTIME_PATCH_SCHEDULER", OFF_WORDS),
        OffSwitch("TRIATTN_RUNTIME_PATCH_WORKER", OFF_WORDS),
    ),
    older_names=tuple(
        (f"TRIATTN_RUNTIME_{name}", f"TRIATTENTION_{old}")
        for name, old in (
            ("KV_BUDGET", "KV_BUDGET"),
            ("DIVIDE_LENGTH", "DIVIDE_LENGTH"),
            ("WINDOW_SIZE", "WINDOW_SIZE"),
            ("SPARSE_STATS_PATH", "STATS_PATH"),
        )
    ),
    demands=("TRIATTN_RUNTIME_SPARSE_STATS_PATH",),
    denial=r"\[TriAttention\] (Legacy V1 backend plugin registration is retired"
    r"|Runtime plugin activation failed|Runtime \(V2\) plugin activated: .{0,60}=False)",
)

ASCEND = Method(
    "Ascend KV compression",
    MethodClass.COMPACTING_EVICTION,
    needs_scores=False,
    source="package vllm-ascend-kvcompress-hust 0.10.0",
    settings=(Setting(env="VLLM_ASCEND_KVCOMPRESS_ENABLED", on="1", off="0"),),
    prerequisites=("the engine is vLLM-HUST 0.29 on an Ascend NPU", "prefix caching is off"),
    variables=("VLLM_ASCEND_KVCOMPRESS_[A-Z_]+",),
    plugin="ascend_kvcompress",
    switch="VLLM_ASCEND_KVCOMPRESS_ENABLED",
    log=r"Ascend KV compression plugin activated provider=",
)

EIGHT_BITS = Method(
    "fp8",
    MethodClass.QUANTIZATION,
    needs_scores=False,
    source="vLLM 0.32: config/cache.py, CacheDType",
    settings=(Setting(flag="--kv-cache-dtype", on="fp8", off=None),),
    prerequisites=("the device computes with 8-bit keys: compute capability 8.9 and above, or ROCm's MI300",),
    cache_dtypes=("fp8", "int8"),
    log=r"Using (fp8|int8)\w{0,20} data type to store kv cache",
)


def _fewer_bits(name: str, type_on: str, source: str, needs: str) -> Method:
    """Return the method that stores keys and values in types that begin with its name."""
    return Method(
        name,
        MethodClass.QUANTIZATION,
        needs_scores=False,
        source=source,
        settings=(Setting(flag="--kv-cache-dtype", on=type_on, off=None),),
        prerequisites=(needs,),
        cache_dtypes=(name.lower(),),
        log=rf"Using {name.lower()}\w{{0,20}} data type to store kv cache",
    )


FOUR_BITS = (
    _fewer_bits(
        "nvfp4",
        "nvfp4",
        "vLLM 0.20: config/cache.py, CacheDType",
        "the device computes with 4-bit floats: compute capability 10.0 and above",
    ),
    _fewer_bits(
        "int4",
        "int4_per_token_head",
        "vLLM 0.25: config/cache.py, CacheDType",
        "the attention backend takes scales of each token and head",
    ),
    _fewer_bits(
        "TurboQuant",
        "turboquant_4bit_nc",
        "arXiv 2504.19874; vLLM 0.20: config/cache.py, CacheDType",
        "the attention backend is TURBOQUANT; the first and last layers may keep 16 bits",
    ),
    _fewer_bits(
        "UltraQuant",
        "ultraquant_4bit",
        "arXiv 2606.20474; vLLM 0.32: config/cache.py, CacheDType",
        "the device is an AMD MI350 or later",
    ),
)
"""Types of about four bits; `turboquant_k8v4` has eight for keys."""

OTHERS = (
    Method("H2O", MethodClass.PER_HEAD_EVICTION, needs_scores=True, source="arXiv 2306.14048"),
    Method("Scissorhands", MethodClass.PER_HEAD_EVICTION, needs_scores=True, source="arXiv 2305.17118"),
    Method("SnapKV", MethodClass.PER_HEAD_EVICTION, needs_scores=True, source="arXiv 2404.14469"),
    Method("PyramidKV", MethodClass.PER_HEAD_EVICTION, needs_scores=True, source="arXiv 2406.02069"),
    Method("Ada-KV", MethodClass.PER_HEAD_EVICTION, needs_scores=True, source="arXiv 2407.11550"),
    Method("R-KV", MethodClass.PER_HEAD_EVICTION, needs_scores=True, source="arXiv 2505.24133"),
    Method("TOVA", MethodClass.SCATTERED_EVICTION, needs_scores=True, source="arXiv 2401.06104"),
    Method("Knorm", MethodClass.PER_HEAD_EVICTION, needs_scores=False, source="arXiv 2406.11430"),
    Method("KeyDiff", MethodClass.PER_HEAD_EVICTION, needs_scores=False, source="arXiv 2504.15364"),
    Method("KV-Compress", MethodClass.COMPACTING_EVICTION, needs_scores=True, source="arXiv 2410.00161"),
    Method("PagedEviction", MethodClass.COMPACTING_EVICTION, needs_scores=False, source="arXiv 2509.04377"),
    Method("StreamingLLM", MethodClass.COMPACTING_EVICTION, needs_scores=False, source="arXiv 2309.17453"),
    Method("Quest", MethodClass.PAGE_SELECTION, needs_scores=False, source="arXiv 2406.10774"),
)
"""Known by their papers; how an installation turns them on only its spec can say."""

METHODS = (TRIATTENTION, ASCEND, EIGHT_BITS, *FOUR_BITS, *OTHERS)

CACHE_TYPE_PREFIXES = tuple(start for method in METHODS for start in method.cache_dtypes)
"""Beginnings of the types of a KV cache with fewer bits than the model's own."""


def find_method(name: str) -> Method | None:
    """Return a known method by its name, or by that of its type of cache, in upper or lower case.

    None where none has it.
    """
    desired = name.lower()
    named = next((each for each in METHODS if each.name.lower() == desired), None)
    types = (each for each in METHODS if each.cache_dtypes and desired.startswith(each.cache_dtypes))
    return named or (next(types, None) if desired else None)


OWN_TYPES = frozenset({"auto", "float16", "bfloat16", "float32", "half"})
"""Types that are no compression: the model's own, or as many bits."""


@dataclass(frozen=True, slots=True)
class CacheType:
    """A type of fewer bits."""

    name: str
    bits: float
    """Of a key's or value's number, scales included; the mean of both where they differ."""
    ratio: float
    """Tokens that a pool holds, over those that it holds with 16 bits."""


CACHE_TYPES = tuple(
    CacheType(name, bits, ratio)
    for name, bits, ratio in (
        ("fp8", 8, 2.0),
        ("fp8_e4m3", 8, 2.0),
        ("fp8_e5m2", 8, 2.0),
        ("fp8_inc", 8, 2.0),
        ("int8", 8, 2.0),
        ("fp8_per_token_head", 8.25, 1.94),
        ("int8_per_token_head", 8.25, 1.94),
        ("int4_per_token_head", 4.25, 3.76),
        ("fp8_ds_mla", 9.11, 1.75),
        ("nvfp4_ds_mla", 5.78, 2.77),
        ("nvfp4", 4.5, 3.56),
        ("nvfp4_4over6", 4.5, 3.56),
        ("turboquant_k8v4", 6.13, 2.6),
        ("turboquant_4bit_nc", 4.19, 3.8),
        ("turboquant_k3v4_nc", 3.69, 3.5),
        ("turboquant_3bit_nc", 3.19, 4.9),
        ("ultraquant_4bit", 4.25, 3.76),
    )
)
"""Scales are a 4-byte number per head and token, one byte per 16 numbers (nvfp4) or per 32 (UltraQuant).

MLA stores 656 bytes of a token's 1,152 (`fp8_ds_mla`), of which 128 keep 16 bits. TurboQuant's ratios are
those of vLLM's own configuration (`TurboQuantConfig`), its bits those of its packing: 6 bytes per head and
token for norm, scale and zero."""

_FAMILIES = (
    ("turboquant", 2.6),
    ("ultraquant", 3.76),
    ("nvfp4", 2.77),
    ("int4", 3.76),
    ("fp8", 1.75),
    ("int8", 1.94),
)
"""By what a type begins with that a later release adds: the least ratio of its kin."""


def expected_ratio(name: str) -> float:
    """Return how many times as many tokens a pool holds with a type as with 16 bits; 1 of the model's own."""
    exact = next((each.ratio for each in CACHE_TYPES if each.name == name), None)
    if exact is not None:
        return exact
    return next((ratio for start, ratio in _FAMILIES if name.startswith(start)), 1.0)
