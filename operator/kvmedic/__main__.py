"""`python -m kvmedic` and the installed `kvmedic` command."""

import sys

from kvmedic.cli.app import app_for


def main() -> None:
    """Run the command; ends the process with its exit code."""
    app_for(sys.argv[1:])(prog_name="kvmedic")


if __name__ == "__main__":
    main()
