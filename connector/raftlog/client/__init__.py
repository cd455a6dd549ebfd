"""Entry points to a log, for the Spark source, the tables and the command line.

Names are imported when first accessed: a program that only appends (``embedded``) does not import
what reading needs, numpy above all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from raftlog.log.format.directory import MetaProperties, QuorumState
    from raftlog.log.format.epoch_cache import EpochCache, EpochEntry
    from raftlog.log.reading.aborted_transactions import AbortedTransactions
    from raftlog.log.reading.files import LogTail
    from raftlog.log.reading.log_reader import LogReader
    from raftlog.log.reading.reads import (
        EndBasis,
        Isolation,
        LogKind,
        ReadEnd,
        ReadPlan,
        SourceKind,
        Split,
    )
    from raftlog.log.reading.snapshot import SnapshotReader
    from raftlog.log.reading.transactions import METADATA_PRODUCER_ID, Outcome, TransactionSpan

    from .location import open_path, write_new_file

__all__ = [
    "METADATA_PRODUCER_ID",
    "EndBasis",
    "EpochCache",
    "EpochEntry",
    "Isolation",
    "LogKind",
    "LogReader",
    "MetaProperties",
    "Split",
    "Outcome",
    "AbortedTransactions",
    "QuorumState",
    "ReadEnd",
    "ReadPlan",
    "SnapshotReader",
    "SourceKind",
    "LogTail",
    "TransactionSpan",
    "open_path",
    "write_new_file",
]

_HOMES: Final = {
    "raftlog.log.reading.chunks": ("LogTail",),
    "raftlog.log.format.epoch_cache": ("EpochCache", "EpochEntry"),
    "raftlog.log.reading.aborted_transactions": ("AbortedTransactions",),
    "raftlog.log.reading.log_reader": ("LogReader",),
    "raftlog.log.reading.reads": (
        "EndBasis",
        "Isolation",
        "LogKind",
        "Split",
        "ReadEnd",
        "ReadPlan",
        "SourceKind",
    ),
    "raftlog.log.format.directory": ("MetaProperties", "QuorumState"),
    "raftlog.log.reading.snapshot": ("SnapshotReader",),
    "raftlog.log.reading.transactions": ("METADATA_PRODUCER_ID", "Outcome", "TransactionSpan"),
    "raftlog.client.location": ("open_path", "write_new_file"),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(module), name)
    return found
