"""`python -m kvmedic` and the installed `kvmedic` command."""

import errno
import os
import re
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from kvmedic.cli.app import app_for, typed_words
from kvmedic.model.redaction import without_controls

NOT_INSTALLED = 2
"""Exit code where a command needs what is not installed, as for one that is used wrongly."""
EXTRAS = {
    **dict.fromkeys(("aiohttp", "kubernetes", "prometheus_api_client"), "cluster"),
    "kopf": "operator",
}
"""The extra of the distribution that brings each package which saved pages and manifests do not need."""
UNWRITTEN = 5
"""Exit code where the answer could not be written."""
_NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EPIPE})


def main() -> None:
    """Run the command; ends the process with its exit code."""
    # pydantic would look through every installed package for plugins of its own; none is used.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # httpx loads a command line of its own where it can, with eighty modules and 4 MB (httpx 0.28.1).
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        _write_any_character(stream)
    sys.stdout, sys.stderr = guard_terminal(sys.stdout), guard_terminal(sys.stderr)
    try:
        try:
            app_for(typed_words())(prog_name=_find_command_name())
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        sys.stderr.write(
            f"{error.name} is not installed, and this needs it: pip install 'kvmedic[{extra}]'\n"
        )
        sys.exit(NOT_INSTALLED)
    except OSError as error:
        if error.errno not in _NOT_WRITTEN:
            raise
        _exit_without_output(error)


def _find_command_name() -> str:
    """Return how a person called the command: kubectl finds `kubectl-kvmedic` on the path."""
    return "kubectl kvmedic" if Path(sys.argv[0]).name.startswith("kubectl-") else "kvmedic"


def _write_any_character(stream: object) -> None:
    """Write what a stream's encoding does not have as its escape: a terminal may be ASCII."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


_OURS = re.compile(r"(\x1b\[[0-9;]{0,20}m)")
"""How we colour text ourselves."""


class Terminal(TextIOWrapper):
    """A terminal, which is shown no characters that move its cursor, name its window or turn text around."""

    def write(self, text: str) -> int:
        """Write a text as people see it, in our own colours."""
        parts = _OURS.split(text)
        super().write("".join(one if at % 2 else without_controls(one) for at, one in enumerate(parts)))
        return len(text)


def guard_terminal(stream: TextIO) -> TextIO:
    """Return a stream to which manifests and answers of a cluster may be written; a file gets them exact."""
    if not isinstance(stream, TextIOWrapper) or not stream.isatty():
        return stream
    encoding = stream.encoding
    stream.flush()
    return Terminal(stream.detach(), encoding=encoding, errors="backslashreplace", line_buffering=True)


def _exit_without_output(error: OSError) -> None:
    """End where standard output takes nothing more; Python would try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(OSError):
        sys.stderr.write(f"the answer could not be written, or not all of it: {error.strerror}\n")
    sys.exit(UNWRITTEN)


if __name__ == "__main__":
    main()
