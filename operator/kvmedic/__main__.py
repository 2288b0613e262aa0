"""`python -m kvmedic` and the installed `kvmedic` command."""

import errno
import os
import sys
from contextlib import suppress
from io import TextIOWrapper

from kvmedic.cli.app import app_for

UNWRITTEN = 5
"""Exit code where the answer could not be written."""
_NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EPIPE})


def main() -> None:
    """Run the command; ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        _write_any_character(stream)
    try:
        try:
            app_for(sys.argv[1:])(prog_name="kvmedic")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NOT_WRITTEN:
            raise
        _end_unwritten(error)


def _write_any_character(stream: object) -> None:
    """Write what a stream's encoding does not have as its escape: a terminal may be ASCII."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _end_unwritten(error: OSError) -> None:
    """End where standard output takes nothing more; Python would try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(OSError):
        sys.stderr.write(f"the answer could not be written, or not all of it: {error.strerror}\n")
    sys.exit(UNWRITTEN)


if __name__ == "__main__":
    main()
