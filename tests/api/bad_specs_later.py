"""More specs that must be refused: limits, compression, and what is not implemented yet."""

from __future__ import annotations

from api.bad_specs import (
    ADD,
    ENUM,
    LEVERS,
    OBJECTIVES,
    PLAIN,
    REQUIRED,
    ROLLOUT,
    SUPPORTED,
    TARGET,
    WINDOWS,
    Row,
    baseline,
    compression,
    window,
)

LIMITS = [
    Row(
        "a cooldown of weeks",
        {"limits": {"cooldown": "169h"}},
        "spec.limits.cooldown",
        "use a duration from 0s to 168h",
    ),
    Row(
        "no runs",
        {"limits": {"maxRunsPerDay": 0}},
        "spec.limits.maxRunsPerDay",
        "use a whole number from 1 to 10",
    ),
    Row(
        "more runs than are kept",
        {"limits": {"maxRunsPerDay": 11}},
        "spec.limits.maxRunsPerDay",
        "from 1 to 10",
    ),
    Row(
        "no healthy replica",
        {"limits": {"minHealthyReplicas": 0}},
        "spec.limits.minHealthyReplicas",
        "use a whole number from 1 to 10000",
    ),
    Row(
        "an approval for a moment",
        {"limits": {"approvalMaxAge": "59s"}},
        "spec.limits.approvalMaxAge",
        "use a duration from 1m to 24h",
    ),
    Row("an hour that is none", window(start="24:00"), "spec.limits.windows[0].start", "use HH:MM"),
    Row("an end without a colon", window(end="0500"), "spec.limits.windows[0].end", "use HH:MM"),
    Row("no such day", window(days=["Monday"]), "spec.limits.windows[0].days[0]", f'{SUPPORTED}"Mon"', ENUM),
    Row(
        "a window without an end",
        {"limits": {"windows": [{"days": ["Mon"], "start": "01:00"}]}},
        "spec.limits.windows[0].end",
        REQUIRED,
        ADD,
    ),
    Row(
        "a window without a start",
        {"limits": {"windows": [{"days": ["Mon"], "end": "01:00"}]}},
        "spec.limits.windows[0].start",
        REQUIRED,
        ADD,
    ),
    Row(
        "a window without days",
        {"limits": {"windows": [{"start": "00:00", "end": "01:00"}]}},
        "spec.limits.windows[0].days",
        REQUIRED,
        ADD,
    ),
]

COMPRESSION = [
    Row(
        "no such class",
        compression(**{"class": "Magic"}),
        "spec.compression.class",
        f'{SUPPORTED}"ScatteredEviction"',
        ENUM,
    ),
    Row(
        "a setting of nothing",
        compression(settings=[{"after": "1"}]),
        "spec.compression.settings[0]",
        "name either flag or env",
    ),
    Row(
        "a setting of both",
        compression(settings=[{"flag": "--kv-cache-dtype", "env": "ENABLE_TRIATTENTION"}]),
        "spec.compression.settings[0]",
        "name either flag or env",
    ),
    Row(
        "several flags as one",
        compression(settings=[{"flag": "--x=1 --middleware=y", "after": "1"}]),
        "spec.compression.settings[0].flag",
        "use the name of one flag",
    ),
    Row(
        "several flags as one of the replacement",
        compression(
            replacement={"method": "Mine", "settings": [{"flag": "--x=1 --middleware=y", "after": "1"}]}
        ),
        "spec.compression.replacement.settings[0].flag",
        "use the name of one flag",
    ),
    Row(
        "a variable with a value in its name",
        compression(settings=[{"env": "A=1", "after": "1"}]),
        "spec.compression.settings[0].env",
        "use the name of one variable",
    ),
    Row(
        "a variable with a value in its name of the replacement",
        compression(replacement={"method": "Mine", "settings": [{"env": "A=1", "after": "1"}]}),
        "spec.compression.replacement.settings[0].env",
        "use the name of one variable",
    ),
    Row(
        "a value of two words",
        compression(settings=[{"flag": "--kv-cache-dtype", "after": "fp8 --middleware=x"}]),
        "spec.compression.settings[0].after",
        "use one word of a shell",
    ),
    Row(
        "a value of two words of the replacement",
        compression(
            replacement={
                "method": "Mine",
                "settings": [{"flag": "--kv-cache-dtype", "after": "fp8 --middleware=x"}],
            }
        ),
        "spec.compression.replacement.settings[0].after",
        "use one word of a shell",
    ),
    Row(
        "a value from before that reads a variable",
        compression(settings=[{"flag": "--kv-cache-dtype", "before": "$(HF_TOKEN)"}]),
        "spec.compression.settings[0].before",
        "use one word of a shell",
    ),
    Row(
        "a value from before that reads a variable of the replacement",
        compression(
            replacement={
                "method": "Mine",
                "settings": [{"flag": "--kv-cache-dtype", "before": "$(HF_TOKEN)"}],
            }
        ),
        "spec.compression.replacement.settings[0].before",
        "use one word of a shell",
    ),
    Row(
        "no blocks",
        baseline(blocks=0),
        "spec.compression.baseline.blocks",
        "use a whole number from 1 to 2147483647",
    ),
    Row(
        "usage in percent",
        baseline(kvCacheUsage=93),
        "spec.compression.baseline.kvCacheUsage",
        "use a number from 0 to 1",
    ),
    Row(
        "a deviation of usage in percent",
        baseline(kvCacheUsageDeviation=4),
        "spec.compression.baseline.kvCacheUsageDeviation",
        "use a number from 0 to 1",
    ),
    Row(
        "memory with a space",
        baseline(deviceMemory="70 GiB"),
        "spec.compression.baseline.deviceMemory",
        "use a Kubernetes quantity, such as 24Gi",
    ),
    Row(
        "preemptions below none",
        baseline(preemptionsPerRequest=-1),
        "spec.compression.baseline.preemptionsPerRequest",
        "use a number from 0 to 10000",
    ),
    Row(
        "tokens below none",
        baseline(tokensPerSecond=-1),
        "spec.compression.baseline.tokensPerSecond",
        "use a number from 0 to 1000000000",
    ),
    Row(
        "no replicas",
        baseline(replicas=0),
        "spec.compression.baseline.replicas",
        "use a whole number from 1 to 100000",
    ),
    Row(
        "arrivals below none",
        baseline(requestsPerSecond=-0.1),
        "spec.compression.baseline.requestsPerSecond",
        "use a number from 0 to 1000000",
    ),
    Row(
        "an answer in no time",
        baseline(e2eP95="0s"),
        "spec.compression.baseline.e2eP95",
        "use a duration from 1ms to 24h",
    ),
    Row(
        "accuracy in percent",
        baseline(accuracy=57.1),
        "spec.compression.baseline.accuracy",
        "use a number from 0 to 1",
    ),
    Row(
        "a probe too short to show anything",
        compression(probe={"tokens": 100}),
        "spec.compression.probe.tokens",
        "use a whole number from 16384 to 1048576",
    ),
    Row(
        "a probe without end",
        compression(probe={"timeout": "7h"}),
        "spec.compression.probe.timeout",
        "use a duration from 1m to 6h",
    ),
    Row(
        "a gate without an evaluation",
        compression(accuracyGate={"maxLoss": 0.01}),
        "spec.compression.accuracyGate.cronJobRef",
        REQUIRED,
        ADD,
    ),
    Row(
        "a gate that accepts anything unsaid",
        compression(accuracyGate={"cronJobRef": {"name": "eval"}}),
        "spec.compression.accuracyGate.maxLoss",
        REQUIRED,
        ADD,
    ),
    Row(
        "an evaluation without a name",
        compression(accuracyGate={"maxLoss": 0.01, "cronJobRef": {}}),
        "spec.compression.accuracyGate.cronJobRef.name",
        REQUIRED,
        ADD,
    ),
    Row(
        "an evaluation in capitals",
        compression(accuracyGate={"maxLoss": 0.01, "cronJobRef": {"name": "Eval"}}),
        "spec.compression.accuracyGate.cronJobRef.name",
        "use the CronJob's name",
    ),
    Row(
        "more loss than there is",
        compression(accuracyGate={"maxLoss": 2, "cronJobRef": {"name": "eval"}}),
        "spec.compression.accuracyGate.maxLoss",
        "use a number from 0 to 1",
    ),
    Row(
        "an evaluation of seconds",
        compression(accuracyGate={"maxLoss": 0.01, "cronJobRef": {"name": "eval"}, "timeout": "30s"}),
        "spec.compression.accuracyGate.timeout",
        "use a duration from 1m to 24h",
    ),
    Row(
        "no such fix",
        compression(allowedFixes=["Pray"]),
        "spec.compression.allowedFixes[0]",
        f'{SUPPORTED}"RevertBundle"',
        ENUM,
    ),
    Row(
        "a method that keeps nothing",
        compression(keepTokens=0),
        "spec.compression.keepTokens",
        "use a whole number from 1 to 1048576",
    ),
    Row(
        "a method that keeps all",
        compression(keepRatio=1.0),
        "spec.compression.keepRatio",
        "use a number from 0.001 to 0.999",
    ),
    Row(
        "two ways to say what is kept",
        compression(keepTokens=2048, keepRatio=0.1),
        "spec.compression.keepRatio",
        "name either keepTokens or keepRatio",
    ),
    Row(
        "a date without a time",
        compression(closeBy="2026-01-31"),
        "spec.compression.closeBy",
        "use a time such as 2026",
    ),
    Row(
        "a day that does not exist",
        compression(closeBy="2026-02-31T18:00:00Z"),
        "spec.compression.closeBy",
        "use a time such as",
    ),
    Row(
        "a score of nobody knows what",
        baseline(accuracy=0.5),
        "spec.compression.baseline.accuracyConfiguration",
        "add the other one of accuracy and accuracyConfiguration",
    ),
    Row(
        "a configuration without its score",
        baseline(accuracyConfiguration="0123"),
        "spec.compression.baseline.accuracyConfiguration",
        "add the other one of accuracy and accuracyConfiguration",
    ),
    Row(
        "a replacement that nobody named",
        compression(allowedFixes=["RevertBundle", "CompactingMethod"]),
        "spec.compression.replacement",
        "add replacement",
    ),
    Row(
        "a replacement without a name",
        compression(replacement={"keepTokens": 2048}),
        "spec.compression.replacement.method",
        REQUIRED,
        ADD,
    ),
    Row(
        "a replacement that keeps nothing",
        compression(replacement={"method": "TriAttention", "keepTokens": 0}),
        "spec.compression.replacement.keepTokens",
        "use a whole number from 1 to 1048576",
    ),
    Row(
        "a replacement that keeps all",
        compression(replacement={"method": "TriAttention", "keepRatio": 1.0}),
        "spec.compression.replacement.keepRatio",
        "use a number from 0.001 to 0.999",
    ),
    Row(
        "a setting of a replacement that is neither",
        compression(replacement={"method": "TriAttention", "settings": [{"after": "1"}]}),
        "spec.compression.replacement.settings[0]",
        "name either flag or env",
    ),
    Row(
        "two ways to say what a replacement keeps",
        compression(replacement={"method": "TriAttention", "keepTokens": 2048, "keepRatio": 0.1}),
        "spec.compression.replacement.keepRatio",
        "name either keepTokens or keepRatio",
    ),
    Row(
        "a fix stacked on what saves nothing",
        compression(allowedFixes=["Fp8KVCache", "RevertBundle"]),
        "spec.compression.allowedFixes",
        "RevertBundle comes first",
    ),
    Row(
        "caps before the last fix",
        compression(allowedFixes=["RevertBundle", "DemandCaps", "Fp8KVCache"]),
        "spec.compression.allowedFixes",
        "DemandCaps comes last",
    ),
    Row(
        "caps without the runbook that sizes them",
        {
            **compression(allowedFixes=["RevertBundle", "DemandCaps"]),
            "runbooks": ["CompressionWithoutSavings"],
        },
        "spec.runbooks",
        "DemandCaps hands the fleet to PreemptionThrash",
    ),
]

PENDING = [
    Row(
        "a rollout without a spare",
        {"rollout": {"spare": "BestEffort"}},
        "spec.rollout.spare",
        "not implemented yet: use Required",
        is_pending=True,
    ),
]

ROWS = [*TARGET, *PLAIN, *OBJECTIVES, *WINDOWS, *LEVERS, *ROLLOUT, *LIMITS, *COMPRESSION, *PENDING]
