"""`kvmedic crd`: the CustomResourceDefinitions of this version, or their reference pages."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from kvmedic.api.approval import approval_page, approval_text
from kvmedic.api.schema import crd_text, reference_page


class Form(StrEnum):
    """What is printed."""

    YAML = "yaml"
    MARKDOWN = "markdown"


class Which(StrEnum):
    """Of which kind."""

    ALL = "all"
    REMEDIATIONS = "kvremediations"
    APPROVALS = "kvapprovals"


MADE = {
    Which.REMEDIATIONS: {Form.YAML: crd_text, Form.MARKDOWN: reference_page},
    Which.APPROVALS: {Form.YAML: approval_text, Form.MARKDOWN: approval_page},
}
BETWEEN = {Form.YAML: "---\n", Form.MARKDOWN: "\n"}


def command(
    which: Annotated[Which, typer.Argument(help="The kind; all: both, one after the other.")] = Which.ALL,
    output: Annotated[
        Form,
        typer.Option(
            "--output", "-o", help="yaml: the manifest, for kubectl apply. markdown: the reference page."
        ),
    ] = Form.YAML,
) -> None:
    """Print the CustomResourceDefinitions that this version works with."""
    kinds = MADE if which is Which.ALL else (which,)
    sys.stdout.write(BETWEEN[output].join(MADE[kind][output]() for kind in kinds))
