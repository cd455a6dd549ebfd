"""Find an embedded log in a directory, or make one there.

Rules of this file:

1. A log is made under the lock of its writers: of several processes that come at once one makes it,
   and the others find it. What a making that was cut short left is gone over.
2. Nothing is written into a directory that holds anything else: Kafka's log, or somebody's files.
"""

from __future__ import annotations

import base64
import uuid
from typing import Final

from raftlog.errors import CorruptFileError, LogNotFoundError, NotALogError
from raftlog.log.names import (
    EPOCH_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
    parse_partition_name,
    read_listing,
)
from raftlog.log.writing.atomic_files import CHECKSUMS_NAME, read_checked
from raftlog.log.writing.properties import LogConfig, LogProperties, parse_log_properties
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.storage.protocol import WritableStorage
from raftlog.types import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID

from .clock import Clock
from .fair_lock import LOCK_NAME, LOCK_WAIT_MS, TURNSTILE_NAME, FairLock

_OWN_NAMES: Final = {
    LOCK_NAME,
    TURNSTILE_NAME,
    CHECKSUMS_NAME,
    EPOCH_CHECKPOINT_NAME,
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
}
"""What a log that is being made may consist of before it says that it is one."""
_TEMPORARY_SUFFIX: Final = ".tmp"


def find_or_create(
    storage: WritableStorage, path: str, config: LogConfig | None, clock: Clock
) -> LogConfig | None:
    """How the log in ``path`` is kept, made as ``config`` says if it is not there.

    None if what is there is not ours: to be read, if it is a log. ``config`` None: make nothing.
    The directory above must be there.
    Raises ``LogNotFoundError`` (nothing there and nothing to be made, or no directory above),
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
    """What the log in a directory says it is; None if that is no log of ours.

    Raises ``CorruptFileError``.
    """
    file_path = storage.join(path, RAFTLOG_PROPERTIES_NAME)
    try:
        data = read_checked(storage, file_path)
    except CorruptFileError as error:
        way_out = "restore it, or look at it and change a setting with `raftlog configure`"
        raise CorruptFileError(path=error.path, reason=f"{error.reason}; {way_out}") from None
    return None if data is None else parse_log_properties(data, file_path)


def embedded_properties(storage: WritableStorage, path: str) -> LogProperties:
    """What the log of ours in a directory says it is.

    Raises ``LogNotFoundError``, ``NotALogError`` if it is no log of ours, ``CorruptFileError``.
    """
    storage.is_directory(path)  # raises if nothing is there
    properties = read_properties(storage, path)
    if properties is None:
        raise NotALogError(
            path=path,
            reason=f"it has no {RAFTLOG_PROPERTIES_NAME}, so it is no log of raftlog's own",
        )
    return properties


def topic_id_for(name: str) -> str:
    """The topic id of a new log in a directory of that name.

    Cluster metadata has the id that Kafka looks for; any other log has a random one, as Kafka gives
    it (Kafka: ``Uuid.randomUuid``): never with a dash in front.
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
    above, name = storage.split(path)
    storage.is_directory(above)  # raises if there is none, and names it
    if storage.make_directory(path):
        storage.sync_directory(above)
    fair_lock = FairLock(storage, path, pause=clock.pause)
    with fair_lock.acquire_within(LOCK_WAIT_MS, clock.now_ms):
        found = read_properties(storage, path)
        now_ms = clock.wall_ms()
        if found is None:
            log = ReplicatedLog.create(
                storage, path, config=config, topic_id=topic_id_for(name), now_ms=now_ms
            )
        else:  # made meanwhile, or by somebody who did not come to the end of it
            log = ReplicatedLog.open(storage, path, now_ms=now_ms)
        config = log.config
        log.close()
        return config


def _is_own(name: str) -> bool:
    return name in _OWN_NAMES or name.endswith(_TEMPORARY_SUFFIX)
