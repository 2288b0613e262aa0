"""The types in which vLLM stores keys and values in fewer bits: how many, and what a pool holds with them.

Names are those of `--kv-cache-dtype` from 0.5.5 to 0.33.0 (`vllm_options.tsv`). Ratios are over 16 bits, for
heads of 128 and whole layers: layers that are left out, larger heads, and state that is no cache move them.
"""

from __future__ import annotations

from dataclasses import dataclass

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
