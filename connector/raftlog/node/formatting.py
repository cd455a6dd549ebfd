"""Formatting of a node's directory, and the identity that it stores.

Invariants:

1. Existing files are never overwritten, because a node that forgets its vote can elect a second
   leader. ``meta.properties`` is written last. Without it a directory belongs to no node yet, and
   formatting can be repeated.
2. The files are Kafka's: ``meta.properties`` and, for a dynamic quorum, the bootstrap checkpoint in
   the partition's directory (Kafka: ``Formatter``, KIP-853). Each node is formatted separately, so
   everything that the nodes must agree on is derived from the cluster id and the command line.
3. Only formatting creates the partition's directory. If it is missing later, the node's vote is
   lost, and the node does not start.
4. A log that continues another one (``node.rescue``) is written below ``<partition>.part`` and
   renamed in the last step. Until then the node does not start, and formatting can be repeated.
"""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from collections.abc import Callable
from typing import Final

from raftlog.client.embedded.directory import random_id as random_id
from raftlog.errors import CorruptFileError, OptionError
from raftlog.limits import BATCH_BYTES_MAX
from raftlog.log.format.directory import (
    BOOTSTRAP_ID,
    CHECKSUMS_NAME,
    INCOMPLETE_SUFFIX,
    META_PROPERTIES_NAME,
    NODE_LOCK_NAME,
    MetaProperties,
    checkpoint_name,
    encode_meta_properties,
    parse_meta_properties,
    parse_partition_name,
)
from raftlog.log.writing.atomic_files import TEMPORARY_SUFFIX, read_checked, replace_checked
from raftlog.log.writing.segments import LogDirectory
from raftlog.log.writing.snapshots import PART_SUFFIX, SNAPSHOT_LOCK_NAME, SnapshotWriter
from raftlog.quorum.voters import VoterSet
from raftlog.records.compression import Compression
from raftlog.records.control import KRaftVersion, SnapshotHeader
from raftlog.storage.local import PrivateLocalStorage
from raftlog.storage.protocol import Storage, WritableStorage
from raftlog.types import (
    CLUSTER_METADATA_TOPIC,
    CLUSTER_METADATA_TOPIC_ID,
    TopicPartition,
)

from .addresses import address_text, is_directory_id
from .config import NodeConfig, voter_of
from .control_values import voters_record
from .errors import AlreadyFormattedError, NotFormattedError, WrongDirectoryError

BOOTSTRAP_NAME: Final = "bootstrap.checkpoint"
"""File with the first records of a controller's log, as in Kafka (``BootstrapDirectory``)."""
_META_VERSION: Final = 1
_KRAFT_VERSION: Final = 1
_LEFTOVERS: Final = {
    SNAPSHOT_LOCK_NAME,
    checkpoint_name(BOOTSTRAP_ID),
    f"{BOOTSTRAP_ID}-0{PART_SUFFIX}",
}
"""Files that an incomplete formatting leaves in the partition's directory."""
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"


def format_directory(
    config: NodeConfig,
    *,
    cluster_id: str,
    initial_voters: VoterSet | None = None,
    is_standalone: bool = False,
    is_observer: bool = False,
    bootstrap: bytes | None = None,
    check_voters: Callable[[VoterSet], None] | None = None,
    write_log: Callable[[WritableStorage, str, VoterSet], None] | None = None,
    storage: WritableStorage | None = None,
    time_ms: int | None = None,
) -> str:
    """Format a node's directory and return its directory id. The files are durable on return.

    Unless voters are static, exactly one of these is required: ``initial_voters`` (each with its
    directory id), ``is_standalone`` (this node is the only initial voter) or ``is_observer`` (the
    node is added to the voters later). The parent directory must exist. ``bootstrap``: content of
    ``bootstrap.checkpoint``, the records of a new cluster with which a controller begins its log.
    ``check_voters`` is called with ``initial_voters`` before a file is written, and raises if this
    node must not be one of them (``node.first_format``). ``write_log`` writes a log with these
    voters into an empty directory; without it the log is empty.

    Raises ``AlreadyFormattedError``, and ``OptionError`` for options that contradict each other;
    then nothing was written. After any other error, format again.
    """
    _check_options(config, cluster_id, initial_voters, is_standalone, is_observer)
    if is_observer and write_log is not None:
        reason = "a node that is no voter fetches the log: omit --no-initial-voters"
        raise OptionError(option="--from", reason=reason)
    files = PrivateLocalStorage() if storage is None else storage
    now_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
    directory_id = random_id()
    if initial_voters is not None:
        own = initial_voters.find(config.node_id)
        assert own is not None, "checked by _check_options"
        directory_id = own.key.directory_id
    if is_standalone:
        initial_voters = VoterSet((voter_of(config, directory_id),))
    directory = config.directory
    files.make_directory(directory)
    files.sync_directory(files.split(directory)[0])
    lock = files.try_lock(files.join(directory, NODE_LOCK_NAME))
    if lock is None:
        raise AlreadyFormattedError(path=directory, reason="another process uses it")
    with lock:
        has_log = write_log is not None
        _check_is_free(files, config, has_bootstrap=bootstrap is not None, has_log=has_log)
        if check_voters is not None and initial_voters is not None:
            check_voters(initial_voters)
        partition = partition_directory(files, config)
        if write_log is not None:
            voters = initial_voters or config.static_voters
            assert voters is not None, "checked by _check_options"
            write_log(files, _empty_directory(files, partition + INCOMPLETE_SUFFIX), voters)
        else:
            files.make_directory(partition)
            files.sync_directory(directory)
            if initial_voters is not None:
                _write_bootstrap(files, partition, initial_voters, now_ms)
        if bootstrap is not None:
            replace_checked(files, directory, {BOOTSTRAP_NAME: bootstrap})
        _write_meta(files, config, cluster_id, directory_id, now_ms)
        if has_log:
            files.rename(partition + INCOMPLETE_SUFFIX, partition)
            files.sync_directory(directory)
    return directory_id


def read_identity(config: NodeConfig, storage: Storage | None = None) -> MetaProperties:
    """Read ``meta.properties`` of a node: its cluster id, node id and directory id, none missing.

    Raises ``NotFormattedError``, ``WrongDirectoryError`` (another node or topic, or the log is
    missing), and ``CorruptFileError``.
    """
    directory = config.directory
    storage = PrivateLocalStorage() if storage is None else storage
    path = storage.join(directory, META_PROPERTIES_NAME)
    data = read_checked(storage, path)
    if data is None:
        raise NotFormattedError(path=directory)
    meta = parse_meta_properties(data, path)
    if meta.cluster_id is None or meta.directory_id is None or meta.node_id is None:
        raise CorruptFileError(path=path, reason="cluster.id, node.id or directory.id is missing")
    if meta.node_id != config.node_id:
        raise WrongDirectoryError(
            path=directory,
            reason=f"{META_PROPERTIES_NAME} has node.id {meta.node_id}, the configuration "
            f"{config.node_id}",
        )
    names = storage.list_names(directory)
    wanted = str(TopicPartition(config.topic, 0))
    logs = [name for name in names if parse_partition_name(name) is not None]
    if wanted not in logs:
        there = f"only {', '.join(logs)}" if logs else "it was removed"
        raise WrongDirectoryError(
            path=directory,
            reason=f"it has no log {wanted}, {there}; the log's directory also stores the node's "
            "vote, so a node without it must be formatted in a new directory and added again",
        )
    return meta


def topic_id_of(cluster_id: str, topic: str) -> str:
    """Return the topic id of a cluster's log, which is the same on every node; Kafka's id for
    ``__cluster_metadata``."""
    if topic == CLUSTER_METADATA_TOPIC:
        return CLUSTER_METADATA_TOPIC_ID
    name = f"raftlog topic {cluster_id} {topic}"
    counter = 0
    while True:
        digest = hashlib.sha256(f"{name} {counter}".encode()).digest()
        text = _id_text(uuid.UUID(bytes=digest[:16], version=4).bytes)
        if not text.startswith("-"):
            return text
        counter += 1


# --- options --------------------------------------------------------------------------------------


def _check_options(
    config: NodeConfig,
    cluster_id: str,
    initial_voters: VoterSet | None,
    is_standalone: bool,
    is_observer: bool,
) -> None:
    if not is_directory_id(cluster_id):
        raise OptionError(
            option="--cluster-id",
            reason="expected a UUID of 22 characters, as printed by `raftlog node random-uuid`",
        )
    ways = [initial_voters is not None, is_standalone, is_observer].count(True)
    if config.static_voters is not None:
        if ways:
            raise OptionError(
                option="static_voters",
                reason="the configuration names the voters: omit --standalone, --initial-voters "
                "and --no-initial-voters, or remove static_voters from the configuration",
            )
    elif ways != 1:
        raise OptionError(
            option="--standalone",
            reason="specify the voters with exactly one of --standalone, --initial-voters and "
            "--no-initial-voters",
        )
    if is_standalone and config.voters is None:
        raise OptionError(
            option="--standalone",
            reason="a voter requires [listeners.voters] or [listeners.both] in its configuration",
        )
    if initial_voters is not None:
        _check_initial_voters(config, initial_voters)


def _check_initial_voters(config: NodeConfig, voters: VoterSet) -> None:
    option = "--initial-voters"
    own = voters.find(config.node_id)
    if own is None:
        raise OptionError(
            option=option,
            reason=f"node {config.node_id} is not one of the initial voters; to add it later, "
            "format it with --no-initial-voters",
        )
    if any(not is_directory_id(voter.key.directory_id) for voter in voters):
        raise OptionError(option=option, reason="every voter requires a directory id")
    if config.voters is None:
        raise OptionError(
            option=option,
            reason="a voter requires [listeners.voters] or [listeners.both] in its configuration",
        )
    listed = address_text(own.endpoints[0].host, own.endpoints[0].port)
    advertised = address_text(config.voters.advertised_host, config.voters.advertised_port)
    if listed != advertised:
        raise OptionError(
            option=option,
            reason=f"it has {listed} for node {config.node_id}, but the node's listener for voters "
            f"advertises {advertised}",
        )


def _check_is_free(
    files: WritableStorage, config: NodeConfig, *, has_bootstrap: bool, has_log: bool
) -> None:
    """Raise unless the directory is empty or holds only files of an incomplete formatting.

    ``has_log``: formatting writes a log.
    """
    directory = config.directory
    names = set(files.list_names(directory))
    part = str(TopicPartition(config.topic, 0)) + INCOMPLETE_SUFFIX
    if has_log and part in names and str(TopicPartition(config.topic, 0)) not in names:
        names -= {part, META_PROPERTIES_NAME}  # the log was not renamed yet
    if META_PROPERTIES_NAME in names:
        raise AlreadyFormattedError(path=directory, reason=f"it contains {META_PROPERTIES_NAME}")
    partition = str(TopicPartition(config.topic, 0))
    written = {CHECKSUMS_NAME, *((BOOTSTRAP_NAME,) if has_bootstrap else ())}
    temporary = {name + TEMPORARY_SUFFIX for name in (META_PROPERTIES_NAME, *written)}
    strange = names - temporary - written - {NODE_LOCK_NAME, partition}
    if not strange and partition in names:
        inside = files.list_names(partition_directory(files, config))
        strange = {f"{partition}/{name}" for name in inside if name not in _LEFTOVERS}
    if strange:
        raise AlreadyFormattedError(path=directory, reason=f"it contains {min(strange)}")


# --- files ----------------------------------------------------------------------------------------


def _empty_directory(files: WritableStorage, path: str) -> str:
    """Create a directory, or delete the files in it; return its path."""
    if not files.make_directory(path):
        for name in files.list_names(path):
            files.unlink(files.join(path, name))
    return path


def _write_meta(
    files: WritableStorage, config: NodeConfig, cluster_id: str, directory_id: str, now_ms: int
) -> None:
    meta = MetaProperties(
        version=_META_VERSION,
        cluster_id=cluster_id,
        node_id=config.node_id,
        directory_id=directory_id,
    )
    replace_checked(files, config.directory, {META_PROPERTIES_NAME: encode_meta(meta, now_ms)})


def encode_meta(meta: MetaProperties, now_ms: int) -> bytes:
    """Encode ``meta.properties`` with the time at which it is written."""
    return encode_meta_properties(meta, written=_java_date(now_ms))


def _write_bootstrap(files: WritableStorage, partition: str, voters: VoterSet, now_ms: int) -> None:
    head = (
        SnapshotHeader(last_contained_log_timestamp_ms=now_ms),
        KRaftVersion(kraft_version=_KRAFT_VERSION),
        voters_record(voters),
    )
    with SnapshotWriter(
        LogDirectory(files, partition),
        BOOTSTRAP_ID,
        head,
        now_ms=now_ms,
        batch_bytes_max=BATCH_BYTES_MAX,
        compression=Compression.NONE,
        on_frozen=lambda _: None,
    ) as writer:
        writer.freeze()


def partition_directory(files: Storage, config: NodeConfig) -> str:
    """Return the path of a node's log."""
    return files.join(config.directory, str(TopicPartition(config.topic, 0)))


def _id_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _java_date(time_ms: int) -> str:
    """Return a time in the format of ``java.util.Date``, independent of the locale."""
    at = time.gmtime(time_ms // 1000)
    clock = f"{at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}"
    day, month = _DAYS[at.tm_wday], _MONTHS[3 * at.tm_mon - 3 : 3 * at.tm_mon]
    return f"{day} {month} {at.tm_mday:02d} {clock} UTC {at.tm_year}"
