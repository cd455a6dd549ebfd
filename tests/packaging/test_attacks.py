"""The table of attacks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.style

HOME = Path(__file__).parents[2]
NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/attacks.md"])
def test_every_named_test_exists(page: str) -> None:
    named = NAME.findall((HOME / page).read_text())
    assert len(named) > 20
    assert not [
        f"{path}::{name}"
        for path, name in named
        if not (HOME / path).is_file() or (name and f"def {name}(" not in (HOME / path).read_text())
    ]
