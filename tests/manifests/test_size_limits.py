"""Command lines that somebody wrote to stop the reader: each is refused, after steps that are counted."""

from __future__ import annotations

import pickle
import re
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.argument_parser import Parsed
from kvmedic.manifests.documents import MOST_VALUES, containers_of
from kvmedic.manifests.engine_file import LONGEST, engine_file
from kvmedic.manifests.errors import LONGEST_MESSAGE, ErrorReason, ManifestError
from kvmedic.manifests.flags import parse_line, read_flags
from kvmedic.manifests.invocation import NotAnEngine, Remembered, invocation_of, version_of
from kvmedic.manifests.size_limits import DEEPEST, LONGEST_WORD, STEPS, Budget
from kvmedic.manifests.trial_pod import api_key_of
from kvmedic.model.compression import parse_count, parse_quantity
from kvmedic.model.engine import Engine, Version
from kvmedic.model.evidence import Blocked
from kvmedic.model.fleet import ObjectRef
from kvmedic.runbooks.workload import Workload, workload_of

ENGINE = Engine(VLLM, Version.parse("0.32.0"))
SERVE = "vllm serve m --max-num-seqs 64"


def a_shell(script: str, **env: str) -> dict[str, Any]:
    entries = [{"name": name, "value": value} for name, value in env.items()]
    return {"name": "c", "image": "x", "command": ["bash", "-c"], "args": [script], "env": entries}


def a_list(*args: str, **env: str) -> dict[str, Any]:
    entries = [{"name": name, "value": value} for name, value in env.items()]
    return {"name": "c", "image": "x", "command": ["vllm", "serve", "m"], "args": list(args), "env": entries}


def doubled(count: int, first: str = "12345678") -> dict[str, str]:
    """Return variables of which each is twice the one before it."""
    return {"V0": first} | {f"V{i}": f"$(V{i - 1})$(V{i - 1})" for i in range(1, count)}


def nested(start: str, end: str, depth: int, core: str = SERVE) -> dict[str, Any]:
    return a_shell(start * depth + core + end * depth)


def filled(piece: str, length: int = LONGEST_WORD - 100) -> dict[str, Any]:
    return a_shell(piece * (length // len(piece)) + "\n" + SERVE)


DEEP = f"more than {DEEPEST} statements or variables within one another"
WORD = f"more than {LONGEST_WORD} characters"
SPENT = f"more than the {STEPS} steps"
MONSTERS = [
    pytest.param(
        a_list(**doubled(40)), rf"env\[13\] \(V13\) of container c takes {SPENT}", id="1.3 KB of env"
    ),
    pytest.param(a_list("$(A)" * 200, A="x" * 600), rf"args\[0\] .*{WORD}", id="one item grows"),
    pytest.param(a_list(*["$(A)" * 100] * 20, A="x" * 600), rf"args\[\d+\] .*{SPENT}", id="many items grow"),
    pytest.param(a_list("--port=$(A)", A="x" * 70_000), WORD, id="a variable of 70,000 characters"),
    pytest.param(a_list("x" * 70_000), WORD, id="an item of 70,000 characters"),
    pytest.param(a_list(*["--max-num-seqs=64"] * 60_000), SPENT, id="1 MB of flags"),
    pytest.param(a_list(*["--max-num-seqs=64"] * 410), "more than 400 words", id="410 flags"),
    pytest.param(a_shell(SERVE + " --max-num-seqs=64" * 410), "more than 400 words", id="410 in a script"),
    pytest.param(a_shell(SERVE + " --max-num-seqs=64" * 60_000), WORD, id="1 MB of flags in a script"),
    pytest.param(
        a_shell("A=12345678\n" + "A=${A}${A}\n" * 14 + SERVE),
        rf"args\[0\] .*{SPENT}",
        id="a shell's variable grows",
    ),
    pytest.param(a_shell("A=1\n" + "A=$A\n" * 200 + SERVE), DEEP, id="variables within variables"),
    pytest.param(a_shell("A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 30 + SERVE), SPENT, id="an array grows"),
    pytest.param(a_shell("set -- a b\n" + 'set -- "$@" "$@"\n' * 30 + SERVE), SPENT, id="parameters grow"),
    pytest.param(a_shell("A=1\n" + 'A+="$A"\n' * 20 + SERVE), SPENT, id="a variable is appended"),
    pytest.param(
        a_shell(SERVE + ' "' + "$A" * 30_000 + '"', A="x" * 600),
        SPENT,
        id="a word of many variables",
    ),
    pytest.param(a_shell("true;" * 32_000 + SERVE), WORD, id="160 KB of `true;`"),
    pytest.param(a_shell("true;" * 12_000 + SERVE), SPENT, id="60 KB of `true;`"),
    pytest.param(a_shell("true && " * 8_000 + SERVE), SPENT, id="a list of 8,000 commands"),
    pytest.param(a_shell("true || " * 2_000 + SERVE), SPENT, id="alternatives, each of all before it"),
    pytest.param(nested("while true; do ", "; done", 800), f"{SPENT}|{DEEP}", id="800 nested `while`"),
    pytest.param(nested("if true; then ", "; fi", 800), f"{SPENT}|{DEEP}", id="800 nested `if`"),
    pytest.param(nested("( ", " )", 800), DEEP, id="800 nested `(`"),
    pytest.param(nested("{ ", "; }", 800), DEEP, id="800 nested `{`"),
    pytest.param(nested("f() { ", "; }", 800), f"{SPENT}|{DEEP}", id="800 nested functions"),
    pytest.param(nested("case a in a) ", ";; esac", 800), f"{SPENT}|{DEEP}", id="800 nested `case`"),
    pytest.param(nested("echo $(", ")", 5_000, "vllm"), SPENT, id="5,000 nested `$(`"),
    pytest.param(a_shell(SERVE + ' --x="' + '\\"' * 8_000 + '"'), SPENT, id="8,000 escapes"),
    pytest.param(filled("a=("), SPENT, id="the grammar reads the rest again: arrays"),
    pytest.param(filled("a|"), SPENT, id="the grammar's own work grows: pipes"),
    pytest.param(a_shell("a|" * 32_000 + SERVE), SPENT, id="the steps end between two pieces of the text"),
    pytest.param(filled("<<<"), SPENT, id="the grammar reads the rest again: here strings"),
    pytest.param(filled("for ((;"), SPENT, id="the grammar reads the rest again: loops"),
    pytest.param(filled("[[ a =~ ("), SPENT, id="the grammar reads the rest again: patterns"),
    pytest.param(filled("((((({{{{{[[[[<<<<"), SPENT, id="nothing that a shell reads"),
    pytest.param(filled("sh -c 'A=1';B=2;"), SPENT, id="shells after one another"),
    pytest.param({**a_list(), "command": ["env"] * 20_000 + ["vllm", "serve"]}, SPENT, id="20,000 wrappers"),
]


def refused(container: dict[str, Any]) -> ManifestError:
    found = parse_line(container, ENGINE)
    assert isinstance(found, ManifestError)
    return found


@pytest.mark.parametrize(("container", "message"), MONSTERS)
def test_a_command_line_that_costs_too_much_is_refused_by_name_and_with_what_to_do(
    container: dict[str, Any], message: str
) -> None:
    container = {**container, "image": "vllm/vllm-openai:v0.32.0"}

    error = refused(container)

    assert error.reason is ErrorReason.TOO_LARGE
    assert re.search(message, error.message), error.message
    assert error.message.rpartition(": ")[2].startswith(("shorten", "write", "list"))


@pytest.mark.parametrize(("container", "message"), MONSTERS)
def test_no_more_steps_are_taken_than_there_are(container: dict[str, Any], message: str) -> None:
    budget = Budget(STEPS)

    invocation_of({**container, "name": "counted"}, VLLM, budget)

    assert 0 <= budget.steps < STEPS


def test_the_grammar_does_not_go_on_for_long_where_the_steps_end_between_two_pieces_of_the_text() -> None:
    seconds = []
    for pipes in (16_000, 32_000):
        began = time.thread_time()
        invocation_of({**a_shell("a|" * pipes + SERVE), "name": "timed"}, VLLM, Budget(STEPS))
        seconds.append(time.thread_time() - began)

    # Twice the text, and the same steps. It was 40 times as long.
    assert seconds[1] < 8 * seconds[0]


LONG = [
    pytest.param(lambda word: a_list(*[f"--served-model-name={word}"] * 100), id="a list"),
    pytest.param(
        lambda word: a_shell(f"{SERVE} --served-model-name {word}" + f" '{word}'" * 99), id="a script"
    ),
    pytest.param(lambda word: a_list(*["--served-model-name=$(A)"] * 100, A=word), id="a variable"),
]


@pytest.mark.parametrize("of_word", LONG)
def test_what_is_kept_of_a_command_line_grows_with_its_words_and_its_text_alone(
    of_word: Callable[[str], dict[str, Any]],
) -> None:
    """Each look unpacks it: with a note of each character it took 0.15 s for 32,000 of them (measured)."""
    short, long = (len(pickle.dumps(parse_line(of_word("x" * length), ENGINE))) for length in (1, 100))

    # Each text is kept a few times: as written, as given, as traced and as read.
    assert long - short < 100 * 99 * 5


def test_a_script_that_is_too_long_is_refused_before_its_characters_are_looked_at() -> None:
    container = a_shell("a|" * 32_000 + SERVE)
    tracemalloc.start()

    invocation_of({**container, "name": "weighed"}, VLLM, Budget(STEPS))

    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A few copies of the text; with a note of each character it was 15 MB.
    assert most < 2_000_000


ORDINARY = [
    pytest.param(a_list("--max-num-seqs", "64"), id="a list"),
    pytest.param(a_list("--max-num-seqs", "$(V10)", **doubled(11, "")), id="variables"),
    pytest.param(a_list("--max-num-seqs=64", FILE="x" * 200_000), id="a file in a variable nobody refers to"),
    pytest.param(
        a_shell(
            'set -e\nif [ -n "$A" ]; then\n  B=(--port $A)\nfi\n' * 20 + 'exec vllm serve m "${B[@]}"', A="80"
        ),
        id="a long script",
    ),
]


@pytest.mark.parametrize("container", ORDINARY[:1] + ORDINARY[2:3])
def test_an_ordinary_command_line_takes_few_steps(container: dict[str, Any]) -> None:
    budget = Budget()

    found = parse_line(container, ENGINE, budget)

    assert isinstance(found, Parsed)
    assert STEPS - budget.steps < STEPS // 50


def test_what_was_read_before_takes_as_many_steps_again_so_that_the_answer_stays() -> None:
    container, first, second = a_shell(SERVE + " # once"), Budget(), Budget()

    before = invocation_of(container, VLLM, first)
    after = invocation_of(dict(container), VLLM, second)

    assert before is after
    assert first.steps == second.steps < STEPS


def test_another_variable_is_another_command_line() -> None:
    values = [
        read_flags(a_list("--max-num-seqs", "$(A)", A=text), ENGINE).values()  # type: ignore[union-attr]
        for text in ("16", "32", "16")
    ]

    assert [value["max_num_seqs"] for value in values] == [16, 32, 16]


def test_containers_share_the_steps_of_their_template() -> None:
    beside = [{**a_shell("true;" * 2_000 + f"echo vllm {i}"), "name": f"s{i}"} for i in range(300)]
    template = {"spec": {"containers": [*beside, {**a_list(), "name": "engine"}]}}

    unnamed = [workload_of(ObjectRef("Deployment", "x"), "", template, None, [VLLM]) for _ in range(2)]
    named = workload_of(ObjectRef("Deployment", "x"), "", template, "engine", [VLLM])

    assert isinstance(unnamed[0], Blocked)
    assert "spec.targetRef.container" in unnamed[0].message
    assert unnamed[0] == unnamed[1]
    assert isinstance(named, Workload)
    assert api_key_of(template, VLLM) == ""


def test_a_monster_that_is_no_engine_stands_in_nobodys_way() -> None:
    monster = {**a_list(**doubled(40)), "name": "beside", "image": "proxy", "command": ["proxy"]}

    assert invocation_of(monster, VLLM) == NotAnEngine()


def test_what_is_remembered_is_bounded() -> None:
    kept: Remembered[int] = Remembered(steps=1_000)
    subject = object()

    for number in range(100):
        kept.keep(number, subject, number, 200)
    kept.keep("huge", subject, 1, 2_000)

    assert [number for number in range(100) if kept.find(number, subject)] == []
    assert kept.find("huge", subject) is None
    kept.keep(7, subject, 7, 1)
    assert kept.find(7, subject) == (7, 1)
    assert kept.find(7, object()) is None


@pytest.mark.parametrize(
    "value",
    [
        "9" * 5_000,
        "9" * 5_000 + "K",
        "9" * 400 + "k",
        "9" * 400 + ".5k",
        "9" * 400,
        "9" * 4_299 + "T",
        "1e999",
    ],
)
def test_a_number_that_no_engine_can_hold_keeps_it_from_starting(value: str) -> None:
    error = refused(a_list("--max-model-len", value))

    assert error.reason is ErrorReason.WOULD_NOT_START
    assert "max-model-len" in error.message
    assert len(error.message) < LONGEST_MESSAGE


@pytest.mark.parametrize("text", ["9" * 5_000, "9" * 19, "x", "", "-1", "1.5"])
def test_what_is_no_count_is_none(text: str) -> None:
    assert parse_count(text) is None


def test_a_quantity_that_would_fill_the_memory_is_none() -> None:
    with pytest.raises(ValueError, match="more than a quantity can be"):
        parse_quantity("1e999999999")


def test_the_tag_of_an_image_may_have_any_digits() -> None:
    assert version_of({"image": f"vllm/vllm-openai:v0.{'9' * 5_000}.0"}, VLLM) is None


@pytest.mark.parametrize(
    "text",
    ["max-num-seqs: 8\n" * (LONGEST // 16 + 1), "a: " + "[" * 2_000, "a: " + "{" * 2_000],
    ids=["long", "deep lists", "deep mappings"],
)
def test_a_configuration_file_that_costs_too_much_is_refused(text: str) -> None:
    found = engine_file(text, "ConfigMap/x y", a_list("--config", "x.yaml"), ENGINE)

    assert isinstance(found, ManifestError)
    assert found.reason is ErrorReason.TOO_LARGE
    assert "ConfigMap/x y" in found.message


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, f"more than {MOST_VALUES} values"),
        (MERGES, f"more than {MOST_VALUES} values"),
        ("a: " + "[" * 5_000, "within one another"),
        ("[" * 5_000 + "]" * 5_000, "within one another"),
        ("a: " + "x" * 5_000_000, "characters"),
    ],
    ids=["aliases", "merges", "deep YAML", "deep JSON", "long"],
)
def test_a_manifest_that_costs_too_much_is_refused(text: str, message: str) -> None:
    found = containers_of(text)

    assert isinstance(found, ManifestError)
    assert found.reason is ErrorReason.TOO_LARGE
    assert message in found.message


def test_command_lines_that_are_too_large_push_nobody_out_of_what_is_remembered() -> None:
    kept: Remembered[object] = Remembered(steps=1_000)
    subject = object()
    kept.keep("mine", subject, "read", 500)

    for number in range(5):
        kept.keep(number, subject, ManifestError(ErrorReason.TOO_LARGE, "x"), 60_000)

    assert kept.find("mine", subject) == ("read", 500)
    assert kept.find(4, subject) == (ManifestError(ErrorReason.TOO_LARGE, "x"), 60_000)
