"""KRaft replicated logs: record format, log files, quorum nodes and clients.

``raftlog.open(path)`` opens an embedded log in a directory, for appends and reads.
``raftlog.table(path)`` returns the latest value of each key of a log.
``raftlog.connect("host:port,host:port")`` connects to the log of a quorum.
``raftlog.follow("host:port")`` reads the metadata log of a Kafka cluster from its controllers.

Submodules are imported lazily. This package does not depend on Spark or Delta.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftlog.log.reading.transactions import CommitName, ValueKind

    from .append import AppendResult
    from .client.embedded.handle import EmbeddedLog
    from .client.embedded.handle import open_embedded as open  # noqa: A004 - as `raftlog.open`
    from .client.embedded.repair import repair_log as repair
    from .client.encryption import Encryption
    from .client.key_file import KeyFile
    from .client.remote.handle import ConnectedLog, connect, follow
    from .client.table import Table, TableState
    from .client.table import open_table as table
    from .errors import KeyChangedError, UnexpectedEndOffsetError
    from .log.writing.properties import CleanupPolicy, LogConfig

__version__ = "0.1.0"
__all__ = [
    "AppendResult",
    "CleanupPolicy",
    "CommitName",
    "ConnectedLog",
    "EmbeddedLog",
    "Encryption",
    "KeyChangedError",
    "KeyFile",
    "LogConfig",
    "Table",
    "TableState",
    "UnexpectedEndOffsetError",
    "ValueKind",
    "__version__",
    "connect",
    "follow",
    "open",
    "repair",
    "table",
]

_EXPORTS = {
    "AppendResult": ("raftlog.append", "AppendResult"),
    "CleanupPolicy": ("raftlog.log.writing.properties", "CleanupPolicy"),
    "CommitName": ("raftlog.log.reading.transactions", "CommitName"),
    "ConnectedLog": ("raftlog.client.remote.handle", "ConnectedLog"),
    "EmbeddedLog": ("raftlog.client.embedded.handle", "EmbeddedLog"),
    "Encryption": ("raftlog.client.encryption", "Encryption"),
    "KeyChangedError": ("raftlog.errors", "KeyChangedError"),
    "KeyFile": ("raftlog.client.key_file", "KeyFile"),
    "LogConfig": ("raftlog.log.writing.properties", "LogConfig"),
    "Table": ("raftlog.client.table", "Table"),
    "TableState": ("raftlog.client.table", "TableState"),
    "UnexpectedEndOffsetError": ("raftlog.errors", "UnexpectedEndOffsetError"),
    "ValueKind": ("raftlog.log.reading.transactions", "ValueKind"),
    "connect": ("raftlog.client.remote.handle", "connect"),
    "follow": ("raftlog.client.remote.handle", "follow"),
    "open": ("raftlog.client.embedded.handle", "open_embedded"),
    "repair": ("raftlog.client.embedded.repair", "repair_log"),
    "table": ("raftlog.client.table", "open_table"),
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # so that help() and completion have the names


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _EXPORTS[name]
    globals()[name] = exported = getattr(import_module(module), attribute)
    return exported
