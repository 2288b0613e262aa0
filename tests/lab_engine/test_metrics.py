"""The metrics page against the pages recorded from vLLM 0.32."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.engine.arguments import parse_serve
from lab.engine.config import resolve
from lab.engine.metrics import EngineMetrics, spelt
from lab.engine.settings import Faults

DATA = Path(__file__).parents[1] / "data" / "vllm"
NO_FAULTS = Faults()
RECORDED_ARGUMENTS = [
    "serve",
    "/models/tiny",
    "--max-model-len=2048",
    "--served-model-name=tiny",
    "--block-size=32",
    "--num-gpu-blocks-override=150",
    "--max-num-seqs=64",
]


def an_engine(faults=NO_FAULTS):
    config = resolve(parse_serve(RECORDED_ARGUMENTS), {})
    return EngineMetrics(config.served_name, config.limits.max_model_len, config.labels, faults)


def heads(page):
    return [line for line in page.splitlines() if line.startswith("#")]


def series(page):
    """All series names with their labels; the interpreter's own version is not the lab's to match."""
    lines = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    return [re.sub(r"^python_info\{.*", "python_info", line) for line in lines]


@pytest.mark.parametrize(("recorded", "served"), [("metrics-idle.txt", 0), ("metrics-thrash.txt", 1)])
def test_families_labels_types_help_and_order_are_as_recorded(recorded, served):
    metrics = an_engine()
    for _ in range(served):
        metrics.record_http("POST", "/v1/completions", 200, 0.1, 500)
    page, real = metrics.text(), (DATA / recorded).read_text()

    assert heads(page) == heads(real)
    assert series(page) == series(real)


def test_the_page_parses_as_prometheus_text():
    names = {family.name for family in text_string_to_metric_families(an_engine().text())}

    assert {"vllm:num_preemptions", "vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds"} <= names


def test_a_dropped_family_is_gone_and_a_nan_family_is_nan():
    environ = {"LAB_FAULT_DROP_METRICS": "vllm:num_preemptions_total, "}
    environ["LAB_FAULT_NAN_METRICS"] = "vllm:kv_cache_usage_perc"
    faults = Faults.from_environ(64, environ)

    page = an_engine(faults).text()

    assert "num_preemptions_" not in page.replace("request_num_preemptions", "")
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} NaN' in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (13056.0, "13056.0"),
        (1795236602.35, "1.79523660235e+09"),
        (2e6, "2e+06"),
        (float("inf"), "+Inf"),
    ],
)
def test_numbers_are_spelt_as_prometheus_client_spells_them(value, text):
    assert spelt(value) == text
