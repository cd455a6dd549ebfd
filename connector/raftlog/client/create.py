"""Lookup and creation of an embedded log in a directory.

A log is created under the lock of its writers, so that of concurrent processes one creates it and
the others open it. An interrupted creation is completed. Nothing is written to a directory that
contains anything else: Kafka's log, or a user's files.
"""

from __future__ import annotations

import base64
import uuid
from typing import Final

from raftlog.errors import CorruptFileError, LogNotFoundError, NotALogError
from raftlog.log.format.directory import (
    CHECKSUMS_NAME,
    EPOCH_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
    parse_partition_name,
    read_listing,
)
from raftlog.log.writing.log_directory import read_checked
from raftlog.log.writing.properties import LogConfig, LogProperties, parse_log_properties
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.storage.protocol import WritableStorage
from raftlog.types import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID

from .clock import Clock
from .group_committer import LOCK_NAME, LOCK_WAIT_MS, TURNSTILE_NAME, FairLock

_OWN_NAMES: Final = {
    LOCK_NAME,
    TURNSTILE_NAME,
    CHECKSUMS_NAME,
    EPOCH_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
}
"""Files of a log whose creation was interrupted."""
_TEMPORARY_SUFFIX: Final = ".tmp"


def find_or_create(
    storage: WritableStorage, path: str, config: LogConfig | None, clock: Clock
) -> LogConfig | None:
    """Return the configuration of the embedded log in ``path``, created if it does not exist.

    None for anything else in ``path``, which may still be a log to read. ``config`` is that of a
    new log; None: create nothing. The parent directory must exist.
    Raises ``LogNotFoundError`` (nothing there and nothing to create, or no parent directory),
    ``LogLockedError``, ``CorruptFileError``, ``LogAccessError``, ``DiskFullError``.
    """
    try:
        if not storage.is_directory(path):
            return None
    except LogNotFoundError:
        if config is None:
            raise
    else:
        found = read_properties(storage, path)
        names = storage.list_names(path)
        has_segments = bool(read_listing(names).segments)
        if found is not None and has_segments:
            return found.config
        is_free = all(_is_own(name) for name in names)
        if found is None and (config is None or not is_free):
            return None
    return _create(storage, path, config or LogConfig(), clock)


def read_properties(storage: WritableStorage, path: str) -> LogProperties | None:
    """Return the properties of an embedded log; None if the directory has none.

    Raises ``CorruptFileError``.
    """
    file_path = storage.join(path, RAFTLOG_PROPERTIES_NAME)
    try:
        data = read_checked(storage, file_path)
    except CorruptFileError as error:
        remedy = "restore it, or check it and accept it by a change with `raftlog configure`"
        raise CorruptFileError(path=error.path, reason=f"{error.reason}; {remedy}") from None
    return None if data is None else parse_log_properties(data, file_path)


def embedded_properties(storage: WritableStorage, path: str) -> LogProperties:
    """Return the properties of the embedded log in a directory.

    Raises ``LogNotFoundError``, ``NotALogError`` if it is anything else, ``CorruptFileError``.
    """
    storage.is_directory(path)  # raises if it does not exist
    properties = read_properties(storage, path)
    if properties is None:
        raise NotALogError(
            path=path,
            reason=f"it has no {RAFTLOG_PROPERTIES_NAME}, so it is not an embedded log of raftlog",
        )
    return properties


def topic_id_for(name: str) -> str:
    """Return the topic id of a new log in a directory of that name.

    Cluster metadata has Kafka's fixed id; any other log has a random one, which as in Kafka never
    begins with a dash (Kafka: ``Uuid.randomUuid``).
    """
    partition = parse_partition_name(name)
    if partition is not None and partition.topic == CLUSTER_METADATA_TOPIC:
        return CLUSTER_METADATA_TOPIC_ID
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _create(
    storage: WritableStorage, path: str, config: LogConfig, clock: Clock
) -> LogConfig | None:
    parent, name = storage.split(path)
    storage.is_directory(parent)  # raises with its name if it does not exist
    if storage.make_directory(path):
        storage.sync_directory(parent)
    fair_lock = FairLock(storage, path, pause=clock.pause)
    with fair_lock.acquire_within(LOCK_WAIT_MS, clock.now_ms):
        found = read_properties(storage, path)
        now_ms = clock.wall_ms()
        if found is None:
            log = ReplicatedLog.create(
                storage, path, config=config, topic_id=topic_id_for(name), now_ms=now_ms
            )
        else:  # created meanwhile, or only in part by a process that died
            log = ReplicatedLog.open(storage, path, now_ms=now_ms)
        config = log.config
        log.close()
        return config


def _is_own(name: str) -> bool:
    return name in _OWN_NAMES or name.endswith(_TEMPORARY_SUFFIX)
