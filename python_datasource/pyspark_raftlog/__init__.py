"""The Spark data source ``raftlog``, and what ``save()`` cannot do: ``append`` and ``commit_loop``.

Spark finds the source by this module's name, unregistered.

Rules of this file: it stays light and cannot fail, since Spark imports every ``pyspark_*`` module
when it looks for a name, and one that fails hides all others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .source import RaftlogDataSource

if TYPE_CHECKING:
    from .frames import append
    from .optimistic_commit import NewRecords, commit_loop
    from .typed_errors import conflict, typed_error

DefaultSource = RaftlogDataSource

__all__ = [
    "DefaultSource",
    "NewRecords",
    "RaftlogDataSource",
    "append",
    "commit_loop",
    "conflict",
    "typed_error",
]

_HOMES = {
    "NewRecords": "optimistic_commit",
    "append": "frames",
    "commit_loop": "optimistic_commit",
    "conflict": "typed_errors",
    "typed_error": "typed_errors",
}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f".{module}", __name__), name)
    return found
