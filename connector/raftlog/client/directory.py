"""The door to files: paths as people write them, wired to real storage.

Rules of this file:

1. A path that exists is itself, whatever letters it has. Otherwise commas separate paths and
   ``*``, ``?``, ``[...]`` make a pattern.
2. Several paths are copies of one log, of different nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import LogNotFoundError, NotALogError, OptionError
from raftlog.limits import DECOMPRESSED_BYTES_MAX, DECOMPRESSED_BYTES_OPTION_MAX
from raftlog.log.directory_log import DirectoryLog
from raftlog.log.opening import open_log
from raftlog.log.quorum_copies import QuorumCopies
from raftlog.log.reader import LogReader
from raftlog.log.reads import LogKind
from raftlog.storage.local_writing import WritableLocalStorage
from raftlog.storage.protocol import Storage
from raftlog.types import CLUSTER_METADATA_TOPIC

from .arguments import whole_number
from .paths import without_scheme


def open_path(
    path: str,
    *,
    kind: LogKind | None = None,
    storage: Storage | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> LogReader:
    """Open what lies at ``path`` for reading, without disturbing the node that writes it.

    A metadata directory; a node's log directory (its ``__cluster_metadata-0``); an ordinary
    partition's directory; one ``.log`` segment; one ``.checkpoint``; or the directories of several
    copies of one log, as its voters or replicas have them, separated by commas or matched by a
    pattern.

    ``kind`` declares what the records are; None: find out. A compressed batch that expands to more
    than ``decompressed_bytes_max`` bytes is not read (``DecompressionLimitError``). Raises
    ``LogNotFoundError``, ``LogAccessError``, ``NotALogError``, ``UnknownRecordKindError``;
    ``OptionError`` for a limit that is too large, and if the log of ``__cluster_metadata`` is
    declared to be another; for several voters also ``WrongClusterError`` and ``CorruptFileError``.
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
            f"{path} is the log of {CLUSTER_METADATA_TOPIC} and only read as metadata; its secrets "
            "are shown by --reveal or redact=false"
        )
        raise OptionError(option="values", reason=reason)
    return log


def _open(
    path: str, kind: LogKind | None, storage: Storage | None, decompressed_bytes_max: int
) -> LogReader:
    # Reading needs the boot's name, which only storage that can be written has; nothing is written.
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
    """The logs that a pattern matches; what is no log among its matches is passed over."""
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
