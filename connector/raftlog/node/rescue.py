"""New directories for a quorum that lost a majority of its voters' disks, from a surviving copy.

For Apache Kafka, each new controller gets a directory that differs from the others only in
``meta.properties``. The survivor's log is copied unchanged, including records of unknown types,
topic ids, credentials and registrations. The first active controller aborts open transactions.

With kraft.version 1 the voters are in the log. One batch is appended to it, as by a leader of a
later epoch (``Survivor.new_epoch``): LeaderChange, KRaftVersion, KRaftVoters. The voters take
effect when the batch is read, whether committed or not (KIP-853). Static voters (kraft.version 0)
are in the controllers' configuration, and nothing is appended. In both cases ``quorum-state`` has
that later epoch and no vote, so that the next leader's epoch is above every epoch that brokers and
lost voters can have.

All files are first written below ``<out>.part`` and synced, with their directories. Then it is
durably renamed to ``out``, which is therefore complete or absent.

A node of a raftlog quorum is formatted with the log, which is copied, recovered as after a crash,
and continued with the same batch. Each node is formatted separately, but from the same survivor and
for the same voters, so their logs are equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from raftlog.client.object_stores import open_object_store
from raftlog.errors import (
    LogAccessError,
    LogNotFoundError,
    NodeRunningError,
    NotALogError,
    OptionError,
)
from raftlog.log.format.directory import (
    EPOCH_CHECKPOINT_NAME,
    INCOMPLETE_SUFFIX,
    META_PROPERTIES_NAME,
    NODE_LOCK_NAME,
    PARTITION_METADATA_NAME,
    QUORUM_STATE_NAME,
    MetaProperties,
    PartitionMetadata,
    QuorumState,
    encode_epoch_checkpoint,
    encode_partition_metadata,
    encode_quorum_state,
)
from raftlog.log.reading.opening import METADATA_DIRECTORY
from raftlog.log.reading.reads import LogKind
from raftlog.log.reading.remote_tier import OpenStore
from raftlog.log.writing.atomic_files import replace_file
from raftlog.log.writing.log_copy import copy_log
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.segments import LogDirectory
from raftlog.quorum.effects import ElectionState
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.records.builder import build_batch
from raftlog.records.control import encode_control
from raftlog.records.record import NewRecord
from raftlog.storage.local import PrivateLocalStorage
from raftlog.storage.protocol import FileLock, WritableStorage
from raftlog.types import CLUSTER_METADATA_TOPIC_ID, ZERO_UUID, ReplicaKey, TopicPartition

from .config import NodeConfig
from .control_values import quorum_state
from .formatting import encode_meta, format_directory, random_id
from .remote_tail import find_remote_tail
from .survivor import Survivor, find_survivor, with_remote_segments


def controller_name(node_id: int) -> str:
    """Return the name of a controller's directory in the output."""
    return f"controller-{node_id}"


def with_directory_ids(voters: VoterSet, survivor: Survivor) -> VoterSet:
    """Return the voters, each with a directory id and the listener name of the old voters.

    A voter with the node id of a given copy keeps that copy's directory id, which partitions may
    name if the node is also a broker. Other voters without an id get a random one.
    """
    old = [at.name for voter in survivor.voter_set or () for at in voter.endpoints[:1]]

    def complete(voter: Voter) -> Voter:
        node_id, directory_id = voter.key.node_id, voter.key.directory_id
        if directory_id == ZERO_UUID:
            directory_id = survivor.directory_ids.get(node_id) or random_id()
        name = old[0] if old else voter.endpoints[0].name
        endpoints = tuple(Endpoint(name, at.host, at.port) for at in voter.endpoints)
        return Voter(key=ReplicaKey(node_id, directory_id), endpoints=endpoints)

    return VoterSet.of(complete(voter) for voter in voters)


@contextmanager
def open_survivor(
    paths: Sequence[str], storage: WritableStorage | None = None
) -> Iterator[Survivor]:
    """Return the survivor among copies of a Kafka quorum's log (``find_survivor``).

    In the context, the locks of their nodes are held, where they exist; nothing is created. Raises
    ``NodeRunningError``, ``NotALogError`` for a raftlog log, and the errors of ``find_survivor``.
    """
    files = PrivateLocalStorage() if storage is None else storage
    with locked_nodes(files, paths):
        survivor = find_survivor(files, paths)
        log = survivor.log
        if log.is_raftlog or log.kind is not LogKind.METADATA:
            raise NotALogError(
                path=log.path,
                expected="the metadata log of Apache Kafka",
                reason="raftlog has created it, or it has other records",
                remedy="for a node of a raftlog quorum use `raftlog node format --from`",
            )
        yield survivor


@contextmanager
def locked_nodes(storage: WritableStorage, paths: Sequence[str]) -> Iterator[None]:
    """Hold the locks of the nodes whose log directories, or partitions in them, are ``paths``.

    Copies have no lock file, and none is created. Raises ``NodeRunningError``.
    """
    with ExitStack() as locks:
        for path in paths:
            lock = _lock(storage, path)
            if lock is not None:
                locks.enter_context(lock)
        yield


def _lock(storage: WritableStorage, path: str) -> FileLock | None:
    if not storage.is_directory(path):
        return None  # a snapshot
    if META_PROPERTIES_NAME not in storage.list_names(path):
        path = storage.split(path)[0]
    lock_path = storage.join(path, NODE_LOCK_NAME)
    try:
        storage.is_directory(lock_path)
        lock = storage.try_lock(lock_path)
    except (LogNotFoundError, LogAccessError):  # a copy, or a disk that is mounted read-only
        return None
    if lock is None:
        raise NodeRunningError(path=path)
    return lock


def check_is_new(out: str, storage: WritableStorage | None = None) -> None:
    """Raise ``OptionError`` if ``out`` or the remains of an interrupted rescue exist."""
    files = PrivateLocalStorage() if storage is None else storage
    for path, reason in (
        (out, "it exists: name a new directory"),
        (
            out + INCOMPLETE_SUFFIX,
            f"the {INCOMPLETE_SUFFIX} directory of an interrupted rescue exists: delete it",
        ),
    ):
        with suppress(LogNotFoundError):
            files.is_directory(path)
            raise OptionError(option="--out", reason=reason)


def write_controllers(
    survivor: Survivor,
    voters: VoterSet,
    *,
    cluster_id: str,
    out: str,
    storage: WritableStorage | None = None,
    time_ms: int | None = None,
) -> None:
    """Write a directory for each voter below the new directory ``out``. Durable on return.

    ``voters`` have directory ids (``with_directory_ids``). Raises ``OptionError`` if ``out``
    exists; after any other error only ``<out>.part`` is left.
    """
    files = PrivateLocalStorage() if storage is None else storage
    check_is_new(out, files)
    now_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
    part = out + INCOMPLETE_SUFFIX
    files.make_directory(part)
    for voter in voters:
        directory = files.join(part, controller_name(voter.key.node_id))
        files.make_directory(directory)
        _write_log(survivor, voters, files, files.join(directory, METADATA_DIRECTORY))
        meta = MetaProperties(
            version=1,
            cluster_id=cluster_id,
            node_id=voter.key.node_id,
            directory_id=voter.key.directory_id,
        )
        replace_file(files, files.join(directory, META_PROPERTIES_NAME), encode_meta(meta, now_ms))
    files.sync_directory(part)
    files.rename(part, out)
    files.sync_directory(files.split(out)[0])


def _write_log(
    survivor: Survivor, voters: VoterSet, storage: WritableStorage, directory: str
) -> None:
    """Write a copy of the log, with the batch of the new voters, and the files next to it."""
    storage.make_directory(directory)
    epoch, epochs, batch = survivor.new_epoch(voters), survivor.log.epochs, b""
    epochs = epochs.without_from(survivor.end_offset)
    if survivor.kraft_version:
        epochs = epochs.assign(epoch, survivor.end_offset)
        batch = _voters_batch(survivor, voters)
    copy_log(
        survivor.log,
        survivor.bases,
        storage,
        directory,
        end_offset=survivor.end_offset,
        last_batch=batch,
    )
    state = QuorumState(
        version=min(survivor.kraft_version, 1),
        leader_epoch=epoch,
        leader_id=None,
        voted_id=None,
        voters=voters.node_ids,
    )
    metadata = PartitionMetadata(version=0, topic_id=CLUSTER_METADATA_TOPIC_ID)
    for name, data in (
        (PARTITION_METADATA_NAME, encode_partition_metadata(metadata)),
        (EPOCH_CHECKPOINT_NAME, encode_epoch_checkpoint(epochs)),
        (QUORUM_STATE_NAME, encode_quorum_state(state)),
    ):
        replace_file(storage, storage.join(directory, name), data)


def _voters_batch(survivor: Survivor, voters: VoterSet) -> bytes:
    """Return the first batch of the new epoch, with the last record's time.

    So all of its bytes are determined by the survivor and the voters.
    """
    return build_batch(
        [NewRecord(*encode_control(record)) for record in survivor.epoch_head(voters)],
        base_offset=survivor.end_offset,
        leader_epoch=survivor.new_epoch(voters),
        base_timestamp_ms=survivor.last_time_ms,
        is_control=True,
    ).data


# --- a quorum of raftlog --------------------------------------------------------------------------


@contextmanager
def open_node_survivor(
    config: NodeConfig,
    path: str,
    storage: WritableStorage | None = None,
    open_store: OpenStore = open_object_store,
) -> Iterator[Survivor]:
    """Return the survivor in a stopped node's directory, or in its log's directory, with the log's
    remote segments.

    In the context, the node's lock is held. ``open_store`` opens the object store of a log with
    remote storage. Raises ``NodeRunningError``, ``OptionError`` if it is not the log of a raftlog
    quorum with the topic in ``config``, and the errors of ``find_survivor`` and
    ``find_remote_tail``.
    """
    files = PrivateLocalStorage() if storage is None else storage
    partition = str(TopicPartition(config.topic, 0))
    if partition in files.list_names(path):
        path = files.join(path, partition)
    with locked_nodes(files, [path]):
        survivor = find_survivor(files, [path])
        log, reason = survivor.log, None
        if not log.is_raftlog:
            reason = "it is not of a raftlog quorum; for one of Kafka use `raftlog rescue`"
        elif log.topic != config.topic:
            reason = f"it is the log of topic {log.topic}, and node.topic is {config.topic}"
        elif (config.static_voters is None) != bool(survivor.kraft_version):
            reason = "its voters are static, in static_voters of the configuration"
            if survivor.kraft_version:
                reason = "its voters are in the log: remove static_voters from the configuration"
        if reason is not None:
            raise OptionError(option="--from", reason=reason)
        tail = find_remote_tail(
            LogDirectory(files, log.files.directory),
            open_store,
            epochs=log.epochs,
            end_offset=survivor.end_offset,
            last_epoch=survivor.last_epoch,
        )
        yield survivor if tail is None else with_remote_segments(survivor, tail)


def format_from(
    survivor: Survivor,
    config: NodeConfig,
    *,
    initial_voters: VoterSet | None = None,
    is_standalone: bool = False,
    is_observer: bool = False,
    cluster_id: str,
    storage: WritableStorage | None = None,
    time_ms: int | None = None,
) -> str:
    """Format a node's directory, like ``format_directory``, with the survivor's log."""

    def write_log(files: WritableStorage, directory: str, voters: VoterSet) -> None:
        _write_node_log(survivor, voters, files, directory)

    return format_directory(
        config,
        cluster_id=cluster_id,
        initial_voters=initial_voters,
        is_standalone=is_standalone,
        is_observer=is_observer,
        write_log=write_log,
        storage=storage,
        time_ms=time_ms,
    )


def _write_node_log(
    survivor: Survivor, voters: VoterSet, files: WritableStorage, path: str
) -> None:
    """Copy the log into an empty directory and begin the new epoch. Durable on return.

    The copy includes the batches that only remote storage has; other remote segments stay there.
    The new epoch has the last record's time. Raises ``LogReadOnlyError`` if recovery finds damage.
    """
    log, now_ms, tail = survivor.log, survivor.last_time_ms, survivor.tail
    end_offset = survivor.end_offset if tail is None else tail.agreed_offset
    directory, source = LogDirectory(files, path), LogDirectory(files, log.files.directory)
    properties = source.read_properties()
    assert properties is not None, "checked by open_node_survivor"
    copy_log(log, survivor.bases, files, path, end_offset=end_offset)
    copied_end = log.log_end_offset if survivor.bases else end_offset
    directory.write_identity(properties, log.epochs.without_from(copied_end))
    if log.log_start_offset:
        directory.write_log_start(log.log_start_offset)
    directory.raise_compacted_offset(min(source.compacted_offset(), survivor.end_offset))
    directory.raise_tombstone_start(min(source.tombstone_start_offset(), survivor.end_offset))
    chain = source.read_remote_chain() if tail is None else tail.chain
    if chain is not None:
        directory.write_remote_chain(chain)
    copy = QuorumLog.open(files, path, now_ms=now_ms)
    try:
        if copy.report.read_only is not None:
            raise copy.report.read_only
        copy.truncate_to(end_offset)
        if tail is not None:
            for data in tail.chunks():
                copy.append_as_follower(data, leader_epoch=tail.last_epoch)
        assert copy.end_offset == survivor.end_offset, "the copy has the records of the survivor"
        epoch = survivor.new_epoch(voters)
        copy.begin_epoch(epoch, survivor.epoch_head(voters), now_ms=now_ms)
        copy.flush()
        copy.write_election_state(quorum_state(ElectionState(epoch=epoch)))
    finally:
        copy.close()
