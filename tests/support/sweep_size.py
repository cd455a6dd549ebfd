"""Size of a sweep: a selected part in the quick tests, everything in the slow ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulated_disk.crash_points import Recording

COPIES = tuple(f"three-nodes-4.3.1/node-{node}" for node in (1, 100, 101))
"""Copies of one metadata log, all of whose records node 102's log has too."""


def is_copy(log: Path) -> bool:
    """Return whether a file is of a metadata log that another log contains."""
    return log.parent.name == "__cluster_metadata-0" and str(log.parent.parent).endswith(COPIES)


WHOLE = pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["chosen", "whole"]
)
"""Parameter ``whole``: a test runs twice, the second time (slow) with nothing left out."""


CRASHES = pytest.mark.parametrize(
    "states_of",
    [Recording.states_in_turn, pytest.param(Recording.states, marks=pytest.mark.nightly)],
    ids=["in turn", "all"],
)
"""Parameter ``states_of``: crashes after every operation, of two kinds in turn or (nightly) all."""


def slow_except(quick: Sequence[object], everything: Sequence[object]) -> list[object]:
    """Return all of ``everything`` as parameters; those not in ``quick`` are marked slow."""
    return [
        one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in everything
    ]
