"""Readers and parsers of single log files, for diagnostic tools. Nothing is repaired.

``open_path`` reads a log and stops at damage; these functions continue after it.
"""

from __future__ import annotations

from raftlog.log.format.directory import (
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    META_PROPERTIES_NAME,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    PUBLISHED_NAME,
    QUORUM_STATE_NAME,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_meta_properties,
    parse_partition_metadata,
    parse_quorum_state,
    read_small_file,
)
from raftlog.log.format.epoch_cache import parse_epoch_checkpoint
from raftlog.log.format.segment_files import (
    AbortedTransaction,
    parse_producer_snapshot,
    parse_txn_index,
)
from raftlog.log.reading.chunks import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    ColumnDecoder,
    find_valid_batch,
    parse_offset_index,
    parse_time_index,
    read_chunks,
)
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.files import LogFiles
from raftlog.log.reading.foreign_batches import find_foreign_batches
from raftlog.log.reading.quorum_copies import Divergence, QuorumCopies, first_divergence
from raftlog.log.recovery.recover import ScanStop, read_checkpoint_files
from raftlog.log.segment import read_batch_at
from raftlog.storage.protocol import ReadableFile, WritableStorage

__all__ = [
    "EPOCH_CHECKPOINT_NAME",
    "INDEX_SUFFIX",
    "META_PROPERTIES_NAME",
    "OFFSET_ENTRY_BYTES",
    "PARTITION_METADATA_NAME",
    "PRODUCER_SNAPSHOT_SUFFIX",
    "QUORUM_STATE_NAME",
    "OUT_OF_ELECTION_NAME",
    "TIME_ENTRY_BYTES",
    "TIME_INDEX_SUFFIX",
    "TXN_INDEX_SUFFIX",
    "AbortedTransaction",
    "Divergence",
    "LogFiles",
    "ColumnDecoder",
    "ReadableFile",
    "ScanStop",
    "DirectoryLog",
    "QuorumCopies",
    "embedded_checkpoints",
    "find_foreign_batches",
    "find_valid_batch",
    "first_divergence",
    "parse_epoch_checkpoint",
    "parse_meta_properties",
    "parse_offset_index",
    "parse_partition_metadata",
    "parse_producer_snapshot",
    "parse_quorum_state",
    "parse_time_index",
    "parse_txn_index",
    "read_chunks",
    "read_batch_at",
    "read_small_file",
]


def embedded_checkpoints(files: LogFiles) -> tuple[int, tuple[ScanStop, ...]]:
    """Return the durable offset of an embedded log, and its damaged checkpoint files.

    Everything below the durable offset was synced; it is 0 for any other log. As a writer may be
    running, call this before reading the segments. Raises ``LogAccessError``.
    """
    storage = files.storage
    if not files.listing.is_embedded or not isinstance(storage, WritableStorage):
        return 0, ()
    checkpoints = read_checkpoint_files(storage, files.directory)
    # Left out, since it may be read while it is written.
    published_path = storage.join(files.directory, PUBLISHED_NAME)
    return checkpoints.durable_offset, tuple(
        one for one in checkpoints.anomalies if one.path != published_path
    )
