"""The operator's own metrics. Label values come from enums only, so their number is bounded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from kvmedic.core.reasons import Reason

TICK_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Buckets from one cached look to the API time-outs."""

SEVERITY = ("severity",)
"""Label of the gauges of resources in trouble: `page` while an objective is breached, else `ticket`."""


class Telemetry:
    """Counters and gauges of one operator process."""

    def __init__(self) -> None:
        # One series more for every counter and histogram, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self.registry = registry
        self.decisions = Counter(
            "kvmedic_decisions", "Decisions that differed from the last", ["reason"], registry=registry
        )
        self.tick_seconds = Histogram(
            "kvmedic_tick_seconds", "One look at one resource", registry=registry, buckets=TICK_SECONDS
        )
        self.failures = Counter(
            "kvmedic_tick_failures", "Looks that ended in an error", ["kind"], registry=registry
        )
        self.resources = Gauge("kvmedic_resources", "Resources that are looked after", registry=registry)
        self.open_runs = Gauge("kvmedic_open_runs", "Runs that are open", registry=registry)
        self.troubled = Gauge(
            "kvmedic_troubled", "Resources whose fleets are in trouble", SEVERITY, registry=registry
        )
        self.action_required = Gauge(
            "kvmedic_action_required", "Resources that wait for a person", SEVERITY, registry=registry
        )
        self.stalled = Gauge(
            "kvmedic_stalled", "Resources for which nothing goes on by itself", SEVERITY, registry=registry
        )
        self.metrics_unavailable = Gauge(
            "kvmedic_metrics_unavailable",
            "Resources whose replicas' metrics are missing, stale or out of reach",
            SEVERITY,
            registry=registry,
        )
        self.diverted = Gauge(
            "kvmedic_diverted",
            "Resources whose trouble is for another runbook: GPU fault, thermal emergency, host memory",
            ["reason", *SEVERITY],
            registry=registry,
        )
        self.leading = Gauge(
            "kvmedic_leading", "1 while this process is the one that acts", registry=registry
        )
        self.storm = Gauge(
            "kvmedic_storm_breaker_tripped",
            "1 while so many runs ended badly that no new one is opened",
            registry=registry,
        )
        for reason in Reason:
            self.decisions.labels(reason=reason.value)
