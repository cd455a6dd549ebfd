"""The doors to a log: what Spark, the tables and the command line import, and nothing below it."""

from raftlog.log.cursor import Tail
from raftlog.log.epoch_cache import EpochCache, EpochEntry
from raftlog.log.outcomes import Outcomes
from raftlog.log.reader import LogReader
from raftlog.log.reads import (
    EndBasis,
    Isolation,
    LogKind,
    OffsetSlice,
    ReadEnd,
    ReadPlan,
    SourceKind,
)
from raftlog.log.small_files import MetaProperties, QuorumState
from raftlog.log.snapshot import SnapshotReader
from raftlog.log.transactions import METADATA_PRODUCER_ID, Outcome, TransactionSpan

from .directory import open_path

__all__ = [
    "METADATA_PRODUCER_ID",
    "EndBasis",
    "EpochCache",
    "EpochEntry",
    "Isolation",
    "LogKind",
    "LogReader",
    "MetaProperties",
    "OffsetSlice",
    "Outcome",
    "Outcomes",
    "QuorumState",
    "ReadEnd",
    "ReadPlan",
    "SnapshotReader",
    "SourceKind",
    "Tail",
    "TransactionSpan",
    "open_path",
]
