"""Backup of a log to a directory or an object store, and restore.

The manifest of a store is a log of ``__remote_log_metadata`` records, which ``raftlog cat``,
``raftlog state STORE/manifest remote_segments`` and kafka-dump-log read.
"""

from __future__ import annotations

import os

from raftlog.client import LogKind
from raftlog.client.backup import (
    BackupReport,
    PruneReport,
    RestoredLog,
    back_up_directory,
    prune_directory,
    restore_directory,
)

__all__ = ["BackupReport", "PruneReport", "RestoredLog", "backup", "prune", "restore"]


def backup(
    path: str | os.PathLike[str], uri: str | os.PathLike[str], *, kind: LogKind | None = None
) -> BackupReport:
    """Back up the log in a directory, Kafka's or raftlog's; only what is new is uploaded.

    Args:
        path: directory of a log, or log directory of a node. It may be written meanwhile.
        uri: where the backups of this log are: a directory, or a URI of S3 (``s3://``), Google
            Cloud Storage (``gs://``) or Azure (``abfs://``) as of ``pyarrow.fs``.
        kind: kind of the log's records; None: it is detected.

    Raises:
        NotALogError: ``path`` is not a directory of a log, or the log is empty.
        UnknownRecordKindError: ``kind`` cannot be detected.
        OptionError: ``uri`` is in the directory of the log or its node, or cannot be opened.
        WrongBackupError: another log has its backups there.
        CorruptBatchError, CorruptFileError: what would be uploaded is damaged.
        RemoteStorageError: a request to the store failed. The next backup continues.
        CorruptRemoteObjectError: the manifest of the store is damaged.
    """
    return back_up_directory(path, uri, kind=kind)


def prune(
    path: str | os.PathLike[str],
    uri: str | os.PathLike[str],
    *,
    kind: LogKind | None = None,
    is_dry_run: bool = True,
) -> PruneReport:
    """Find, or delete, what interrupted backups have uploaded of the log in a directory.

    These are the objects that the manifest does not name, of uploads that began more than a day ago
    or whose part of the manifest was moved away. Another backup may run meanwhile.

    Args:
        path: directory of the log, or log directory of its node.
        uri, kind: as of ``backup``.
        is_dry_run: whether to find them only. If not, the manifest is compacted, too.

    Raises:
        NotALogError, UnknownRecordKindError, OptionError: as of ``backup``.
        CorruptRemoteObjectError: the manifest of the store is damaged.
        RemoteStorageError: a request to the store failed.
    """
    return prune_directory(path, uri, kind=kind, is_dry_run=is_dry_run)


def restore(
    uri: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    to_offset: int | None = None,
) -> RestoredLog:
    """Write a log's directory from its last backup, or as it was at an offset.

    Args:
        uri: as of ``backup``.
        directory: a new directory, in an existing one. It is complete or absent.
        to_offset: only batches that end below this offset are restored.

    Raises:
        OptionError: ``directory`` exists, or the ``.part`` of an interrupted restore.
        BackupNotFoundError: there is no complete backup, or none with the records up to the offset.
        RemoteObjectNotFoundError, CorruptRemoteObjectError: an object is missing or damaged.
        RemoteStorageError: a request to the store failed.
    """
    return restore_directory(uri, directory, to_offset=to_offset)
