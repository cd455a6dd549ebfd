"""The Spark data source ``raftlog``; ``register``; ``append``, ``commit_loop``; ``lag``.

Spark finds the data source by the name of this package, without registration: it imports every
``pyspark_*`` package when it looks up a name. A package that fails to import hides all others, so
this module imports nothing that is slow or can fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .source import RaftlogDataSource

if TYPE_CHECKING:
    from .errors import conflict, typed_error
    from .optimistic_commit import NewRecords, append, commit_loop
    from .stream_lag import LagListener, StreamLag, lag
    from .table_functions import register

DefaultSource = RaftlogDataSource

__all__ = [
    "DefaultSource",
    "LagListener",
    "NewRecords",
    "RaftlogDataSource",
    "StreamLag",
    "append",
    "commit_loop",
    "conflict",
    "lag",
    "register",
    "typed_error",
]

_MODULES = {
    "LagListener": "stream_lag",
    "NewRecords": "optimistic_commit",
    "append": "optimistic_commit",
    "commit_loop": "optimistic_commit",
    "StreamLag": "stream_lag",
    "conflict": "errors",
    "lag": "stream_lag",
    "register": "table_functions",
    "typed_error": "errors",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # so that help() and completion list the names


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f".{module}", __name__), name)
    return found
