"""Diagnosis of a log, a cluster and a quorum: what a finding means, and which command to run next.

Observations are arguments: findings of a check, a state, a quorum's description, free space.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from raftlog.limits import MIB
from raftlog.printable import compact_json
from raftlog_state.image import BrokerRow, Entity, MetadataImage, PartitionRow

from .findings import Finding, Kind, Severity

if TYPE_CHECKING:
    from raftlog.client.remote.voters import QuorumInfo, ReplicaState

NAMES_SHOWN_MAX: Final = 3
"""Names that a diagnosis lists; further ones are only counted."""
STALE_MS: Final = 10_000
"""Time without a fetch, or without being caught up, after which a replica is reported.

Kafka's ``controller.quorum.fetch.timeout.ms`` is 2 s, its ``replica.lag.time.max.ms`` is 30 s.
"""
_VOTERS_MIN: Final = 3
"""Voters of a quorum that tolerates the failure of one voter."""
SILENT_MS: Final = 30_000
"""Time without a record of an active controller, which writes a NoOp every 500 ms by default."""


class Level(StrEnum):
    """Level of a diagnosis. Only a note requires no action."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found, what it means in one sentence, and the command to run next."""

    level: Level
    found: str
    meaning: str
    next_command: str | None = None

    def lines(self) -> Iterator[str]:
        """Yield the diagnosis as lines of text."""
        yield f"{self.level}: {self.found}"
        yield f"  meaning: {self.meaning}"
        if self.next_command is not None:
            yield f"  next: {self.next_command}"

    def json(self) -> str:
        """Return the diagnosis as a line of JSON."""
        fields = {
            "level": self.level,
            "found": self.found,
            "meaning": self.meaning,
            "next": self.next_command,
        }
        return compact_json(fields)


# --- Findings of a check --------------------------------------------------------------------------


class Writer(StrEnum):
    """Program that writes a log, and repairs it; the value describes the log."""

    CONTROLLER = "metadata log of Kafka"
    BROKER = "partition of Kafka"
    EMBEDDED = "log of raftlog.open"
    NODE = "log of a raftlog node"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLog:
    """Log that was checked. ``path`` is a command's argument, ``directory`` contains the files."""

    path: str
    directory: str
    writer: Writer

    def command(self, name: str, *options: object) -> str:
        """Return a command that reads the log."""
        return shlex.join(["raftlog", name, self.path, *map(str, options)])

    def at(self, name: str, offset: int | None) -> str:
        """Return a command that prints the records of an offset."""
        if offset is None:
            return self.command(name)
        return self.command(name, "--from", offset, "--to", offset + 1)


Advice: TypeAlias = tuple[str, str | None]
"""Meaning, and the next command."""

_RECOVER_NODE: Final = "raftlog node recover --config node.toml"
_ASK_QUORUM: Final = "raftlog doctor --bootstrap-server HOST:PORT"


def diagnose_findings(
    findings: Iterable[Finding], logs: Sequence[CheckedLog]
) -> Iterator[Diagnosis]:
    """Yield one diagnosis for all findings of a kind in one log, based on the first one.

    ``raftlog check`` prints each finding.
    """
    counts: dict[tuple[Kind, Severity, CheckedLog], int] = {}
    firsts: list[tuple[Finding, CheckedLog]] = []
    for finding in findings:
        log = _log_of(finding.path, logs)
        key = (finding.kind, finding.severity, log)
        if key not in counts:
            firsts.append((finding, log))
        counts[key] = counts.get(key, 0) + 1
    for finding, log in firsts:
        meaning, command = _ADVICE[finding.kind](finding, log)
        _, _, found = finding.text().partition(": ")
        more = counts[finding.kind, finding.severity, log] - 1
        if more:
            found += f"; {more} more of this kind, see `{log.command('check')}`"
        yield Diagnosis(level=_level(finding), found=found, meaning=meaning, next_command=command)


def _log_of(path: str, logs: Sequence[CheckedLog]) -> CheckedLog:
    """Return the log that a file belongs to; meta.properties is in the directory above it."""
    for levels in (1, 2):
        for log in logs:
            above = log.directory.rsplit("/", levels - 1)[0]
            if path.startswith(f"{above}/") or path == log.directory:
                return log
    return logs[0]


def _level(finding: Finding) -> Level:
    if finding.severity is Severity.DAMAGE:
        return Level.PROBLEM
    is_warning = finding.kind in (Kind.PERMISSIONS, Kind.UNKNOWN)
    return Level.WARNING if is_warning else Level.NOTE


def _lost_records(finding: Finding, log: CheckedLog) -> Advice:
    if finding.severity is Severity.NOTE:
        return "its node deleted or wrote files during the check, which is normal", None
    match log.writer:
        case Writer.EMBEDDED:
            return (
                "the log opens read-only, since acknowledged records are never truncated "
                "automatically; the next command changes nothing that is acknowledged",
                shlex.join(["raftlog", "repair", log.path]),
            )
        case Writer.NODE:
            return (
                "the node does not vote until it has fetched the committed records from a leader",
                _RECOVER_NODE,
            )
        case Writer.CONTROLLER:
            return (
                "this copy has no usable records from there on; if a majority of the voters is "
                "healthy, the node fetches them from its leader once this directory is moved away",
                _ASK_QUORUM,
            )
        case Writer.BROKER:
            return (
                "this copy has no usable records from there on; those that are committed are in "
                "the copies of the other in-sync replicas",
                log.at("cat", finding.offset),
            )


def _unusable_file(finding: Finding, log: CheckedLog) -> Advice:
    advice = _lost_records(finding, log)
    if log.writer in (Writer.EMBEDDED, Writer.NODE):
        return advice
    return "Kafka does not start with this file, or ignores what it contains", advice[1]


def _slow_index(finding: Finding, log: CheckedLog) -> Advice:
    if finding.severity is Severity.NOTE:
        return "normal for a running node: the log was copied before its index, or after it", None
    meaning = "no record is lost, but look-ups by offset or time may miss records"
    if log.writer is Writer.EMBEDDED:
        return f"{meaning}; the next command rebuilds it", f"raftlog repair {_quoted(log.path)}"
    return (
        f"{meaning}; a node that starts without the file rebuilds it, so stop it first",
        f"rm {_quoted(finding.path)}",
    )


def _torn_tail(finding: Finding, log: CheckedLog) -> Advice:
    return "normal while a node writes, or after a crash: the next start truncates it", None


def _later_epoch(finding: Finding, log: CheckedLog) -> Advice:
    if finding.severity is Severity.NOTE:
        return "normal after a crash: the next start truncates the epochs without records", None
    return _lost_records(finding, log)


def _unusable_snapshot(finding: Finding, log: CheckedLog) -> Advice:
    if finding.severity is Severity.NOTE and finding.offset is None:
        return "its node deleted the snapshot during the check, which is normal", None
    if finding.severity is Severity.NOTE:
        return (
            "its node deletes the records of the log when it starts, and continues after the "
            "snapshot, which is the newest state: the node was stopped after it had fetched the "
            "snapshot, or the end of the log was lost",
            log.command("state"),
        )
    return (
        "readers and nodes use an earlier snapshot instead, if the log still has all records "
        "after that one; the next command fails if it does not",
        log.command("state", "--quiet"),
    )


def _contradiction(finding: Finding, log: CheckedLog) -> Advice:
    if finding.severity is Severity.NOTE:
        return (
            "its records take effect when it ends; if its writer was stopped, they never do",
            log.at("cat", finding.offset),
        )
    if finding.path.endswith(".checkpoint") and finding.offset is not None:
        return (
            "a node that loads this snapshot has another state than one that replays the log",
            log.command("diff", finding.path, "--from", finding.offset),
        )
    return (
        "a record contradicts the state before it, so states after it cannot be built: files of "
        "two clusters were mixed, or its writer has a bug",
        log.at("cat", finding.offset),
    )


def _divergence(finding: Finding, log: CheckedLog) -> Advice:
    if finding.severity is Severity.NOTE:
        return "normal after a change of leaders: a follower truncates what is not committed", None
    return (
        "two replicas have different committed records at one offset, so what was read depends "
        "on the leader; keep copies of both directories before any node starts",
        log.at("cat", finding.offset),
    )


def _readable_by_others(finding: Finding, log: CheckedLog) -> Advice:
    return (
        "cluster metadata contains credentials and tokens in clear text",
        f"chmod -R o-rwx {_quoted(finding.path)}",
    )


def _unsupported(finding: Finding, log: CheckedLog) -> Advice:
    meaning = "states and changes lack these records; a newer release may support them"
    if finding.severity is Severity.DAMAGE:
        meaning = (
            "a record needs one of these, or contradicts the state for another reason: use a newer "
            "release; if the finding stays, files of two clusters were mixed"
        )
    return meaning, "pip install --upgrade raftlog"


_ADVICE: Final[dict[Kind, Callable[[Finding, CheckedLog], Advice]]] = {
    Kind.BATCH: _lost_records,
    Kind.TORN_TAIL: _torn_tail,
    Kind.GAP: _lost_records,
    Kind.SEGMENT_NAME: _lost_records,
    Kind.EPOCH: _later_epoch,
    Kind.INDEX: _slow_index,
    Kind.FILE: _unusable_file,
    Kind.SNAPSHOT: _unusable_snapshot,
    Kind.REPLAY: _contradiction,
    Kind.DIVERGENCE: _divergence,
    Kind.FOREIGN: _lost_records,
    Kind.PERMISSIONS: _readable_by_others,
    Kind.UNKNOWN: _unsupported,
}


def _quoted(path: str) -> str:
    return shlex.quote(path)


# --- Files ----------------------------------------------------------------------------------------


def diagnose_space(
    directory: str, *, free_bytes: int, total_bytes: int, free_files: int | None
) -> Iterator[Diagnosis]:
    """Yield a diagnosis if a directory's file system is nearly full.

    ``free_files`` is the number of files that can be created, None if it is unlimited.
    """
    share = free_bytes / max(total_bytes, 1)
    is_full = share < 0.01 and free_bytes < 1024 * MIB
    if is_full or (share < 0.05 and free_bytes < 10 * 1024 * MIB):
        yield Diagnosis(
            level=Level.PROBLEM if is_full else Level.WARNING,
            found=f"{directory}: {free_bytes // MIB} MiB are free, {share:.1%} of its file system",
            meaning="a node of Kafka whose disk is full stops; one of raftlog waits for space",
            next_command=f"df -h {_quoted(directory)}",
        )
    if free_files is not None and free_files < 1000:
        yield Diagnosis(
            level=Level.PROBLEM if free_files < 10 else Level.WARNING,
            found=f"{directory}: only {free_files} more files can be created (inodes)",
            meaning="a node cannot roll segments or write snapshots, as if its disk were full",
            next_command=f"df -i {_quoted(directory)}",
        )


def diagnose_owners(directory: str, *, owner: str, of_others: Sequence[str]) -> Iterator[Diagnosis]:
    """Yield a diagnosis if files and their directory have different owners."""
    if of_others:
        yield Diagnosis(
            level=Level.WARNING,
            found=f"{directory}: its owner is {owner}, but not of {_names(of_others)}",
            meaning="its node may be unable to write them, and fails when it starts: a tool was "
            "probably run as another user",
            next_command=f"chown -R {_quoted(owner)} {_quoted(directory)}",
        )


def diagnose_expiry(certificate: str, path: str, *, level: Level) -> Diagnosis:
    """Return the diagnosis of a certificate that expires soon or has expired.

    ``certificate`` describes it, with the time that is left.
    """
    return Diagnosis(
        level=level,
        found=certificate,
        meaning="connections that it authenticates end when it expires, and new ones are "
        "refused: replace it in its file, then send SIGHUP to the node",
        next_command=f"openssl x509 -enddate -noout -in {_quoted(path)}",
    )


def diagnose_list_expiry(found: str, path: str) -> Diagnosis:
    """Return the diagnosis of a revocation list that expires soon, or has expired."""
    return Diagnosis(
        level=Level.PROBLEM,
        found=found,
        meaning="after it has expired all connections are refused: replace the list in its file, "
        "then send SIGHUP to the node",
        next_command=f"openssl crl -nextupdate -noout -in {_quoted(path)}",
    )


def diagnose_no_certificate(reason: str, path: str) -> Diagnosis:
    """Return the diagnosis of a file whose certificates cannot be read."""
    return Diagnosis(
        level=Level.PROBLEM,
        found=reason,
        meaning="when its certificates expire is unknown, and a node that cannot read them does "
        "not start; restore the file, or its permissions",
        next_command=f"ls -l {_quoted(path)}",
    )


def diagnose_unchecked(directory: str, partitions: Sequence[str]) -> Iterator[Diagnosis]:
    """Yield a note if a node's directory has partitions that were not checked."""
    if partitions:
        yield Diagnosis(
            level=Level.NOTE,
            found=f"{directory}: not checked are {_names(partitions)}",
            meaning="of a node's directory, only the metadata log is checked",
            next_command=f"raftlog check {_quoted(f'{directory}/{partitions[0]}')}",
        )


# --- The state of a cluster -----------------------------------------------------------------------


def diagnose_cluster(image: MetadataImage, source: str) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each kind of unavailability in a state.

    ``source`` is the argument of a command: PATH, or the options for nodes.
    """
    registered = {row.broker_id: row for row in image.rows_of(BrokerRow)}
    offline, shrunk, moving, unknown = (_Group() for _ in range(4))
    count = 0
    for row in image.rows_of(PartitionRow):
        count += 1
        if row.leader < 0:
            offline.add(row)
        elif len(row.isr) < len(row.replicas):
            shrunk.add(row)
        if row.adding_replicas or row.removing_replicas:
            moving.add(row)
        if not registered.keys() >= set(row.replicas):
            unknown.add(row)
    if offline.count:
        yield Diagnosis(
            level=Level.PROBLEM,
            found=f"partitions without a leader: {offline.of(count)}",
            meaning="clients can neither write nor read them until a broker of their ISR or ELR "
            "starts",
            next_command=offline.history(source),
        )
    fenced = [str(row.broker_id) for row in registered.values() if row.fenced]
    if fenced:
        yield Diagnosis(
            level=Level.WARNING,
            found=f"fenced brokers: {_names(fenced)}, of {len(registered)} registered",
            meaning="the controller receives no heartbeats from them, or they are starting: they "
            "lead no partition",
            next_command=f"raftlog log {source} broker/{fenced[0]}",
        )
    if shrunk.count:
        yield Diagnosis(
            level=Level.WARNING,
            found=f"under-replicated partitions: {shrunk.of(count)}",
            meaning="some replicas are not in the ISR: fewer brokers than intended may fail",
            next_command=shrunk.history(source),
        )
    if unknown.count:
        yield Diagnosis(
            level=Level.WARNING,
            found=f"partitions with replicas on unregistered brokers: {unknown.of(count)}",
            meaning="these replicas never join the ISR until such a broker registers, or until "
            "they are reassigned with kafka-reassign-partitions",
            next_command=f"raftlog state {source} partitions "
            "--columns topic_name,partition_id,replicas,isr",
        )
    if moving.count:
        yield Diagnosis(
            level=Level.NOTE,
            found=f"partitions that are being reassigned: {moving.of(count)}",
            meaning="they have additional replicas until those are in the ISR",
            next_command=moving.history(source),
        )


class _Group:
    """Number of partitions with one defect, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[PartitionRow] = []

    def add(self, row: PartitionRow) -> None:
        self.count += 1
        if self.count <= NAMES_SHOWN_MAX:
            self._first.append(row)

    def of(self, total: int) -> str:
        shown = ", ".join(f"{row.topic_name}-{row.partition_id}" for row in self._first)
        such = f", such as {shown}" if self.count > NAMES_SHOWN_MAX else f": {shown}"
        return f"{self.count} of {total}{such}"

    def history(self, source: str) -> str:
        row = self._first[0]
        return f"raftlog log {source} {_quoted(f'partition/{row.topic_name}/{row.partition_id}')}"


def diagnose_silence(
    image: MetadataImage, now_ms: int, source: str, *, is_raftlog: bool
) -> Iterator[Diagnosis]:
    """Yield a diagnosis if the active controller of a cluster writes no records.

    ``now_ms`` is the time of the leader. A raftlog quorum has a controller only if one has
    registered.
    """
    if is_raftlog and not image.map(Entity.CONTROLLER):
        return
    silent_ms = now_ms - image.timestamp_ms
    if image.timestamp_ms >= 0 and silent_ms > SILENT_MS:
        yield Diagnosis(
            level=Level.WARNING,
            found=f"the newest committed record is {silent_ms // 1000} s old",
            meaning="an active controller writes a NoOp every 500 ms unless "
            "metadata.max.idle.interval.ms is changed: it may be stalled",
            next_command=f"raftlog cat {source} --from -2m --noop",
        )


# --- A running quorum -----------------------------------------------------------------------------


def leader_time_ms(quorum: QuorumInfo, now_ms: int) -> int:
    """Return the leader's clock, by its own entry; ``now_ms`` if it has none."""
    for replica in quorum.replicas:
        if replica.is_voter and replica.key.node_id == quorum.leader_id and replica.fetched_ms:
            return replica.fetched_ms
    return now_ms


def diagnose_quorum(quorum: QuorumInfo, now_ms: int, source: str) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each replica that does not fetch or lags, and for a lost margin.

    ``now_ms`` is the time of the leader.
    """
    describe = f"raftlog quorum {source}"
    for text in quorum.warnings:
        yield Diagnosis(
            level=Level.WARNING,
            found=f"leader {quorum.leader_id}: {text}",
            meaning="the leader reports this about itself",
            next_command=describe,
        )
    if quorum.high_watermark is None:
        yield Diagnosis(
            level=Level.WARNING,
            found=f"leader {quorum.leader_id} has committed nothing in epoch {quorum.epoch} yet",
            meaning="clients wait until a majority of the voters has its first record",
            next_command=describe,
        )
    voters = [replica for replica in quorum.replicas if replica.is_voter]
    down = [voter for voter in voters if not _is_leader(voter, quorum) and _silent(voter, now_ms)]
    for replica in quorum.replicas:
        if not _is_leader(replica, quorum):
            yield from _diagnose_replica(replica, quorum, now_ms, describe)
    in_contact = len(voters) - len(down)
    margin = in_contact - (len(voters) // 2 + 1)
    if down and margin <= 0:
        lost = margin < 0
        yield Diagnosis(
            level=Level.PROBLEM if lost else Level.WARNING,
            found=f"{in_contact} of {len(voters)} voters are in contact with the leader",
            meaning="that is no majority: the quorum commits nothing"
            if lost
            else "no further voter may fail: without a majority the quorum commits nothing",
            next_command=describe,
        )
    if len(voters) < _VOTERS_MIN:
        yield Diagnosis(
            level=Level.NOTE,
            found=f"the quorum has {len(voters)} voter{'s' if len(voters) > 1 else ''}",
            meaning="no voter may fail; three voters commit without one of them",
            next_command=describe,
        )


def _is_leader(replica: ReplicaState, quorum: QuorumInfo) -> bool:
    return replica.is_voter and replica.key.node_id == quorum.leader_id


def _silent(replica: ReplicaState, now_ms: int) -> bool:
    return replica.fetched_ms is None or now_ms - replica.fetched_ms > STALE_MS


def _diagnose_replica(
    replica: ReplicaState, quorum: QuorumInfo, now_ms: int, describe: str
) -> Iterator[Diagnosis]:
    name = f"{'voter' if replica.is_voter else 'observer'} {replica.key.node_id}"
    if _silent(replica, now_ms):
        fetched = replica.fetched_ms
        since = "" if fetched is None else f" for {(now_ms - fetched) // 1000} s"
        yield Diagnosis(
            level=Level.WARNING,
            found=f"{name} has not fetched from leader {quorum.leader_id}{since}",
            meaning="it is stopped, cannot reach the leader, or is not authorized",
            next_command=describe,
        )
    elif replica.caught_up_ms is not None and now_ms - replica.caught_up_ms > STALE_MS:
        ends = [other.end_offset for other in quorum.replicas if other.end_offset is not None]
        lag = max(ends, default=0) - (replica.end_offset or 0)
        late_s = (now_ms - replica.caught_up_ms) // 1000
        yield Diagnosis(
            level=Level.WARNING,
            found=f"{name} lags {lag} offsets and was not caught up for {late_s} s",
            meaning="it fetches more slowly than the leader appends: its disk or network is slow",
            next_command=describe,
        )


def diagnose_no_leader(reason: str) -> Diagnosis:
    """Return the diagnosis of a quorum that does not answer; ``reason`` is the error's text."""
    return Diagnosis(
        level=Level.PROBLEM,
        found=reason,
        meaning="without an answer of its leader nothing is known about the quorum; the "
        "directories of its nodes show what they have",
        next_command="raftlog doctor NODE_1_DIRECTORY,NODE_2_DIRECTORY,NODE_3_DIRECTORY",
    )


def diagnose_no_access(reason: str, source: str) -> Diagnosis:
    """Return the diagnosis of files that cannot be read; ``reason`` is the error's text."""
    return Diagnosis(
        level=Level.PROBLEM,
        found=reason,
        meaning="what is in the other files is unknown; the user that runs the node may read them",
        next_command=f"sudo raftlog doctor {source}",
    )


def diagnose_not_opened(reason: str, path: str) -> Diagnosis:
    """Return the diagnosis of logs that cannot be opened because of a damaged file."""
    return Diagnosis(
        level=Level.PROBLEM,
        found=reason,
        meaning="without this file it is unknown which cluster or node its log belongs to, and "
        "nothing else was checked; restore it from a copy, with the ids of the node",
        next_command=f"cat {_quoted(path)}",
    )


def diagnose_no_state(reason: str, source: str) -> Diagnosis:
    """Return the diagnosis of a log whose state cannot be built; ``reason`` is the error's."""
    return Diagnosis(
        level=Level.PROBLEM,
        found=reason,
        meaning="the state of the cluster at the end of this log is unknown",
        next_command=f"raftlog check {source}",
    )


def diagnose_not_replayed() -> Diagnosis:
    """Return the diagnosis of a log that cannot be replayed because of other findings."""
    return Diagnosis(
        level=Level.NOTE,
        found="the state at the end of the log is unknown",
        meaning="it cannot be built because of what is found above: brokers and partitions are "
        "not checked",
    )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
