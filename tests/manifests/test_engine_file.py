"""The text of a configuration file: what counts, where a value stands, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.engine_file import LONGEST, EngineFile, engine_file, entries_of
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import parse_line
from kvmedic.model.engine import Engine, Knob, Version

ENGINE = Engine(VLLM, Version.parse("0.32.0"))
SERVE = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "command": ["vllm", "serve", "m"]}
MODULE = {**SERVE, "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}
SECRET = "s3cret"


def read(text: str, container: dict[str, Any] = SERVE) -> EngineFile | ManifestError:
    return engine_file(text, "ConfigMap/limits engine.yaml", container, ENGINE)


def a_file(text: str, container: dict[str, Any] = SERVE) -> EngineFile:
    found = read(text, container)
    assert isinstance(found, EngineFile), found
    return found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("max-num-seqs: 64 # cap\n", "64", id="plain"),
        pytest.param("# é\nmax_num_seqs: '64'\n", "64", id="single quotes, underscores"),
        pytest.param('port: 80\r\nmax-num-seqs: "64"\r\n', "64", id="double quotes, crlf"),
        pytest.param("{port: 80, max-num-seqs: 64}", "64", id="flow"),
        pytest.param("max-num-seqs: 8\nmax-num-seqs: 64\n", "64", id="twice: the last counts"),
        pytest.param("max-num-seqs: 8\nmax_num_seqs: 64\n", "64", id="in two spellings: the last counts"),
        pytest.param("max-num-seqs:\n  64\n", "64", id="on the next line"),
    ],
)
def test_a_value_is_found_and_nothing_but_it_is_replaced(text: str, value: str) -> None:
    span = a_file(text).span("max_num_seqs")

    assert isinstance(span, slice)
    assert text[span] == value
    changed = a_file(text[: span.start] + "16" + text[span.stop :])
    assert changed.parsed.values() == {**a_file(text).parsed.values(), "max_num_seqs": 16}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("max-num-seqs: &cap 64\nport: 80\n", id="an anchor"),
        pytest.param("port: &cap 64\nmax-num-seqs: *cap\n", id="an alias"),
        pytest.param("max-num-seqs: !!int 64\n", id="a tag"),
        pytest.param("max-num-seqs: >-\n  64\n", id="folded"),
        pytest.param('max-num-seqs: "\\x364"\n', id="an escape"),
    ],
)
def test_an_odd_layout_is_refused(text: str) -> None:
    span = a_file(text).span("max_num_seqs")

    assert isinstance(span, ManifestError)
    assert span.reason is ErrorReason.UNSAFE
    assert "max_num_seqs in ConfigMap/limits engine.yaml" in span.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a: [1", "not readable as YAML", id="broken"),
        pytest.param("[" * 5000, "brackets within one another", id="nested without end"),
        pytest.param("a: 1\n---\nb: 2\n", "not readable as YAML", id="two documents"),
        pytest.param("# " + "x" * LONGEST, f"at most {LONGEST} are read", id="too long"),
        pytest.param("x: &x {port: 80}\n<<: *x\n", "merges entries from elsewhere", id="merged"),
        pytest.param(f"max-num-seqs: [{SECRET}", "not readable as YAML", id="a secret in what is broken"),
        pytest.param("max-num-seqs: 010\n", "max-num-seqs as a number that is not decimal", id="octal"),
        pytest.param(
            "max-num-seqs: 0x40\n", "max-num-seqs as a number that is not decimal", id="hexadecimal"
        ),
        pytest.param("max-num-seqs: 1:04\n", "max-num-seqs as a number that is not decimal", id="base 60"),
        pytest.param("enable-prefix-caching: 'true'\n", "would not start", id="a switch that is a text"),
        pytest.param("enable-prefix-caching: y\n", "would not start", id="no boolean of PyYAML"),
        pytest.param("max-num-seqs: many\n", "would not start", id="a value that vLLM refuses"),
        pytest.param("max-num-sequences: 6\n", "would not start", id="no option of vLLM"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(text: str, said: str) -> None:
    error = read(text)

    assert isinstance(error, ManifestError)
    assert said in error.message
    assert SECRET not in error.message


SWITCHED = "enable-prefix-caching: {}\nmax-num-seqs: 64\n"


@pytest.mark.parametrize(("container", "expected"), [(SERVE, None), (MODULE, False)], ids=["serve", "module"])
def test_an_entry_that_is_false_counts_as_the_engine_has_it(
    container: dict[str, Any], expected: bool | None
) -> None:
    found = a_file(SWITCHED.format("false"), container).find_entry("enable_prefix_caching")

    assert (found.value if found else None) is expected


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        ([], "max-num-seqs: 64\n", True),
        (["--max-num-seqs=8"], "max-num-seqs: 64\n", False),
        (["--max-num-seq", "8"], "max-num-seqs: 64\n", False),
        (["--port=80"], "max-num-seqs: 64\n", True),
        ([], "port: 80\n", False),
    ],
    ids=["file", "the command line beats it", "also abbreviated", "another flag", "not in the file"],
)
def test_who_decides_a_value(line: list[str], text: str, *, expected: bool) -> None:
    parsed = parse_line({**SERVE, "args": line}, ENGINE)
    flag = VLLM.flag(Knob.MAX_NUM_SEQS)
    assert flag is not None
    assert not isinstance(parsed, ManifestError)

    assert (a_file(text).decides(flag, parsed) is not None) == expected


def test_a_switch_is_the_command_lines_matter() -> None:
    parsed, flag = parse_line(SERVE, ENGINE), VLLM.flag(Knob.PREFIX_CACHING)
    assert flag is not None
    assert not isinstance(parsed, ManifestError)

    assert a_file(SWITCHED.format("true")).decides(flag, parsed) is None


ENTRIES = {
    "max-num-seqs": st.integers(1, 4096),
    "max-model-len": st.integers(1, 10**6),
    "gpu-memory-utilization": st.floats(0.1, 1).map(lambda share: round(share, 3)),
    "port": st.integers(1, 65535),
    "api-key": st.sampled_from([SECRET, '"x # y"', "'it''s'"]),
    "enable-prefix-caching": st.sampled_from(["true", "yes"]),
}
COMMENTS = st.sampled_from(["", " # why", "  #é"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    keys = draw(st.permutations(sorted(ENTRIES)))
    ends = draw(st.sampled_from(["\n", "\r\n"]))
    lines = []
    for key in keys[draw(st.integers(0, 3)) :]:
        spelled = key.replace("-", "_") if draw(st.booleans()) else key
        quoted = key not in ("api-key", "enable-prefix-caching")
        quote = draw(st.sampled_from(["", "'", '"'])) if quoted else ""
        lines.append(f"{spelled}: {quote}{draw(ENTRIES[key])}{quote}{draw(COMMENTS)}")
    return ends.join([draw(st.sampled_from(["", "# top", "---"])), *lines, ""])


@settings(deadline=None)
@given(texts(), st.sampled_from(["max_num_seqs", "max_model_len", "gpu_memory_utilization"]))
def test_only_the_one_value_differs_whatever_the_file_looks_like(text: str, dest: str) -> None:
    before = a_file(text)
    given_ = before.find_entry(dest)
    if given_ is None:
        return

    span = before.span(dest)
    assert isinstance(span, slice)
    value = "1" if dest != "gpu_memory_utilization" else "0.5"
    changed = text[: span.start] + value + text[span.stop :]

    assert a_file(changed).parsed.values() == {
        **before.parsed.values(),
        dest: float(value) if "." in value else 1,
    }
    key = given_.word.token.raw
    others = {name: str(node.value) for name, node in entries_of(text).items() if name != key}
    assert others == {name: str(node.value) for name, node in entries_of(changed).items() if name != key}
    assert changed.count("\n") == text.count("\n")
    assert changed.count("#") == text.count("#")
