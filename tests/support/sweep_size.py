"""Size of a sweep: a part in the quick tests or in ``make test``, everything in larger ones."""

from __future__ import annotations

from collections.abc import Container, Iterable
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


def slow_except(quick: Container[object], everything: Iterable[object]) -> list[object]:
    """Return all of ``everything`` as parameters; those not in ``quick`` are marked slow.

    A tuple has the values of several arguments.
    """
    return _marked_except(quick, everything, pytest.mark.slow)


def nightly_except(usual: Container[object], everything: Iterable[object]) -> list[object]:
    """Return all of ``everything`` as parameters; those not in ``usual`` are marked nightly.

    A tuple has the values of several arguments.
    """
    return _marked_except(usual, everything, pytest.mark.nightly)


def _marked_except(
    usual: Container[object], everything: Iterable[object], mark: pytest.MarkDecorator
) -> list[object]:
    return [
        one
        if one in usual
        else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=mark)
        for one in everything
    ]
