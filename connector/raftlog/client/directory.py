"""The door to files: paths as people write them, wired to real storage.

Rules of this file:

1. A path that exists is itself, whatever letters it has. Otherwise commas separate paths and
   ``*``, ``?``, ``[...]`` make a pattern.
2. Several paths are copies of one log, of different nodes.
"""

from __future__ import annotations

from raftlog.errors import LogNotFoundError, NotALogError, OptionError
from raftlog.log.opening import open_log
from raftlog.log.reader import LogReader
from raftlog.log.reads import LogKind
from raftlog.log.single import SingleLog
from raftlog.log.voters import VotersLog
from raftlog.storage.local_writing import WritableLocalStorage
from raftlog.storage.protocol import Storage
from raftlog.types import CLUSTER_METADATA_TOPIC

from .paths import without_scheme


def open_path(
    path: str, *, kind: LogKind | None = None, storage: Storage | None = None
) -> LogReader:
    """Open what lies at ``path`` for reading, without disturbing the node that writes it.

    A metadata directory; a node's log directory (its ``__cluster_metadata-0``); an ordinary
    partition's directory; one ``.log`` segment; one ``.checkpoint``; or the directories of several
    copies of one log, as its voters or replicas have them, separated by commas or matched by a
    pattern.

    ``kind`` declares what the records are; None: find out. Raises ``LogNotFoundError``,
    ``LogAccessError``, ``NotALogError``, ``UnknownRecordKindError``; ``OptionError`` if the log of
    ``__cluster_metadata`` is declared to be another; for several voters also ``WrongClusterError``
    and ``CorruptFileError``.
    """
    log = _open(path, kind, storage)
    if kind is LogKind.PARTITION and log.topic == CLUSTER_METADATA_TOPIC:
        reason = (
            f"{path} is the log of {CLUSTER_METADATA_TOPIC} and only read as metadata; its secrets "
            "are shown by --reveal or redact=false"
        )
        raise OptionError(option="values", reason=reason)
    return log


def _open(path: str, kind: LogKind | None, storage: Storage | None) -> LogReader:
    # Reading needs the boot's name, which only storage that can be written has; nothing is written.
    storage = storage if storage is not None else WritableLocalStorage()
    path = without_scheme(path)
    if _exists(storage, path):
        return open_log(storage, path, kind=kind)
    logs: dict[tuple[str, str], SingleLog] = {}
    for part in filter(None, (without_scheme(part.strip()) for part in path.split(","))):
        if _exists(storage, part):
            logs[storage.split(part)] = open_log(storage, part, kind=kind)
        else:
            logs |= {storage.split(log.path): log for log in _matching(storage, part, kind)}
    if not logs:
        raise LogNotFoundError(path=path)
    found = list(logs.values())
    return found[0] if len(found) == 1 else VotersLog(path, found)


def _matching(storage: Storage, pattern: str, kind: LogKind | None) -> list[SingleLog]:
    """The logs that a pattern matches; what is no log among its matches is passed over."""
    logs = []
    problem: NotALogError | None = None
    for path in storage.expand(pattern):
        try:
            logs.append(open_log(storage, path, kind=kind))
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
