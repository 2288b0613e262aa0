"""KV compression as a user declares it: `spec.compression`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from kvmedic.api.rules import (
    DURATION_LENGTH,
    Rule,
    Wire,
    dns_subdomain,
    duration,
    number_between,
    pattern,
    quantity,
    rfc3339,
    whole,
)
from kvmedic.model.spec import Fix

Name = Annotated[str, Field(max_length=63)]
Value = Annotated[
    str,
    Field(max_length=1024),
    pattern(
        "^[A-Za-z0-9_@%+=:,./-]*$",
        "use one word of a shell, of letters, digits and _ @ % + = : , . / - only",
    ),
]
FlagName = Annotated[
    Name, pattern("^(--)?[A-Za-z][A-Za-z0-9._-]*$", "use the name of one flag, such as --kv-cache-dtype")
]
VariableName = Annotated[
    Name, pattern("^[A-Za-z_][A-Za-z0-9_]*$", "use the name of one variable, such as ENABLE_TRIATTENTION")
]
Span = Annotated[str, Field(max_length=DURATION_LENGTH)]

_ONE_KEEP: Rule[Any] = Rule(
    cel="!has(self.keepTokens) || !has(self.keepRatio)",
    message="name either keepTokens or keepRatio, one of them",
    holds=lambda s: s.keep_tokens is None or s.keep_ratio is None,
    path=".keepRatio",
)


class CompressionSetting(Wire):
    """One setting of the bundle that turns a method on: a flag or an environment variable."""

    rules = (
        Rule(
            cel="has(self.flag) != has(self.env)",
            message="name either flag or env, one of them",
            holds=lambda s: (s.flag is None) != (s.env is None),
        ),
    )

    flag: FlagName | None = None
    """Flag of the engine, with its dashes: of a known method, or one that the operator's settings allow."""
    env: VariableName | None = None
    """Environment variable of the engine's container: of a known method, or one that the operator's
    settings allow."""
    before: Value | None = None
    """Value without the method. Absent: the setting is removed. It is restored only if an earlier revision
    of the Deployment had it, or if it is the method's own value for off."""
    after: Value | None = None
    """Value with the method. Absent: the setting is removed."""


Settings = Annotated[list[CompressionSetting], Field(max_length=16)]
KeepTokens = Annotated[int, Field(strict=True), whole(1, 1048576)]
KeepRatio = Annotated[float, Field(strict=True), number_between(0.001, 0.999)]


class CompressionReplacement(Wire):
    """The method that replaces one that saves nothing, after it proved itself on a trial pod."""

    rules = (_ONE_KEEP,)

    method: Annotated[Name, Field(min_length=1)]
    """Name of a method that frees blocks, such as TriAttention. A method that kvmedic does not know needs
    settings too."""
    keep_tokens: KeepTokens | None = None
    """Tokens of a request that it keeps (its budget). From 1 to 1048576. Absent, as keepRatio: the value of
    the named method."""
    keep_ratio: KeepRatio | None = None
    """The same as a share of the request's tokens. From 0.001 to 0.999."""
    settings: Settings | None = Field(default=None, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    """The ordered bundle that turns it on. Absent: the bundle of the named method. For TriAttention the
    variable TRIATTN_RUNTIME_SPARSE_STATS_PATH is enough, here or in the pod template."""


class CompressionBaseline(Wire):
    """Measured figures of the fleet without the method. Absent figures come from the operator's record. If
    blocks and the attention backend decide, a trial pod with the method off shows them."""

    rules = (
        Rule(
            cel="has(self.accuracy) == has(self.accuracyConfiguration)",
            message="a score needs the pod template that it was measured with: add the other one of "
            "accuracy and accuracyConfiguration, or remove both",
            holds=lambda s: (s.accuracy is None) == (s.accuracy_configuration is None),
            path=".accuracyConfiguration",
        ),
    )

    blocks: Annotated[int, Field(strict=True), whole(1, 2147483647)] | None = None
    """Usable KV-cache blocks of a replica. From 1 to 2147483647."""
    attention_backend: Name | None = None
    """Attention backend that the engine logged at its start. It is reported and decides nothing: one fused
    kernel may replace another, and an unchanged name proves nothing."""
    kv_cache_usage: Annotated[float, Field(strict=True), number_between(0, 1)] | None = None
    """Mean KV-cache usage (ratio 0 to 1)."""
    kv_cache_usage_deviation: Annotated[float, Field(strict=True), number_between(0, 1)] | None = None
    """Standard deviation of the usage (ratio 0 to 1). It is reported and decides nothing."""
    device_memory: Annotated[str, Field(max_length=32), quantity()] | None = None
    """Device memory in use on one device, as a quantity."""
    preemptions_per_request: Annotated[float, Field(strict=True), number_between(0, 10000)] | None = None
    """Preemptions per finished request. From 0 to 10000."""
    tokens_per_second: Annotated[float, Field(strict=True), number_between(0, 1000000000)] | None = None
    """Generated tokens per second of the whole fleet. From 0 to 1000000000."""
    requests_per_second: Annotated[float, Field(strict=True), number_between(0, 1000000)] | None = None
    """Arrivals of the whole fleet per second, so that loads can be compared. From 0 to 1000000."""
    e2e_p95: Annotated[Span, duration("1ms", "24h")] | None = Field(default=None, alias="e2eP95")
    """95th percentile of a request's whole time. From 1ms to 24h."""
    replicas: Annotated[int, Field(strict=True), whole(1, 100000)] | None = None
    """Replicas that the rates cover, so that larger fleets are compared per replica. From 1 to 100000.
    Absent: 1, if the fleet has one replica now; rates of more replicas are not compared without it."""
    accuracy: Annotated[float, Field(strict=True), number_between(0, 1)] | None = None
    """Score of the accuracy gate without the method (ratio 0 to 1)."""
    accuracy_configuration: Annotated[str, Field(max_length=64)] | None = None
    """Hash of the pod template that the score was measured with, as in status.scores. A score of another
    template does not count and is measured again."""


class ReclamationProbe(Wire):
    """One long generation on a trial pod, during which free blocks are counted."""

    tokens: Annotated[int, Field(strict=True), whole(16384, 1048576)] = 16384
    """Tokens to generate. From 16384 to 1048576; less than 4 times what the method keeps shows nothing. From
    16384 on scattered eviction and compaction differ by a factor of seven (118 against 875 of 1,000 blocks of
    16 tokens, keeping 2k of 16k)."""
    timeout: Annotated[Span, duration("1m", "6h")] = "30m"
    """Time limit of the trial pod. From 1m to 6h. 30m covers a cold start of a large model."""


class CronJobRef(Wire):
    """The evaluation to run as a Job against the trial pod: a CronJob in the resource's own namespace."""

    name: Annotated[
        str,
        Field(max_length=52),
        dns_subdomain("CronJob"),
    ]
    """Name of the CronJob; it is suspended, and the team that owns the model owns it."""


class AccuracyGate(Wire):
    """The evaluation that a changed cache policy must pass before it reaches the fleet."""

    cron_job_ref: CronJobRef
    max_loss: Annotated[float, Field(strict=True), number_between(0, 1)]
    """Loss of score that is accepted (ratio 0 to 1). No default: only the model's owner can say."""
    timeout: Annotated[Span, duration("1m", "24h")] = "2h"
    """Time limit of the evaluation and its trial pod. From 1m to 24h. A trial pod holds a device: After 2h
    it ends even if the evaluation hangs."""


class CompressionSpec(Wire):
    """The KV compression that is on, how it was turned on, and what may be done if it saves nothing."""

    rules = (
        _ONE_KEEP,
        Rule(
            cel=f"!('{Fix.REVERT_BUNDLE}' in self.allowedFixes) || "
            f"self.allowedFixes[0] == '{Fix.REVERT_BUNDLE}'",
            message=f"{Fix.REVERT_BUNDLE} comes first, because nothing is stacked on a method that saves"
            " nothing: name it first",
            holds=lambda s: Fix.REVERT_BUNDLE not in s.allowed_fixes[1:],
            path=".allowedFixes",
        ),
        Rule(
            cel=f"!('{Fix.DEMAND_CAPS}' in self.allowedFixes) || "
            f"self.allowedFixes[size(self.allowedFixes) - 1] == '{Fix.DEMAND_CAPS}'",
            message=f"{Fix.DEMAND_CAPS} comes last, because it hands the fleet to PreemptionThrash: name it"
            " last",
            holds=lambda s: Fix.DEMAND_CAPS not in s.allowed_fixes[:-1],
            path=".allowedFixes",
        ),
        Rule(
            cel=f"!('{Fix.COMPACTING_METHOD}' in self.allowedFixes) || has(self.replacement)",
            message=f"{Fix.COMPACTING_METHOD} turns on a method that you name: add replacement, such as"
            " {method: TriAttention}",
            holds=lambda s: Fix.COMPACTING_METHOD not in s.allowed_fixes or s.replacement is not None,
            path=".replacement",
        ),
    )

    method: Name | None = None
    """Name of the method, such as TriAttention. Absent: recognised from flags, environment and logs."""
    method_class: (
        Literal["ScatteredEviction", "PerHeadEviction", "CompactingEviction", "PageSelection", "Quantization"]
        | None
    ) = Field(default=None, alias="class")
    """What the method does to blocks. Absent: the class of the named method."""
    keep_tokens: KeepTokens | None = None
    """Tokens of a request that the method keeps (its budget). From 1 to 1048576. Absent, as keepRatio: the
    value of the named method, or of its variable."""
    keep_ratio: KeepRatio | None = None
    """The same as a share of the request's tokens. From 0.001 to 0.999."""
    settings: Settings | None = Field(default=None, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    """The ordered bundle that turns the method on."""
    baseline: CompressionBaseline | None = None
    probe: ReclamationProbe = ReclamationProbe()
    accuracy_gate: AccuracyGate | None = None
    """The evaluation before a changed cache policy reaches the fleet. Without it such a change is only
    proposed."""
    allowed_fixes: Annotated[
        list[Literal["RevertBundle", "CompactingMethod", "Fp8KVCache", "DemandCaps"]],
        Field(max_length=4),
    ] = Field(default=["RevertBundle"], json_schema_extra={"x-kubernetes-list-type": "atomic"})
    """The fixes that kvmedic may apply, in order. Turning the method off again needs no evaluation."""
    replacement: CompressionReplacement | None = None
    """What CompactingMethod turns on."""
    close_by: Annotated[str, Field(max_length=32), rfc3339()] | None = None
    """When to stop waiting for CompactingMethod and go on to the fixes after it (RFC 3339)."""
