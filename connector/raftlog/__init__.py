"""raftlog: a KRaft replicated log as records, columns and files. Knows neither Spark nor tables.

``raftlog.open(path)`` opens a log of one's own, to append to and to read. What it needs is imported
when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.embedded import EmbeddedLog
    from .client.embedded import open_embedded as open  # noqa: A004 - as `raftlog.open`
    from .client.repairing import repair_log as repair
    from .client.requests import AppendResult
    from .log.writing.batch_facts import CommitName, ValueKind
    from .log.writing.properties import LogConfig

__version__ = "0.1.0"
__all__ = [
    "AppendResult",
    "CommitName",
    "EmbeddedLog",
    "LogConfig",
    "ValueKind",
    "__version__",
    "open",
    "repair",
]

_HOMES = {
    "AppendResult": ("raftlog.client.requests", "AppendResult"),
    "CommitName": ("raftlog.log.writing.batch_facts", "CommitName"),
    "EmbeddedLog": ("raftlog.client.embedded", "EmbeddedLog"),
    "LogConfig": ("raftlog.log.writing.properties", "LogConfig"),
    "ValueKind": ("raftlog.log.writing.batch_facts", "ValueKind"),
    "open": ("raftlog.client.embedded", "open_embedded"),
    "repair": ("raftlog.client.repairing", "repair_log"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, there = _HOMES[name]
    globals()[name] = found = getattr(import_module(module), there)
    return found
