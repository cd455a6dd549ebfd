"""Environment of the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_HOME: Final = Path(__file__).parents[2]
_PRODUCTION: Final = _HOME / "tests/support/production"
"""Its ``hypothesis`` raises what ``import`` raises where Hypothesis is not installed."""


def hide_hypothesis() -> None:
    """Start processes as in production, where Hypothesis is not installed.

    kio imports it where it is, which takes 0.3 of the 1.0 s of processor time of a start.
    """
    os.environ["PYTHONPATH"] = _python_path(_PRODUCTION)


def python_path_with_sources() -> str:
    """Return a ``PYTHONPATH`` with the code under test, and what it has already.

    Spark's workers import the code from there, and find the source by its module's name.
    """
    roots = ("connector", "state", "python_datasource", ".")
    return _python_path(*(_HOME / root for root in roots))


def _python_path(*first: Path) -> str:
    before = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([*map(str, first), *before]))
