"""`make pictures`: what people see, as a browser shows it, narrow and wide, kept in docs/assets.

The report on made-up figures, a page of the built documentation, and the terminal: `kvmedic diagnose -v` of
the README's pages, 60 and 120 columns wide, with the colours that it has on a terminal.
"""

import os
import pty
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvmedic.cli.live.report_page import report_as_page
from lab.browser import LARGEST_PICTURE, PICTURES, SCHEMES, started_browser, take_picture
from lab.cluster.machine import ROOT
from worlds.reported import an_example_report

NARROW, WIDE = (380, 800), (1440, 900)
"""Windows of a telephone and of a screen, in pixels."""
README_PICTURE = (1200, 1185)
DOCUMENT = ROOT / "build" / "site" / "runbooks" / "preemption-thrash.html"
PAGES = ("tests/data/vllm/metrics-idle.txt", "tests/data/vllm/metrics-thrash.txt")
COMMAND = ("kvmedic", "diagnose", "-v", *(word for page in PAGES for word in ("--scrape", page)))
COLUMNS = {60: (560, 0), 120: (1100, 0)}
"""Windows by the width of a terminal; as high as what is printed."""
NAMES = (
    *(f"report-{each}" for each in (*SCHEMES, "narrow", "wide")),
    *("docs-narrow", "docs-wide"),
    *(f"terminal-{columns}" for columns in COLUMNS),
)
"""Of every picture."""
_TERMINAL = """\
<!DOCTYPE html><meta charset="utf-8">
<body style="margin:0;background:{background}"><pre style="margin:0;padding:16px;background:{background};\
color:{foreground};font:14px/1.35 'DejaVu Sans Mono',monospace">{code}</pre>
"""


def terminal_page(command: Sequence[str], columns: int) -> str:
    """Return a page that shows a command and what it prints on a terminal of so many columns."""
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {' '.join(command)}\n" + _on_a_terminal(command, columns)))
    return console.export_html(inline_styles=True, code_format=_TERMINAL)


def _on_a_terminal(command: Sequence[str], columns: int) -> str:
    """Run a command on a terminal and return what it prints, with its colours."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.environ.update(COLUMNS=str(columns), LINES="200", TERM="xterm-256color")
        os.execv(sys.executable, [sys.executable, "-m", *command])
    printed = bytearray()
    with suppress(OSError):  # how Linux says that the last writer has closed it
        while part := os.read(terminal, 65536):
            printed += part
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    text = printed.decode().replace("\r\n", "\n")
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {text}")
    return text


def main() -> int:
    """Keep all pictures; fails on one that is too large to be kept in a repository."""
    if not DOCUMENT.exists():
        print(f"{DOCUMENT.relative_to(ROOT)} is not there: make docs")
        return 1
    with tempfile.TemporaryDirectory() as scratch, started_browser() as browser:
        report = Path(scratch, "report.html")
        report.write_text(report_as_page(an_example_report()), encoding="utf-8")
        pictures = [(report, f"report-{scheme}", README_PICTURE, scheme) for scheme in SCHEMES]
        for page, name in ((report, "report"), (DOCUMENT, "docs")):
            pictures += [(page, f"{name}-narrow", NARROW, "light"), (page, f"{name}-wide", WIDE, "dark")]
        for columns, size in COLUMNS.items():
            page = Path(scratch, f"terminal-{columns}.html")
            page.write_text(terminal_page(COMMAND, columns), encoding="utf-8")
            pictures.append((page, f"terminal-{columns}", size, "light"))
        sizes = {}
        for page, name, size, scheme in pictures:
            file = PICTURES / f"{name}.png"
            sizes[name] = take_picture(browser, page, file, size, scheme)
            print(f"{file.relative_to(ROOT)}: {sizes[name] / 1000:.0f} kB")
    return 1 if max(sizes.values()) > LARGEST_PICTURE else 0


if __name__ == "__main__":
    sys.exit(main())
