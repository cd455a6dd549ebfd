"""raftlog: a KRaft replicated log as records, columns and files. Knows neither Spark nor tables.

``raftlog.open(path)`` opens a log of one's own, to append to and to read;
``raftlog.connect("host:port,host:port")`` does so with the log of a quorum, and
``raftlog.follow("host:port")`` reads the metadata of a Kafka cluster from its live controllers.
What they need is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.embedded import EmbeddedLog
    from .client.embedded import open_embedded as open  # noqa: A004 - as `raftlog.open`
    from .client.remote.follow import follow
    from .client.remote.handle import ConnectedLog, connect
    from .client.repair import repair_log as repair
    from .client.requests import AppendResult
    from .log.writing.batch_metadata import CommitName, ValueKind
    from .log.writing.properties import LogConfig

__version__ = "0.1.0"
__all__ = [
    "AppendResult",
    "CommitName",
    "ConnectedLog",
    "EmbeddedLog",
    "LogConfig",
    "ValueKind",
    "__version__",
    "connect",
    "follow",
    "open",
    "repair",
]

_HOMES = {
    "AppendResult": ("raftlog.client.requests", "AppendResult"),
    "CommitName": ("raftlog.log.writing.batch_metadata", "CommitName"),
    "ConnectedLog": ("raftlog.client.remote.handle", "ConnectedLog"),
    "EmbeddedLog": ("raftlog.client.embedded", "EmbeddedLog"),
    "LogConfig": ("raftlog.log.writing.properties", "LogConfig"),
    "ValueKind": ("raftlog.log.writing.batch_metadata", "ValueKind"),
    "connect": ("raftlog.client.remote.handle", "connect"),
    "follow": ("raftlog.client.remote.follow", "follow"),
    "open": ("raftlog.client.embedded", "open_embedded"),
    "repair": ("raftlog.client.repair", "repair_log"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, there = _HOMES[name]
    globals()[name] = found = getattr(import_module(module), there)
    return found
