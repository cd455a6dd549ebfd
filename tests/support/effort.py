"""How much of a sweep runs: a chosen part in the quick tests, all of it in the slow ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

COPIES = tuple(f"three-nodes-4.3.1/node-{node}" for node in (1, 100, 101))
"""Copies of one metadata log: all that they hold node 102's holds too."""


def is_copy(log: Path) -> bool:
    """Whether a file is of a metadata log that another one holds as well."""
    return log.parent.name == "__cluster_metadata-0" and str(log.parent.parent).endswith(COPIES)


WHOLE = pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["chosen", "whole"]
)
"""A test that takes ``whole`` runs twice: the second time without leaving anything out."""


def slow_but(quick: Sequence[object], everything: Sequence[object]) -> list[object]:
    """All of ``everything`` as parameters, of which those in ``quick`` are not slow."""
    return [
        one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in everything
    ]
