"""The checkpoint and metadata files of a log's directory: names, reads and crash-safe writes.

Text files, which have no checksum of their own, are written with ``replace_checked``, the others
with ``replace_file``. Only ``published`` is written in place and never synced: it counts within one
boot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from raftlog.errors import LogNotFoundError
from raftlog.log.epoch_cache import EpochCache, encode_epoch_checkpoint
from raftlog.log.names import (
    EPOCH_CHECKPOINT_NAME,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
    Listing,
    offset_name,
    parse_partition_name,
    read_listing,
)
from raftlog.log.offset_checkpoint import (
    LOG_START_CHECKPOINT_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    encode_offset_checkpoint,
)
from raftlog.log.published import PUBLISHED_NAME, Published, encode_published, parse_published
from raftlog.log.small_files import (
    PartitionMetadata,
    QuorumState,
    encode_partition_metadata,
    encode_quorum_state,
    parse_quorum_state,
)
from raftlog.log.text_files import read_small_file
from raftlog.storage.protocol import WritableFile, WritableStorage
from raftlog.types import TopicPartition

from .atomic_files import read_checked, replace_checked, replace_file
from .clean_shutdown import CLEAN_SHUTDOWN_NAME, CleanShutdown, encode_clean_shutdown
from .producer_state_manager import ProducerStateManager
from .properties import LogProperties, encode_log_properties, parse_log_properties

UNNAMED_PARTITION: Final = TopicPartition("raftlog", 0)
"""The partition of a log whose directory is not named ``<topic>-<partition>``."""
_PUBLISHED_BYTES_MAX: Final = 512


class LogDirectory:
    """A partition's directory, open for writing. Not shared between threads."""

    def __init__(self, storage: WritableStorage, path: str) -> None:
        self.storage = storage
        self.path = path
        name = storage.split(path)[1]
        self.partition = parse_partition_name(name) or UNNAMED_PARTITION
        self.boot_id = storage.boot_id()
        self.published_name = PUBLISHED_NAME
        self._published_file: WritableFile | None = None
        self._published: bytes | None = None
        self._may_be_clean = True

    def file(self, name: str) -> str:
        """Return the path of a file of this directory."""
        return self.storage.join(self.path, name)

    def listing(self) -> Listing:
        """List the directory."""
        return read_listing(self.storage.list_names(self.path))

    def sync(self) -> None:
        """Sync the directory: created, renamed and deleted names are durable on return."""
        self.storage.sync_directory(self.path)

    def close(self) -> None:
        """Close the ``published`` file."""
        if self._published_file is not None:
            self._published_file.close()
            self._published_file = None

    # --- identity ---------------------------------------------------------------------------------

    def read_properties(self) -> LogProperties | None:
        """Read ``raftlog.properties``; None if missing: not a raftlog log.

        Raises ``CorruptFileError``.
        """
        path = self.file(RAFTLOG_PROPERTIES_NAME)
        data = read_checked(self.storage, path)
        return None if data is None else parse_log_properties(data, path)

    def write_identity(self, properties: LogProperties, epochs: EpochCache) -> None:
        """Create ``raftlog.properties``, ``partition.metadata`` and ``leader-epoch-checkpoint``."""
        metadata = PartitionMetadata(version=0, topic_id=properties.topic_id)
        files = {
            RAFTLOG_PROPERTIES_NAME: encode_log_properties(properties),
            PARTITION_METADATA_NAME: encode_partition_metadata(metadata),
            EPOCH_CHECKPOINT_NAME: encode_epoch_checkpoint(epochs),
        }
        replace_checked(self.storage, self.path, files)

    # --- checkpoints ------------------------------------------------------------------------------

    def write_epochs(self, epochs: EpochCache) -> None:
        """Replace ``leader-epoch-checkpoint``. Must be durable before an epoch's first batch."""
        self._replace(EPOCH_CHECKPOINT_NAME, encode_epoch_checkpoint(epochs))

    def write_log_start(self, offset: int) -> None:
        """Replace the log start checkpoint. Must be durable before anything below it is deleted."""
        self._replace(LOG_START_CHECKPOINT_NAME, encode_offset_checkpoint(self.partition, offset))

    def write_recovery_point(self, offset: int) -> None:
        """Replace the recovery point. Everything below ``offset`` must be synced."""
        self._replace(
            RECOVERY_POINT_CHECKPOINT_NAME, encode_offset_checkpoint(self.partition, offset)
        )

    def read_quorum_state(self) -> QuorumState | None:
        """Read ``quorum-state``; None before the first election.

        Raises ``CorruptFileError``: then the replica's last vote is unknown.
        """
        path = self.file(QUORUM_STATE_NAME)
        data = read_checked(self.storage, path)
        return None if data is None else parse_quorum_state(data, path)

    def write_quorum_state(self, state: QuorumState) -> None:
        """Replace ``quorum-state``. Must be durable before a vote or an epoch is sent."""
        self._replace(QUORUM_STATE_NAME, encode_quorum_state(state))

    def is_out_of_election(self) -> bool:
        """Return whether this replica lost acknowledged records and has not caught up since."""
        return self.has(OUT_OF_ELECTION_NAME)

    def read_out_of_election_reason(self) -> str | None:
        """Return why this replica does not vote; None if it does."""
        data = read_small_file(self.storage, self.file(OUT_OF_ELECTION_NAME))
        return None if data is None else data.decode("utf-8", errors="replace").strip()

    def leave_election(self, reason: str) -> None:
        """Store that this replica must not vote. Must be durable before anything is truncated."""
        replace_file(self.storage, self.file(OUT_OF_ELECTION_NAME), reason.encode())

    def rejoin_election(self) -> None:
        """Let this replica vote again, because it has caught up. Durable on return."""
        if self.unlink([OUT_OF_ELECTION_NAME]):
            self.sync()

    def write_producer_snapshot(self, producer_state: ProducerStateManager) -> None:
        """Write ``<end offset>.snapshot``."""
        name = offset_name(producer_state.end_offset, PRODUCER_SNAPSHOT_SUFFIX)
        replace_file(self.storage, self.file(name), producer_state.encode_snapshot())

    def write_clean_shutdown(self, marker: CleanShutdown) -> None:
        """Write ``.kafka_cleanshutdown``."""
        replace_file(self.storage, self.file(CLEAN_SHUTDOWN_NAME), encode_clean_shutdown(marker))
        self._may_be_clean = True

    def remove_clean_shutdown(self) -> None:
        """Delete ``.kafka_cleanshutdown`` before the first write; durable on return."""
        if self._may_be_clean:
            if self.unlink([CLEAN_SHUTDOWN_NAME]):
                self.sync()
            self._may_be_clean = False

    def unlink(self, names: Iterable[str]) -> int:
        """Delete files in this order, not durably. Returns how many existed."""
        count = 0
        for name in names:
            with contextlib.suppress(LogNotFoundError):
                self.storage.unlink(self.file(name))
                count += 1
        return count

    def has(self, name: str) -> bool:
        """Return whether a file or directory of this name exists."""
        try:
            self.storage.is_directory(self.file(name))
        except LogNotFoundError:
            return False
        return True

    def _replace(self, name: str, data: bytes) -> None:
        replace_checked(self.storage, self.path, {name: data})

    # --- published synced end ---------------------------------------------------------------------

    def publish(self, published: Published) -> None:
        """Publish the synced end to other processes.

        The line is written in place with one write, so that readers see the old or the new one.
        """
        line = encode_published(published)
        if line == self._published:
            return
        if self._published_file is None:
            self._published_file = self._open_published()
        self._published = None
        self._published_file.write_at(0, line)
        self._published = line

    def published(self) -> Published | None:
        """Return what the last writer of this boot published; None if there is no valid line."""
        if self._published_file is not None and not self._published_file.is_in_place():
            self.close()  # deleted by a repair, or with the whole directory
        if self._published_file is None:
            try:
                self._published_file = self.storage.open_for_writing(self.file(self.published_name))
            except LogNotFoundError:
                return None
        self._published = None
        data = self._published_file.read_at(0, _PUBLISHED_BYTES_MAX)
        published = parse_published(data)
        if published is None or published.boot_id != self.boot_id:
            return None
        self._published = data
        return published

    def unpublish(self) -> None:
        """Delete ``published``, because the log is about to be truncated below it."""
        self.close()
        self._published = None
        self.unlink([self.published_name])

    def _open_published(self) -> WritableFile:
        try:
            return self.storage.open_for_writing(self.file(self.published_name))
        except LogNotFoundError:
            return self.storage.create_file(self.file(self.published_name))
