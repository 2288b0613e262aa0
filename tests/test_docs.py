"""What the documentation says exists: its links, its commands, its columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from documentation.words import README_GOAL, words_of_docs
from kvmedic.api.resource import resource_from_manifest
from kvmedic.cli.app import app_for

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
NIGHT = ROOT / "docs" / "howto" / "at-3-a-m.md"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("charts/*/*.md"),
        *(ROOT / "tests" / "lab").rglob("*.md"),
    ]
)
WRITTEN_FOR_COMMANDS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
UNFIT = {
    "a path of one machine": re.compile(r"(?<![\w.{])/(?:work|root|home|Users)/"),
    "work left for later": re.compile(r"\b(?:TODO|TBD|FIXME|XXX)\b"),
    "a word that says how hard it is": re.compile(r"\b(?:simply|obviously|trivially)\b", re.IGNORECASE),
    "sequences are preempted, pods are evicted": re.compile(r"\bevicted sequences?\b(?!\")", re.IGNORECASE),
}
QUOTES_THEM = {"CONTRIBUTING.md"}
"""Pages that name words in order to forbid them."""


WORDS_LIMIT = 41_000
"""Of what is written by hand under docs/: the goal of 40,000, and some room until other words make way."""
RESOURCE = re.compile(
    r"^(apiVersion: kvmedic\.io/\S+\nkind: KVRemediation\n.*?)(?=^EOF|^---|\Z)", re.MULTILINE | re.DOTALL
)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchor_of(heading: str) -> str:
    """Return a heading's anchor as forges make it."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    prose = FENCE.sub("", path.read_text())
    return {anchor_of(found) for found in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}


def links(path: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", path.read_text())):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def commands(path: Path, program: str) -> Iterator[list[str]]:
    """Yield the words of each command in a page's code that runs a program, comments left out."""
    text = path.read_text()
    code = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
    code += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in code:
        for part in re.split(r"&&|\||;|\(| -- ", line.partition("#")[0].removeprefix("$ ")):
            words = [word for word in part.split() if not re.fullmatch(r"[A-Z_]+=\S*", word)]
            if len(words) > 1 and words[0] == program:
                yield words[1:]


def targets() -> set[str]:
    return set(re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def help_of(*words: str) -> Result:
    """Return what a command says of itself; wide enough that no option is broken over two lines."""
    arguments = [*words, "--help"]
    return CliRunner().invoke(app_for(arguments), arguments, env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    broken = []
    for target in links(path):
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("path", WRITTEN_FOR_COMMANDS, ids=shown)
def test_every_make_target_on_a_page_exists(path: Path) -> None:
    missing = {words[0] for words in commands(path, "make")} - targets()

    assert missing == set()


def test_the_readme_has_its_two_commands() -> None:
    assert {"demo", "test"} <= {words[0] for words in commands(README, "make")}


@pytest.mark.parametrize("path", WRITTEN_FOR_COMMANDS, ids=shown)
def test_every_kvmedic_command_on_a_page_exists_with_its_options(path: Path) -> None:
    wrong = []
    for words in commands(path, "kvmedic"):
        if not re.fullmatch(r"-?[a-z-]+", words[0]):
            continue
        depth = 2 if words[0] == "flags" and len(words) > 1 and words[1].isalpha() else 1
        shown_help = help_of(*words[:depth])
        options = {word.partition("=")[0] for word in words[depth:] if re.match(r"--?[a-z]", word)}
        if shown_help.exit_code != 0 or any(option not in shown_help.stdout for option in options):
            wrong.append(" ".join(words))

    assert wrong == []


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= README_GOAL


def test_the_documentation_does_not_grow() -> None:
    written = sum(counted.written for counted in words_of_docs().values())

    assert written <= WORDS_LIMIT, "say it once, in one place: `make words` lists the longest pages"


@pytest.mark.parametrize("path", WRITTEN_FOR_COMMANDS, ids=shown)
def test_every_yaml_on_a_page_is_read_and_every_kvremediation_accepted(path: Path) -> None:
    blocks = FENCE.findall(path.read_text())
    for text in (text for language, text in blocks if language == "yaml"):
        list(yaml.safe_load_all(text))

    for _, text in blocks:
        for manifest in RESOURCE.findall(text):
            resource_from_manifest(yaml.safe_load(manifest))


def test_the_readme_quotes_what_saved_pages_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = next(words for words in commands(README, "kvmedic") if "--scrape" in words)
    quoted = next(text for _, text in FENCE.findall(README.read_text()) if text.startswith("diagnosis"))

    said = " ".join(CliRunner().invoke(app_for(words), words).stdout.split())

    for line in re.split(r"\n(?=\S)", quoted.rstrip()):
        assert " ".join(line.split()) in said


def test_the_page_for_the_night_shows_the_columns_that_kubectl_shows() -> None:
    crd = yaml.safe_load((ROOT / "crds" / "kvmedic.io_kvremediations.yaml").read_text())
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    expected = ["NAMESPACE", "NAME", *(c["name"].upper() for c in columns if not c.get("priority"))]

    headers = [line.split() for line in NIGHT.read_text().splitlines() if line.startswith("NAMESPACE")]

    assert headers
    assert all(header == expected for header in headers)


@pytest.mark.parametrize("path", PAGES, ids=shown)
@pytest.mark.parametrize("name", UNFIT)
def test_no_page_has_unfit_words(path: Path, name: str) -> None:
    if path.name not in QUOTES_THEM:
        assert UNFIT[name].findall(path.read_text()) == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """`make docs` demands it as well; here it is found in a second."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = (page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md"))

    assert [str(page) for page in pages if page.name[0] != "0" and f": {page}\n" not in navigation] == []


def test_every_table_has_a_head() -> None:
    """A blank line within a table makes text of the rows behind it."""
    broken = []
    for path in PAGES:
        lines = FENCE.sub("", path.read_text()).splitlines()
        for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
            begins = line.startswith("|") and not before.startswith("|")
            if begins and not re.fullmatch(r"\|[ :|-]+", after):
                broken.append(f"{shown(path)}: {line[:60]}")

    assert broken == []


def linked_from(start: Path) -> set[Path]:
    """Return every page that a reader reaches from a page by following links."""
    reached, todo = {start}, [start]
    while todo:
        page = todo.pop()
        found = {(page.parent / target.partition("#")[0]).resolve() for target in links(page)}
        fresh = {each for each in found if each.suffix == ".md" and each.is_file()} - reached
        reached |= fresh
        todo += fresh
    return reached


def test_every_page_is_reached_from_the_readme() -> None:
    orphans = set((ROOT / "docs").rglob("*.md")) - linked_from(README)

    assert sorted(map(shown, orphans)) == [], "link each page in docs/README.md"
