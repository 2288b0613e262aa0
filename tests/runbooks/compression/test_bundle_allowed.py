"""Which flags and variables a spec may name as the settings of a method, and which values come back."""

from __future__ import annotations

from typing import Any

import pytest

from kvmedic.model.compression import BundleSetting as Setting
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy, Replacement
from kvmedic.record.store import resource_of
from kvmedic.runbooks.compression.allowed_settings import AllowedSettings
from kvmedic.runbooks.compression.bundle import unrecorded_setting
from worlds.bundles import a_template, a_workload
from worlds.world import remediation

LISTED = AllowedSettings(("--evict",), ("EVICT_TOKENS", "LAB_*"))
KNOWN = [
    Setting(env="ENABLE_TRIATTENTION", on="1", off="0"),
    Setting(env="TRIATTN_RUNTIME_SPARSE_STATS_PATH", on="/stats.pt", off=None),
    Setting(env="VLLM_ASCEND_KVCOMPRESS_CONFIG", on="x", off=None),
    Setting(flag="--no-enable-prefix-caching", on="", off=None),
    Setting(flag="kv_cache_dtype", on="fp8", off=None),
]
FOREIGN = [
    *(Setting(env=name, on="x", off=None) for name in ("LD_PRELOAD", "VLLM_API_KEY", "PYTHONPATH", "PATH")),
    *(
        Setting(flag=name, on="x", off=None)
        for name in ("--middleware", "--trust-remote-code", "--api-key", "--hf-token", "--model")
    ),
    Setting(env="LD_PRELOAD", on=None, off="/evil.so"),
    Setting(env="VLLM_PLUGINS", on="mine", off=None),
]


@pytest.mark.parametrize("setting", KNOWN, ids=lambda each: each.env or each.flag)
def test_what_known_methods_are_configured_by_is_allowed(setting: Setting) -> None:
    assert AllowedSettings().refusals(CompressionPolicy(settings=(setting,))) == ()


@pytest.mark.parametrize("setting", FOREIGN, ids=lambda each: each.env or each.flag)
def test_anything_else_is_refused_with_its_field_and_the_fix(setting: Setting) -> None:
    replacement = Replacement("Mine", settings=(KNOWN[0], setting))
    faults = LISTED.refusals(CompressionPolicy(settings=(setting,), replacement=replacement))

    field = "env" if setting.env else "flag"
    assert faults[0].startswith(f"spec.compression.settings[0].{field}: {setting.env or setting.flag} is no ")
    assert faults[1].startswith(f"spec.compression.replacement.settings[1].{field}: ")
    assert all("remove it, or have an administrator add it to compression." in each for each in faults)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("EVICT_TOKENS", True), ("LAB_EVICTION", True), ("EVICT_TOKENS_2", False), ("LAB_API_KEY", False)],
)
def test_an_administrator_allows_names_and_beginnings_but_no_secret(name: str, *, allowed: bool) -> None:
    faults = LISTED.refusals(CompressionPolicy(settings=(Setting(env=name, on="1", off=None),)))

    assert (faults == ()) is allowed


def test_a_beginning_reaches_nothing_by_which_code_comes_in() -> None:
    broad = AllowedSettings(variables=("LD_*", "VLLM_*", "HF_*"))

    settings = tuple(
        Setting(env=name, on="1", off=None) for name in ("LD_PRELOAD", "VLLM_API_KEY", "HF_ENDPOINT")
    )
    assert len(broad.refusals(CompressionPolicy(settings=settings))) == 3


def test_a_spec_that_names_what_it_may_not_is_refused_as_a_whole() -> None:
    settings = [{"env": "LD_PRELOAD", "after": "/evil.so"}]
    body: Any = remediation(compression={"settings": settings})
    body["metadata"] |= {"namespace": "serving", "uid": "1", "resourceVersion": "1"}

    refused, unasked = resource_of(body, AllowedSettings()), resource_of(body)

    assert refused.policy is None
    assert refused.problem.reason is Reason.SPEC_INVALID
    assert "spec.compression.settings[0].env: LD_PRELOAD" in refused.problem.message
    assert "evil" not in refused.problem.message
    assert unasked.policy is not None


BUDGET = "TRIATTN_RUNTIME_KV_BUDGET"
NOW = a_template(["m", "--kv-cache-dtype=fp8"], [{"name": BUDGET, "value": "512"}])
THEN = a_template(["m", "--kv-cache-dtype=bfloat16"], [{"name": BUDGET, "value": "4096"}])


@pytest.mark.parametrize(
    ("setting", "earlier", "is_refused"),
    [
        (Setting(env=BUDGET, on="512", off=None), [], False),
        (Setting(env=BUDGET, on="512", off="4096"), [THEN], False),
        (Setting(env=BUDGET, on="512", off="4096"), [], True),
        (Setting(env=BUDGET, on="512", off="1"), [THEN], True),
        (Setting(env=BUDGET, on="1", off="512"), [], False),
        (Setting(env="ENABLE_TRIATTENTION", on="1", off="false"), [], False),
        (Setting(flag="--kv-cache-dtype", on="fp8", off="auto"), [], False),
        (Setting(flag="--kv-cache-dtype", on="fp8", off="bfloat16"), [THEN], False),
        (Setting(flag="--kv-cache-dtype", on="fp8", off="int8"), [THEN], True),
    ],
    ids=[
        "removed",
        "as an earlier revision had it",
        "no earlier revision is known",
        "another value than any had",
        "as it is now",
        "the method's own word for off",
        "the model's own type",
        "a flag as it was",
        "a flag as it never was",
    ],
)
def test_turning_off_removes_or_puts_back_what_there_was(
    setting: Setting, earlier: list[dict[str, Any]], *, is_refused: bool
) -> None:
    doubt = unrecorded_setting(a_workload(NOW), (setting,), earlier)

    assert ("is in no earlier revision" in doubt) is is_refused
