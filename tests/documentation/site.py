"""What `make docs` does beside mkdocs: files outside docs/ that pages link to, and no foreign host.

mkdocs sees docs/ alone, while pages link to the README, the chart and the lab's scenarios, as on a forge.
Each such file is published under `source/` at its own path, and links are bent to it: what a page links to is
there, or the build fails. mkdocs loads this file by its path, see `hooks` in mkdocs.yml.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
START = ROOT / "README.md"
PLACE = "source"
"""Folder of the site for what is outside docs/."""
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FETCHED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")


def _links(page: Path) -> Iterator[Path]:
    """Yield the files of the repository that a page links to."""
    for number, part in enumerate(_CODE.split(page.read_text(encoding="utf-8"))):
        if number % 2 == 0:
            yield from (found for _, target, _ in _LINK.findall(part) if (found := _file(page, target)))


def _file(page: Path, target: str) -> Path | None:
    """Return the file or folder of the repository that a link means; None for one of the web."""
    if "://" in target or target.startswith("mailto:"):
        return None
    found = (page.parent / target).resolve()
    if not found.exists():
        raise PluginError(f"{page.relative_to(ROOT)} links to {target}, which is not there: mend the link")
    return found


def _uri(path: Path) -> str:
    """Return where a file of the repository is on the site; a folder is a page that shows its files."""
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS))
    placed = f"{PLACE}/{path.relative_to(ROOT)}"
    return f"{placed}.md" if path.is_dir() else placed


def _folder_page(folder: Path) -> str:
    shown = (
        f"## {each.name}\n\n```yaml\n{each.read_text(encoding='utf-8')}```\n"
        for each in sorted(folder.iterdir())
    )
    return "\n".join([f"# {folder.relative_to(ROOT)}\n", *shown])


def _reached() -> set[Path]:
    """Return all that pages outside docs/ and in it link to, outside docs/; the README is where it starts."""
    reached, todo = {START}, [START, *DOCS.rglob("*.md")]
    while todo:
        found = {each for each in _links(todo.pop()) if not each.is_relative_to(DOCS)} - reached
        reached |= found
        todo += [each for each in found if each.suffix == ".md"]
    return reached


def on_files(files: Any, config: Any) -> Any:
    """Add what pages link to outside docs/."""
    for path in sorted(_reached()):
        if path.is_dir():
            files.append(File.generated(config, _uri(path), content=_folder_page(path)))
        else:
            files.append(File.generated(config, _uri(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Bend the links that leave docs/, and those of pages that are outside."""
    uri = page.file.src_uri
    source = ROOT / uri.removeprefix(f"{PLACE}/") if uri.startswith(f"{PLACE}/") else DOCS / uri

    def bent(link: re.Match[str]) -> str:
        found = _file(source, link[2])
        target = os.path.relpath(_uri(found), Path(uri).parent) if found else link[2]
        return f"{link[1]}{target}{link[3]}"

    parts = _CODE.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(bent, part) for number, part in enumerate(parts))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that makes a reader's browser ask another host."""
    if foreign := _FETCHED.findall(output):
        raise PluginError(
            f"{page.file.src_uri} fetches {foreign[0]}: everything that a page shows is on the site"
        )
    return output
