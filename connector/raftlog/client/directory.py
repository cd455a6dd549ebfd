"""Opening of log files for reading, by paths as users give them, and creation of new files.

A path that exists is taken literally. Otherwise commas separate paths, and ``*``, ``?`` and
``[...]`` form a pattern. Several paths are copies of one log on different nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.errors import (
    FileExistsLogError,
    LogNotFoundError,
    NotALogError,
    OptionError,
    RaftlogError,
)
from raftlog.limits import DECOMPRESSED_BYTES_MAX, DECOMPRESSED_BYTES_OPTION_MAX
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.log_reader import LogReader
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.quorum_copies import QuorumCopies
from raftlog.log.reading.reads import LogKind
from raftlog.storage.local import PrivateLocalStorage, WritableLocalStorage
from raftlog.storage.protocol import Storage
from raftlog.types import CLUSTER_METADATA_TOPIC

from .arguments import whole_number, without_scheme

# --- Creation of a new file, such as a snapshot: complete and durable, or absent ------------------
# The file is written under a name that Kafka ignores, synced, and renamed. Existing files are never
# replaced. A snapshot contains secrets in clear text, so that the file is readable only by its
# owner from its creation on.

PART_SUFFIX: Final = ".part"
"""Suffix of incomplete snapshots, which Kafka deletes at startup (Kafka: ``Snapshots``)."""


def write_new_file(path: str, data: bytes) -> str:
    """Write ``data`` to a new file in an existing directory, and return its absolute path.

    Raises ``FileExistsLogError`` if ``path`` or its ``.part`` file exists (another writer is
    running, or died), ``LogNotFoundError``, ``LogAccessError``, ``DiskFullError``,
    ``DiskFailedError``.
    """
    files = PrivateLocalStorage()
    directory, name = files.split(path)
    target, part = files.join(directory, name), files.join(directory, name + PART_SUFFIX)
    if name in files.list_names(directory):
        raise FileExistsLogError(path=target)
    with files.create_file(part) as file:
        try:
            files.set_read_only(part, owner_only=True)
            file.write_at(0, data)
            file.sync()
        except RaftlogError:
            files.unlink(part)
            raise
    files.rename(part, target)
    files.sync_directory(directory)
    return target


# --- Opening --------------------------------------------------------------------------------------


def open_path(
    path: str,
    *,
    kind: LogKind | None = None,
    storage: Storage | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> LogReader:
    """Open log files for reading, without disturbing the node that writes them.

    Args:
        path: a metadata directory; a node's log directory (of which ``__cluster_metadata-0`` is
            read); a partition's directory; a ``.log`` segment; a ``.checkpoint`` snapshot; or the
            directories of several copies of one log, of its voters or replicas, separated by commas
            or matched by a pattern.
        kind: the kind of records; None: detect it.
        storage: the file system; None: the local one.
        decompressed_bytes_max: largest size in bytes of a decompressed batch, at most
            ``DECOMPRESSED_BYTES_OPTION_MAX``; a larger one raises ``DecompressionLimitError`` when
            it is read.

    Raises:
        LogNotFoundError, LogAccessError, NotALogError: ``path`` does not exist, cannot be read, or
            is not a log.
        UnknownRecordKindError: the kind of records cannot be detected.
        OptionError: the limit is out of range, or ``kind`` is not ``METADATA`` for the log of
            ``__cluster_metadata``.
        WrongClusterError, CorruptFileError: the copies are not of one log, or their files are
            damaged.
    """
    limit = whole_number(
        decompressed_bytes_max,
        "decompressed_bytes_max",
        at_least=1,
        at_most=DECOMPRESSED_BYTES_OPTION_MAX,
    )
    log = _open(path, kind, storage, limit)
    if kind is LogKind.PARTITION and log.topic == CLUSTER_METADATA_TOPIC:
        reason = (
            f"{path} is the log of {CLUSTER_METADATA_TOPIC}, which is only read as metadata; to "
            "see its secrets use --reveal or redact=false"
        )
        raise OptionError(option="values", reason=reason)
    return log


def _open(
    path: str, kind: LogKind | None, storage: Storage | None, decompressed_bytes_max: int
) -> LogReader:
    # Readers need the boot id, which only writable storage has; nothing is written.
    storage = storage if storage is not None else WritableLocalStorage()
    path = without_scheme(path)

    def opened(path: str) -> DirectoryLog:
        return open_log(storage, path, kind=kind, decompressed_bytes_max=decompressed_bytes_max)

    if _exists(storage, path):
        return opened(path)
    logs: dict[tuple[str, str], DirectoryLog] = {}
    for part in filter(None, (without_scheme(part.strip()) for part in path.split(","))):
        if _exists(storage, part):
            logs[storage.split(part)] = opened(part)
        else:
            logs |= {storage.split(log.path): log for log in _matching(storage, part, opened)}
    if not logs:
        raise LogNotFoundError(path=path)
    found = list(logs.values())
    return found[0] if len(found) == 1 else QuorumCopies(path, found)


def _matching(
    storage: Storage, pattern: str, opened: Callable[[str], DirectoryLog]
) -> list[DirectoryLog]:
    """Open the logs that a pattern matches, and skip matches that are not logs."""
    logs = []
    problem: NotALogError | None = None
    for path in storage.expand(pattern):
        try:
            logs.append(opened(path))
        except NotALogError as error:
            problem = problem or error
    if not logs:
        raise problem or LogNotFoundError(path=pattern)
    return logs


def _exists(storage: Storage, path: str) -> bool:
    try:
        storage.is_directory(path)
    except LogNotFoundError:
        return False
    return True
