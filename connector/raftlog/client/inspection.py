"""The door for tools that look into a log's own files: their parts, with nothing repaired.

Reading a log goes through ``open_path``. This is for who wants to know what is wrong with one: it
goes on behind damage, where a reader stops.
"""

from __future__ import annotations

from raftlog.log.chunks import ColumnDecoder, read_chunks
from raftlog.log.directory_log import DirectoryLog
from raftlog.log.divergence import Divergence, first_divergence
from raftlog.log.epoch_cache import parse_epoch_checkpoint
from raftlog.log.files import LogFiles, read_batch_at
from raftlog.log.names import (
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    META_PROPERTIES_NAME,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    QUORUM_STATE_NAME,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from raftlog.log.offset_index import OFFSET_ENTRY_BYTES, parse_offset_index
from raftlog.log.producer_snapshot import parse_producer_snapshot
from raftlog.log.published import PUBLISHED_NAME
from raftlog.log.quorum_copies import QuorumCopies
from raftlog.log.resync import find_valid_batch
from raftlog.log.small_files import (
    parse_meta_properties,
    parse_partition_metadata,
    parse_quorum_state,
)
from raftlog.log.text_files import read_small_file
from raftlog.log.time_index import TIME_ENTRY_BYTES, parse_time_index
from raftlog.log.txn_index import AbortedTransaction, parse_txn_index
from raftlog.log.writing.checkpoint_files import read_checkpoint_files
from raftlog.log.writing.recovered import Anomaly
from raftlog.storage.protocol import ReadableFile, WritableStorage

__all__ = [
    "Anomaly",
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
    "DirectoryLog",
    "QuorumCopies",
    "embedded_checkpoints",
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


def embedded_checkpoints(files: LogFiles) -> tuple[int, tuple[Anomaly, ...]]:
    """What the small files of a log of ours promise, and which of them are damaged.

    The promise is an offset (exclusive): everything below was synced once. A writer may be at work:
    look at this before the segments. Raises ``LogAccessError``.
    """
    storage = files.storage
    if not files.listing.is_embedded or not isinstance(storage, WritableStorage):
        return 0, ()
    checkpoints = read_checkpoint_files(storage, files.directory)
    published_path = storage.join(files.directory, PUBLISHED_NAME)  # perhaps read half written
    return checkpoints.durable_offset, tuple(
        one for one in checkpoints.anomalies if one.path != published_path
    )
