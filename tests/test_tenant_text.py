"""Whatever tenants write or serve is read within bounds: it gives a value or a refusal, and never raises."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.cluster.containers.nvidia_smi import LIMIT_BYTES as DRIVER_BYTES
from kvmedic.kube.objects import NOTE_LENGTH
from kvmedic.metrics.page import LIMIT_BYTES as VERSION_BYTES
from kvmedic.runbooks.compression.accuracy import MESSAGE_LENGTH
from worlds.tenant_readers import NAMES, TEXT_READERS, Reader, all_readers

KEPT = Path(__file__).parent / "data" / "fuzz"
"""What once failed, or is nasty: a folder for each reader."""
CPU_SECONDS = 2.0
"""Of this process for one text: many times what one takes, so that only what grows faster than its text is
found."""
CALM = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module")
def readers() -> Iterator[Mapping[str, Reader]]:
    with all_readers() as made:
        yield made


def read_in_time(read: Reader, raw: bytes) -> None:
    began = time.process_time()
    read(raw)
    assert time.process_time() - began < CPU_SECONDS


WORDS = st.text(st.characters(exclude_categories=[]), max_size=8) | st.sampled_from(
    ["", "\ud800", "\x00", "\x1b[31m", "NaN", "+Inf", "1e999", "25%", "$(A)", "'", '"', "a\nb", "\u0663"]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(),
    st.floats(),
    st.sampled_from([10**18, 10**400, -(10**4299), 2**63, 1e308, -0.0, float("nan"), float("inf")]),
    WORDS,
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
"""Any JSON, and what Python's reader takes beside it."""


@st.composite
def changed(draw: st.DrawFn, seed: Any) -> Any:
    """Return a document of the right form with one to three of its places filled otherwise."""
    body = {"": copy.deepcopy(seed)}
    for _ in range(draw(st.integers(1, 3))):
        place, key = body, ""
        while isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 14)):
            place = place[key]
            key = draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], str) and draw(st.integers(0, 3)):
            place[key] = draw(WORDS)
        elif draw(st.integers(0, 5)) or place is body:
            place[key] = draw(JSON)
        else:
            del place[key]
    return body[""]


@st.composite
def spliced(draw: st.DrawFn, seed: bytes, pieces: tuple[bytes, ...] = ()) -> bytes:
    """Return a text in which some parts were cut out, repeated, or replaced by something else."""
    raw = seed
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        stop = draw(st.integers(start, min(len(raw), start + 40)))
        put = draw(st.binary(max_size=6) | st.sampled_from(pieces or (b"", b"\n", b'"', b"\x00", b"\xff")))
        raw = raw[:start] + put * draw(st.sampled_from([1, 1, 1, 2, 200])) + raw[stop:]
    return raw


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


CONTAINER = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.32.0",
    "command": ["sh", "-c", "exec vllm serve m --max-num-seqs ${SEQS:-64} --api-key=$(KEY)"],
    "args": ["--port=8000"],
    "env": [{"name": "KEY", "value": "k"}, {"name": "SEQS", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
    "envFrom": [{"configMapRef": {"name": "c"}}],
    "resources": {"limits": {"nvidia.com/gpu": 1}},
    "ports": [{"containerPort": 8000}],
}
POD = {
    "metadata": {"labels": {"app": "llm"}, "annotations": {"a": "b"}},
    "spec": {"containers": [CONTAINER], "volumes": [{"name": "v", "configMap": {"name": "c"}}]},
}
SPEC = {"replicas": 2, "selector": {"matchLabels": {"app": "llm"}}, "template": POD}
WORKLOAD = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm"}, "spec": SPEC}
SERIES = {"metric": {"__name__": "up", "namespace": "serving", "pod": "llm-0"}}
VECTOR = {"resultType": "vector", "result": [{**SERIES, "value": [1772323200, "1"]}]}
MATRIX = {"resultType": "matrix", "result": [{**SERIES, "values": [[1772323210, "1"], [1772323220, "2"]]}]}
ANSWER = {"status": "success", "data": VECTOR, "warnings": [], "error": "no", "errorType": "bad_data"}
EVENT = {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}
MODELS = {"data": [{"id": "m", "max_model_len": 4096}]}
NOTE = {
    "paused": False,
    "maxSurge": "25%",
    "maxUnavailable": 0,
    "minReadySeconds": 0,
    "progressDeadlineSeconds": 600,
    "container": "vllm",
    "containerIndex": 0,
    "field": "args",
    "index": 0,
    "before": "--a=1",
    "after": "--a=2",
    "rotationLabel": "serving",
    "draining": "draining",
    "rotation": "Label",
}
PART = {key: NOTE[key] for key in ("container", "containerIndex", "field", "index", "before", "after")}
NOTES = (
    NOTE,
    {**NOTE, "parts": [PART, {**PART, "env": "A", "before": None}]},
    {**NOTE, "volume": "v", "volumeIndex": 0},
)
SCORE = {"score": 0.5, "samples": 4, "right": "1010"}
LINES = (
    b"2026-03-01T00:00:00.5Z ",
    b"INFO ",
    b"Using ",
    b"ATTN",
    b" backend.",
    b" attention backend out of potential backends",
    b"KV cache size: ",
    b"1,024",
    b",",
    b" tokens",
    b"# GPU blocks: ",
    b"9",
    b"\n",
    b"_",
    b"MLA",
    b"No valid ",
    b"is not valid ",
    b"kv_cache_dtype not supported",
    b"does not support fp8 kv-cache on this device",
    b"CUDA out of memory",
    b"non-default args: ",
    b"Application startup complete",
    b" data type to store kv cache",
    b"\xff",
    b"\r",
    b"\x00",
)
DRIVER = b"0, GPU-5a1f0c9e-30ba-9f6e-0000-0123456789ab, Disabled, 0, 0x0000000000000004\n"
PAGE = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 1.0\n'


def lines(*events: Any) -> bytes:
    return b"".join(b"data: " + dumped(each) + b"\n\n" for each in events)


NEAR: Mapping[str, st.SearchStrategy[bytes]] = {
    "engine-log": st.lists(
        st.tuples(st.sampled_from(LINES), st.sampled_from([1, 1, 1, 2, 300])).map(lambda it: it[0] * it[1]),
        max_size=20,
    ).map(b"".join),
    "job-message": changed(SCORE).map(dumped) | spliced(dumped(SCORE)),
    "manifest": st.one_of(
        changed(WORKLOAD).map(dumped),
        changed(WORKLOAD).map(
            lambda it: yaml.safe_dump(it, allow_unicode=True).encode(errors="surrogatepass")
        ),
        spliced(
            yaml.safe_dump(WORKLOAD).encode(),
            (b"&a ", b"*a", b"\t", b"- ", b": ", b"<<: ", b"--- ", b"!!x ", b"{{ x }}"),
        ),
        spliced(dumped(WORKLOAD), (b"[", b"{", b'"', b"\\ud800", b"1e999")),
    ),
    "metrics-page": spliced(PAGE, (b"{", b'"', b"\\", b"NaN", b"1e999", b",", b" ", b"\n", b"# HELP ")),
    "note": st.one_of([changed(each).map(dumped) for each in NOTES]) | spliced(dumped(NOTE)),
    "nvidia-smi": spliced(DRIVER * 2, (b",", b"\n", b"[N/A]", b"GPU is lost", b"9", b"0x", b"\xef\xbc\x91")),
    "probe-answer": changed([EVENT, EVENT]).map(lambda it: lines(*it) if isinstance(it, list) else lines(it))
    | changed(MODELS).map(dumped)
    | spliced(lines(EVENT, EVENT), (b"data: ", b"\n", b"[DONE]", b"{}", b"[")),
    "prometheus-answer": changed(ANSWER).map(dumped)
    | changed({**ANSWER, "data": MATRIX}).map(dumped)
    | spliced(dumped(ANSWER), (b"[", b'"warnings"', b"isPartial", b"NaN", b"\\ud800")),
    "version": changed({"version": "0.32.0"}).map(dumped)
    | st.from_regex(
        r"\{\"version\": \"v?[0-9.]{1,8}(rc|\.dev|\.post|\+)?[0-9a-z.]{0,8}\"\}", fullmatch=True
    ).map(str.encode),
}
"""Texts that are nearly what a reader expects."""


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_and_any_near_miss_are_read_or_refused(name: str, readers: Mapping[str, Reader]) -> None:
    @CALM
    @given(
        st.binary(max_size=300)
        | st.text(max_size=100).map(str.encode)
        | JSON.map(dumped)
        | NEAR[name]
        | NEAR[name]
    )
    def read(raw: bytes) -> None:
        read_in_time(readers[name], raw)

    read()


KEPT_TEXTS = sorted(KEPT.glob("*/*"))


@pytest.mark.parametrize("file", KEPT_TEXTS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_is_kept_is_read_or_refused(file: Path, readers: Mapping[str, Reader]) -> None:
    read_in_time(readers[file.parent.name], file.read_bytes())


def test_every_reader_has_texts_that_are_kept() -> None:
    assert {file.parent.name for file in KEPT_TEXTS} == set(NAMES)


FLOATS = b"[" + b"1e-300," * 20_000
"""The JSON that costs most of its size, of what was tried."""
LARGEST = {
    "job-message": FLOATS[: MESSAGE_LENGTH - 2] + b"1]",
    "note": FLOATS[: NOTE_LENGTH - 2] + b"1]",
    "nvidia-smi": b"," * DRIVER_BYTES,
    "version": b'{"version": "' + b"1." * (VERSION_BYTES // 2 - 10) + b'1"}',
}
LOOP_SECONDS = 0.25
"""Fifty times the 5 ms that such a text may take on the loop: a reader here reads it up to five times."""


@pytest.mark.parametrize("name", LARGEST)
def test_what_is_read_on_the_loop_is_cheap_at_its_largest(name: str) -> None:
    took = []
    for _ in range(3):
        began = time.thread_time()
        TEXT_READERS[name](LARGEST[name])
        took.append(time.thread_time() - began)

    assert min(took) < LOOP_SECONDS


def test_one_word_of_a_log_holds_nobody_up() -> None:
    words = (b"MLA" * 1300, b"ATTN" * 975)
    raw = b"".join(b"2026-03-01T00:00:00Z Using " + each + b"\n" for each in words)

    began = time.thread_time()
    TEXT_READERS["engine-log"](raw * 30)

    assert time.thread_time() - began < LOOP_SECONDS * 2
