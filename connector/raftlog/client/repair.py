"""Make a log of one's own fit to be written again: by opening it, or by giving up its damaged end.

Rules of this file:

1. All of it under the lock of the writers.
2. Records are lost only on somebody's word, and saved aside.
"""

from __future__ import annotations

import os
from dataclasses import replace

from raftlog.errors import LogReadOnlyError, NotALogError
from raftlog.log.names import RAFTLOG_PROPERTIES_NAME, read_listing
from raftlog.log.writing.index_recovery import rebuild_indexes
from raftlog.log.writing.recovered import RecoveryReport, TruncatedTail
from raftlog.log.writing.repair import Repaired, truncate_log_at
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.storage.local_writing import WritableLocalStorage
from raftlog.storage.protocol import WritableStorage

from .arguments import whole_number
from .clock import Clock
from .create import embedded_properties
from .fair_lock import LOCK_WAIT_MS, FairLock
from .paths import without_scheme

__all__ = ["TruncatedTail", "RecoveryReport", "Repaired", "recover_log", "repair_log"]


def recover_log(
    path: str | os.PathLike[str], *, storage: WritableStorage | None = None
) -> tuple[RecoveryReport, int, int]:
    """Open the log in ``path`` as a writer does, recovering what a crash left, and close it in
    order. Then every segment is read, and indexes that do not fit theirs are rebuilt.

    What was found and done, the first offset, and the end offset (exclusive) of what is sound.
    Raises ``LogNotFoundError``, ``NotALogError``, ``LogLockedError``, and what recovery raises.
    """
    directory = without_scheme(os.fspath(path))
    files = WritableLocalStorage() if storage is None else storage
    clock = Clock()
    embedded_properties(files, directory)
    fair_lock = FairLock(files, directory, pause=clock.pause)
    with fair_lock.acquire_within(LOCK_WAIT_MS, clock.now_ms):
        log = ReplicatedLog.open(files, directory, now_ms=clock.wall_ms())
        report, extent = log.report, (log.log_start_offset, log.end_offset)
        log.close()
        if report.read_only is None:
            rebuilt = _rebuild_all_indexes(files, directory, log.config.index_interval_bytes)
            report = replace(report, rebuilt=(*report.rebuilt, *rebuilt))
        return report, *extent


def _rebuild_all_indexes(
    files: WritableStorage, directory: str, interval_bytes: int
) -> tuple[str, ...]:
    """Read every segment of a log that is closed, and rebuild the indexes that are not true."""
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
    """Cut the log in ``path`` before the batch that holds offset ``cut_at``, or at its end.

    What is cut is saved beside the log and named in the answer. Raises ``LogNotFoundError``,
    ``LogReadOnlyError`` for a directory that is not a log of ours, ``LogLockedError`` if a writer
    holds the log for longer than ``LOCK_WAIT_MS``, ``OptionError`` for an offset that the log does
    not hold soundly.
    """
    directory = without_scheme(os.fspath(path))
    files = WritableLocalStorage() if storage is None else storage
    clock = Clock() if clock is None else clock
    cut_at = whole_number(cut_at, "cut-at")
    try:
        properties = embedded_properties(files, directory)
    except NotALogError:
        raise LogReadOnlyError(
            path=directory,
            reason=f"it has no {RAFTLOG_PROPERTIES_NAME}, so it is Kafka's and not ours to write",
            remedy="let its node recover it",
        ) from None
    fair_lock = FairLock(files, directory, pause=clock.pause)
    with fair_lock.acquire_within(LOCK_WAIT_MS, clock.now_ms):
        return truncate_log_at(files, directory, offset=cut_at, config=properties.config)
