"""Readers and parsers of single log files, for diagnostic tools. Nothing is repaired.

``open_path`` reads a log and stops at damage; these functions continue after it.
"""

from __future__ import annotations

import contextlib

from raftlog.errors import OptionError
from raftlog.log.format.directory import EPOCH_CHECKPOINT_NAME as EPOCH_CHECKPOINT_NAME
from raftlog.log.format.directory import INDEX_SUFFIX as INDEX_SUFFIX
from raftlog.log.format.directory import META_PROPERTIES_NAME as META_PROPERTIES_NAME
from raftlog.log.format.directory import OUT_OF_ELECTION_NAME as OUT_OF_ELECTION_NAME
from raftlog.log.format.directory import PARTITION_METADATA_NAME as PARTITION_METADATA_NAME
from raftlog.log.format.directory import PRODUCER_SNAPSHOT_SUFFIX as PRODUCER_SNAPSHOT_SUFFIX
from raftlog.log.format.directory import PUBLISHED_NAME
from raftlog.log.format.directory import QUORUM_STATE_NAME as QUORUM_STATE_NAME
from raftlog.log.format.directory import TIME_INDEX_SUFFIX as TIME_INDEX_SUFFIX
from raftlog.log.format.directory import TXN_INDEX_SUFFIX as TXN_INDEX_SUFFIX
from raftlog.log.format.directory import parse_epoch_checkpoint as parse_epoch_checkpoint
from raftlog.log.format.directory import parse_meta_properties as parse_meta_properties
from raftlog.log.format.directory import parse_partition_metadata as parse_partition_metadata
from raftlog.log.format.directory import parse_partition_name as parse_partition_name
from raftlog.log.format.directory import parse_producer_snapshot as parse_producer_snapshot
from raftlog.log.format.directory import parse_quorum_state as parse_quorum_state
from raftlog.log.format.directory import read_small_file as read_small_file
from raftlog.log.reading.chunks import OFFSET_ENTRY_BYTES as OFFSET_ENTRY_BYTES
from raftlog.log.reading.chunks import TIME_ENTRY_BYTES as TIME_ENTRY_BYTES
from raftlog.log.reading.chunks import ColumnDecoder as ColumnDecoder
from raftlog.log.reading.chunks import find_valid_batch as find_valid_batch
from raftlog.log.reading.chunks import parse_offset_index as parse_offset_index
from raftlog.log.reading.chunks import parse_time_index as parse_time_index
from raftlog.log.reading.chunks import read_chunks as read_chunks
from raftlog.log.reading.directory_log import DirectoryLog as DirectoryLog
from raftlog.log.reading.files import LogFiles as LogFiles
from raftlog.log.reading.foreign_batches import find_foreign_batches as find_foreign_batches
from raftlog.log.reading.quorum_copies import Divergence as Divergence
from raftlog.log.reading.quorum_copies import QuorumCopies as QuorumCopies
from raftlog.log.reading.quorum_copies import first_divergence as first_divergence
from raftlog.log.recovery.recover import ScanStop as ScanStop
from raftlog.log.recovery.recover import read_checkpoint_files
from raftlog.log.segment import AbortedTransaction as AbortedTransaction
from raftlog.log.segment import parse_txn_index as parse_txn_index
from raftlog.log.segment import read_batch_at as read_batch_at
from raftlog.storage.file_rights import others_may_read_in
from raftlog.storage.local import LocalStorage
from raftlog.storage.protocol import ReadableFile as ReadableFile
from raftlog.storage.protocol import WritableStorage

from .log_handle import is_object_uri


def list_names(directory: str) -> list[str]:
    """Return the names in a directory, sorted. Raises a ``LogError`` if it cannot be listed."""
    return LocalStorage().list_names(local_path(directory))


def expand(pattern: str) -> list[str]:
    """Return the paths that match a shell pattern, sorted.

    Raises ``LogAccessError`` if there are none as the directory before it cannot be listed.
    """
    return LocalStorage().expand(local_path(pattern))


def local_path(path: str) -> str:
    """Return a path of several logs. Raises ``OptionError`` for the URI of an object store."""
    if is_object_uri(path):
        reason = "partitions in an object store are opened one at a time: give the URI of one"
        raise OptionError(option="path", reason=reason)
    return path


def files_of_others(files: LogFiles) -> list[str]:
    """Return the segments and snapshots that users beside the owner and its group may read."""
    paths = [files.segment_path(offset) for offset in files.listing.segments]
    paths += [files.checkpoint_path(one) for one in files.listing.snapshots]
    found = []
    for path in paths:
        with contextlib.suppress(OSError):  # deleted by its node
            if others_may_read_in(*files.storage.split(path)):
                found.append(path)
    return found


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
