"""`kvmedic crd`: the CustomResourceDefinition of this version, or its reference page."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from kvmedic.api.reference import reference_page
from kvmedic.api.schema import crd_text


class Form(StrEnum):
    """What is printed."""

    YAML = "yaml"
    MARKDOWN = "markdown"


def command(
    output: Annotated[
        Form,
        typer.Option(
            "--output", "-o", help="yaml: the manifest, for kubectl apply. markdown: the reference page."
        ),
    ] = Form.YAML,
) -> None:
    """Print the CustomResourceDefinition that this version works with."""
    match output:
        case Form.YAML:
            sys.stdout.write(crd_text())
        case Form.MARKDOWN:
            sys.stdout.write(reference_page())
