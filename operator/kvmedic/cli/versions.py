"""What the command says of itself: `kvmedic version`, `completion` and `crd`."""

from __future__ import annotations

import json
import platform
import sys

from typer._completion_shared import get_completion_script

from kvmedic import __version__
from kvmedic.api.crd import KINDS
from kvmedic.api.resource import GROUP, VERSION
from kvmedic.cli.app import COMPLETE, Form

SCHEMA = "kvmedic.io/version/v1"


def print_version(output: Form) -> None:
    """Print which version this is."""
    facts = {
        "schema": SCHEMA,
        "version": __version__,
        "api": f"{GROUP}/{VERSION}",
        "python": platform.python_version(),
    }
    if output is Form.JSON:
        print(json.dumps(facts, indent=2))
    else:
        print(f"kvmedic {facts['version']}, API {facts['api']}, Python {facts['python']}")


FOR_KUBECTL = f"""\
#!/bin/sh
# kubectl runs this for what follows `kubectl kvmedic`: save it as kubectl_complete-kvmedic on the PATH.
COMP_WORDS="kvmedic $*" COMP_CWORD=$# {COMPLETE}=complete_bash kvmedic
echo :4
"""
"""What kubectl asks for the words of a plugin, and what its answer ends with: `:4`, no names of files (Cobra,
ShellCompDirectiveNoFileComp)."""


def print_completion(shell: str) -> None:
    """Print the script by which a shell asks this command for words.

    typer writes it; what it asks for then is answered in `kvmedic.__main__`.
    """
    if shell == "kubectl":
        sys.stdout.write(FOR_KUBECTL)
        return
    print(get_completion_script(prog_name="kvmedic", complete_var=COMPLETE, shell=shell))


def print_crds(which: str, output: str) -> None:
    """Print the CustomResourceDefinitions of this version, or their reference pages.

    Args:
        which: `all`, or the plural of one kind.
        output: `yaml` or `markdown`.
    """
    kinds = [kind for kind in KINDS if which in ("all", kind.plural)]
    if output == "yaml":
        sys.stdout.write("---\n".join(kind.crd_text() for kind in kinds))
    else:
        sys.stdout.write("\n".join(kind.reference_page() for kind in kinds))
