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
    """Back up the log of Kafka or raftlog in a directory; only what is new is uploaded.

    Args:
        path: directory of a log, or log directory of a node. It may be written at the same time.
        uri: location of this log's backups: a directory, or a URI of S3 (``s3://``), Google Cloud
            Storage (``gs://``) or Azure (``abfs://``), as for ``pyarrow.fs``.
        kind: kind of the log's records; None: it is detected.

    Raises:
        NotALogError: ``path`` is not a directory of a log, or the log is empty.
        UnknownRecordKindError: ``kind`` cannot be detected.
        OptionError: ``uri`` is in the directory of the log or its node, or cannot be opened.
        WrongBackupError: the location contains backups of another log.
        CorruptBatchError, CorruptFileError: data to upload is damaged.
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
    """Find or delete what interrupted backups have uploaded of the log in a directory.

    These are objects that the manifest does not name, and whose upload began more than a day ago
    or whose part of the manifest was moved away. Another backup can run at the same time.

    Args:
        path: directory of the log, or log directory of its node.
        uri, kind: as for ``backup``.
        is_dry_run: whether to only find them. Otherwise, the manifest is compacted, too.

    Raises:
        NotALogError, UnknownRecordKindError, OptionError: as for ``backup``.
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
    """Write a log's directory from its last backup, completely or up to an offset.

    Args:
        uri: as for ``backup``.
        directory: a new directory inside an existing one. It is created completely or not at all.
        to_offset: only batches that end below this offset are restored.

    Raises:
        OptionError: ``directory`` exists, or the ``.part`` of an interrupted restore.
        BackupNotFoundError: there is no complete backup, or none with the records up to the offset.
        RemoteObjectNotFoundError, CorruptRemoteObjectError: an object is missing or damaged.
        RemoteStorageError: a request to the store failed.
    """
    return restore_directory(uri, directory, to_offset=to_offset)
