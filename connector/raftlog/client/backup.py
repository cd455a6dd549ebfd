"""Backup of a log's directory to an object store, and restore.

``raftlog_state.backups`` adds the format of the manifest's records.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from typing import Final

from raftlog.errors import OptionError
from raftlog.log.format.directory import META_PROPERTIES_NAME
from raftlog.log.format.epoch_cache import EpochEntry as EpochEntry
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import LogKind
from raftlog.log.remote.backup import BackupReport as BackupReport
from raftlog.log.remote.backup import Surroundings, back_up_log
from raftlog.log.remote.restore import RestoredLog as RestoredLog
from raftlog.log.remote.restore import restore_log
from raftlog.log.remote.segment_metadata import ManifestEvent as ManifestEvent
from raftlog.log.remote.segment_metadata import RemoteLogMetadataSerde as RemoteLogMetadataSerde
from raftlog.log.remote.segment_metadata import RemoteLogSegmentMetadata as RemoteLogSegmentMetadata
from raftlog.log.remote.segment_metadata import (
    RemoteLogSegmentMetadataUpdate as RemoteLogSegmentMetadataUpdate,
)
from raftlog.log.remote.segment_metadata import RemoteLogSegmentState as RemoteLogSegmentState
from raftlog.storage.errors import WrongBackupError as WrongBackupError
from raftlog.storage.local import PrivateLocalStorage
from raftlog.storage.objects import ObjectStore, StorageObjects

from .embedded.directory import random_id
from .log_handle import without_scheme

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def open_object_store(uri: str | os.PathLike[str]) -> ObjectStore:
    """Open the objects at a path, whose parent exists, or at a URI of ``pyarrow.fs``.

    Files are accessible to their owner only. Raises ``OptionError``.
    """
    text = os.fspath(uri)
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[1].lower() == "file":
        return StorageObjects(PrivateLocalStorage(), os.path.abspath(without_scheme(text)))
    from raftlog.storage.arrow_objects import ArrowObjects

    return ArrowObjects.of_uri(text)


def back_up_directory(
    path: str | os.PathLike[str],
    uri: str | os.PathLike[str],
    serde: RemoteLogMetadataSerde,
    *,
    kind: LogKind | None = None,
) -> BackupReport:
    """Upload what the store at ``uri`` lacks of the log in ``path``, as ``back_up_log``.

    ``kind`` is that of its records; None to detect it.
    """
    log = open_log(PrivateLocalStorage(), without_scheme(os.fspath(path)), kind=kind)
    store = open_object_store(uri)
    if isinstance(store, StorageObjects):
        _check_is_outside(store.location, log)
    return back_up_log(log, store, serde, _surroundings())


def restore_directory(
    uri: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    serde: RemoteLogMetadataSerde,
    *,
    to_offset: int | None = None,
) -> RestoredLog:
    """Write a log's directory from the store at ``uri``, as ``restore_log``."""
    path = os.path.abspath(without_scheme(os.fspath(directory)))
    store = open_object_store(uri)
    return restore_log(store, serde, PrivateLocalStorage(), path, to_offset=to_offset)


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


def _surroundings() -> Surroundings:
    return Surroundings(
        now_ms=lambda: time.time_ns() // 1_000_000,
        new_id=random_id,
        new_partition=lambda: secrets.randbelow(2**31),
    )
