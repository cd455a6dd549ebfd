"""The reference of the documentation is what the sources are."""

from __future__ import annotations

import pytest
from tests.packaging.reference import FOLDER, pages

pytestmark = pytest.mark.style


def test_the_reference_is_generated_from_these_sources() -> None:
    wanted = pages()
    assert {path.name for path in FOLDER.glob("*.md")} == wanted.keys()
    stale = [name for name, text in wanted.items() if (FOLDER / name).read_text() != text]
    assert not stale, "run python -m tests.packaging.reference"
