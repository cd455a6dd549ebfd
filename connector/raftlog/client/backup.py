"""Backup of a log's directory to an object store, and restore."""

from __future__ import annotations

import os

from raftlog.errors import OptionError
from raftlog.log.format.directory import META_PROPERTIES_NAME
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import LogKind
from raftlog.log.remote.backup import BackupReport as BackupReport
from raftlog.log.remote.backup import back_up_log, identity_of
from raftlog.log.remote.pruning import PruneReport as PruneReport
from raftlog.log.remote.pruning import prune_objects
from raftlog.log.remote.restore import RestoredLog as RestoredLog
from raftlog.log.remote.restore import restore_log
from raftlog.storage.errors import WrongBackupError as WrongBackupError
from raftlog.storage.local import PrivateLocalStorage
from raftlog.storage.objects import ObjectStore, StorageObjects

from .log_handle import without_scheme
from .object_stores import open_object_store, surroundings


def back_up_directory(
    path: str | os.PathLike[str],
    uri: str | os.PathLike[str],
    *,
    kind: LogKind | None = None,
) -> BackupReport:
    """Upload what the store at ``uri`` lacks of the log in ``path``, as ``back_up_log``.

    ``kind`` is that of its records; None to detect it.
    """
    log, store = _open(path, uri, kind)
    return back_up_log(log, store, surroundings())


def prune_directory(
    path: str | os.PathLike[str],
    uri: str | os.PathLike[str],
    *,
    kind: LogKind | None = None,
    is_dry_run: bool = True,
) -> PruneReport:
    """Find, and unless it ``is_dry_run`` delete, objects of the log in ``path`` that no manifest in
    the store at ``uri`` names, as ``prune_objects``."""
    log, store = _open(path, uri, kind)
    partition, topic_id = identity_of(log)
    return prune_objects(store, f"{partition}-{topic_id}", surroundings(), is_dry_run=is_dry_run)


def _open(
    path: str | os.PathLike[str], uri: str | os.PathLike[str], kind: LogKind | None
) -> tuple[DirectoryLog, ObjectStore]:
    """Open a log and the store of its backups, outside of its directory."""
    log = open_log(
        PrivateLocalStorage(),
        without_scheme(os.fspath(path)),
        kind=kind,
        open_store=open_object_store,
    )
    store = open_object_store(uri)
    if isinstance(store, StorageObjects):
        _check_is_outside(store.location, log)
    return log, store


def restore_directory(
    uri: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    to_offset: int | None = None,
) -> RestoredLog:
    """Write a log's directory from the store at ``uri``, as ``restore_log``."""
    path = os.path.abspath(without_scheme(os.fspath(directory)))
    store = open_object_store(uri)
    return restore_log(store, PrivateLocalStorage(), path, to_offset=to_offset)


def _check_is_outside(location: str, log: DirectoryLog) -> None:
    """Raise ``OptionError`` for a location in the directory of a log, or of its node.

    Kafka does not start if a log directory contains a directory that is not a partition's.
    """
    directory = os.path.realpath(log.files.directory)
    node = os.path.dirname(directory)
    if os.path.exists(os.path.join(node, META_PROPERTIES_NAME)):
        directory = node
    if os.path.commonpath((directory, os.path.realpath(location))) == directory:
        reason = f"{location} is in {directory}, a directory of the log: name one outside"
        raise OptionError(option="URI", reason=reason)
