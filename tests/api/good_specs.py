"""Specs that must be accepted: every bound from its inside, by field order of the reference."""

from __future__ import annotations

from typing import Any

NIGHT = {"days": ["Sat", "Sun"], "start": "22:00", "end": "06:00", "timeZone": "Europe/Berlin"}

LOW: dict[str, Any] = {
    "targetRef": {"name": "a", "container": "b", "ports": [1, 65535]},
    "objectives": {"interTokenP95": "1ms", "e2eP95": "10ms", "ttftP95": "1ms"},
    "trigger": {"preemptionsPerRequest": 0.01, "kvCacheUsage": 0, "window": "1m", "for": "0s"},
    "sizing": {"window": "1m"},
    "levers": [
        {"name": "maxNumSeqs", "min": 1},
        {"name": "watermark", "max": 0.001},
        {"name": "maxModelLen", "min": 1},
        {"name": "maxNumBatchedTokens", "min": 1},
        {"name": "revisionRollback", "within": "5m"},
    ],
    "rollout": {
        "drainTimeout": "10s",
        "startTimeout": "1m",
        "settle": "0s",
        "rotation": "Label",
        "rotationLabel": {"key": "a", "draining": "b"},
    },
    "verify": {"for": "1m", "holdAtMost": "0s"},
    "limits": {"cooldown": "0s", "maxRunsPerDay": 1, "minHealthyReplicas": 1, "approvalMaxAge": "1m"},
    "nodeHealth": "Required",
}

HIGH: dict[str, Any] = {
    "targetRef": {
        "kind": "Deployment",
        "name": f"{'x' * 63}.{'x' * 189}",
        "container": "x" * 63,
        "engine": "vLLM",
        "port": 65535,
    },
    "mode": "Auto",
    "suspend": True,
    "ownership": "Apply",
    "objectives": {"interTokenP95": "1m", "e2eP95": "24h", "ttftP95": "1440m"},
    "trigger": {"preemptionsPerRequest": 100, "kvCacheUsage": 1, "window": "1h", "for": "10m"},
    "sizing": {"window": "1h"},
    "levers": [
        {"name": "maxNumBatchedTokens", "min": 16777216},
        {"name": "maxModelLen", "min": 16777216},
        {"name": "watermark", "max": 0.5},
        {"name": "maxNumSeqs", "min": 65536},
        {"name": "gpuMemoryUtilization", "min": 1, "max": 1, "step": 0.1},
        {"name": "revisionRollback", "within": "24h"},
    ],
    "nodeHealth": "IfAvailable",
    "rollout": {
        "waves": "Quarter",
        "drainTimeout": "23h59m59s1000ms",
        "startTimeout": "24h",
        "settle": "10m",
        "rotation": "Orphan",
        "routers": [{"matchLabels": {"environment": "test", "release": "test"}}] * 8,
        "rotationLabel": {"key": f"{'e' * 253}/{'x' * 63}", "draining": "x" * 63},
    },
    "verify": {"for": "1h", "onInconclusive": "Keep", "holdAtMost": "168h", "sideBySide": "Never"},
    "limits": {
        "cooldown": "168h",
        "maxRunsPerDay": 10,
        "minHealthyReplicas": 10000,
        "windows": [NIGHT],
        "approvalMaxAge": "24h",
    },
}

WITHOUT_WINDOWS: dict[str, Any] = {"targetRef": {"name": "a"}, "limits": {"windows": []}}

NO_LEVER: dict[str, Any] = {"targetRef": {"name": "a"}, "levers": []}

FRACTIONS: dict[str, Any] = {"targetRef": {"name": "a"}, "rollout": {"drainTimeout": "1.5h0.25s"}}

APPROVED: dict[str, Any] = {"targetRef": {"name": "a"}, "mode": "Approve"}

GOOD = {
    "every lower bound": LOW,
    "every upper bound": HIGH,
    "an empty list of windows": WITHOUT_WINDOWS,
    "observing without a lever": NO_LEVER,
    "durations with fractions": FRACTIONS,
    "approval by a person": APPROVED,
}
