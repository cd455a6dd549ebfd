"""The surviving copy of a quorum's log, from which a new quorum continues. Nothing is written.

A majority of the voters' disks is lost, so it is unknown which records were committed. An election
among the survivors would choose the copy with the latest epoch and, among those, the greatest end
(``most_up_to_date``). All of its records become committed:

    committed               uncertain                   lost
    |-----------------------|---------------------------|.........
    0              end of a snapshot, or of      end of the copy
                   a majority of the copies

- *committed*: a snapshot contains only committed records (KIP-630).
- *uncertain*: the records may never have been committed; no file of a voter contains the high
  watermark.
- *lost*: records that other voters had committed after the end of this copy.

Compare etcd's ``--force-new-cluster``.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, TypeAlias

from crc32c import crc32c

from raftlog.errors import (
    CorruptFileError,
    DataLossError,
    NotALogError,
    RaftlogError,
    TooFewVotersError,
)
from raftlog.limits import EPOCH_RESERVED_FROM, EPOCH_STEP_MAX, INT64_MAX
from raftlog.log.format.directory import COMPACTED_CHECKPOINT_NAME, OUT_OF_ELECTION_NAME
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.quorum_copies import QuorumCopies, ReplicaLogState, agreed_end
from raftlog.log.reading.reads import Isolation, SourceKind
from raftlog.log.segment import control_records
from raftlog.log.writing.log_copy import check_log
from raftlog.quorum.effects import AppendLeaderChange
from raftlog.quorum.voters import VoterSet
from raftlog.records.batch import RecordBatch
from raftlog.records.control import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    encode_control,
)
from raftlog.storage.protocol import Storage
from raftlog.types import SnapshotId

from .addresses import address_text
from .control_values import epoch_head, voter_set, voters_record
from .remote_tail import RemoteTail

CONNECT_TIMEOUT_S: Final = 3.0
"""Time within which a reachable address accepts a connection."""

Addresses: TypeAlias = Mapping[int, tuple[str, int] | None]
"""Host and port of voters by node id; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """The chosen copy. Offsets are exclusive ends.

    - ``bases``: base offsets of its segments; empty if a snapshot ends after the log, because Kafka
      then starts at the snapshot.
    - ``voters``: ids of the old voters; ``voter_set`` is their record, None for static voters,
      which have no record.
    - ``known_epoch``: the latest epoch in the files of all given copies.
    - ``damage``: why a raftlog node had already lost acknowledged records; None if it had not.
    - ``directory_ids``: the directory ids of all given copies, by node id.
    - ``others``: what is not used from the copies that were not chosen.
    - ``compacted_offset``: the log may lack keys below it; the greatest offset if its file is
      damaged.
    - ``tail``: the remote segments of a raftlog node, and what they add to the end of the copy.
    """

    log: DirectoryLog
    bases: tuple[int, ...]
    end_offset: int
    last_epoch: int
    last_crc: int
    last_time_ms: int
    known_epoch: int
    committed_offset: int
    committed_reason: str
    voters: tuple[int, ...]
    voter_set: VoterSet | None
    kraft_version: int
    directory_ids: Mapping[int, str]
    damage: str | None = None
    others: tuple[str, ...] = ()
    compacted_offset: int = 0
    tail: RemoteTail | None = None

    @property
    def incompleteness(self) -> str | None:
        """Why records below the end may be missing: later records, which are lost, superseded them
        in the leader's log. None if no records are missing."""
        if self.compacted_offset <= self.end_offset:
            return None
        cause = f"{COMPACTED_CHECKPOINT_NAME} is damaged: it may be that"
        if self.compacted_offset < INT64_MAX:
            cause = (
                f"its leader had compacted records below offset {self.compacted_offset}, after the "
                f"end of this copy: "
            )
        return (
            f"{cause} records below offset {self.end_offset} are missing which later, lost ones "
            "had superseded, so that the latest state and states as of an offset lack keys; "
            "another copy of the log may have them"
        )

    def addresses(self) -> Addresses:
        """Return the old voters' addresses in their record."""
        endpoints = {voter.key.node_id: voter.endpoints for voter in self.voter_set or ()}
        return {
            node_id: (endpoints[node_id][0].host, endpoints[node_id][0].port)
            if endpoints.get(node_id)
            else None
            for node_id in self.voters
        }

    def new_epoch(self, voters: VoterSet) -> int:
        """Return the epoch in which the new voters begin.

        It is above every epoch that the lost voters can have led, as in ``node.recovery``. It also
        depends on the copy and the voters, so that directories from different copies, or for
        different voters, do not have different records in the same epoch. If such directories are
        mixed up, one of them is truncated, as by any later leader.
        """
        _, value = encode_control(voters_record(voters))
        identity = f"{self.end_offset} {self.last_epoch} {self.last_crc} ".encode() + (value or b"")
        step = EPOCH_STEP_MAX // 2 + crc32c(identity) % (EPOCH_STEP_MAX // 4)
        known = max(self.last_epoch, self.known_epoch)
        return max(known + 1, min(known + step, EPOCH_RESERVED_FROM - 1))

    def epoch_head(self, voters: VoterSet) -> tuple[ControlRecord, ...]:
        """Return the control records of the new epoch's first batch; the first voter leads it.

        Static voters have no record. The records are determined by the copy and the voters.
        """
        keys = tuple(voter.key for voter in voters)
        effect = AppendLeaderChange(
            epoch=self.new_epoch(voters),
            voters=keys,
            granting_voters=keys,
            kraft_version=self.kraft_version or None,
            voter_set=voters if self.kraft_version else None,
        )
        return epoch_head(effect, keys[0].node_id)


def find_survivor(storage: Storage, paths: Sequence[str]) -> Survivor:
    """Open the copies of a quorum's log in ``paths``, choose one and validate it.

    Raises ``NotALogError`` for a path that is not a copy of a quorum's log, ``WrongClusterError``
    for copies of several clusters, damage of the chosen copy, and the errors of ``open_log``.
    """
    logs = [_open(storage, path) for path in paths]
    directory_ids = {
        log.node_id: log.directory_id
        for log in logs
        if log.node_id is not None and log.directory_id is not None
    }
    if len(logs) == 1:
        state = logs[0].quorum_state
        return _survivor(logs[0], 0 if state is None else state.leader_epoch, directory_ids)
    copies = QuorumCopies(",".join(paths), logs)
    best = copies.newest_log()
    states = copies.copies()
    chosen = states[logs.index(best)]
    others = tuple(_describe_other(chosen, one) for one in states if one is not chosen)
    known_epoch = max(one.known_epoch for one in states)
    return _survivor(best, known_epoch, directory_ids, copies=copies, others=others)


def with_remote_segments(survivor: Survivor, tail: RemoteTail) -> Survivor:
    """Return a survivor with the records that only its remote segments have; all are committed."""
    committed_offset, reason = survivor.committed_offset, survivor.committed_reason
    if tail.chain.copied_end_offset > committed_offset:
        committed_offset = tail.chain.copied_end_offset
        reason = "the remote segments have them, and have committed records only"
    known = replace(survivor, tail=tail, committed_offset=committed_offset, committed_reason=reason)
    if tail.agreed_offset == tail.end_offset:
        return known
    log = survivor.log
    own_end = tail.agreed_offset if survivor.bases else None
    found = _Controls(log, log.newest_snapshot(), own_end, tail.batches())
    return replace(
        known,
        end_offset=tail.end_offset,
        last_epoch=tail.last_epoch,
        last_crc=found.last_crc,
        last_time_ms=found.last_time_ms,
        known_epoch=max(survivor.known_epoch, tail.last_epoch),
        voters=found.voters,
        voter_set=found.voter_set,
        kraft_version=found.kraft_version,
    )


def _open(storage: Storage, path: str) -> DirectoryLog:
    log = open_log(storage, path)
    if log.source not in (SourceKind.DIRECTORY, SourceKind.CHECKPOINT):
        reason = "a directory with the log of a quorum, or a snapshot, was expected there"
        raise NotALogError(path=path, reason=reason)
    return log


def _survivor(
    log: DirectoryLog,
    known_epoch: int,
    directory_ids: Mapping[int, str],
    *,
    copies: QuorumCopies | None = None,
    others: tuple[str, ...] = (),
) -> Survivor:
    """Validate the chosen copy. A snapshot that ends after the log replaces its segments."""
    newest = log.newest_snapshot()
    end_offset, bases = log.log_end_offset, log.files.listing.segments
    last_epoch = log.epochs.epoch_at(end_offset - 1) or 0 if bases else 0
    if newest is not None and newest > SnapshotId(epoch=last_epoch, end_offset=end_offset):
        end_offset, last_epoch, bases = newest.end_offset, newest.epoch, ()
    if not end_offset:
        reason = "it is empty: there is nothing to rescue"
        raise NotALogError(path=log.path, reason=reason)
    start_offset = log.log_start_offset
    if bases and start_offset and (newest is None or newest.end_offset < start_offset):
        raise DataLossError(
            path=log.path,
            condition="OFFSETS_DELETED",
            reason=f"it begins at offset {start_offset}, and has no snapshot of the records before",
            remedy="use another copy of the log, such as that of a broker",
        )
    check_log(log, bases)
    found = _Controls(log, newest, end_offset if bases else None)
    if not found.voters:
        reason = "none of its records has the voters of a quorum"
        raise NotALogError(path=log.path, reason=reason)
    committed_offset, committed_reason = _committed(log, copies, end_offset)
    damage = log.files.read_small(OUT_OF_ELECTION_NAME)
    return Survivor(
        log=log,
        bases=bases,
        end_offset=end_offset,
        last_epoch=last_epoch,
        last_crc=found.last_crc,
        last_time_ms=found.last_time_ms,
        known_epoch=max(last_epoch, known_epoch),
        committed_offset=committed_offset,
        committed_reason=committed_reason,
        voters=found.voters,
        voter_set=found.voter_set,
        kraft_version=found.kraft_version,
        directory_ids=directory_ids,
        damage=None if damage is None else damage.decode("utf-8", errors="replace").strip(),
        others=others,
        compacted_offset=_compacted_offset(log),
    )


def _compacted_offset(log: DirectoryLog) -> int:
    """Return the offset up to which a raftlog log was compacted, or fetched in compacted form."""
    try:
        return log.compacted_offset if log.is_raftlog else 0
    except CorruptFileError:
        return INT64_MAX


class _Controls:
    """Voters, kraft.version and the last batch of a log, from its newest snapshot on."""

    def __init__(
        self,
        log: DirectoryLog,
        newest: SnapshotId | None,
        end_offset: int | None,
        tail: Iterable[RecordBatch] = (),
    ) -> None:
        self.voters: tuple[int, ...] = ()
        self.voter_set: VoterSet | None = None
        self.kraft_version = 0
        self.last_crc = 0
        self.last_time_ms = 0
        start_offset = log.log_start_offset
        if newest is not None:
            snapshot = log.read_snapshot(newest)
            self.last_time_ms = snapshot.last_contained_log_timestamp_ms
            self.kraft_version = snapshot.kraft_version
            self._add(snapshot.voters)
            start_offset = max(start_offset, newest.end_offset)
        own = () if end_offset is None else log.batches(start_offset, end_offset)
        for batch in chain(own, tail):
            self.last_crc, self.last_time_ms = batch.crc, batch.max_timestamp_ms
            if batch.is_control:
                for record in control_records(batch):
                    self._add(record)
        if end_offset is not None and not self.voters:  # static voters are only in leader changes
            for entry in reversed(log.epochs.entries):
                if log.files.listing.start_offset <= entry.start_offset < end_offset:
                    batch = next(log.batches(entry.start_offset, entry.start_offset + 1))
                    for record in control_records(batch):
                        self._add(record)
                    return

    def _add(self, record: object) -> None:
        match record:
            case KRaftVoters():
                self.voter_set = voter_set(record)
                self.voters = self.voter_set.node_ids
                self.kraft_version = max(self.kraft_version, 1)
            case KRaftVersion():
                self.kraft_version = record.kraft_version
            case LeaderChange() if self.voter_set is None:
                self.voters = tuple(sorted(voter.voter_id for voter in record.voters))


def _committed(log: DirectoryLog, copies: QuorumCopies | None, end_offset: int) -> tuple[int, str]:
    """Return the end of the records that are certainly committed, and the reason."""
    if copies is not None:
        try:
            found = copies.read_end(isolation=Isolation.READ_UNCOMMITTED)
            return min(found.offset, end_offset), found.reason
        except TooFewVotersError:
            pass
    newest = log.newest_snapshot()
    if newest is None:
        return 0, "it has no snapshot, and no file contains the high watermark"
    return newest.end_offset, "the newest snapshot has them, and has committed records only"


def _describe_other(chosen: ReplicaLogState, other: ReplicaLogState) -> str:
    """Return what is not used from a copy that was not chosen."""
    agreed = min(agreed_end(chosen, other), other.log_end_offset)
    text = (
        f"{other.path} (node {other.node_id}) ends at offset {other.log_end_offset} in epoch "
        f"{other.last_epoch}"
    )
    if agreed == other.log_end_offset:
        return f"{text} and has no other records"
    epochs = [copy.epochs.epoch_at(agreed) for copy in (other, chosen)]
    return (
        f"{text} and diverges at offset {agreed}: epoch {epochs[0]}, where the chosen copy has "
        f"epoch {epochs[1]}; its {other.log_end_offset - agreed} records from there on are not used"
    )


# --- Whether the old quorum can still elect a leader ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterContact:
    """Attempt to connect to an old voter. ``problem`` is None if it accepted the connection."""

    node_id: int
    address: str | None
    problem: str | None


class QuorumRunningError(RaftlogError, code="RAFTLOG_QUORUM_RUNNING", retriable=True):
    """A majority of the voters of the quorum to replace may be running.

    ``reached`` accept connections, the addresses of ``unknown`` are unknown.
    """

    voters: tuple[int, ...]
    reached: tuple[int, ...]
    unknown: tuple[int, ...]

    def message(self) -> str:
        found = [f"{_ids(self.reached)} can be reached"] if self.reached else []
        found += [f"the addresses of {_ids(self.unknown)} are unknown"] if self.unknown else []
        return (
            f"a majority of the old voters ({_ids(self.voters)}) may be running: "
            f"{', '.join(found)}; two quorums of one cluster would diverge: start the old quorum, "
            "or stop all of its voters and confirm that with --old-voters-stopped"
        )


def contact_voters(addresses: Addresses) -> tuple[VoterContact, ...]:
    """Try to connect to all voters at the same time; nothing is sent.

    Host names are resolved with the resolver's own timeout.
    """
    with ThreadPoolExecutor(max_workers=max(len(addresses), 1)) as pool:
        return tuple(pool.map(lambda one: _contact(*one), sorted(addresses.items())))


def _contact(node_id: int, address: tuple[str, int] | None) -> VoterContact:
    if address is None:
        return VoterContact(node_id=node_id, address=None, problem="its address is unknown")
    problem = None
    try:
        socket.create_connection(address, CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:  # ValueError: the host in the log is not a host name
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        problem = reason.lower()
    return VoterContact(node_id=node_id, address=address_text(*address), problem=problem)


def check_majority_is_lost(contacts: Sequence[VoterContact]) -> None:
    """Raise ``QuorumRunningError`` if a majority of the old voters may be running.

    A voter whose address is unknown counts as running; a voter that does not answer counts as lost.
    """
    reached = tuple(one.node_id for one in contacts if one.problem is None)
    unknown = tuple(one.node_id for one in contacts if one.address is None)
    if len(reached) + len(unknown) > len(contacts) // 2:
        voters = tuple(one.node_id for one in contacts)
        raise QuorumRunningError(voters=voters, reached=reached, unknown=unknown)


def _ids(node_ids: Sequence[int]) -> str:
    return ", ".join(map(str, node_ids))
