"""``raftlog tables`` and its commands: follow a log into Delta tables, and maintain them."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from raftlog.printable import compact_json

from .output import Console, Output
from .parser import Commands, offset
from .source import (
    add_source,
    check_no_node_options,
    open_source,
)
from .tables_load import add_load
from .tables_options import add_place, add_written, duration_ms, follow_settings, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftlog.client.location import LogLocation
    from raftlog_state.tables.log_follower import FollowSettings
    from raftlog_state.tables.stores.protocol import TableStore
    from raftlog_state.tables.writer import Writer

USAGE: Final = "raftlog tables COMMAND [OPTION ...]"
ABOUT: Final = """
Manage Delta tables of a cluster's metadata, and of Kafka's other internal logs, without Spark or
Java. They contain every record (log), every change (changes), and the rows as of an earlier offset
(state). Spark, DuckDB and other engines can read them.

TABLES is a local directory with a subdirectory for each table. It contains the metadata of one or
more clusters, each written by one process. --cluster-id selects one of several.

commands:
  status    print the offsets that the tables have reached
  follow    write a metadata log to the tables, and continue with new records
  load      write a long log of many millions of records to the tables
  truncate  revert the tables to the state after an offset
  expire    delete the changes up to an offset
  maintain  merge changes into state, rewrite small files, delete old files

examples:
  raftlog tables follow --bootstrap-server controller-1:9093 ./tables
  raftlog tables truncate ./tables 1299

`raftlog tables COMMAND --help` describes a command. Requires pip install "raftlog[delta]".
"""


def add_tables(commands: Commands) -> None:
    """Add ``raftlog tables`` with its commands, in the order of the help text."""
    command = commands.add_parser("tables", usage=USAGE, about=ABOUT)
    level = command.add_commands()
    _add_status(level)
    _add_follow(level)
    add_load(level)
    _add_truncate(level)
    _add_expire(level)
    _add_maintain(level)


# --- raftlog tables status ------------------------------------------------------------------------

STATUS_ABOUT = """
Print the status of the tables, one JSON object per cluster. It contains the cluster id, the group
that writes the cluster (null if none), the last offset in the tables (inclusive; -1 if nothing was
published) and in table log, the first offset whose state can be read, the leader epoch and
metadata.version at the last offset, the number of rows of each typed table, and the ranges of
offsets without history.
"""

STATUS_EXAMPLES = """
raftlog tables status ./tables | jq .row_counts
"""


def _add_status(commands: Commands) -> None:
    """Add ``raftlog tables status``."""
    command = commands.add_parser("status", about=STATUS_ABOUT, examples=STATUS_EXAMPLES)
    command.set_defaults(run=_run_status)
    add_place(command)


def _run_status(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the status; return the exit code."""
    from dataclasses import asdict

    from raftlog_state.tables.reader import ArrowTables

    store = _store(arguments)
    for cluster_id in _cluster_ids(arguments, store):
        output.line(compact_json(asdict(ArrowTables(store, cluster_id).status())))
    return 0


# --- raftlog tables follow ------------------------------------------------------------------------

FOLLOW_ABOUT = """
Write the metadata log in PATH, or of running nodes, to TABLES, and continue with new records. It
begins where the tables end. Empty tables begin at the first record of the log, or at its newest
snapshot if that record was deleted. Each append is published as soon as it is written, and each
record is written exactly once, even after a crash.

PATH is a metadata directory, or several voters' directories: see `raftlog --help`. From a single
directory, only records older than --tail-holdback-ms are read, because younger ones may not be
committed.

Changes are merged into state once a minute. Small files are rewritten after 200 appends. Old files
are deleted once a day, after they have been unused for a day. Appends do not wait for any of this.

A KRaft controller writes two NoOpRecords per second, which change nothing. They are appended
together with the next other records, or every --no-op-delay-ms. Until then the tables end before
them; queries for a time in between return the state there, which is the same.

PATH can also be a partition of __consumer_offsets, __transaction_state, __share_group_state or
__remote_log_metadata, or a pattern of several. Each partition is a log of its own, whose cluster_id
in the tables ends in @TOPIC-PARTITION. Offset commits of aborted transactions have no effect, and
those of open ones are appended when the transactions end. If records that the tables still lack
were deleted, the tables get the state of the whole remaining log. --cluster-id is required if the
files do not contain it. If several processes write partitions of one topic of one cluster, give
each of them its own --group.

With --sources and --group, one process writes the logs of many clusters, in one append. FILE is a
JSON array with an object for each log: {"path": PATH}, or {"bootstrap.servers": "HOST:PORT,..."}
with the Spark source's options for TLS. A log that cannot be read, or that diverges from its
tables, is logged and retried later; the others are still written. A cluster that another command or
group writes is refused unless --take-over is given; the other writer is then refused.

Events are logged to stderr, one per line. Nodes that do not answer are retried. Ctrl-C and SIGTERM
end the command after the current append, merge or rewrite, with exit code 130 or 0; a second signal
ends it immediately.
"""

FOLLOW_EXAMPLES = """
raftlog tables follow /var/lib/kafka ./tables
raftlog tables follow --bootstrap-server controller-1:9093,controller-2:9093 ./tables
raftlog tables follow /var/lib/kafka ./tables --once --no-log
raftlog tables follow '/var/lib/kafka/__consumer_offsets-*' ./tables
raftlog tables follow --sources logs.json --group eu ./tables
raftlog tables follow /var/lib/kafka ./tables --cluster-id oEgEPrivuWNp7aKJQ-ndSA
"""


def _add_follow(commands: Commands) -> None:
    """Add ``raftlog tables follow``."""
    command = commands.add_parser("follow", about=FOLLOW_ABOUT, examples=FOLLOW_EXAMPLES)
    command.set_defaults(run=_run_follow)
    add_source(command, has_cluster_id=True)
    add_place(command)
    many = command.add_argument_group("many clusters, instead of PATH")
    many.add_argument("--sources", metavar="FILE", help="JSON file with the logs, see above")
    many.add_argument(
        "--group",
        metavar="NAME",
        help="name for these clusters, or partitions of an internal log, as a group; the same in "
        "each run",
    )
    command.add_argument(
        "--once",
        action="store_true",
        help="stop at the end that the log has when the command starts",
    )
    command.add_argument(
        "--max-records",
        metavar="COUNT",
        type=_count,
        help="maximum number of records per append; default: 100000",
    )
    command.add_argument(
        "--poll-ms",
        metavar="MS",
        type=int,
        help="how often to look for new records, in milliseconds; default: 100",
    )
    command.add_argument(
        "--no-op-delay-ms",
        metavar="MS",
        type=int,
        help="how long NoOpRecords wait for other records, in milliseconds; default: 5000",
    )
    add_written(command)


def _run_follow(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Follow the log until its end or a signal; return the exit code."""
    from raftlog_state.records.internal_logs import topic_of

    error = arguments.parser.error
    one_log = (arguments.path, arguments.bootstrap_server, arguments.cluster_id)
    internal = topic_of(arguments.path or "")
    if (arguments.sources or internal) is None and arguments.group is not None:
        error("--group requires --sources, or partitions of an internal log in PATH")
    if arguments.sources is not None and arguments.group is None:
        error("--sources requires --group")
    if arguments.sources is not None and one_log != (None, None, None):
        error("--sources excludes PATH, --bootstrap-server and --cluster-id")
    if arguments.sources is not None:
        check_no_node_options(arguments)  # FILE has those of each log
    if one_log[:2] == (None, None) and arguments.sources is None:
        error("PATH and TABLES are required, or TABLES and --bootstrap-server or --sources")

    from raftlog_state.tables.following import RECORDS_PER_BATCH_DEFAULT
    from raftlog_state.tables.log_follower import (
        NO_OP_DELAY_MS_DEFAULT,
        POLL_MS_DEFAULT,
        LogFollower,
    )
    from raftlog_state.tables.stores.delta_rs import DeltaRsStore

    from .signals import StopSignals, TerminatedError

    settings = replace(
        follow_settings(arguments),
        record_count_max=arguments.max_records or RECORDS_PER_BATCH_DEFAULT,
        poll_ms=duration_ms(arguments.poll_ms, "--poll-ms", POLL_MS_DEFAULT),
        no_op_delay_ms=duration_ms(
            arguments.no_op_delay_ms, "--no-op-delay-ms", NO_OP_DELAY_MS_DEFAULT
        ),
        is_once=arguments.once,
    )
    place = place_of(arguments)
    store, upkeep_store = DeltaRsStore(place, writes_checkpoints=False), DeltaRsStore(place)
    if arguments.sources is not None:
        logs = _Logs(_locations(arguments), arguments.group)
        return _follow_group(arguments, logs, store, upkeep_store, settings, console)
    if internal is not None:
        logs, cluster_id = _partitions(arguments, internal)
        settings = replace(settings, cluster_id=cluster_id)
        return _follow_group(arguments, logs, store, upkeep_store, settings, console)
    with ExitStack() as opened, StopSignals() as signals:
        follower = LogFollower(
            lambda: opened.enter_context(open_source(arguments)),
            store,
            settings,
            upkeep_store=upkeep_store,
            log_event=console.log,
            uninterrupted=signals.uninterrupted,
            raise_if_stopped=signals.raise_received,
        )
        try:
            follower.run()
        except TerminatedError:
            return 0
        console.log(f"the tables end at offset {follower.last_offset()}")
    return 0


class _Logs(NamedTuple):
    """Logs that are followed together, and the name of their group."""

    locations: list[LogLocation]
    group: str


def _follow_group(
    arguments: argparse.Namespace,
    logs: _Logs,
    store: TableStore,
    upkeep_store: TableStore,
    settings: FollowSettings,
    console: Console,
) -> int:
    """Follow many logs until their ends or a signal; return the exit code."""
    from functools import partial

    from raftlog.client.location import open_reader
    from raftlog_state.tables.group_follower import GroupFollower

    from .signals import StopSignals, TerminatedError

    limit = arguments.max_decompressed_bytes
    places = {where.path: where for where in logs.locations}
    open_logs = {
        name: partial(open_reader, where, decompressed_bytes_max=limit)
        for name, where in places.items()
    }
    with StopSignals() as signals:
        follower = GroupFollower(
            open_logs,
            store,
            settings,
            group=logs.group,
            remote={name for name, where in places.items() if where.nodes is not None},
            upkeep_store=upkeep_store,
            log_event=console.log,
            uninterrupted=signals.uninterrupted,
            raise_if_stopped=signals.raise_received,
        )
        try:
            follower.run()
        except TerminatedError:
            return 0
    return 0


def _partitions(arguments: argparse.Namespace, topic: str) -> tuple[_Logs, str]:
    """Return the partitions of an internal log in PATH, and the id of their cluster.

    Raises ``OptionError`` if their cluster is unknown.
    """
    from raftlog.client.location import LogLocation, open_reader
    from raftlog.errors import OptionError
    from raftlog_state.tables.following import partitions_of

    paths = partitions_of(arguments.path) or []
    cluster_id = arguments.cluster_id or open_reader(LogLocation(paths[0])).cluster_id
    if cluster_id is None:
        reason = f"is required: the cluster id of {paths[0]} is unknown"
        raise OptionError(option="--cluster-id", reason=reason)
    group = arguments.group or f"{cluster_id}/{topic}"
    return _Logs([LogLocation(path) for path in paths], group), cluster_id


def _locations(arguments: argparse.Namespace) -> list[LogLocation]:
    """Return the logs in the file of ``--sources``. Raises ``OptionError``."""
    import json

    from raftlog.errors import OptionError

    try:
        with open(arguments.sources, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(option="--sources", reason=f"cannot be read as JSON: {error}") from None
    if not isinstance(found, list) or not found or not all(map(_has_texts, found)):
        reason = 'must have a JSON array of objects such as {"path": "/var/lib/kafka"}'
        raise OptionError(option="--sources", reason=reason)
    return [_location(at, options) for at, options in enumerate(found)]


def _location(position: int, options: Mapping[str, str]) -> LogLocation:
    """Return the log of an object in the file of ``--sources``. Raises ``OptionError``."""
    from raftlog.client.location import NODE_OPTIONS, PATH, PREFIX, parse_location
    from raftlog.errors import OptionError

    known = (PATH, *NODE_OPTIONS)
    try:
        for name in options:
            if name.lower().removeprefix(PREFIX) not in known:
                reason = f"is unknown; options are {', '.join(known)}"
                raise OptionError(option=name, reason=reason)
        return parse_location(options, call="each object names a log")
    except OptionError as error:
        option = f"--sources[{position}].{error.option}"
        raise OptionError(option=option, reason=error.reason) from None


def _has_texts(options: object) -> bool:
    return isinstance(options, dict) and all(isinstance(value, str) for value in options.values())


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text[:10]) > 0 and len(text) <= 9:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of records from 1 to 999999999")


# --- raftlog tables truncate ----------------------------------------------------------------------

TRUNCATE_ABOUT = """
Revert TABLES to the state after OFFSET (inclusive). Use it if the log that they were written from
was truncated there and has other records now; the error of `raftlog tables follow` names the
offset. If OFFSET is inside a metadata transaction or a gap, the tables are reverted to the state
before it.

Prints the last offset in the tables. Stop other writers first.
"""

TRUNCATE_EXAMPLES = """
raftlog tables truncate ./tables 1299
"""


def _add_truncate(commands: Commands) -> None:
    """Add ``raftlog tables truncate``."""
    command = commands.add_parser("truncate", about=TRUNCATE_ABOUT, examples=TRUNCATE_EXAMPLES)
    command.set_defaults(run=_run_truncate)
    add_place(command)
    command.add_argument(
        "offset", metavar="OFFSET", type=offset, help="the last offset that the tables keep"
    )


def _run_truncate(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Truncate the tables and print their last offset; return the exit code."""
    output.line(str(_named_writer(arguments).truncate_to(arguments.offset)))
    return 0


# --- raftlog tables expire ------------------------------------------------------------------------

EXPIRE_ABOUT = """
Delete the changes in TABLES up to OFFSET (inclusive). Afterwards, the state after OFFSET and later
states can be read, but no earlier ones. Table log keeps its records. `raftlog tables maintain`
deletes the files after a day.

Prints the first offset whose state can be read: OFFSET or, if it is in a gap, the last one before
the gap.
"""

EXPIRE_EXAMPLES = """
raftlog tables expire ./tables 1000000
"""


def _add_expire(commands: Commands) -> None:
    """Add ``raftlog tables expire``."""
    command = commands.add_parser("expire", about=EXPIRE_ABOUT, examples=EXPIRE_EXAMPLES)
    command.set_defaults(run=_run_expire)
    add_place(command)
    command.add_argument(
        "offset",
        metavar="OFFSET",
        type=offset,
        help="the first offset whose state can be read afterwards",
    )


def _run_expire(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Delete changes and print the first readable offset; return the exit code."""
    output.line(str(_named_writer(arguments).expire(arguments.offset)))
    return 0


# --- raftlog tables maintain ----------------------------------------------------------------------

MAINTAIN_ABOUT = """
Maintain the files of TABLES: merge all changes of all clusters into state, rewrite small files as
larger ones, and delete files that no version of the last day contains. Readers see the same rows in
fewer files. `raftlog tables follow` does this from time to time.
"""

MAINTAIN_EXAMPLES = """
raftlog tables maintain ./tables
"""


def _add_maintain(commands: Commands) -> None:
    """Add ``raftlog tables maintain``."""
    command = commands.add_parser("maintain", about=MAINTAIN_ABOUT, examples=MAINTAIN_EXAMPLES)
    command.set_defaults(run=_run_maintain)
    add_place(command)


def _run_maintain(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Maintain the tables; return the exit code."""
    from raftlog_state.tables.selection import nothing_published

    store = _store(arguments)
    writers = [_writer(arguments, store, name) for name in _cluster_ids(arguments, store)]
    if not writers:
        raise nothing_published(store.place, None)
    for writer in writers:
        writer.merge_state()
    writers[0].compact()
    writers[0].vacuum()
    return 0


def _named_writer(arguments: argparse.Namespace) -> Writer:
    """Return a writer of the cluster that is named, or of the only one. Raises ``TablesError``."""
    return _writer(arguments, _store(arguments), arguments.cluster_id)


def _writer(arguments: argparse.Namespace, store: TableStore, cluster_id: str | None) -> Writer:
    """Return a writer of existing tables, with ``log`` or not.

    Raises ``TablesError`` if they have nothing of the cluster that is named.
    """
    from raftlog_state.tables.progress import NOTHING
    from raftlog_state.tables.selection import nothing_published
    from raftlog_state.tables.writer import Writer

    writer = Writer(store, cluster_id=cluster_id, writes_log=False)
    if arguments.cluster_id is not None and writer.progress().offset == NOTHING:
        raise nothing_published(store.place, arguments.cluster_id)
    return writer


def _cluster_ids(arguments: argparse.Namespace, store: TableStore) -> list[str]:
    """Return the cluster that is named, or all of them."""
    from raftlog_state.tables.schema import CHANGES_TABLE

    named: str | None = arguments.cluster_id
    return sorted(store.cluster_ids(CHANGES_TABLE)) if named is None else [named]


def _store(arguments: argparse.Namespace) -> TableStore:
    """Return the store of existing tables. Raises ``TablesError``."""
    from raftlog_state.errors import TablesError
    from raftlog_state.tables.schema import CHANGES_TABLE
    from raftlog_state.tables.stores.delta_rs import DeltaRsStore

    store = DeltaRsStore(place_of(arguments))
    if not store.exists(CHANGES_TABLE):
        raise TablesError(
            place=store.place,
            reason="there are no tables",
            remedy="correct the path, or write them first with `raftlog tables follow`",
        )
    return store
