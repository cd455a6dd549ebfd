"""Entry points to a log, for the Spark source, the tables and the command line.

Names are imported when first accessed: a program that only appends (``embedded``) does not import
what reading needs, numpy above all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from raftlog.log.format.directory import MetaProperties as MetaProperties
    from raftlog.log.format.directory import QuorumState as QuorumState
    from raftlog.log.format.directory import parse_checkpoint_name as parse_checkpoint_name
    from raftlog.log.format.directory import parse_offset_name as parse_offset_name
    from raftlog.log.format.epoch_cache import EpochCache as EpochCache
    from raftlog.log.format.epoch_cache import EpochEntry as EpochEntry
    from raftlog.log.reading.aborted_transactions import AbortedTransactions as AbortedTransactions
    from raftlog.log.reading.files import LogTail as LogTail
    from raftlog.log.reading.latest_by_key import LatestByKey as LatestByKey
    from raftlog.log.reading.latest_by_key import LatestRecord as LatestRecord
    from raftlog.log.reading.log_reader import LogReader as LogReader
    from raftlog.log.reading.range_size import RangeSize as RangeSize
    from raftlog.log.reading.reads import EndBasis as EndBasis
    from raftlog.log.reading.reads import Isolation as Isolation
    from raftlog.log.reading.reads import LogKind as LogKind
    from raftlog.log.reading.reads import ReadEnd as ReadEnd
    from raftlog.log.reading.reads import ReadPlan as ReadPlan
    from raftlog.log.reading.reads import SourceKind as SourceKind
    from raftlog.log.reading.reads import Split as Split
    from raftlog.log.reading.snapshot import SnapshotReader as SnapshotReader
    from raftlog.log.reading.transactions import METADATA_PRODUCER_ID as METADATA_PRODUCER_ID
    from raftlog.log.reading.transactions import Outcome as Outcome
    from raftlog.log.reading.transactions import TransactionSpan as TransactionSpan

    from .location import open_path as open_path
    from .location import write_new_file as write_new_file

_HOMES: Final = {
    "raftlog.client.location": ("open_path", "write_new_file"),
    "raftlog.log.format.directory": (
        "MetaProperties",
        "QuorumState",
        "parse_checkpoint_name",
        "parse_offset_name",
    ),
    "raftlog.log.format.epoch_cache": ("EpochCache", "EpochEntry"),
    "raftlog.log.reading.aborted_transactions": ("AbortedTransactions",),
    "raftlog.log.reading.files": ("LogTail",),
    "raftlog.log.reading.latest_by_key": ("LatestByKey", "LatestRecord"),
    "raftlog.log.reading.log_reader": ("LogReader",),
    "raftlog.log.reading.range_size": ("RangeSize",),
    "raftlog.log.reading.reads": (
        "EndBasis",
        "Isolation",
        "LogKind",
        "ReadEnd",
        "ReadPlan",
        "SourceKind",
        "Split",
    ),
    "raftlog.log.reading.snapshot": ("SnapshotReader",),
    "raftlog.log.reading.transactions": ("METADATA_PRODUCER_ID", "Outcome", "TransactionSpan"),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(module), name)
    return found
