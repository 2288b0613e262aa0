"""What the operator exports of itself."""

from prometheus_client import generate_latest

from kvmedic.record.reporter import Telemetry


def test_no_series_says_when_another_was_created():
    telemetry = Telemetry()
    telemetry.failures.labels(kind="Conflict").inc()

    page = generate_latest(telemetry.registry).decode()

    assert "kvmedic_tick_failures_total" in page
    assert "_created" not in page
