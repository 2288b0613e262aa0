"""Device memory of a play's fleet, as its engines report it."""

import httpx
import pytest

from lab.cluster.api import ApiError, until
from lab.play import hands
from lab.play.hands import FREE, USED, Memory, Meter
from lab_engine.engine_process import a_process, until_healthy

HERE, NOWHERE = "127.0.0.1", "127.0.0.2"
UNFUSED = {"LAB_DEVICE_MEMORY_MIB": "100", "LAB_EAGER_ATTENTION": "1"}
START = {USED: 92, FREE: 8}
"""0.92 of 100 MiB from the start on."""


@pytest.fixture
def engine():
    """Port of an engine on a GPU of 100 MiB whose attention is not fused."""
    with a_process(**UNFUSED) as (_, url):
        until_healthy(url)
        yield int(url.rpartition(":")[2])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hands, "INTERVAL_SECONDS", 0.05)


def test_memory_grows_where_attention_is_not_fused(engine):
    reports: list[Memory] = []

    with Meter(lambda: {"a": HERE}, engine, reports.append):
        until(lambda: {"a": START} in reports, what="the memory of an idle engine")
        body = {"model": "m", "prompt": list(range(300)), "max_tokens": 1}
        httpx.post(f"http://{HERE}:{engine}/v1/completions", json=body, trust_env=False).raise_for_status()
        scores = round(64 * 300**2 / (1 << 20))
        until(lambda: reports[-1] == {"a": {USED: 92 + scores, FREE: 8 - scores}}, what="the scores")

    assert reports[-1] == {}, "nothing is reported of a play that ended"


def test_an_engine_that_falls_silent_keeps_its_memory_until_its_pod_is_gone(engine):
    reports: list[Memory] = []
    pods = {"a": HERE, "starting": NOWHERE}

    with Meter(lambda: dict(pods), engine, reports.append):
        until(lambda: {"a": START} in reports, what="what answers, and nothing else")
        pods["a"] = NOWHERE
        seen = len(reports)
        until(lambda: len(reports) > seen + 2, what="more rounds")
        assert reports[-1] == {"a": START}
        del pods["a"]
        until(lambda: reports[-1] == {}, what="a pod that is gone has no GPU")


def test_a_cluster_that_does_not_answer_is_asked_again(engine):
    reports: list[Memory] = []
    refusals = [ApiError(503, "not now"), httpx.ConnectError("refused")]

    def addresses() -> dict[str, str]:
        if refusals:
            raise refusals.pop()
        return {"a": HERE}

    with Meter(addresses, engine, reports.append):
        until(lambda: {"a": START} in reports, what="the memory of the engine")
