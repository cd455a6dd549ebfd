"""Open a log of ours as it was left, in order or not: decide, and tell everything that was done.

Rules of this file:

1. ``recover(recover(d))`` is ``recover(d)``, whatever cut the first one short.
2. Every whole, sound batch is kept, except behind what a living writer of this boot had synced. A
   tail that nobody was promised is saved aside and cut (Kafka cuts without a copy).
3. Below the durable mark nothing is dropped: the log opens for reading only, nothing is written,
   and the report says what is damaged, what is behind it and how to go on.
4. A directory that is not ours, Kafka's, is never written: it opens for reading only.
5. Only the way through damage costs numpy's import.

Kafka: ``LogLoader``, ``LogSegment.recover``; what went wrong there: KAFKA-3919.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from raftlog.errors import LogReadOnlyError
from raftlog.storage.protocol import WritableStorage

from .checkpoint_files import CheckpointFiles, read_checkpoint_files
from .clean_open import open_clean
from .index_recovery import rebuild_invalid_indexes
from .properties import LogConfig
from .recovered import RecoveredLog, RecoveryReport

if TYPE_CHECKING:
    from .log_loader import LoadedLog

__all__ = ["RecoveredLog", "RecoveryReport", "recover"]


def recover(storage: WritableStorage, directory: str, *, config: LogConfig) -> RecoveredLog:
    """Open the log in ``directory``, mending what a crash left. To be called under the log's lock.

    Raises ``LogNotFoundError`` and ``LogAccessError``; ``DiskFullError`` and ``DiskFailedError``
    while something is mended: nothing is lost then, and the next opening begins anew.
    """
    checkpoints = read_checkpoint_files(storage, directory)
    recovered = open_clean(storage, directory, checkpoints) if checkpoints.is_raftlog else None
    if recovered is None:
        recovered = _recover_scanned(storage, directory, config, checkpoints)
    if recovered.report.read_only is None:
        recovered = _with_fitting_indexes(storage, directory, config, recovered)
    return recovered


def _recover_scanned(
    storage: WritableStorage, directory: str, config: LogConfig, checkpoints: CheckpointFiles
) -> RecoveredLog:
    from .log_loader import LogLoader  # needs numpy
    from .recovery_actions import RecoveryActions

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


def _with_fitting_indexes(
    storage: WritableStorage, directory: str, config: LogConfig, recovered: RecoveredLog
) -> RecoveredLog:
    """Rebuild indexes of sealed segments that do not fit them."""
    rebuilt = rebuild_invalid_indexes(
        storage,
        directory,
        recovered.segments,
        interval_bytes=config.index_interval_bytes,
        log_start_offset=recovered.log_start_offset,
    )
    if not rebuilt:
        return recovered
    report = replace(recovered.report, rebuilt=(*recovered.report.rebuilt, *rebuilt))
    return replace(recovered, report=report)


def _read_only(
    directory: str, loaded: LoadedLog, checkpoints: CheckpointFiles
) -> LogReadOnlyError | None:
    """Why the log must not be written, or None."""
    if not checkpoints.is_raftlog:
        return LogReadOnlyError(
            path=directory,
            reason="it has no raftlog.properties, so it is Kafka's and not ours to write",
            remedy="make a log of your own elsewhere",
        )
    if not loaded.is_damaged:
        return None
    if loaded.is_contradicted:
        assert loaded.stop is not None, "that is where it was seen"
        return LogReadOnlyError(
            path=loaded.stop.path,
            offset=loaded.stop.found_base_offset,
            reason=f"{loaded.stop.reason}, and both were synced",
            remedy="look with `raftlog check`, and move the segment away that is not of this log",
        )
    lost = f"offsets {loaded.end_offset} to {loaded.durable_offset - 1}, which were synced once,"
    if loaded.stop is None:
        path, position, reason = directory, None, f"{lost} are gone"
    else:
        path, position = loaded.stop.path, loaded.stop.scan_position.position
        reason = f"{lost} are hurt or gone: {loaded.stop.reason}"
    return LogReadOnlyError(
        path=path,
        position=position,
        offset=loaded.end_offset,
        reason=reason,
        remedy="restore the file from a copy, or look with `raftlog check` and give up what lies "
        f"behind with `raftlog repair --cut-at {loaded.end_offset}`, which saves it aside",
    )
