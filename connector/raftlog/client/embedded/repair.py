"""Recovery and repair of an embedded log, under its writers' lock.

Opening a log recovers it without losing acknowledged records. Repair truncates a damaged log at an
offset that the caller names, and keeps a backup of what it removes. Recovery of all segments
requires numpy, which an appending process does not import.
"""

from __future__ import annotations

import os
from dataclasses import replace

from raftlog.client.log_handle import whole_number, without_scheme
from raftlog.clock import Clock
from raftlog.errors import LogReadOnlyError, NotALogError
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME, read_listing
from raftlog.log.recovery.recover import RecoveryReport, TruncatedTail
from raftlog.log.recovery.recover_segment import rebuild_indexes
from raftlog.log.recovery.repair import Repaired, truncate_log_at
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.local import WritableLocalStorage
from raftlog.storage.protocol import WritableStorage

from .directory import writable_properties
from .writer import LOCK_WAIT_MS, FairLock

__all__ = ["RecoveryReport", "Repaired", "TruncatedTail", "recover_log", "repair_log"]


def recover_log(
    path: str | os.PathLike[str], *, storage: WritableStorage | None = None
) -> tuple[RecoveryReport, int, int]:
    """Open the log in ``path`` like a writer, which recovers it, and close it cleanly.

    Then every segment is read, and indexes that do not match are rebuilt. Returns the report, the
    log start offset and the end offset (exclusive) of the valid records. Raises
    ``LogNotFoundError``, ``NotALogError``, ``LogReadOnlyError`` for the log of a quorum's node,
    ``LogLockedError``, and the errors of recovery.
    """
    directory = without_scheme(os.fspath(path))
    files = WritableLocalStorage() if storage is None else storage
    clock = Clock()
    writable_properties(files, directory)
    with FairLock(files, directory, clock).acquire_within(LOCK_WAIT_MS):
        log = SingleVoterLog.open(files, directory, now_ms=clock.wall_ms())
        report, extent = log.report, (log.log_start_offset, log.end_offset)
        log.close()
        if report.read_only is None:
            rebuilt = _rebuild_all_indexes(files, directory, log.config.index_interval_bytes)
            report = replace(report, rebuilt=(*report.rebuilt, *rebuilt))
        return report, *extent


def _rebuild_all_indexes(
    files: WritableStorage, directory: str, interval_bytes: int
) -> tuple[str, ...]:
    """Rebuild the indexes of a closed log that do not match their segments."""
    bases = read_listing(files.list_names(directory)).segments
    return tuple(
        path for base in bases for path in rebuild_indexes(files, directory, base, interval_bytes)
    )


def repair_log(
    path: str | os.PathLike[str],
    *,
    cut_at: int,
    storage: WritableStorage | None = None,
    clock: Clock | None = None,
) -> Repaired:
    """Truncate a damaged embedded log, so that it can be written again.

    The batch that contains ``cut_at`` and everything after it is removed, including acknowledged
    records. The removed bytes are kept in the log's directory, in files that the result names.

    Args:
        path: the directory of the log.
        cut_at: an offset between the log's start and the end of its valid records.
        storage: the file system; None: the local one.
        clock: the time source; None: the system's.

    Raises:
        LogNotFoundError: ``path`` does not exist.
        LogReadOnlyError: ``path`` is not an embedded log, but one of Kafka or of a quorum's node.
        LogLockedError: a writer held the log's lock for 30 s (``LOCK_WAIT_MS``).
        OptionError: ``cut_at`` is out of range; the message contains the limit.
    """
    directory = without_scheme(os.fspath(path))
    files = WritableLocalStorage() if storage is None else storage
    clock = Clock() if clock is None else clock
    cut_at = whole_number(cut_at, "cut-at")
    try:
        properties = writable_properties(files, directory)
    except NotALogError:
        raise LogReadOnlyError(
            path=directory,
            reason=f"it has no {RAFTLOG_PROPERTIES_NAME}, so it may be Kafka's log, which raftlog "
            "never writes",
            remedy="start the Kafka node, which recovers its own log",
        ) from None
    with FairLock(files, directory, clock).acquire_within(LOCK_WAIT_MS):
        return truncate_log_at(files, directory, offset=cut_at, config=properties.config)
