"""Read the checkpoint and metadata files of a log's directory, before its segments.

Nothing is written, and no damaged file stops a recovery: it becomes an anomaly, its content is
unknown, and an unknown offset counts as 0. If the ``checksums`` file is damaged, the files that it
covers are read without verification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from raftlog.errors import CorruptFileError, LogNotFoundError, SegmentDeletedError
from raftlog.limits import SMALL_FILE_BYTES_MAX
from raftlog.log.epoch_cache import EpochCache, parse_epoch_checkpoint
from raftlog.log.names import (
    EPOCH_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
    Listing,
    read_listing,
)
from raftlog.log.offset_checkpoint import (
    LOG_START_CHECKPOINT_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    parse_single_offset,
)
from raftlog.log.published import (
    PUBLISHED_NAME,
    SYNCED_NAME,
    Published,
    parse_published,
    read_published,
)
from raftlog.log.small_files import parse_partition_metadata
from raftlog.storage.protocol import Storage, WritableStorage

from .atomic_files import CHECKSUMS_NAME, read_checked, read_checksums
from .clean_shutdown import CLEAN_SHUTDOWN_NAME, CleanShutdown, parse_clean_shutdown
from .properties import parse_log_properties
from .recovered import Anomaly

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """Content of the small files of one log.

    ``log_start_offset`` and ``recovery_point`` are 0, and ``epochs`` is None, if unknown.
    ``damaged``: names of the files that must be rewritten. ``is_after_boot``: the log was written
    before this boot of the machine, and not since.
    """

    listing: Listing
    is_raftlog: bool
    log_start_offset: int
    recovery_point: int
    epochs: EpochCache | None
    published: Published | None
    is_after_boot: bool
    clean: CleanShutdown | None
    damaged: frozenset[str]
    anomalies: tuple[Anomaly, ...]

    @property
    def durable_offset(self) -> int:
        """The offset below which everything is known to have been synced (exclusive).

        A segment is created after the one before it was synced, so the last base offset counts; but
        not that of a segment that nothing was published in.
        """
        last = max(self.listing.segments, default=0)
        published_end = 0
        if self.published is not None:
            last = min(last, self.published.segment_base_offset)
            published_end = self.published.end_offset
        return max(
            self.recovery_point,
            self.log_start_offset,
            last,
            max((one.end_offset for one in self.listing.snapshots), default=0),
            published_end,
        )


class CheckpointReader:
    """Reads the small files of one directory and collects their damage."""

    def __init__(self, storage: Storage, directory: str, *, is_raftlog: bool) -> None:
        self.anomalies: list[Anomaly] = []
        self.damaged: set[str] = set()
        self._storage = storage
        self._directory = directory
        self._is_checked = True
        try:
            if read_checksums(storage, directory) is None and is_raftlog:
                path = storage.join(directory, CHECKSUMS_NAME)
                raise CorruptFileError(path=path, reason="it is missing")
        except CorruptFileError as error:
            self._is_checked = False
            self.add_damage(CHECKSUMS_NAME, error)

    def read(self, name: str, parse: Callable[[bytes, str], V]) -> V | None:
        """Return a file's parsed content; None if it is missing or damaged."""
        path = self._storage.join(self._directory, name)
        try:
            data = read_checked(self._storage, path) if self._is_checked else self._bytes(path)
            return None if data is None else parse(data, path)
        except CorruptFileError as error:
            self.add_damage(name, error)
            return None

    def add_damage(self, name: str, error: CorruptFileError) -> None:
        """Record that a file of the directory is damaged."""
        self.damaged.add(name)
        anomaly = Anomaly(kind=None, path=error.path, position=error.position, reason=error.reason)
        self.anomalies.append(anomaly)

    def _bytes(self, path: str) -> bytes | None:
        try:
            with self._storage.open_file(path) as file:
                return file.read_at(0, SMALL_FILE_BYTES_MAX)
        except (LogNotFoundError, SegmentDeletedError):
            return None


def read_checkpoint_files(storage: WritableStorage, directory: str) -> CheckpointFiles:
    """Read the small files of a directory.

    Raises ``LogNotFoundError`` and ``LogAccessError`` only.
    """
    names = storage.list_names(directory)
    listing = read_listing(names)
    is_raftlog = RAFTLOG_PROPERTIES_NAME in names
    reader = CheckpointReader(storage, directory, is_raftlog=is_raftlog)
    log_start = reader.read(LOG_START_CHECKPOINT_NAME, parse_single_offset)
    recovery_point = reader.read(RECOVERY_POINT_CHECKPOINT_NAME, parse_single_offset)
    epochs = reader.read(EPOCH_CHECKPOINT_NAME, parse_epoch_checkpoint)
    clean = reader.read(CLEAN_SHUTDOWN_NAME, lambda data, _: parse_clean_shutdown(data))
    reader.read(PARTITION_METADATA_NAME, parse_partition_metadata)
    reader.read(RAFTLOG_PROPERTIES_NAME, parse_log_properties)
    # `synced` is a replica's, `published` an embedded log's.
    names_published = [name for name in (SYNCED_NAME, PUBLISHED_NAME) if name in names]
    in_this_boot = [
        read_published(storage, directory, storage.boot_id(), name) for name in names_published
    ]
    published = next((one for one in in_this_boot if one is not None), None)
    last_published = [
        reader.read(name, lambda data, _: parse_published(data)) for name in names_published
    ]
    return CheckpointFiles(
        listing=listing,
        is_raftlog=is_raftlog,
        log_start_offset=log_start or 0,
        recovery_point=recovery_point or 0,
        epochs=epochs if epochs is not None and epochs.entries else None,
        published=published,
        is_after_boot=published is None and any(one is not None for one in last_published),
        clean=clean,
        damaged=frozenset(reader.damaged),
        anomalies=tuple(reader.anomalies),
    )
