"""The two kinds as a whole: `KVRemediation`, how its spec becomes a `Policy`, and `KVApproval`.

A field that this version does not implement is refused by name (`find_unimplemented`), never ignored.
An approval is its own kind, so that RBAC grants approving apart from editing
(`docs/decisions/0010-approvals-are-objects.md`). The operator reads it and never writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvmedic.api.compression import AccuracyGate, CompressionBaseline, CompressionSetting, CompressionSpec
from kvmedic.api.rules import Rule, Wire, dns_subdomain, parse_duration, pattern, rfc3339
from kvmedic.api.spec import KVRemediationSpec, LeverName, LeverSpec
from kvmedic.api.spec import Limits as WireLimits
from kvmedic.api.spec import Objectives as WireObjectives
from kvmedic.model.compression import BundleSetting as Setting
from kvmedic.model.compression import Figures, MethodClass, parse_quantity
from kvmedic.model.engine import Knob
from kvmedic.model.spec import (
    RESTORE_AFTER,
    CompressionPolicy,
    Fix,
    GatePolicy,
    LeverBound,
    Limits,
    MaintenanceWindow,
    Objectives,
    Policy,
    ProbePolicy,
    Reference,
    Replacement,
    RollbackPolicy,
    RolloutPolicy,
    RotationLabel,
    ScaleBound,
    TargetRef,
    Trigger,
    Windows,
)

KNOBS = MappingProxyType(
    {
        LeverName.MAX_NUM_SEQS: Knob.MAX_NUM_SEQS,
        LeverName.WATERMARK: Knob.WATERMARK,
        LeverName.MAX_MODEL_LEN: Knob.MAX_MODEL_LEN,
        LeverName.MAX_NUM_BATCHED_TOKENS: Knob.MAX_NUM_BATCHED_TOKENS,
        LeverName.GPU_MEMORY_UTILIZATION: Knob.GPU_MEMORY_UTILIZATION,
        LeverName.PREFIX_CACHING: Knob.PREFIX_CACHING,
        LeverName.CHUNKED_PREFILL: Knob.CHUNKED_PREFILL,
        LeverName.CPU_OFFLOAD: Knob.KV_OFFLOADING_SIZE,
    }
)
"""The levers that are a knob of the engine. The others are no knobs. Host memory has two: engines of old have
another one, and the first stands for both."""


TTFT_SHARE = 0.5
"""Silent seconds that trigger, over the objective on the first token, where the spec gives none: the 95th
percentile of a wait is beyond twice its mean."""


def _target(spec: KVRemediationSpec) -> TargetRef:
    named = spec.target_ref
    return TargetRef(**{**named.model_dump(), "ports": tuple(named.ports or ())})


def policy_of(spec: KVRemediationSpec) -> Policy:
    """Return what the core reads of a spec. Levers that are no knob of the engine have their own fields."""
    label = spec.rollout.rotation_label
    levers = {lever.name: lever for lever in spec.levers}
    scale, rollback = levers.get(LeverName.SCALE_OUT), levers.get(LeverName.REVISION_ROLLBACK)
    within = parse_duration(rollback.within) if rollback and rollback.within else RollbackPolicy().within
    return Policy(
        target=_target(spec),
        mode=spec.mode,
        suspended=spec.suspend,
        runbooks=tuple(spec.runbooks),
        source=spec.metrics.source,
        objectives=_objectives(spec.objectives),
        trigger=_trigger(spec),
        windows=Windows(
            trigger=parse_duration(spec.trigger.window),
            hold=parse_duration(spec.trigger.hold),
            sizing=parse_duration(spec.sizing.window),
            verify=parse_duration(spec.verify.window),
        ),
        node_health=spec.node_health,
        levers=tuple(_bound(lever) for lever in spec.levers if lever.name in KNOBS),
        rollout=RolloutPolicy(
            spare=spec.rollout.spare,
            drain_timeout=parse_duration(spec.rollout.drain_timeout),
            rotation_label=RotationLabel(label.key, label.draining),
            start_timeout=parse_duration(start) if (start := spec.rollout.start_timeout) else None,
            on_drain_timeout=spec.rollout.on_drain_timeout,
            waves=spec.rollout.waves,
            rotation=spec.rollout.rotation,
            settle=parse_duration(spec.rollout.settle),
            spare_limit=parse_duration(wait) if (wait := spec.rollout.spare_limit) else None,
            routers=tuple(dict(each.match_labels) for each in spec.rollout.routers or ()),
        ),
        on_inconclusive=spec.verify.on_inconclusive,
        hold_at_most=parse_duration(spec.verify.hold_at_most),
        side_by_side=spec.verify.side_by_side,
        limits=_limits(spec.limits),
        rollback=RollbackPolicy(rollback is not None, within),
        scale_out=ScaleBound(scale.max_replicas, int(scale.step or 1), _restore_after(scale))
        if scale
        else None,
        compression=_compression(spec.compression),
        ownership=spec.ownership,
    )


def _limits(spec: WireLimits) -> Limits:
    return Limits(
        cooldown=parse_duration(spec.cooldown),
        max_runs_per_day=spec.max_runs_per_day,
        min_healthy_replicas=spec.min_healthy_replicas,
        windows=tuple(
            MaintenanceWindow(
                days=frozenset(window.days),
                start=time.fromisoformat(window.start),
                end=time.fromisoformat(window.end),
                zone=ZoneInfo(window.time_zone),
            )
            for window in spec.windows or ()
        ),
        approval_max_age=parse_duration(spec.approval_max_age),
    )


def _compression(spec: CompressionSpec | None) -> CompressionPolicy:
    if spec is None:
        return CompressionPolicy()
    given = spec.replacement
    return CompressionPolicy(
        method=spec.method or "",
        method_class=MethodClass(spec.method_class) if spec.method_class else None,
        keep_tokens=spec.keep_tokens,
        keep_share=spec.keep_ratio,
        settings=_bundle(spec.settings),
        baseline=_figures(spec.baseline),
        blocks=spec.baseline.blocks if spec.baseline else None,
        attention_backend=(spec.baseline.attention_backend or "") if spec.baseline else "",
        probe=ProbePolicy(spec.probe.tokens, parse_duration(spec.probe.timeout)),
        fixes=tuple(Fix(each) for each in spec.allowed_fixes),
        replacement=None
        if given is None
        else Replacement(given.method, given.keep_tokens, given.keep_ratio, _bundle(given.settings)),
        gate=_gate(spec.accuracy_gate, spec.baseline),
        close_by=None if spec.close_by is None else datetime.fromisoformat(spec.close_by),
    )


def _bundle(given: Sequence[CompressionSetting] | None) -> tuple[Setting, ...]:
    return tuple(
        Setting(on=each.after, off=each.before, flag=each.flag or "", env=each.env or "")
        for each in given or ()
    )


def _gate(given: AccuracyGate | None, baseline: CompressionBaseline | None) -> GatePolicy | None:
    if given is None:
        return None
    score = baseline.accuracy if baseline else None
    configuration = baseline.accuracy_configuration if baseline else None
    reference = Reference(score, configuration) if score is not None and configuration else None
    return GatePolicy(
        cron_job=given.cron_job_ref.name,
        max_loss=given.max_loss,
        timeout=parse_duration(given.timeout),
        reference=reference,
    )


def _figures(given: CompressionBaseline | None) -> Figures:
    if given is None:
        return Figures()
    memory = given.device_memory
    return Figures(
        requests_per_second=given.requests_per_second,
        tokens_per_second=given.tokens_per_second,
        preemptions_per_request=given.preemptions_per_request,
        kv_cache_usage=given.kv_cache_usage,
        kv_cache_usage_deviation=given.kv_cache_usage_deviation,
        device_memory=None if memory is None else float(parse_quantity(memory)),
        e2e_p95=_seconds(given.e2e_p95),
        replicas=None if given.replicas is None else float(given.replicas),
    )


def _trigger(spec: KVRemediationSpec) -> Trigger:
    given, promised = spec.trigger, spec.objectives.ttft_p95 if spec.objectives else None
    silent = given.silent_seconds
    if silent is None:
        usual = Trigger(0.0, 0.0).silent_seconds
        silent = usual if promised is None else TTFT_SHARE * parse_duration(promised).total_seconds()
    return Trigger(given.preemptions_per_request, given.kv_cache_usage, silent, given.stalls_per_request)


def _objectives(given: WireObjectives | None) -> Objectives:
    if given is None:
        return Objectives()
    return Objectives(
        inter_token_p95_seconds=_seconds(given.inter_token_p95),
        e2e_p95_seconds=_seconds(given.e2e_p95),
        time_to_first_token_p95_seconds=_seconds(given.ttft_p95),
    )


def objectives_from(given: Mapping[str, str]) -> Objectives:
    """Return objectives by the names and in the form that a spec has them.

    Raises:
        SpecInvalid: a name that no objective has, or a duration that is none.
    """
    try:
        return _objectives(WireObjectives.model_validate(dict(given)))
    except ValidationError as error:
        raise SpecInvalid(problems_of(error, "objectives")) from error


def _seconds(duration: str | None) -> float | None:
    return None if duration is None else parse_duration(duration).total_seconds()


def _bound(lever: LeverSpec) -> LeverBound:
    most = lever.maximum if lever.max_gib is None else float(lever.max_gib)
    return LeverBound(KNOBS[lever.name], lever.minimum, most, lever.step, _restore_after(lever))


def _restore_after(lever: LeverSpec) -> timedelta:
    return parse_duration(lever.restore_after) if lever.restore_after else RESTORE_AFTER


class SpecInvalid(Exception):  # noqa: N818 -- named like the reason that it leads to
    """The spec cannot be followed as it is written.

    Attributes:
        problems: one sentence per field, beginning with the field's path.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RunUnreadable(Exception):  # noqa: N818 -- named like the reason that it leads to
    """A record in the status cannot be read. Nothing is done until a person looks.

    Attributes:
        problems: one sentence per field, beginning with the field's path.
        is_damaged: parts of the open run are gone or no values at all, as after an edit by hand, and nothing
            else is wrong; another version would have written values that are not known here.
    """

    def __init__(self, problems: tuple[str, ...], *, is_damaged: bool = False) -> None:
        super().__init__("; ".join(problems))
        self.problems, self.is_damaged = problems, is_damaged


def problems_of(error: ValidationError, root: str) -> tuple[str, ...]:
    """Return what is wrong with an object that was validated under a path, one sentence per field.

    Values are left out: a message that everyone may read must not repeat what may be a secret.
    """
    found: list[str] = []
    for each in error.errors(include_input=False, include_url=False):
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in each["loc"])
        path = "".join(parts) + str(each.get("ctx", {}).get("path", ""))
        found.append(f"{root}{path}: {_describe_problem(each['type'], each['msg'])}")
    return tuple(found)


def _describe_problem(kind: str, message: str) -> str:
    match kind:
        case "missing":
            return "required, add it"
        case "extra_forbidden":
            return "unknown field, remove it"
        case "enum":
            return f"unknown value: {message[:200]}"
        case _:
            return message


GROUP = "kvmedic.io"
VERSION = "v1alpha1"
KIND = "KVRemediation"
PLURAL = "kvremediations"


class Metadata(BaseModel):
    """The part of an object's metadata that a manifest has; the rest is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    """Name of the resource."""
    namespace: str | None = None
    """Namespace; None where the client's default applies."""


class KVRemediation(Wire):
    """Watches and heals one vLLM fleet.

    It reports why the fleet thrashes on KV cache, changes one thing, and rolls it back if it did not help.
    """

    api_version: Literal["kvmedic.io/v1alpha1"]
    """Version of the resource."""
    kind: Literal["KVRemediation"]
    """Kind of the resource."""
    metadata: Metadata
    """Name and namespace."""
    spec: KVRemediationSpec
    """What to watch, how far kvmedic may go, and when."""
    status: dict[str, Any] | None = None
    """What kvmedic saw, does and did; read by `kvmedic.api.status`, because a spec that cannot be followed
    must not make a record unreadable."""


def spec_from_wire(spec: object) -> KVRemediationSpec:
    """Return the spec of a stored object (the value of its `spec`).

    Raises:
        SpecInvalid: a field has a value that this version does not accept.
    """
    try:
        return KVRemediationSpec.model_validate(spec)
    except ValidationError as error:
        raise SpecInvalid(problems_of(error, "spec")) from error


def resource_from_manifest(manifest: Mapping[str, Any]) -> KVRemediation:
    """Return the resource that a manifest describes.

    Raises:
        SpecInvalid: it is not a valid KVRemediation.
    """
    try:
        return KVRemediation.model_validate(manifest)
    except ValidationError as error:
        raise SpecInvalid(tuple(p.removeprefix(".") for p in problems_of(error, ""))) from error


PENDING: tuple[Rule[KVRemediationSpec], ...] = ()
"""Every feature of the spec that is not implemented yet; empty: all of them are."""


def find_unimplemented(spec: KVRemediationSpec) -> tuple[str, ...]:
    """Return what the spec asks for and this version does not do, one sentence each; empty: nothing."""
    pending = (rule for rule in PENDING if rule.holds is not None and not rule.holds(spec))
    return tuple(f"spec{rule.path}: {rule.message}" for rule in pending)


APPROVAL_KIND, APPROVAL_PLURAL = "KVApproval", "kvapprovals"


class KVApprovalSpec(Wire):
    """Which plan is approved, of which KVRemediation in the same namespace, and until when."""

    remediation: Annotated[
        str,
        Field(max_length=253),
        dns_subdomain("KVRemediation"),
    ]
    """Name of the KVRemediation whose plan is approved, in this object's own namespace."""
    remediation_uid: (
        Annotated[
            str,
            Field(max_length=36),
            pattern(
                "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
                "use metadata.uid of the KVRemediation, or remove the field",
            ),
        ]
        | None
    ) = Field(default=None, alias="remediationUID")
    """UID of that KVRemediation, so that the approval does not count for a later one of the same name.
    `kvmedic approve` fills it in."""
    digest: Annotated[
        str,
        Field(max_length=32),
        pattern("^[0-9a-f]{16}([0-9a-f]{16})?$", "use the digest in status.plan.digest: 32 of 0-9 and a-f"),
    ]
    """Digest of the plan, from status.plan.digest of the KVRemediation. It covers the change with its
    values before and after, the workload, its pod template and the generation of the spec. If any of them
    changes, the plan gets another digest."""
    expires_at: (
        Annotated[
            str,
            Field(max_length=32),
            rfc3339(),
        ]
        | None
    ) = None
    """When the approval expires (RFC 3339). spec.limits.approvalMaxAge of the KVRemediation limits it in
    any case."""


class KVApproval(Wire):
    """Approves one plan of one KVRemediation, once.

    RBAC decides who may create it, apart from who may edit a KVRemediation. It counts for one run, and only
    for the plan with its digest.
    """

    api_version: Literal["kvmedic.io/v1alpha1"]
    """Version of the resource."""
    kind: Literal["KVApproval"]
    """Kind of the resource."""
    metadata: Metadata
    """Name and namespace."""
    spec: Annotated[
        KVApprovalSpec,
        Rule(
            cel="self == oldSelf",
            message="an approval is immutable: delete it to withdraw it, and create a new one",
            holds=None,
        ),
    ]
    """Which plan is approved, and until when. Immutable."""


def approval_from_wire(spec: object) -> KVApprovalSpec:
    """Return the spec of a stored object (the value of its `spec`).

    Raises:
        SpecInvalid: a field has a value that this version does not accept.
    """
    try:
        return KVApprovalSpec.model_validate(spec)
    except ValidationError as error:
        raise SpecInvalid(problems_of(error, "spec")) from error


def approval_manifest(name: str, uid: str, namespace: str, digest: str) -> dict[str, Any]:
    """Return the object that approves a plan of a resource; the API server gives it a name.

    The resource owns it, so that it goes when the resource goes.
    """
    version = f"{GROUP}/{VERSION}"
    owner = {"apiVersion": version, "kind": KIND, "name": name, "uid": uid}
    return {
        "apiVersion": version,
        "kind": APPROVAL_KIND,
        "metadata": {"generateName": f"{name}-", "namespace": namespace, "ownerReferences": [owner]},
        "spec": {"remediation": name, "remediationUID": uid, "digest": digest},
    }
