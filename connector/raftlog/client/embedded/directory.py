"""Directory of an embedded log: its creation and settings, changed under the writers' lock.

The directory of a quorum's node is recognized here and refused, because only the node appends to
its log.
"""

from __future__ import annotations

import base64
import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from raftlog.client.log_handle import without_scheme
from raftlog.clock import Clock
from raftlog.errors import (
    CorruptFileError,
    LogNotFoundError,
    LogReadOnlyError,
    NodeRunningError,
    NotALogError,
    OptionError,
)
from raftlog.log.format.directory import (
    BOOTSTRAP_ID,
    CHECKSUMS_NAME,
    EPOCH_CHECKPOINT_NAME,
    META_PROPERTIES_NAME,
    NODE_LOCK_NAME,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    QUORUM_STATE_NAME,
    RAFTLOG_PROPERTIES_NAME,
    SYNCED_NAME,
    checkpoint_name,
    encode_properties,
    parse_partition_metadata,
    parse_partition_name,
    parse_properties,
    read_listing,
    read_small,
)
from raftlog.log.writing.atomic_files import read_checked, replace_checked
from raftlog.log.writing.properties import (
    LogConfig,
    LogProperties,
    encode_log_properties,
    parse_log_properties,
)
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.local import WritableLocalStorage
from raftlog.storage.protocol import WritableStorage, split_new
from raftlog.types import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID

from .writer import LOCK_NAME, LOCK_WAIT_MS, TURNSTILE_NAME, FairLock

# --- Directories of a quorum's nodes --------------------------------------------------------------
# A node's log has the files of an embedded log, and files that only a node writes. The directory
# above it contains meta.properties as soon as it is formatted, when the log may still be empty.

_FILES_OF_NODES: Final = frozenset(
    {
        QUORUM_STATE_NAME,
        SYNCED_NAME,
        OUT_OF_ELECTION_NAME,
        META_PROPERTIES_NAME,
        checkpoint_name(BOOTSTRAP_ID),
    }
)


def is_of_node(storage: WritableStorage, path: str) -> bool:
    """Return whether a directory, which may not exist yet, is for the log of a quorum's node."""
    with contextlib.suppress(LogNotFoundError):
        if not _FILES_OF_NODES.isdisjoint(storage.list_names(path)):
            return True
    parent, _ = storage.split(path)  # may be large or unreadable
    with contextlib.suppress(LogNotFoundError):
        return not storage.is_directory(storage.join(parent, META_PROPERTIES_NAME))
    return False


def node_refusal(path: str) -> LogReadOnlyError:
    """Return the error of a change to the log of a quorum's node."""
    return LogReadOnlyError(
        path=path,
        reason="it is the directory of a node of a quorum, and only that node may change it",
        remedy="append with raftlog.connect to the nodes of the quorum; to read the records of "
        "this one node, use raftlog.open or `raftlog cat`",
    )


@contextlib.contextmanager
def _lock_of_settings(files: WritableStorage, directory: str, clock: Clock) -> Iterator[None]:
    """Hold the lock for changes of settings: the writers' lock, or that of the stopped node."""
    if not is_of_node(files, directory):
        with FairLock(files, directory, clock).acquire_within(LOCK_WAIT_MS):
            yield
        return
    parent, _ = files.split(directory)
    lock = files.try_lock(files.join(parent, NODE_LOCK_NAME))
    if lock is None:
        raise NodeRunningError(path=parent)
    with lock:
        yield


# --- Lookup and creation --------------------------------------------------------------------------
# A log is created under its writers' lock. If several processes try at the same time, exactly one
# creates it and the others open it. An interrupted creation is completed. Nothing is written to a
# directory that contains anything else, such as a Kafka log or a user's files.

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

    The result is None if there is anything else in ``path``, which may still be a log to read.
    ``config`` is the configuration of a new log; None: create nothing. The parent directory must
    exist. Raises ``LogNotFoundError`` (there is no log and none is to be created, or no parent
    directory), ``LogReadOnlyError`` (a node's directory without a log, in which none is created),
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
    if is_of_node(storage, path):
        raise node_refusal(path)
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


def writable_properties(storage: WritableStorage, path: str) -> LogProperties:
    """Return the properties of the embedded log in a directory, to recover or truncate it.

    Raises what ``_properties`` raises, and ``LogReadOnlyError`` for the log of a quorum's node.
    """
    properties = _properties(storage, path)
    if is_of_node(storage, path):
        raise node_refusal(path)
    return properties


def _properties(storage: WritableStorage, path: str) -> LogProperties:
    """Return the properties of the log in a directory.

    Raises ``LogNotFoundError``, ``NotALogError`` if raftlog did not create it, and
    ``CorruptFileError``.
    """
    storage.is_directory(path)  # raises if it does not exist
    properties = read_properties(storage, path)
    if properties is None:
        raise NotALogError(
            path=path,
            expected="a log of raftlog",
            reason=f"it has no {RAFTLOG_PROPERTIES_NAME}, so raftlog did not create it",
            remedy="only a log that raftlog.open(path) created is written, repaired or configured",
        )
    return properties


def _new_topic_id(name: str) -> str:
    """Return the topic id of a new log in a directory of that name.

    Cluster metadata has Kafka's fixed id; every other log has a random one.
    """
    partition = parse_partition_name(name)
    if partition is not None and partition.topic == CLUSTER_METADATA_TOPIC:
        return CLUSTER_METADATA_TOPIC_ID
    return random_id()


def random_id() -> str:
    """Return a random uuid without a leading dash (Kafka: ``Uuid.randomUuid``)."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _create(
    storage: WritableStorage, path: str, config: LogConfig, clock: Clock
) -> LogConfig | None:
    parent, name = split_new(storage, path)
    if storage.make_directory(path):
        storage.sync_directory(parent)
    with FairLock(storage, path, clock).acquire_within(LOCK_WAIT_MS):
        found = read_properties(storage, path)
        now_ms = clock.wall_ms()
        if found is None:
            log = SingleVoterLog.create(
                storage, path, config=config, topic_id=_new_topic_id(name), now_ms=now_ms
            )
        else:  # created meanwhile, or only in part by a process that died
            log = SingleVoterLog.open(storage, path, now_ms=now_ms)
        config = log.config
        log.close()
        return config


def _is_own(name: str) -> bool:
    return name in _OWN_NAMES or name.endswith(_TEMPORARY_SUFFIX)


# --- Settings -------------------------------------------------------------------------------------
# Settings have Kafka's names and are text, as in ``raftlog.properties``. The topic id and the kind
# of values never change. Each writer rereads the file before its next group, so a change requires
# no restart.
#
# A ``raftlog.properties`` file that was edited by hand fails its checksum and is refused as
# damaged. Only ``configure`` accepts it, if it is valid and belongs to this log, and writes it with
# a new checksum.

_FIXED: Final = ("version", "topic.id", "values")


def read_settings(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings of the embedded log in ``path``.

    Raises ``LogNotFoundError``, ``NotALogError`` and ``CorruptFileError``.
    """
    return _settings(WritableLocalStorage(), without_scheme(os.fspath(path)))


def configure(
    path: str | os.PathLike[str],
    changes: Mapping[str, str],
    *,
    storage: WritableStorage | None = None,
    clock: Clock | None = None,
) -> dict[str, str]:
    """Change settings of the embedded log in ``path``, and return all of its settings.

    Running writers use the new settings from their next group of appends on. If an argument is
    refused, nothing is changed. The settings of a quorum's node can be changed while it is stopped.

    Args:
        path: the directory of the log.
        changes: values by setting, both as in ``raftlog.properties``, such as
            ``{"retention.ms": "604800000"}``; ``"-1"`` is no limit.
        storage: the file system; None: the local one.
        clock: the time source; None: the system's.

    Raises:
        OptionError: a setting is unknown, cannot change, or cannot have this value.
        LogNotFoundError, NotALogError: ``path`` does not exist, or is not an embedded log.
        LogLockedError: a writer held the log's lock for 30 s (``LOCK_WAIT_MS``).
        NodeRunningError: the log is that of a running node.
        LogAccessError: the files cannot be read or written.
        CorruptFileError: ``raftlog.properties`` is invalid, or of another log.
    """
    directory = without_scheme(os.fspath(path))
    files = WritableLocalStorage() if storage is None else storage
    is_edited = False
    try:
        _settings(files, directory)  # no lock file is written unless it is an embedded log
    except CorruptFileError:
        if not changes:
            raise
        is_edited = True
    clock = Clock() if clock is None else clock
    with _lock_of_settings(files, directory, clock):
        settings = (
            _settings_as_edited(files, directory) if is_edited else _settings(files, directory)
        )
        for name in changes:
            if name in _FIXED:
                raise OptionError(option=name, reason="it is fixed when the log is created")
            if name not in settings:
                known = ", ".join(one for one in settings if one not in _FIXED)
                raise OptionError(option=name, reason=f"no such setting; known settings: {known}")
        changed = settings | dict(changes)
        data = encode_properties(changed.items())
        try:
            parse_log_properties(data, directory)
        except CorruptFileError as error:
            wrong = next((name for name in changes if error.reason.startswith(f"{name}: ")), None)
            reason = error.reason.removeprefix(f"{wrong}: ")
            raise OptionError(option=wrong or ", ".join(changes), reason=reason) from None
        if changed != settings or is_edited:
            replace_checked(files, directory, {RAFTLOG_PROPERTIES_NAME: data})
        return changed


def _settings(files: WritableStorage, directory: str) -> dict[str, str]:
    properties = _properties(files, directory)
    return dict(parse_properties(encode_log_properties(properties), directory))


def _settings_as_edited(files: WritableStorage, directory: str) -> dict[str, str]:
    """Return the settings in a file whose checksum does not match."""
    path = files.join(directory, RAFTLOG_PROPERTIES_NAME)
    with files.open_file(path) as file:
        properties = parse_log_properties(read_small(file), path)
    metadata_path = files.join(directory, PARTITION_METADATA_NAME)
    metadata = read_checked(files, metadata_path)
    if (
        metadata is None
        or properties.topic_id != parse_partition_metadata(metadata, metadata_path).topic_id
    ):
        raise CorruptFileError(path=path, reason=f"its topic.id is not that of {metadata_path}")
    return dict(parse_properties(encode_log_properties(properties), directory))
