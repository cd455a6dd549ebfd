"""Locations of logs: options that name one, and opening it.

Options, such as Spark's, have either ``path`` or ``bootstrap.servers``. Names are Kafka's, not case
sensitive, with an optional prefix ``kafka.``. A location is text that can be sent to other
processes: addresses, and paths of certificates, which must exist on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from raftlog.clock import Clock
from raftlog.errors import (
    FileExistsLogError,
    LogNotFoundError,
    LogReadOnlyError,
    NotALogError,
    OptionError,
    RaftlogError,
)
from raftlog.limits import DECOMPRESSED_BYTES_MAX
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME
from raftlog.log.reading import opening
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.log_reader import LogReader
from raftlog.log.reading.quorum_copies import QuorumCopies
from raftlog.log.reading.reads import LogKind
from raftlog.storage.local import PrivateLocalStorage, WritableLocalStorage
from raftlog.storage.objects import ObjectStore
from raftlog.storage.protocol import Storage, split_new
from raftlog.types import CLUSTER_METADATA_TOPIC

from .key_file import OPTION as KEY_FILE
from .key_file import KeyFile
from .log_handle import (
    decompression_limit,
    is_object_uri,
    refuse_addresses,
    without_scheme,
)
from .option_values import boolean
from .remote.nodes import BOOTSTRAP_SERVERS, parse_addresses
from .remote.security import SECURITY_OPTIONS, ClientSecurity, parse_security

if TYPE_CHECKING:
    from .embedded.handle import EmbeddedLog
    from .encryption import Encryption
    from .remote.handle import ConnectedLog

    AnyLog: TypeAlias = EmbeddedLog | ConnectedLog

PATH: Final = "path"
PREFIX: Final = "kafka."
ENCRYPTION_CONTEXT: Final = "encryption.context"
DELETED_KEYS: Final = "encryption.deleted.keys"
PLAINTEXT_VALUES: Final = "encryption.plaintext"
ENCRYPTION_OPTIONS: Final = (KEY_FILE, ENCRYPTION_CONTEXT, DELETED_KEYS, PLAINTEXT_VALUES)
"""Options of ``Encryption``, with a key file."""
NODE_OPTIONS: Final = (BOOTSTRAP_SERVERS, *SECURITY_OPTIONS)
"""Options for a quorum's nodes, by the names of Kafka's clients and of librdkafka."""


class HasLocation(Protocol):
    """Object with a location. ``path`` is that of files, or addresses if ``nodes``, the
    security of connections to them, is set. ``encryption`` is that of the log's values."""

    @property
    def path(self) -> str: ...
    @property
    def nodes(self) -> ClientSecurity | None: ...
    @property
    def encryption(self) -> Encryption | None: ...


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Location of a log. ``path`` is that of files, or addresses if ``nodes``, the
    security of connections to them, is set. ``encryption`` is that of the log's values."""

    path: str
    nodes: ClientSecurity | None = None
    encryption: Encryption | None = None


def parse_location(options: Mapping[str, str], *, call: str = "it names the log") -> LogLocation:
    """Return the location in options; other options are ignored.

    ``call`` is how the user can give a path, for the error message. Raises ``OptionError`` unless
    exactly one of ``path`` and ``bootstrap.servers`` is given, and for invalid values.
    """
    given = {name.lower().removeprefix(PREFIX): value for name, value in options.items()}
    path, servers = given.get(PATH, "").strip(), given.get(BOOTSTRAP_SERVERS, "").strip()
    if not servers:
        if any(name in given for name in NODE_OPTIONS):
            raise OptionError(option=BOOTSTRAP_SERVERS, reason="is required with security options")
        if not path:
            reason = f"is missing: {call}, or give {BOOTSTRAP_SERVERS}"
            raise OptionError(option=PATH, reason=reason)
        refuse_addresses(path, may_be_objects=True)
        return LogLocation(path, encryption=_parse_encryption(given))
    if path:
        reason = "cannot be given together with path: give one of them"
        raise OptionError(option=BOOTSTRAP_SERVERS, reason=reason)
    parse_addresses(servers)
    return LogLocation(servers, parse_security(given), _parse_encryption(given))


def _parse_encryption(given: Mapping[str, str]) -> Encryption | None:
    """Return the encryption of values in options, None without it. Raises ``OptionError``."""
    names = [name for name in ENCRYPTION_OPTIONS if name in given]
    if not names:
        return None
    from .encryption import Encryption

    for required in (KEY_FILE, ENCRYPTION_CONTEXT):
        if not given.get(required, "").strip():
            raise OptionError(option=required, reason=f"is required with {names[0]}")
    deleted = given.get(DELETED_KEYS, "error").strip().lower()
    if deleted not in ("error", "null"):
        raise OptionError(option=DELETED_KEYS, reason="must be error or null")
    return Encryption(
        keys=KeyFile(given[KEY_FILE].strip()),
        context=given[ENCRYPTION_CONTEXT].strip(),
        deleted_keys="null" if deleted == "null" else "error",
        allow_plaintext=boolean(PLAINTEXT_VALUES, given.get(PLAINTEXT_VALUES, "false")),
    )


# --- Opening a log by location --------------------------------------------------------------------


def open_reader(
    where: HasLocation,
    kind: LogKind | None = None,
    *,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> LogReader:
    """Open the log for reading.

    ``kind`` is the kind of records in files, None to detect it; nodes report theirs. Raises as
    ``open_path`` or ``raftlog.follow``.
    """
    if where.nodes is None:
        log = open_path(where.path, kind=kind, decompressed_bytes_max=decompressed_bytes_max)
    else:
        from .remote.handle import open_remote_reader

        log = open_remote_reader(
            where.path, where.nodes, decompressed_bytes_max=decompressed_bytes_max
        )
    return log if where.encryption is None else decrypted(log, where.encryption)


def decrypted(log: LogReader, encryption: Encryption) -> LogReader:
    """Return a reader of the log with decrypted values; closes it if that is not possible.

    Raises ``OptionError`` for a log of cluster metadata.
    """
    from .decrypted_log import DecryptedLog
    from .encryption import ValueCipher

    try:
        return DecryptedLog(log, ValueCipher(encryption, Clock().now_ms))
    except OptionError:
        log.close()
        raise


def open_log(where: HasLocation) -> AnyLog:
    """Open an existing log for appending. Raises as ``raftlog.open`` or ``raftlog.connect``."""
    if where.nodes is None:
        from .embedded.handle import open_embedded

        return open_embedded(where.path, create=False, encryption=where.encryption)
    from .remote.handle import open_remote_log

    return open_remote_log(where.path, where.nodes, encryption=where.encryption)


# --- Opening of log files for reading -------------------------------------------------------------
# A path that exists is taken literally. Otherwise commas separate paths, and ``*``, ``?`` and
# ``[...]`` form a pattern. Several paths are copies of one log on different nodes.


def open_path(
    path: str,
    *,
    kind: LogKind | None = None,
    storage: Storage | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> LogReader:
    """Open log files for reading, without disturbing the node that writes them.

    Args:
        path: a metadata directory; a node's log directory (``__cluster_metadata-0`` in it is read);
            a partition directory; a ``.log`` segment; a ``.checkpoint`` snapshot; or the
            directories of several voters or replicas of one log, comma-separated or as a pattern.
            Or their URIs in an object store (s3, gs, abfs), with the options of ``pyarrow.fs`` in
            the query.
        kind: the kind of records; None: it is detected.
        storage: the file system; None: the local one.
        decompressed_bytes_max: maximum size in bytes of a decompressed batch, at most
            ``DECOMPRESSED_BYTES_OPTION_MAX``. Reading a larger one raises
            ``DecompressionLimitError``.

    Raises:
        LogNotFoundError, LogAccessError, NotALogError: ``path`` does not exist, cannot be read, or
            is not a log.
        UnknownRecordKindError: the kind of records cannot be detected.
        OptionError: the limit is out of range, or ``kind`` is not ``METADATA`` for the log of
            ``__cluster_metadata``.
        WrongClusterError, CorruptFileError: the copies do not belong to one log, or their files are
            damaged.
    """
    log = _open(path, kind, storage, decompression_limit(decompressed_bytes_max))
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
    def opened(files: Storage, path: str) -> DirectoryLog:
        return opening.open_log(
            files,
            path,
            kind=kind,
            decompressed_bytes_max=decompressed_bytes_max,
            open_store=_open_store,
        )

    if not any(is_object_uri(part.strip()) for part in path.split(",")):
        path = without_scheme(path)
        files = _storage(path)[0] if storage is None else storage
        if _exists(files, path):
            return opened(files, path)
    logs: dict[tuple[str, str], DirectoryLog] = {}
    for part in filter(None, map(str.strip, path.split(","))):
        files, part = _storage(part) if storage is None else (storage, part)
        if _exists(files, part):
            logs[files.split(part)] = opened(files, part)
        else:
            logs |= {files.split(log.path): log for log in _matching(files, part, opened)}
    if not logs:
        raise LogNotFoundError(path=path)
    found = list(logs.values())
    return found[0] if len(found) == 1 else QuorumCopies(path, found)


def _open_store(uri: str) -> ObjectStore:
    """Open the store of a tiered log's remote segments."""
    from .object_stores import open_object_store, readers_of

    return readers_of(open_object_store)(uri)


def _storage(path: str) -> tuple[Storage, str]:
    """Return the storage of one path, and the path in it. Raises ``OptionError``."""
    if is_object_uri(path):
        refuse_addresses(path, may_be_objects=True)
        from raftlog.storage.arrow_objects import ArrowStorage

        return ArrowStorage.of_uri(path)
    # Readers need the boot id, which only writable storage has; nothing is written.
    return WritableLocalStorage(), without_scheme(path)


def _matching(
    storage: Storage, pattern: str, opened: Callable[[Storage, str], DirectoryLog]
) -> list[DirectoryLog]:
    """Open the logs that a pattern matches, and skip matches that are not logs."""
    logs = []
    problem: NotALogError | None = None
    for path in storage.expand(pattern):
        try:
            logs.append(opened(storage, path))
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


# --- Creation of a new file, such as a snapshot: complete and durable, or absent ------------------
# The file is written under a name that Kafka ignores, synced, and renamed. Existing files are never
# replaced. A snapshot contains secrets in clear text, so that the file is readable only by its
# owner from its creation on.

PART_SUFFIX: Final = ".part"
"""Suffix of incomplete snapshots, which Kafka deletes at startup (Kafka: ``Snapshots``)."""


def write_new_file(path: str, data: bytes | Iterable[bytes]) -> str:
    """Write ``data``, or its chunks, to a new file in an existing directory, and return its
    absolute path. If the chunks raise an error, the file is not written.

    Raises ``LogReadOnlyError`` in the directory of a log that raftlog writes,
    ``FileExistsLogError`` if ``path`` or its ``.part`` file exists (another writer is
    running, or died), ``LogNotFoundError``, ``LogAccessError``, ``DiskFullError``,
    ``DiskFailedError``.
    """
    files = PrivateLocalStorage()
    directory, name = split_new(files, path)
    target, part = files.join(directory, name), files.join(directory, name + PART_SUFFIX)
    _check_new(files, directory, name)
    try:
        created = files.create_file(part)
    except FileExistsLogError:
        remedy = "wait until that writer has ended; if it was killed, delete the file"
        raise FileExistsLogError(path=part, remedy=remedy) from None
    with created as file:
        try:
            files.set_read_only(part, owner_only=True)
            position = 0
            for chunk in (data,) if isinstance(data, bytes) else data:
                file.write_at(position, chunk)
                position += len(chunk)
            file.sync()
            _check_new(files, directory, name)  # a rename would replace it
            files.rename(part, target)
        except BaseException:
            with suppress(RaftlogError):  # the error before it is the cause
                files.unlink(part)
            raise
    files.sync_directory(directory)
    return target


def _check_new(files: Storage, directory: str, name: str) -> None:
    names = files.list_names(directory)
    if name in names:
        remedy = "write to another name, or delete the file first"
        raise FileExistsLogError(path=files.join(directory, name), remedy=remedy)
    if RAFTLOG_PROPERTIES_NAME in names:
        raise LogReadOnlyError(
            path=directory,
            reason="it is the directory of a log of raftlog, to which only its writers may add "
            "files",
            remedy="write the file to another directory",
        )
