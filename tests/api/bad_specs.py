"""Specs that must be refused, each with the field at fault and what the message says to do instead.

A row's `spec` is laid over `MINIMAL`. `field` and `says` are what the API server answers; Python answers
the same for rules (`says_in_python` is None), and in its own words for types, enumerations and lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvmedic.api.spec import LEVERS

Spec = dict[str, Any]

MINIMAL: Spec = {"targetRef": {"name": "inference-llm"}}


@dataclass(frozen=True)
class Row:
    claim: str
    spec: Spec
    field: str
    says: str
    says_in_python: str | None = None
    field_in_python: str | None = None
    is_pending: bool = False

    def whole(self) -> Spec:
        return {**MINIMAL, **self.spec}


def lever(**bounds: Any) -> Spec:
    return {"levers": [bounds]}


def compression(**fields: Any) -> Spec:
    return {"compression": fields}


def baseline(**fields: Any) -> Spec:
    return compression(baseline=fields)


def window(**fields: Any) -> Spec:
    return {"limits": {"windows": [{"days": ["Mon"], "start": "01:00", "end": "05:00", **fields}]}}


ENUM = "Input should be"
SUPPORTED = "supported values: "
REQUIRED = "Required value"
ADD = "required, add it"

TARGET = [
    Row("name missing", {"targetRef": {}}, "spec.targetRef.name", REQUIRED, ADD),
    Row(
        "no such kind",
        {"targetRef": {"kind": "StatefulSet", "name": "x"}},
        "spec.targetRef.kind",
        f'{SUPPORTED}"Deployment"',
        ENUM,
    ),
    Row(
        "name in capitals",
        {"targetRef": {"name": "LLM"}},
        "spec.targetRef.name",
        "use the Deployment's name: lower-case",
    ),
    Row(
        "name with a line break",
        {"targetRef": {"name": "llm\n"}},
        "spec.targetRef.name",
        "use the Deployment's",
    ),
    Row(
        "name too long",
        {"targetRef": {"name": "x" * 254}},
        "spec.targetRef.name",
        "may not be more than 253 bytes",
        "at most 253",
    ),
    Row(
        "container with an underscore",
        {"targetRef": {"name": "x", "container": "v_llm"}},
        "spec.targetRef.container",
        "use lower-case letters, digits and dashes",
    ),
]

PLAIN = [
    Row("no such mode", {"mode": "Heal"}, "spec.mode", f'{SUPPORTED}"Observe", "Approve", "Auto"', ENUM),
    Row("suspend as text", {"suspend": "yes"}, "spec.suspend", "must be of type boolean", "valid boolean"),
    Row("no runbook", {"runbooks": []}, "spec.runbooks", "name at least one runbook"),
    Row(
        "no such runbook",
        {"runbooks": ["Thrash"]},
        "spec.runbooks[0]",
        f'{SUPPORTED}"PreemptionThrash"',
        ENUM,
    ),
    Row(
        "a runbook twice",
        {"runbooks": ["PreemptionThrash", "PreemptionThrash"]},
        "spec.runbooks[1]",
        "Duplicate value",
        "name each once",
        "spec.runbooks",
    ),
    Row(
        "a URL as the source",
        {"metrics": {"source": "http://10.0.0.1:9090"}},
        "spec.metrics.source",
        "use the name of a metrics source in the operator's configuration, such as default, never a URL",
    ),
    Row(
        "no such node health",
        {"nodeHealth": "Maybe"},
        "spec.nodeHealth",
        f'{SUPPORTED}"Required", "IfAvailable"',
        ENUM,
    ),
]

OBJECTIVES = [
    Row(
        "inter-token objective without a unit",
        {"objectives": {"interTokenP95": "80"}},
        "spec.objectives.interTokenP95",
        "use a duration from 1ms to 1m, such as 80ms",
    ),
    Row(
        "end-to-end objective over a day",
        {"objectives": {"e2eP95": "25h"}},
        "spec.objectives.e2eP95",
        "use a duration from 10ms to 24h",
    ),
    Row(
        "no time to the first token",
        {"objectives": {"ttftP95": "0s"}},
        "spec.objectives.ttftP95",
        "use a duration from 1ms to 24h",
    ),
    Row(
        "first token later than the whole answer",
        {"objectives": {"ttftP95": "10s", "e2eP95": "5s"}},
        "spec.objectives.ttftP95",
        "lower ttftP95 or raise e2eP95",
    ),
]

WINDOWS = [
    Row(
        "trigger at no preemption",
        {"trigger": {"preemptionsPerRequest": 0.009}},
        "spec.trigger.preemptionsPerRequest",
        "use a number from 0.01 to 100",
    ),
    Row(
        "trigger as text",
        {"trigger": {"preemptionsPerRequest": "0.5"}},
        "spec.trigger.preemptionsPerRequest",
        "must be of type number",
        "valid number",
    ),
    Row(
        "usage in percent",
        {"trigger": {"kvCacheUsage": 85}},
        "spec.trigger.kvCacheUsage",
        "use a number from 0 to 1",
    ),
    Row(
        "odd trigger window",
        {"trigger": {"window": "7m"}},
        "spec.trigger.window",
        f'{SUPPORTED}"1m", "2m", "5m"',
        ENUM,
    ),
    Row("odd hold", {"trigger": {"for": "90s"}}, "spec.trigger.for", f'{SUPPORTED}"0s", "30s", "1m"', ENUM),
    Row("odd sizing window", {"sizing": {"window": "2h"}}, "spec.sizing.window", f'{SUPPORTED}"1m"', ENUM),
    Row(
        "sizing window shorter than the trigger's",
        {"sizing": {"window": "2m"}},
        "spec.sizing.window",
        "raise sizing.window",
    ),
    Row("odd sustained window", {"verify": {"for": "15m"}}, "spec.verify.for", f'{SUPPORTED}"1m"', ENUM),
    Row("judged on less than the trigger", {"verify": {"for": "2m"}}, "spec.verify.for", "raise verify.for"),
    Row(
        "no such answer to no verdict",
        {"verify": {"onInconclusive": "Retry"}},
        "spec.verify.onInconclusive",
        f'{SUPPORTED}"Hold", "Keep", "RollBack"',
        ENUM,
    ),
]

LEVERS = [
    Row("no such lever", lever(name="max_num_seqs"), "spec.levers[0].name", f'{SUPPORTED}"maxNumSeqs"', ENUM),
    Row("a lever without a name", lever(min=16), "spec.levers[0].name", REQUIRED, ADD),
    Row(
        "a lever twice",
        {"levers": [{"name": "maxNumSeqs"}, {"name": "maxNumSeqs", "min": 4}]},
        "spec.levers[1]",
        "Duplicate value",
        "name each once",
        "spec.levers",
    ),
    Row(
        "more levers than there are",
        {"levers": [{"name": "maxNumSeqs"}] * (len(LEVERS) + 1)},
        "spec.levers",
        f"must have at most {len(LEVERS)} items",
        f"at most {len(LEVERS)} items",
    ),
    Row(
        "acting without a lever",
        {"mode": "Auto", "levers": []},
        "spec.levers",
        "add one, such as {name: maxNumSeqs}",
    ),
    Row(
        "a cap under one",
        lever(name="maxNumSeqs", min=0),
        "spec.levers[0].min",
        "min of maxNumSeqs: use a whole number",
    ),
    Row(
        "half a sequence",
        lever(name="maxNumSeqs", min=1.5),
        "spec.levers[0].min",
        "use a whole number from 1 to 65536",
    ),
    Row(
        "a context of nothing",
        lever(name="maxModelLen", min=0),
        "spec.levers[0].min",
        "min of maxModelLen: use a whole number from 1 to 16777216",
    ),
    Row(
        "a step of more tokens than any context",
        lever(name="maxNumBatchedTokens", min=16777217),
        "spec.levers[0].min",
        "min of maxNumBatchedTokens: use a whole number from 1 to 16777216",
    ),
    Row(
        "a watermark over half",
        lever(name="watermark", max=0.6),
        "spec.levers[0].max",
        "max of watermark: use a number from 0.001 to 0.5",
    ),
    Row(
        "next to no memory",
        lever(name="gpuMemoryUtilization", min=0.05),
        "spec.levers[0].min",
        "min of gpuMemoryUtilization: use a number from 0.1 to 1",
    ),
    Row(
        "memory in percent",
        lever(name="gpuMemoryUtilization", max=95),
        "spec.levers[0].max",
        "max of gpuMemoryUtilization: use a number from 0.1 to 1",
    ),
    Row(
        "a step of half the memory",
        lever(name="gpuMemoryUtilization", step=0.5),
        "spec.levers[0].step",
        "step of gpuMemoryUtilization: use a number from 0.001 to 0.1",
    ),
    Row(
        "bounds the wrong way round",
        lever(name="gpuMemoryUtilization", min=0.95, max=0.8),
        "spec.levers[0].min",
        "lower min or raise max",
    ),
    Row(
        "no host memory",
        lever(name="cpuOffload", maxGiB=0),
        "spec.levers[0].maxGiB",
        "use a whole number from 1 to 65536",
    ),
    Row(
        "no replicas",
        lever(name="scaleOut", maxReplicas=0),
        "spec.levers[0].maxReplicas",
        "use a whole number from 1 to 10000",
    ),
    Row(
        "half a replica at once",
        lever(name="scaleOut", maxReplicas=8, step=0.5),
        "spec.levers[0].step",
        "step of scaleOut: use a whole number from 1 to 100",
    ),
    Row(
        "given back at once",
        lever(name="scaleOut", restoreAfter="5s"),
        "spec.levers[0].restoreAfter",
        "use a duration from 1m to 168h",
    ),
    Row(
        "host memory given back at once",
        lever(name="cpuOffload", restoreAfter="5s"),
        "spec.levers[0].restoreAfter",
        "use a duration from 1m to 168h",
    ),
    Row(
        "rolled back within no time",
        lever(name="revisionRollback", within="4m"),
        "spec.levers[0].within",
        "use a duration from 5m to 24h",
    ),
    *(
        Row(
            f"{field} on a lever without it",
            lever(name="prefixCaching", **{field: value}),
            f"spec.levers[0].{field}",
            "remove it from this lever",
        )
        for field, value in (
            ("min", 1),
            ("max", 1),
            ("step", 1),
            ("maxGiB", 1),
            ("maxReplicas", 1),
            ("restoreAfter", "1h"),
            ("within", "1h"),
        )
    ),
]

ROLLOUT = [
    Row(
        "no such spare", {"rollout": {"spare": "Never"}}, "spec.rollout.spare", f'{SUPPORTED}"Required"', ENUM
    ),
    Row(
        "no such end of a drain",
        {"rollout": {"onDrainTimeout": "Kill"}},
        "spec.rollout.onDrainTimeout",
        f'{SUPPORTED}"Hold", "Proceed"',
        ENUM,
    ),
    Row(
        "a drain that cannot be confirmed",
        {"rollout": {"drainTimeout": "9999ms"}},
        "spec.rollout.drainTimeout",
        "use a duration from 10s to 24h",
    ),
    Row(
        "a hold that never ends",
        {"verify": {"holdAtMost": "169h"}},
        "spec.verify.holdAtMost",
        "use a duration from 0s to 168h",
    ),
    Row(
        "a start that is shorter than any",
        {"rollout": {"startTimeout": "59s"}},
        "spec.rollout.startTimeout",
        "use a duration from 1m to 24h",
    ),
    Row(
        "a drain with a sign",
        {"rollout": {"drainTimeout": "-10m"}},
        "spec.rollout.drainTimeout",
        "use a duration from 10s to 24h",
    ),
    Row(
        "a drain longer than any duration",
        {"rollout": {"drainTimeout": "1h1h1h1h1h1h1h1h1"}},
        "spec.rollout.drainTimeout",
        "may not be more than 16 bytes",
        "at most 16",
    ),
    Row(
        "a key with a space",
        {"rollout": {"rotationLabel": {"key": "in rotation"}}},
        "spec.rollout.rotationLabel.key",
        "use a label key",
    ),
    Row(
        "the ReplicaSet's own key",
        {"rollout": {"rotationLabel": {"key": "pod-template-hash"}}},
        "spec.rollout.rotationLabel.key",
        "use a label that only Services select",
    ),
    Row(
        "an empty label value",
        {"rollout": {"rotationLabel": {"draining": ""}}},
        "spec.rollout.rotationLabel.draining",
        "use a label value",
    ),
]
