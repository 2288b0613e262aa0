from __future__ import annotations

from pathlib import Path

import pytest

from kvmedic.manifests.errors import ErrorReason

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "flags.md").read_text("utf-8")


@pytest.mark.parametrize("reason", ErrorReason)
def test_every_reason_is_explained_on_the_reference_page(reason: ErrorReason) -> None:
    assert f"`{reason}`" in PAGE
