"""``raftlog doctor``: check a log, a node or a quorum, explain what is found, name what is next."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from raftlog.printable import compact_json

from .output import Console, Output
from .parser import Commands, add_color
from .source import (
    add_decompression_limit,
    add_kind,
    add_source,
    check_no_node_options,
    kind_of,
    leader_client,
)
from .text_table import BAD, GOOD, WARNING

if TYPE_CHECKING:
    from raftlog.client.inspection import DirectoryLog
    from raftlog_state.check import LogCheck
    from raftlog_state.check.diagnosis import CheckedLog, Diagnosis, Level

EXIT_PROBLEM: Final = 1
EXIT_WARNING: Final = 3
NODE_CONFIG: Final = "node.toml"
_STYLES: Final = {"problem": BAD, "warning": WARNING}
ENTRIES_MAX: Final = 100_000
"""Entries of a directory that are examined; no directory of a node has as many."""

ABOUT = f"""
Check a log, the directory of a node, several copies of a log or a running quorum. Each finding is
explained in one sentence, followed by the command to run next. Nothing is written.

PATH is the same as for other commands; it can also be the {NODE_CONFIG} of a raftlog node, or the
directory that contains it. A log is read completely, as `raftlog check` does: batches, epochs,
indexes, snapshots, and divergence of copies. For a directory, free space and file owners are also
checked; for a metadata log, the state at its end: fenced brokers, and partitions that are
under-replicated or have no leader.

With --bootstrap-server, the leader of the quorum reports its voters, its observers and their lags,
and the committed state is checked.

Exit codes: 0 healthy, possibly with notes; 1 a problem; 3 warnings, but no problem; 2 invalid
arguments, or PATH is not a log.
"""

EXAMPLES = """
raftlog doctor /var/lib/kafka
raftlog doctor node-1,node-2,node-3
raftlog doctor node-1/node.toml
raftlog doctor --bootstrap-server controller-1:9093
raftlog doctor /var/lib/kafka --json | jq -r 'select(.level == "problem") | .next'
"""


def add_doctor(commands: Commands) -> None:
    """Add ``raftlog doctor``."""
    command = commands.add_parser("doctor", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_doctor)
    add_source(command)
    add_kind(command)
    add_decompression_limit(command)
    command.add_argument("--json", action="store_true", help="print one JSON object per finding")
    add_color(command)


def run_doctor(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the diagnoses; return the exit code."""
    if (arguments.path is None) == (arguments.bootstrap_server is None):
        arguments.parser.error("either PATH or --bootstrap-server is required")
    if arguments.path is None and arguments.record_kind is not None:
        arguments.parser.error("--as requires PATH: nodes report the kind of their log")

    from raftlog_state.check.diagnosis import Level

    examine = _examine_nodes if arguments.path is None else _examine_files
    counts = dict.fromkeys(Level, 0)
    for diagnosis in examine(arguments, output, console):
        counts[diagnosis.level] += 1
        if arguments.json:
            output.line(diagnosis.json())
        else:
            _print(diagnosis, output)
    if arguments.json:
        output.line(compact_json({"summary": {f"{level}s": counts[level] for level in Level}}))
    else:
        _print_summary(counts, output)
    if counts[Level.PROBLEM]:
        return EXIT_PROBLEM
    return EXIT_WARNING if counts[Level.WARNING] else 0


def _print(diagnosis: Diagnosis, output: Output) -> None:
    first, *more = diagnosis.lines()
    level = str(diagnosis.level)
    output.styled((level, _STYLES.get(level, "")), (first.removeprefix(level), ""))
    output.lines(more)


def _print_summary(counts: dict[Level, int], output: Output) -> None:
    """Print how many diagnoses there are of each level."""
    found = [
        (f"{count} {level}{'s' if count > 1 else ''}", _STYLES.get(level, ""))
        for level, count in counts.items()
        if count
    ]
    if not any(style for _, style in found):
        found.insert(0, ("healthy", GOOD))
    output.styled(found[0], *(part for one in found[1:] for part in ((", ", ""), one)))


# --- Files ----------------------------------------------------------------------------------------


def _examine_files(
    arguments: argparse.Namespace, output: Output, console: Console
) -> Iterator[Diagnosis]:
    """Yield the diagnoses of the log or the logs in PATH."""
    check_no_node_options(arguments)

    from raftlog.errors import CorruptFileError, LogAccessError
    from raftlog_state.check import LogCheck
    from raftlog_state.check.diagnosis import (
        Level,
        diagnose_findings,
        diagnose_no_access,
        diagnose_not_opened,
    )

    path = _log_of_node(arguments.path)
    yield from _examine_certificates(arguments.path)
    try:
        check = LogCheck(
            path,
            on_progress=console.progress,
            kind=kind_of(arguments),
            decompressed_bytes_max=arguments.max_decompressed_bytes,
        )
        logs = [_checked(copy) for copy in check.copies]
        findings = list(diagnose_findings(check.run(), logs))
    except LogAccessError as error:
        yield diagnose_no_access(error.message(), shlex.quote(path))
        return
    except CorruptFileError as error:
        yield diagnose_not_opened(error.message(), error.path)
        return
    if not arguments.json:
        output.lines(
            _describe(copy, log.writer) for copy, log in zip(check.copies, logs, strict=True)
        )
        output.line(f"checked: {check.summary_text()}")
    yield from findings
    for copy in check.copies:
        yield from _examine_directory(copy)
    yield from _examine_partitions(path, check)
    is_damaged = any(one.level is Level.PROBLEM for one in findings)
    yield from _examine_state(check, shlex.quote(path), is_damaged=is_damaged)


def _config_path(path: str) -> str | None:
    """Return the configuration of a node at PATH, None without one."""
    config_path = os.path.join(path, NODE_CONFIG) if os.path.isdir(path) else path
    is_config = os.path.basename(config_path).endswith(".toml") and os.path.isfile(config_path)
    return config_path if is_config else None


def _examine_certificates(path: str) -> Iterator[Diagnosis]:
    """Yield the diagnoses of the certificates of the node that PATH configures."""
    config_path = _config_path(path)
    if config_path is None:
        return

    from raftlog.clock import Clock
    from raftlog.node.certificates import read_expiries
    from raftlog.node.config import read_config
    from raftlog.node.errors import ConfigError
    from raftlog_state.check.diagnosis import (
        Level,
        diagnose_expiry,
        diagnose_list_expiry,
        diagnose_no_certificate,
    )

    config, now_s = read_config(config_path), Clock().wall_ms() / 1000
    try:
        certificates = read_expiries(config)
    except ConfigError as error:
        yield diagnose_no_certificate(error.message(), error.path)
        return
    for one in certificates:
        text, days_left = one.describe(now_s), one.days_left(now_s)
        is_problem = days_left <= one.error_days
        if one.kind == "crl":
            if is_problem:
                yield diagnose_list_expiry(text, one.path)
        elif days_left <= one.first_warning_days:
            level = Level.PROBLEM if is_problem else Level.WARNING
            yield diagnose_expiry(text, one.path, level=level)


def _log_of_node(path: str) -> str:
    """Return the log of the node that PATH configures; PATH itself if it is no configuration."""
    config_path = _config_path(path)
    if config_path is None:
        return path

    from raftlog.node.config import read_config
    from raftlog.node.formatting import read_identity
    from raftlog.types import TopicPartition

    config = read_config(config_path)
    read_identity(config)
    return os.path.join(config.directory, str(TopicPartition(config.topic, 0)))


def _checked(log: DirectoryLog) -> CheckedLog:
    """Return what a diagnosis has to know of a log."""
    from raftlog.client import LogKind
    from raftlog.client.inspection import QUORUM_STATE_NAME
    from raftlog_state.check.diagnosis import CheckedLog, Writer

    if not log.is_raftlog:
        writer = Writer.CONTROLLER if log.kind is LogKind.METADATA else Writer.BROKER
    elif os.path.exists(os.path.join(log.files.directory, QUORUM_STATE_NAME)):
        writer = Writer.NODE
    else:
        writer = Writer.EMBEDDED
    return CheckedLog(path=log.path, directory=log.files.directory, writer=writer)


def _describe(log: DirectoryLog, writer: str) -> str:
    """Return a line: what a log is. Damage of ``meta.properties`` is a finding of the check."""
    from raftlog.errors import CorruptFileError

    try:
        node = "" if log.node_id is None else f", node {log.node_id}"
        cluster = "" if log.cluster_id is None else f", cluster {log.cluster_id}"
    except CorruptFileError:
        node = cluster = ""
    return f"{log.path}: {writer}{cluster}{node}"


def _examine_directory(log: DirectoryLog) -> Iterator[Diagnosis]:
    """Yield the diagnoses of the file system: space and owners."""
    from raftlog.client import SourceKind
    from raftlog.client.log_handle import is_object_uri
    from raftlog_state.check.diagnosis import diagnose_owners, diagnose_space

    directory = log.files.directory
    if log.source is not SourceKind.DIRECTORY or is_object_uri(directory):
        return
    usage, status = shutil.disk_usage(directory), os.statvfs(directory)
    yield from diagnose_space(
        directory,
        free_bytes=usage.free,
        total_bytes=usage.total,
        free_files=status.f_favail if status.f_files else None,
    )
    owner = os.stat(directory).st_uid
    with os.scandir(directory) as entries:
        of_others = sorted(
            entry.name
            for entry, _ in zip(entries, range(ENTRIES_MAX), strict=False)
            if _owner(entry) not in (owner, None)
        )
    yield from diagnose_owners(directory, owner=_user_name(owner), of_others=of_others)


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except FileNotFoundError:  # deleted by its node
        return None


def _user_name(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _examine_partitions(path: str, check: LogCheck) -> Iterator[Diagnosis]:
    """Yield a note on the partitions of a node's directory that were not checked."""
    from raftlog.client.inspection import parse_partition_name
    from raftlog_state.check.diagnosis import diagnose_unchecked

    if len(check.copies) > 1 or not os.path.isdir(path):
        return
    checked = os.path.realpath(check.copies[0].files.directory)
    if os.path.realpath(path) == checked:
        return
    with os.scandir(path) as entries:
        others = sorted(
            entry.name
            for entry, _ in zip(entries, range(ENTRIES_MAX), strict=False)
            if parse_partition_name(entry.name) is not None
            and entry.is_dir()
            and os.path.realpath(entry.path) != checked
        )
    yield from diagnose_unchecked(path.rstrip("/"), others)


def _examine_state(check: LogCheck, source: str, *, is_damaged: bool) -> Iterator[Diagnosis]:
    """Yield the diagnoses of the state at the end of a log, of several copies at their committed
    end."""
    from raftlog.client import LogKind
    from raftlog.errors import RaftlogError
    from raftlog_state.check.diagnosis import (
        diagnose_cluster,
        diagnose_no_state,
        diagnose_not_replayed,
    )
    from raftlog_state.loader.image_reader import ImageReader
    from raftlog_state.records import Redactor

    if check.log.kind is not LogKind.METADATA:
        return
    image = check.image()
    if image is None and len(check.copies) > 1:
        try:
            images = ImageReader(check.log, Redactor())
            image = images.image_at(images.end_offset())
        except RaftlogError as error:
            if not is_damaged:
                yield diagnose_no_state(error.message(), source)
                return
    if image is None:
        yield diagnose_not_replayed()
    else:
        yield from diagnose_cluster(image, source)


# --- Nodes ----------------------------------------------------------------------------------------


def _examine_nodes(
    arguments: argparse.Namespace, output: Output, console: Console
) -> Iterator[Diagnosis]:
    """Yield the diagnoses of a running quorum."""
    from raftlog.client import LogKind
    from raftlog.client.remote.log import RemoteLog
    from raftlog.client.remote.voters import describe_quorum
    from raftlog.clock import Clock
    from raftlog.errors import RaftlogError
    from raftlog_state.check import diagnosis
    from raftlog_state.loader.image_reader import ImageReader
    from raftlog_state.records import Redactor

    source = f"--bootstrap-server {shlex.quote(arguments.bootstrap_server)}"
    if arguments.config is not None:
        source += f" --config {shlex.quote(arguments.config)}"
    with closing(leader_client(arguments)) as leader:
        try:
            quorum = describe_quorum(leader)
        except RaftlogError as error:
            yield diagnosis.diagnose_no_leader(error.message())
            return
        if not arguments.json:
            output.line(
                f"cluster {quorum.cluster_id}, log {quorum.topic}: leader {quorum.leader_id}, "
                f"epoch {quorum.epoch}"
            )
        now_ms = diagnosis.leader_time_ms(quorum, Clock().wall_ms())
        yield from diagnosis.diagnose_quorum(quorum, now_ms, source)
        try:
            log = RemoteLog(leader, decompressed_bytes_max=arguments.max_decompressed_bytes)
            if log.kind is not LogKind.METADATA:
                return
            images = ImageReader(log, Redactor())
            image = images.image_at(images.end_offset())
        except RaftlogError as error:
            yield diagnosis.diagnose_no_state(error.message(), source)
            return
    yield from diagnosis.diagnose_cluster(image, source)
    yield from diagnosis.diagnose_silence(image, now_ms, source, is_raftlog=log.is_raftlog)
