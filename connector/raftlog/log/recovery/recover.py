"""Recovery of a raftlog log after a clean or an unclean shutdown.

The durable offset is the offset below which everything is known to have been synced. For example,
with the recovery point at 300, and 400 published as synced before the crash:

    offsets   0 ............ 300 ............ 400 ............ 450
    files     segment 0      segment 300 (valid batches)       torn batch

    crash of the process   durable offset 400: the batches 400 to 449 were written but not
                           acknowledged, and are truncated with the torn batch
    crash of the machine   ``published`` is of another boot, durable offset 300: the valid
                           batches are kept and synced, the torn batch is truncated
    damage at offset 350   after a crash of the process, below the durable offset: the log is
                           opened read-only, nothing is written; after a crash of the machine,
                           above it: the log is truncated to 350

Invariants:

1. ``recover`` is idempotent, also after a crash in the middle of it.
2. Every valid, contiguous batch is kept, except after the synced end that a writer of this boot
   published. Truncated bytes are backed up first (Kafka truncates without a backup).
3. Nothing below the durable offset is deleted: if it is damaged, the log is opened read-only, and
   the report names the damage, the valid batches after it, and the remedy.
4. A directory without ``raftlog.properties``, such as Kafka's, is never written.
5. numpy is imported only where a segment is scanned.

Kafka: ``LogLoader``, ``LogSegment.recover``; for what can go wrong there: KAFKA-3919.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from raftlog.errors import DiskFullError, LogReadOnlyError
from raftlog.log.segment import Segment
from raftlog.log.writing.properties import LogConfig
from raftlog.storage.protocol import WritableStorage

from .checkpoints import CheckpointFiles, open_clean, read_checkpoint_files
from .report import RecoveredLog, RecoveryReport

if TYPE_CHECKING:
    from .load_log import LoadedLog


__all__ = ["RecoveredLog", "RecoveryReport", "recover"]


def recover(storage: WritableStorage, directory: str, *, config: LogConfig) -> RecoveredLog:
    """Open the log in ``directory`` and repair what a crash left. The caller holds the log's lock.

    Raises ``LogNotFoundError`` and ``LogAccessError``; ``DiskFullError`` and ``DiskFailedError``
    during a repair: nothing is lost then, and the next opening repeats it.
    """
    checkpoints = read_checkpoint_files(storage, directory)
    recovered = open_clean(storage, directory, checkpoints) if checkpoints.is_raftlog else None
    if recovered is None:
        recovered = _recover_scanned(storage, directory, config, checkpoints)
    if recovered.report.read_only is None:
        recovered = _with_valid_indexes(storage, directory, config, recovered)
    return recovered


def _recover_scanned(
    storage: WritableStorage, directory: str, config: LogConfig, checkpoints: CheckpointFiles
) -> RecoveredLog:
    from raftlog.log.recovery.load_log import LogLoader  # imports numpy
    from raftlog.log.recovery.repair import RecoveryActions

    loaded = LogLoader(storage, directory, config, checkpoints).load()
    read_only = _read_only(directory, loaded, checkpoints)
    actions = RecoveryActions(storage, directory, checkpoints)
    if read_only is None:
        actions.apply(loaded)
    return RecoveredLog(
        segments=loaded.segments,
        log_start_offset=loaded.log_start_offset,
        end_offset=loaded.end_offset,
        epochs=loaded.epochs,
        producer_state=loaded.producer_state,
        recovery_point=loaded.end_offset if read_only is None else checkpoints.recovery_point,
        was_clean=False,
        report=RecoveryReport(
            was_clean=False,
            truncated=tuple(actions.truncated),
            rebuilt=tuple(actions.rebuilt),
            deleted_backups=actions.deleted_backups,
            anomalies=tuple(loaded.anomalies),
            read_only=read_only,
        ),
    )


def _with_valid_indexes(
    storage: WritableStorage, directory: str, config: LogConfig, recovered: RecoveredLog
) -> RecoveredLog:
    """Rebuild the indexes of sealed segments that fail the sanity check.

    The last entry of each index is checked, like Kafka's sanity check; ``raftlog repair`` reads the
    whole segment. A crash during a rebuild leaves an invalid index, which the next opening detects.
    """
    rebuilt: list[str] = []
    for one, following in pairwise(recovered.segments):
        if following.base_offset <= recovered.log_start_offset:
            continue  # below the log start
        segment = Segment(storage, directory, one.base_offset, one.byte_count)
        interval_bytes = config.index_interval_bytes
        if not segment.has_valid_indexes(one.end_offset, interval_bytes=interval_bytes):
            from raftlog.log.recovery.repair import rebuild_indexes  # imports numpy

            with contextlib.suppress(DiskFullError):  # the next opening tries again
                rebuilt += rebuild_indexes(storage, directory, one.base_offset, interval_bytes)
    if not rebuilt:
        return recovered
    report = replace(recovered.report, rebuilt=(*recovered.report.rebuilt, *rebuilt))
    return replace(recovered, report=report)


def _read_only(
    directory: str, loaded: LoadedLog, checkpoints: CheckpointFiles
) -> LogReadOnlyError | None:
    """Return the error of every append if the log must not be written, or None."""
    if not checkpoints.is_raftlog:
        return LogReadOnlyError(
            path=directory,
            reason="it has no raftlog.properties: it is a Kafka log, which raftlog does not write",
            remedy="create a raftlog log in another directory",
        )
    if not loaded.is_damaged:
        return None
    if loaded.is_contradicted:
        assert loaded.stop is not None, "a contradiction ends the scan"
        return LogReadOnlyError(
            path=loaded.stop.path,
            offset=loaded.stop.found_base_offset,
            reason=f"{loaded.stop.reason}, and both segments were synced",
            remedy="run `raftlog check`, and move the segment that is not of this log elsewhere",
        )
    lost = f"offsets {loaded.end_offset} to {loaded.durable_offset - 1}, which were synced,"
    if loaded.stop is None:
        path, position, reason = directory, None, f"{lost} are missing"
    else:
        path, position = loaded.stop.path, loaded.stop.position
        reason = f"{lost} are damaged or missing: {loaded.stop.reason}"
    return LogReadOnlyError(
        path=path,
        position=position,
        offset=loaded.end_offset,
        reason=reason,
        remedy="restore the file from a backup, or run `raftlog check` and then `raftlog repair "
        f"--cut-at {loaded.end_offset}`, which truncates the log there and keeps a backup",
    )
