"""Random command lines and random layouts, against argparse and against another YAML reader."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.argument_parser import Parsed
from kvmedic.manifests.documents import ManifestContainer, containers_of
from kvmedic.manifests.errors import ManifestError
from kvmedic.manifests.flags import AlreadySet, edit, parse_line, setting_of
from kvmedic.manifests.yaml_text import splice_edit
from kvmedic.model.edits import TokenEdit
from kvmedic.model.engine import Arity, Engine, Flag, Kind, Option, Version
from manifests import reference_parser

ENGINE = Engine(VLLM, Version.parse("0.32.0"))
OPTIONS = [
    option
    for option in VLLM.options_of(ENGINE.effective_version)
    if option.dest not in {"config", "model", "help"}
]
KNOBS = [flag for flag in VLLM.flags if flag.dest != "swap_space"]
PARSER = reference_parser.parser_of(ENGINE.effective_version)
VALID = {
    Kind.INT: st.integers(1, 4096).map(str),
    Kind.HUMAN_INT: st.sampled_from(["8", "2k", "2K", "25.6k", "1_000", " 16"]),
    Kind.HUMAN_INT_OR_AUTO: st.sampled_from(["4096", "8k", "auto", "-1"]),
    Kind.FLOAT: st.sampled_from(["0.9", ".5", "1", "1e-2"]),
    Kind.TEXT: st.sampled_from(["a", "/models/x-1.5", "{}", "a b", "x=y", ""]),
}
ODD = st.sampled_from(
    ["1K5", "auto", "-1", "", "--", "--port", "-x", "stray", "a b", "0x10", "None", "-tp", "--max-num-s"]
)
CALM = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def spellings(draw: st.DrawFn, option: Option) -> str:
    """Return a name of an option: any of its spellings, in dashes or underscores, cut short or whole."""
    name = draw(st.sampled_from(option.names))
    if not name.startswith("--"):
        return name
    body = "".join("_" if c == "-" and draw(st.booleans()) else c for c in name[2:])
    cut = draw(st.sampled_from([0, 0, 0, 1, 2, 5]))
    short = "--" + (body[:-cut] if cut and len(body) > cut + 3 else body)
    return name if short == VLLM.dialect.config else short


@st.composite
def uses(draw: st.DrawFn) -> list[str]:
    """Return the tokens of one use of an option."""
    knob = draw(st.sampled_from(KNOBS))
    any_option = draw(st.sampled_from(OPTIONS))
    option = next(o for o in OPTIONS if o.dest == knob.dest) if draw(st.booleans()) else any_option
    name = draw(spellings(option))
    if option.arity is Arity.NONE:
        return [name]
    value = draw(st.sampled_from(option.choices) if option.choices else VALID[option.kind])
    joined = draw(st.booleans()) and name.startswith("--")
    return [f"{name}={value}"] if joined else [name, value]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Return the arguments of the server; now and then with a token that does not belong."""
    parts = draw(st.lists(uses(), max_size=6))
    line = ["m", *(token for part in parts for token in part)]
    if draw(st.integers(0, 4)) == 0:
        line.insert(draw(st.integers(1, len(line))), draw(ODD))
    return line


def a_container(arguments: list[str]) -> dict[str, Any]:
    command = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    return {"name": "vllm", "image": "x", "command": command, "args": arguments}


def expected(arguments: list[str]) -> dict[str, Any] | None:
    """Return what argparse makes of a list, or None where it refuses."""
    try:
        return reference_parser.parse(PARSER, arguments)
    except reference_parser.Refused:
        return None


def knobs_of(values: dict[str, Any]) -> dict[str, Any]:
    return {flag.dest: values[flag.dest] for flag in KNOBS if flag.dest in values}


@CALM
@given(command_lines())
def test_a_command_line_reads_as_argparse_reads_it(arguments: list[str]) -> None:
    values = expected(arguments)

    parsed = parse_line(a_container(arguments), ENGINE)

    if values is None:
        assert isinstance(parsed, ManifestError)
    else:
        assert isinstance(parsed, Parsed), parsed
        assert knobs_of(parsed.values()) == knobs_of(values)
        assert parsed.values().keys() - {"model"} == values.keys()


SETTINGS = st.sampled_from(KNOBS).flatmap(
    lambda flag: st.tuples(
        st.just(flag),
        {
            "enable_prefix_caching": st.booleans(),
            "enable_chunked_prefill": st.booleans(),
            "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
            "gpu_memory_utilization": st.sampled_from([0.8, 0.88, 0.95]),
            "watermark": st.sampled_from([0, 0.02, 0.1]),
        }.get(flag.dest, st.integers(1, 64)),
    )
)


@CALM
@given(command_lines(), SETTINGS)
def test_an_edit_changes_one_token_and_argparse_sees_one_value_change(
    arguments: list[str], desired: tuple[Flag, Any]
) -> None:
    flag, value = desired
    setting = setting_of(flag, value, ENGINE)
    assert not isinstance(setting, ManifestError)
    before = expected(arguments)

    outcome = edit(a_container(arguments), 0, setting, ENGINE)

    if before is None or ("--" in arguments and isinstance(outcome, ManifestError)):
        assert isinstance(outcome, ManifestError)
    elif isinstance(outcome, AlreadySet):
        assert before[flag.dest] == value
    else:
        assert isinstance(outcome, TokenEdit), outcome
        stop = outcome.index + (outcome.before is not None)
        assert outcome.before is None or arguments[outcome.index] == outcome.before
        edited = [*arguments[: outcome.index], str(outcome.after), *arguments[stop:]]
        assert expected(edited) == {**before, flag.dest: value}


TOKENS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Cn", "Zl", "Zp"]), max_size=12)
INDENTS = st.sampled_from(["", "  ", "    "])


@st.composite
def scalars(draw: st.DrawFn, token: str) -> str:
    """Return a token as YAML: in double or single quotes, or plain where it can be."""
    style = draw(st.sampled_from(["double", "single", "plain"]))
    plain = (
        token.replace("-", "").replace("=", "").replace("_", "").isalpha()
        and token.isascii()
        and "-" in token
    )
    if style == "plain" and plain and not token.startswith("- "):
        return token
    return (
        "'" + token.replace("'", "''") + "'" if style == "single" else json.dumps(token, ensure_ascii=False)
    )


@st.composite
def manifests(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Return a manifest's text in some layout, and the engine's arguments in it."""
    tokens = ["m", "--max-num-seqs", str(draw(st.integers(1, 99)))]
    tokens += ["--served-model-name", "x" + draw(TOKENS)] if draw(st.booleans()) else []
    written = [draw(scalars(token)) for token in tokens]
    remark = st.sampled_from(["", " # remark, [with] 'marks'", "   "])
    if draw(st.booleans()):
        comma = draw(st.sampled_from([",", ", ", " , ", ",\n            "]))
        items = "[" + comma.join(written) + draw(st.sampled_from(["]", " ]", ", ]"])) + draw(remark)
    else:
        indent, gap = draw(INDENTS), draw(st.sampled_from([" ", "   "]))
        items = "".join(f"\n        {indent}-{gap}{item}{draw(remark)}" for item in written)
    head = draw(st.sampled_from(["", "# head\n---\n", "kind: Service\n---\n"]))
    body = "kind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n      - name: vllm\n"
    tail = draw(st.sampled_from(["", "\n", "\n        env: []\n", "\n---\nkind: ConfigMap\n", "\n# end"]))
    text = head + body + "        command: [vllm, serve]\n        args: " + items + tail
    return (text.replace("\n", "\r\n") if draw(st.booleans()) else text), tokens


def arguments_in(text: str) -> list[str]:
    """Return the engine's arguments as PyYAML reads them."""
    documents = [d for d in yaml.safe_load_all(text) if d and d["kind"] == "Deployment"]
    found: list[str] = documents[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


@CALM
@given(
    manifests(),
    st.sampled_from([("max_num_seqs", 100), ("watermark", 0.5), ("enable_prefix_caching", False)]),
)
def test_a_splice_leaves_every_other_byte_and_every_other_token(
    manifest: tuple[str, list[str]], desired: tuple[str, Any]
) -> None:
    text, tokens = manifest
    found = containers_of(text)
    assert not isinstance(found, ManifestError)
    container: ManifestContainer = found[0]
    assert container.data["args"] == tokens
    setting = setting_of(VLLM.by_dest()[desired[0]], desired[1], ENGINE)
    assert not isinstance(setting, ManifestError)
    outcome = edit(container.data, container.index, setting, ENGINE)
    assert isinstance(outcome, TokenEdit)

    result = splice_edit(text, container, outcome)

    assert isinstance(result, str), result
    stop = outcome.index + (outcome.before is not None)
    assert arguments_in(result) == [*tokens[: outcome.index], outcome.after, *tokens[stop:]]
    longest = 0 if outcome.before is None else len(json.dumps(outcome.before, ensure_ascii=False))
    assert bytes_kept(text, result) >= len(text) - longest


def bytes_kept(old: str, new: str) -> int:
    """Return how much of a text stands unchanged before and behind the one place that differs."""
    shorter = min(len(old), len(new))
    before = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    rest = range(1, shorter - before + 1)
    behind = next((i - 1 for i in rest if old[-i] != new[-i]), shorter - before)
    return before + behind
