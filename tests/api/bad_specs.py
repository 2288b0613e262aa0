"""Specs that must be refused, each with the field at fault and what the message says to do instead.

A row's `spec` is laid over `MINIMAL`. `field` and `says` are what the API server answers; Python answers
the same for rules (`says_in_python` is None), and in its own words for types, enumerations and lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvmedic.api.spec import LEVERS as KNOWN

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

    def whole(self) -> Spec:
        return {**MINIMAL, **self.spec}


def spec_with(path: str, value: Any) -> Spec:
    """Return a spec with one value, at a path such as `limits.windows[0].start`."""
    for name in reversed(path.replace("[0]", ".[0]").split(".")):
        value = [value] if name == "[0]" else {name: value}
    spec: Spec = value
    return spec


def at(claim: str, path: str, value: Any, *says: str, below: str = "", **other: Any) -> Row:
    """Return the row of a spec with one value; the field at fault is that, or one `below` it."""
    return Row(claim, spec_with(path, value), f"spec.{path}{below}", *says, **other)


def lever(claim: str, name: str, says: str, **bounds: Any) -> Row:
    """Return the row of a lever with bounds, of which the last is at fault."""
    return at(claim, "levers[0]", {"name": name, **bounds}, says, below=f".{[*bounds][-1]}")


def method(claim: str, path: str, value: Any, *says: str, **other: Any) -> Row:
    return at(claim, f"compression.{path}", value, *says, **other)


def window(**fields: Any) -> Spec:
    return {"limits": {"windows": [{"days": ["Mon"], "start": "01:00", "end": "05:00", **fields}]}}


ENUM = "Input should be"
SUPPORTED = "supported values: "
REQUIRED = "Required value"
ADD = "required, add it"


def number(low: float, high: float) -> str:
    return f"use a number from {low} to {high}"


def whole(low: int, high: int) -> str:
    return f"use a whole number from {low} to {high}"


def duration(low: str, high: str) -> str:
    return f"use a duration from {low} to {high}"


def one_of(*known: str) -> str:
    return SUPPORTED + ", ".join(f'"{each}"' for each in known)


TARGET = [
    at("name missing", "targetRef", {}, REQUIRED, ADD, below=".name"),
    at(
        "no such kind",
        "targetRef",
        {"kind": "DaemonSet", "name": "x"},
        one_of("Deployment", "StatefulSet", "LeaderWorkerSet"),
        ENUM,
        below=".kind",
    ),
    at("name in capitals", "targetRef.name", "LLM", "use the Deployment's name: lower-case"),
    at("name with a line break", "targetRef.name", "llm\n", "use the Deployment's"),
    at("name too long", "targetRef.name", "x" * 254, "may not be more than 253 bytes", "at most 253"),
    at(
        "container with an underscore",
        "targetRef",
        {"name": "x", "container": "v_llm"},
        "use lower-case letters, digits and dashes",
        below=".container",
    ),
    at("no such engine", "targetRef", {"name": "x", "engine": "vllm"}, one_of("vLLM"), ENUM, below=".engine"),
    at("port 0", "targetRef", {"name": "x", "port": 0}, whole(1, 65535), below=".port"),
    at(
        "a port and ports",
        "targetRef",
        {"name": "x", "port": 8000, "ports": [8000, 8001]},
        "ports names the port of each engine, so port has nothing to add: remove one of them",
        below=".ports",
    ),
    at(
        "ports of one engine",
        "targetRef",
        {"name": "x", "ports": [8000]},
        "should have at least 2 items",
        "at least 2 items",
        below=".ports",
    ),
    at(
        "the same port for two engines",
        "targetRef",
        {"name": "x", "ports": [8000, 8000]},
        "Duplicate value",
        "named twice: name each once",
        field_in_python="spec.targetRef.ports",
        below=".ports[1]",
    ),
    at(
        "port 0 of an engine",
        "targetRef",
        {"name": "x", "ports": [0, 8000]},
        "use whole numbers from 1 to 65535",
        below=".ports",
    ),
    at(
        "a port by name",
        "targetRef",
        {"name": "x", "port": "http"},
        "must be of type integer",
        "valid integer",
        below=".port",
    ),
]

PLAIN = [
    at("no such way with owners", "ownership", "Ignore", one_of("Respect", "Apply"), ENUM),
    at("no such mode", "mode", "Heal", one_of("Observe", "Approve", "Auto"), ENUM),
    at("suspend as text", "suspend", "yes", "must be of type boolean", "valid boolean"),
    at("no runbook", "runbooks", [], "name at least one runbook"),
    at("no such runbook", "runbooks", ["Thrash"], one_of("PreemptionThrash"), ENUM, below="[0]"),
    at(
        "a runbook twice",
        "runbooks",
        ["PreemptionThrash", "PreemptionThrash"],
        "Duplicate value",
        "name each once",
        field_in_python="spec.runbooks",
        below="[1]",
    ),
    at(
        "a URL as the source",
        "metrics.source",
        "http://10.0.0.1:9090",
        "use the name of a metrics source in the operator's configuration, such as default, never a URL",
    ),
    at("no such node health", "nodeHealth", "Maybe", one_of("Required", "IfAvailable"), ENUM),
]

OBJECTIVES = [
    at(
        "inter-token objective without a unit",
        "objectives.interTokenP95",
        "80",
        "use a duration from 1ms to 1m, such as 80ms",
    ),
    at("end-to-end objective over a day", "objectives.e2eP95", "25h", duration("10ms", "24h")),
    at("no time to the first token", "objectives.ttftP95", "0s", duration("1ms", "24h")),
    at(
        "first token later than the whole answer",
        "objectives",
        {"ttftP95": "10s", "e2eP95": "5s"},
        "lower ttftP95 or raise e2eP95",
        below=".ttftP95",
    ),
]

WINDOWS = [
    at("trigger at no preemption", "trigger.preemptionsPerRequest", 0.009, number(0.01, 100)),
    at("trigger as text", "trigger.preemptionsPerRequest", "0.5", "must be of type number", "valid number"),
    at("a trigger at no silence", "trigger.silentSeconds", 0.09, number(0.1, 3600)),
    at("a trigger at no stall", "trigger.stallsPerRequest", 0.0009, number(0.001, 100)),
    at("usage in percent", "trigger.kvCacheUsage", 85, number(0, 1)),
    at("odd trigger window", "trigger.window", "7m", one_of("1m", "2m", "5m"), ENUM),
    at("odd hold", "trigger.for", "90s", one_of("0s", "30s", "1m"), ENUM),
    at("odd sizing window", "sizing.window", "2h", one_of("1m"), ENUM),
    at("sizing window shorter than the trigger's", "sizing.window", "2m", "raise sizing.window"),
    at("odd sustained window", "verify.for", "15m", one_of("1m"), ENUM),
    at("judged on less than the trigger", "verify.for", "2m", "raise verify.for"),
    at(
        "no such answer to no verdict",
        "verify.onInconclusive",
        "Retry",
        one_of("Hold", "Keep", "RollBack"),
        ENUM,
    ),
    at("a number of waves", "rollout.waves", 2, one_of("OneByOne", "Quarter"), ENUM),
    at("a share as of maxSurge", "rollout.waves", "25%", one_of("OneByOne", "Quarter"), ENUM),
    at("no such way to compare", "verify.sideBySide", "Always", one_of("Auto", "Never"), ENUM),
]

LEVERS = [
    at("no such lever", "levers[0].name", "max_num_seqs", one_of("maxNumSeqs"), ENUM),
    at("a lever without a name", "levers[0]", {"min": 16}, REQUIRED, ADD, below=".name"),
    at(
        "a lever twice",
        "levers",
        [{"name": "maxNumSeqs"}, {"name": "maxNumSeqs", "min": 4}],
        "Duplicate value",
        "name each once",
        field_in_python="spec.levers",
        below="[1]",
    ),
    at(
        "more levers than there are",
        "levers",
        [{"name": "maxNumSeqs"}] * (len(KNOWN) + 1),
        f"must have at most {len(KNOWN)} items",
        f"at most {len(KNOWN)} items",
    ),
    Row(
        "acting without a lever",
        {"mode": "Auto", "levers": []},
        "spec.levers",
        "add one, such as {name: maxNumSeqs}",
    ),
    lever("a cap under one", "maxNumSeqs", "min of maxNumSeqs: use a whole number", min=0),
    lever("half a sequence", "maxNumSeqs", whole(1, 65536), min=1.5),
    lever("up to half a sequence", "maxNumSeqs", f"max of maxNumSeqs: {whole(1, 65536)}", max=32.5),
    lever("a context of nothing", "maxModelLen", f"min of maxModelLen: {whole(1, 16777216)}", min=0),
    lever(
        "a step of more tokens than any context",
        "maxNumBatchedTokens",
        f"min of maxNumBatchedTokens: {whole(1, 16777216)}",
        min=16777217,
    ),
    lever("a watermark over half", "watermark", f"max of watermark: {number(0.001, 0.5)}", max=0.6),
    lever(
        "next to no memory",
        "gpuMemoryUtilization",
        f"min of gpuMemoryUtilization: {number(0.1, 1)}",
        min=0.05,
    ),
    lever(
        "memory in percent", "gpuMemoryUtilization", f"max of gpuMemoryUtilization: {number(0.1, 1)}", max=95
    ),
    lever(
        "a step of half the memory",
        "gpuMemoryUtilization",
        f"step of gpuMemoryUtilization: {number(0.001, 0.1)}",
        step=0.5,
    ),
    lever("bounds the wrong way round", "gpuMemoryUtilization", "lower min or raise max", max=0.8, min=0.95),
    lever("no host memory", "cpuOffload", whole(1, 65536), maxGiB=0),
    lever("no replicas", "scaleOut", whole(1, 10000), maxReplicas=0),
    lever(
        "half a replica at once", "scaleOut", f"step of scaleOut: {whole(1, 100)}", maxReplicas=8, step=0.5
    ),
    lever("given back at once", "scaleOut", duration("1m", "168h"), restoreAfter="5s"),
    lever("host memory given back at once", "cpuOffload", duration("1m", "168h"), restoreAfter="5s"),
    lever("rolled back within no time", "revisionRollback", duration("5m", "24h"), within="4m"),
    *(
        at(
            f"{field} on a lever without it",
            "levers[0]",
            {"name": "prefixCaching", field: value},
            "remove it from this lever",
            below=f".{field}",
        )
        for field, value in {
            "min": 1,
            "max": 1,
            "step": 1,
            "maxGiB": 1,
            "maxReplicas": 1,
            "restoreAfter": "1h",
            "within": "1h",
        }.items()
    ),
]

ROLLOUT = [
    at("no such spare", "rollout.spare", "Never", one_of("Required"), ENUM),
    at("no such end of a drain", "rollout.onDrainTimeout", "Kill", one_of("Hold", "Proceed"), ENUM),
    at("a drain that cannot be confirmed", "rollout.drainTimeout", "9999ms", duration("10s", "24h")),
    at("a hold that never ends", "verify.holdAtMost", "169h", duration("0s", "168h")),
    at("a start that is shorter than any", "rollout.startTimeout", "59s", duration("1m", "24h")),
    at("a drain with a sign", "rollout.drainTimeout", "-10m", duration("10s", "24h")),
    at(
        "a drain longer than any duration",
        "rollout.drainTimeout",
        "1h1h1h1h1h1h1h1h1",
        "may not be more than 16 bytes",
        "at most 16",
    ),
    at("a key with a space", "rollout.rotationLabel.key", "in rotation", "use a label key"),
    at(
        "the ReplicaSet's own key",
        "rollout.rotationLabel.key",
        "pod-template-hash",
        "use a label that only Services select",
    ),
    at("an empty label value", "rollout.rotationLabel.draining", "", "use a label value"),
    at("no such way out of rotation", "rollout.rotation", "None", one_of("Auto", "Label", "Orphan"), ENUM),
    at("a settle of more than ten minutes", "rollout.settle", "11m", duration("0s", "10m")),
    at("a spare that waits for a second", "rollout.spareLimit", "1s", duration("10s", "24h")),
    at("a router without labels", "rollout.routers[0]", {}, REQUIRED, ADD, below=".matchLabels"),
]

LIMITS = [
    at("a cooldown of weeks", "limits.cooldown", "169h", duration("0s", "168h")),
    at("no runs", "limits.maxRunsPerDay", 0, whole(1, 10)),
    at("more runs than are kept", "limits.maxRunsPerDay", 11, "from 1 to 10"),
    at("no healthy replica", "limits.minHealthyReplicas", 0, whole(1, 10000)),
    at("an approval for a moment", "limits.approvalMaxAge", "59s", duration("1m", "24h")),
    at(
        "an hour that is none",
        "limits.windows[0]",
        {"days": ["Mon"], "start": "24:00", "end": "05:00"},
        "use HH:MM",
        below=".start",
    ),
    at(
        "an end without a colon",
        "limits.windows[0]",
        {"days": ["Mon"], "start": "01:00", "end": "0500"},
        "use HH:MM",
        below=".end",
    ),
    at(
        "no such day",
        "limits.windows[0]",
        {"days": ["Monday"], "start": "01:00", "end": "05:00"},
        one_of("Mon"),
        ENUM,
        below=".days[0]",
    ),
    at(
        "a window without an end",
        "limits.windows[0]",
        {"days": ["Mon"], "start": "01:00"},
        REQUIRED,
        ADD,
        below=".end",
    ),
    at(
        "a window without a start",
        "limits.windows[0]",
        {"days": ["Mon"], "end": "01:00"},
        REQUIRED,
        ADD,
        below=".start",
    ),
    at(
        "a window without days",
        "limits.windows[0]",
        {"start": "00:00", "end": "01:00"},
        REQUIRED,
        ADD,
        below=".days",
    ),
]

COMPRESSION = [
    method("no such class", "class", "Magic", one_of("ScatteredEviction"), ENUM),
    method("a setting of nothing", "settings[0]", {"after": "1"}, "name either flag or env"),
    method(
        "a setting of both",
        "settings[0]",
        {"flag": "--kv-cache-dtype", "env": "ENABLE_TRIATTENTION"},
        "name either flag or env",
    ),
    method(
        "several flags as one",
        "settings[0]",
        {"flag": "--x=1 --middleware=y", "after": "1"},
        "use the name of one flag",
        below=".flag",
    ),
    method(
        "several flags as one of the replacement",
        "replacement",
        {"method": "Mine", "settings": [{"flag": "--x=1 --middleware=y", "after": "1"}]},
        "use the name of one flag",
        below=".settings[0].flag",
    ),
    method(
        "a variable with a value in its name",
        "settings[0]",
        {"env": "A=1", "after": "1"},
        "use the name of one variable",
        below=".env",
    ),
    method(
        "a variable with a value in its name of the replacement",
        "replacement",
        {"method": "Mine", "settings": [{"env": "A=1", "after": "1"}]},
        "use the name of one variable",
        below=".settings[0].env",
    ),
    method(
        "a value of two words",
        "settings[0]",
        {"flag": "--kv-cache-dtype", "after": "fp8 --middleware=x"},
        "use one word of a shell",
        below=".after",
    ),
    method(
        "a value of two words of the replacement",
        "replacement",
        {"method": "Mine", "settings": [{"flag": "--kv-cache-dtype", "after": "fp8 --middleware=x"}]},
        "use one word of a shell",
        below=".settings[0].after",
    ),
    method(
        "a value from before that reads a variable",
        "settings[0]",
        {"flag": "--kv-cache-dtype", "before": "$(HF_TOKEN)"},
        "use one word of a shell",
        below=".before",
    ),
    method(
        "a value from before that reads a variable of the replacement",
        "replacement",
        {"method": "Mine", "settings": [{"flag": "--kv-cache-dtype", "before": "$(HF_TOKEN)"}]},
        "use one word of a shell",
        below=".settings[0].before",
    ),
    method("no blocks", "baseline.blocks", 0, whole(1, 2147483647)),
    method("usage in percent", "baseline.kvCacheUsage", 93, number(0, 1)),
    method("a deviation of usage in percent", "baseline.kvCacheUsageDeviation", 4, number(0, 1)),
    method(
        "memory with a space", "baseline.deviceMemory", "70 GiB", "use a Kubernetes quantity, such as 24Gi"
    ),
    method("preemptions below none", "baseline.preemptionsPerRequest", -1, number(0, 10000)),
    method("tokens below none", "baseline.tokensPerSecond", -1, number(0, 1000000000)),
    method("no replicas", "baseline.replicas", 0, whole(1, 100000)),
    method("arrivals below none", "baseline.requestsPerSecond", -0.1, number(0, 1000000)),
    method("an answer in no time", "baseline.e2eP95", "0s", duration("1ms", "24h")),
    method("accuracy in percent", "baseline.accuracy", 57.1, number(0, 1)),
    method("a probe too short to show anything", "probe.tokens", 100, whole(16384, 1048576)),
    method("a probe without end", "probe.timeout", "7h", duration("1m", "6h")),
    method(
        "a gate without an evaluation", "accuracyGate", {"maxLoss": 0.01}, REQUIRED, ADD, below=".cronJobRef"
    ),
    method(
        "a gate that accepts anything unsaid",
        "accuracyGate",
        {"cronJobRef": {"name": "eval"}},
        REQUIRED,
        ADD,
        below=".maxLoss",
    ),
    method(
        "an evaluation without a name",
        "accuracyGate",
        {"maxLoss": 0.01, "cronJobRef": {}},
        REQUIRED,
        ADD,
        below=".cronJobRef.name",
    ),
    method(
        "an evaluation in capitals",
        "accuracyGate",
        {"maxLoss": 0.01, "cronJobRef": {"name": "Eval"}},
        "use the CronJob's name",
        below=".cronJobRef.name",
    ),
    method(
        "more loss than there is",
        "accuracyGate",
        {"maxLoss": 2, "cronJobRef": {"name": "eval"}},
        number(0, 1),
        below=".maxLoss",
    ),
    method(
        "an evaluation of seconds",
        "accuracyGate",
        {"maxLoss": 0.01, "cronJobRef": {"name": "eval"}, "timeout": "30s"},
        duration("1m", "24h"),
        below=".timeout",
    ),
    method("no such fix", "allowedFixes", ["Pray"], one_of("RevertBundle"), ENUM, below="[0]"),
    method("a method that keeps nothing", "keepTokens", 0, whole(1, 1048576)),
    method("a method that keeps all", "keepRatio", 1.0, number(0.001, 0.999)),
    at(
        "two ways to say what is kept",
        "compression",
        {"keepTokens": 2048, "keepRatio": 0.1},
        "name either keepTokens or keepRatio",
        below=".keepRatio",
    ),
    method("a date without a time", "closeBy", "2026-01-31", "use a time such as 2026"),
    method("a day that does not exist", "closeBy", "2026-02-31T18:00:00Z", "use a time such as"),
    method(
        "a score of nobody knows what",
        "baseline.accuracy",
        0.5,
        "add the other one of accuracy and accuracyConfiguration",
        below="Configuration",
    ),
    method(
        "a configuration without its score",
        "baseline.accuracyConfiguration",
        "0123",
        "add the other one of accuracy and accuracyConfiguration",
    ),
    at(
        "a replacement that nobody named",
        "compression",
        {"allowedFixes": ["RevertBundle", "CompactingMethod"]},
        "add replacement",
        below=".replacement",
    ),
    method(
        "a replacement without a name", "replacement", {"keepTokens": 2048}, REQUIRED, ADD, below=".method"
    ),
    method(
        "a replacement that keeps nothing",
        "replacement",
        {"method": "TriAttention", "keepTokens": 0},
        whole(1, 1048576),
        below=".keepTokens",
    ),
    method(
        "a replacement that keeps all",
        "replacement",
        {"method": "TriAttention", "keepRatio": 1.0},
        number(0.001, 0.999),
        below=".keepRatio",
    ),
    method(
        "a setting of a replacement that is neither",
        "replacement",
        {"method": "TriAttention", "settings": [{"after": "1"}]},
        "name either flag or env",
        below=".settings[0]",
    ),
    method(
        "two ways to say what a replacement keeps",
        "replacement",
        {"method": "TriAttention", "keepTokens": 2048, "keepRatio": 0.1},
        "name either keepTokens or keepRatio",
        below=".keepRatio",
    ),
    method(
        "a fix stacked on what saves nothing",
        "allowedFixes",
        ["Fp8KVCache", "RevertBundle"],
        "RevertBundle comes first",
    ),
    method(
        "caps before the last fix",
        "allowedFixes",
        ["RevertBundle", "DemandCaps", "Fp8KVCache"],
        "DemandCaps comes last",
    ),
    Row(
        "caps without the runbook that sizes them",
        {
            "compression": {"allowedFixes": ["RevertBundle", "DemandCaps"]},
            "runbooks": ["CompressionWithoutSavings"],
        },
        "spec.runbooks",
        "DemandCaps hands the fleet to PreemptionThrash",
    ),
]

ROWS = [*TARGET, *PLAIN, *OBJECTIVES, *WINDOWS, *LEVERS, *ROLLOUT, *LIMITS, *COMPRESSION]
