"""``raftlog state``, ``diff`` and ``snapshot``: print or write the cluster state at an offset."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

from raftlog.printable import compact_json, did_you_mean

from .apply import EXPORT_ABOUT, add_export, check_export, print_changes, print_export
from .internal_state import (
    HANGING_TRANSACTIONS,
    INTERNAL_KINDS,
    TRANSACTION_TIMEOUT_MINUTES,
    is_internal,
    run_internal_state,
)
from .output import Console, Output
from .parser import OFFSET_FORMS, Commands, add_color, add_redaction, offset_spec, redactor
from .source import (
    NODE_OPTIONS,
    add_decompression_limit,
    add_source,
    check_no_node_options,
    offset_in,
    open_source,
    open_states,
    state_in,
    states_in_range,
)

if TYPE_CHECKING:
    from raftlog.client import LogReader
    from raftlog.client.offset_spec import OffsetSpec
    from raftlog_state.image import MetadataImage
    from raftlog_state.records import Redactor

# --- raftlog state --------------------------------------------------------------------------------

KINDS = (
    "features",
    "zk_migration",
    "brokers",
    "controllers",
    "topics",
    "partitions",
    "configs",
    "quotas",
    "producer_ids",
    "acls",
    "scram",
    "tokens",
)
HISTORY_KINDS = ("epochs", "transactions")
"""Kinds that are history rather than state: from the log start offset on."""
TOPIC_KINDS = (
    *("topics", "partitions", "configs"),
    *(one for one in INTERNAL_KINDS if one not in ("groups", "group_members", "share_partitions")),
)
"""Kinds whose rows may be of one topic."""

STATE_ABOUT = f"""
Print the cluster state that results from the records of a metadata log: on a terminal as tables,
otherwise as one JSON object, or with KIND as one JSON object per row.

KIND is one of {", ".join(KINDS[:8])},
{", ".join(KINDS[8:])}; or {" or ".join(HISTORY_KINDS)}, the history of the log from
its start offset on.

The following values of KIND are read from Kafka's other internal logs instead. PATH is a
partition's directory, a pattern such as 'logs/__consumer_offsets-*', or a node's directory that
contains partitions of the topic:

  {", ".join(INTERNAL_KINDS[:3])}
      from __consumer_offsets, as the group coordinators have them
  pending_offsets
      offsets that open transactions commit, from __consumer_offsets; they are also printed to
      stderr. They take effect when the transaction commits, and are dropped if it aborts
  transactions
      from __transaction_state, if PATH is a partition of it, as the coordinators have them
  hanging_transactions
      open transactions that no coordinator will end, as kafka-transactions find-hanging prints them
  share_partitions
      states of share groups, from __share_group_state: start offset, number of records above it
      whose delivery is complete, epochs, and the ranges of records by their delivery state
  share_lag
      lag of share groups, as kafka-share-groups describes their offsets
  remote_segments
      segments in __remote_log_metadata, and whether only the remote storage has them
  lag
      committed offsets joined with the ends of the node's partitions; for each topic, whether it
      is Current, Deleted, or was Recreated after the commit. With --bootstrap-server, which then
      names brokers: the lag of all groups of the running cluster, as kafka-consumer-groups
      describes them; partitions without a leader are retried for up to --timeout-ms

--at OFFSET prints the state of all records below OFFSET. It is an end offset (exclusive), as in the
name of a .checkpoint file and like --to of `raftlog cat`. Default: the end of one log directory, or
the committed end of several voters' directories or of running nodes. The end offset in use and the
loaded snapshot are printed to stderr. The records of an open metadata transaction are not part of
the state. PATH can also be a directory of Delta tables.
{EXPORT_ABOUT}{OFFSET_FORMS}
"""

STATE_EXAMPLES = """
raftlog state __cluster_metadata-0 topics | jq -r .name
raftlog state __cluster_metadata-0 --at 1022 partitions
raftlog state __cluster_metadata-0 --at 2026-11-21T03:12:00Z partitions
raftlog state node-1,node-2,node-3 brokers
raftlog state __cluster_metadata-0 partitions --topic orders --columns partition_id,leader,isr
raftlog state --bootstrap-server controller-1:9093 partitions
raftlog state __cluster_metadata-0 --at 1022 --format records
raftlog state /var/lib/kafka consumer_offsets | jq -c 'select(.group == "orders")'
raftlog state '/var/lib/kafka/__transaction_state-*' transactions
raftlog state /var/lib/kafka lag --format table
raftlog state /var/lib/kafka share_lag --format table
raftlog state --bootstrap-server broker-1:9092 lag | jq -c 'select(.lag > 1000)'
raftlog state /var/lib/kafka hanging_transactions --max-transaction-timeout 60
raftlog state __cluster_metadata-0 --as commands > create.sh
"""


def add_state(commands: Commands) -> None:
    """Add ``raftlog state``."""
    command = commands.add_parser("state", about=STATE_ABOUT, examples=STATE_EXAMPLES)
    command.set_defaults(run=run_state)
    add_source(command)
    command.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        type=_kind,
        choices=(*KINDS, *HISTORY_KINDS, *INTERNAL_KINDS),
        help="print only these rows",
    )
    command.add_argument(
        "--at",
        metavar="OFFSET",
        type=offset_spec,
        help="print the state of all records below OFFSET",
    )
    command.add_argument(
        "--format",
        choices=("table", "json", "records"),
        help="table: aligned columns; long values are cut off, long names are shortened in the "
        "middle, and times are in ISO 8601. Default on a terminal, where columns that do not fit "
        "may be omitted. json: default otherwise. records: the records of a snapshot of this "
        "state, as `raftlog cat` prints them",
    )
    command.add_argument(
        "--columns",
        metavar="NAME,...",
        type=_columns,
        help="with KIND: print these columns, in this order; tables do not shorten their values",
    )
    command.add_argument(
        "--topic",
        metavar="NAME",
        help="print only rows of this topic; KIND is one of " + ", ".join(TOPIC_KINDS),
    )
    command.add_argument(
        "--max-transaction-timeout",
        metavar="MINUTES",
        type=_minutes,
        help=f"with {HANGING_TRANSACTIONS}: omit transactions with a batch in the last MINUTES; "
        f"default: {TRANSACTION_TIMEOUT_MINUTES}",
    )
    add_color(command)
    add_export(command, "the state")
    add_redaction(command, full=True)
    add_decompression_limit(command)


def run_state(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the state; return the exit code."""
    _take_kind_from_path(arguments)
    check_export(arguments)
    if arguments.max_transaction_timeout is not None and arguments.kind != HANGING_TRANSACTIONS:
        arguments.parser.error(f"--max-transaction-timeout requires KIND {HANGING_TRANSACTIONS}")
    if arguments.topic is not None and arguments.kind not in TOPIC_KINDS:
        arguments.parser.error(f"--topic requires KIND {', '.join(TOPIC_KINDS)}")
    if is_internal(arguments):
        if arguments.form is not None:
            arguments.parser.error("--as is for the metadata of a cluster")
        return run_internal_state(arguments, output, console)
    hide = redactor(arguments)
    layout = arguments.format or ("table" if output.is_terminal() else "json")
    if arguments.form is not None and (arguments.kind or arguments.format):
        arguments.parser.error("--as prints the whole state: it cannot be used with KIND, --format")
    columns: tuple[str, ...] | None = arguments.columns
    if columns is not None and (not arguments.kind or arguments.format == "records"):
        arguments.parser.error("--columns requires KIND")
    if arguments.kind and arguments.format == "records":
        arguments.parser.error(
            "--format records prints the whole state: it cannot be used with KIND"
        )

    from raftlog_state.image.rows import TopicRow

    from .state_text import (
        check_kind_columns,
        log_if_empty,
        print_image,
        print_records,
        print_rows,
        print_table,
    )

    if columns is not None:
        check_kind_columns(arguments.kind, columns)
    from_oldest = arguments.kind in HISTORY_KINDS
    if output.is_terminal():
        console.disable_progress_bar()
    image = _image_at(arguments, "--at", arguments.at, hide, console, from_oldest=from_oldest)
    is_known = arguments.topic is None or image.topic(arguments.topic) is not None
    if not is_known:
        hint = did_you_mean(arguments.topic, [row.name for row in image.rows_of(TopicRow)])
        console.log(f"there is no topic {arguments.topic!r}" + (f"; {hint}" if hint else ""))
    if arguments.form is not None:
        print_export(None, image, arguments, output, console)
    elif layout == "table":
        print_table(image, arguments.kind, columns, output, console, topic=arguments.topic)
    elif layout == "records":
        print_records(image, output)
    elif arguments.kind:
        print_rows(image, arguments.kind, columns, output, topic=arguments.topic)
    else:
        print_image(image, output)
    if is_known:
        log_if_empty(output, console, arguments.kind, arguments.topic)
    return 0


def _image_at(
    arguments: argparse.Namespace,
    option: str,
    spec: OffsetSpec | None,
    hide: Redactor,
    console: Console,
    *,
    from_oldest: bool = False,
) -> MetadataImage:
    """Return the state of the source in PATH, tables or a log, that an option's value specifies.

    Without a value it is the newest committed state.
    """
    with open_states(arguments, hide, console, from_oldest=from_oldest) as states:
        return state_in(states, option, spec, console)


def _take_kind_from_path(arguments: argparse.Namespace) -> None:
    """With ``--bootstrap-server``, use the first positional argument as KIND."""
    if arguments.bootstrap_server is None or arguments.path is None:
        return
    if arguments.kind is not None:
        arguments.parser.error("PATH and --bootstrap-server are mutually exclusive")
    try:
        arguments.kind = _kind(arguments.path)
    except argparse.ArgumentTypeError as error:
        arguments.parser.error(f"argument KIND: {error}")
    arguments.path = None


def _columns(text: str) -> tuple[str, ...]:
    """Parse ``--columns``."""
    return tuple(part.strip().lower().replace(" ", "_") for part in text.split(","))


def _minutes(text: str) -> int:
    """Parse ``--max-transaction-timeout``."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError("must be a number of minutes, 0 or more")
    return int(text)


def _kind(name: str) -> str:
    """Parse KIND."""
    plain = name.lower().replace("-", "_")
    kinds = (*KINDS, *HISTORY_KINDS, *INTERNAL_KINDS)
    if plain in kinds:
        return plain
    hint = did_you_mean(plain, kinds) or "the kinds are " + ", ".join(kinds)
    if os.sep in name:  # the first of two operands is PATH
        hint = "PATH and --bootstrap-server are mutually exclusive"
    raise argparse.ArgumentTypeError(f"unknown kind {name!r}; {hint}")


# --- raftlog diff ---------------------------------------------------------------------------------

DIFF_ABOUT = f"""
Print the rows that differ between two cluster states: on a terminal as a table, otherwise one JSON
object per line with entity, key, op (c created, u updated, d deleted), and the row after, the row
before, or each changed field before and after.

The two states can be those of one log at two offsets. Both are end offsets (exclusive), like --at
of `raftlog state`, so that the differences are the effect of the records that `raftlog cat --from A
--to B` prints.

Or they can be those of two sources: PATH at --from and OTHER at --to, by default at their ends.
Each source can be a log, a snapshot, a directory of Delta tables, or a running cluster. Their rows
are matched by name: topics by topic name, ACLs by content. Then the exit code is 1 if the states
differ, and 2 after an error.

--changes prints the changes that lead from the first state to the second, for `raftlog apply`. They
do not contain what cannot be chosen: ids, epochs, leaders, ISRs and directories. Passwords in
configs require --reveal; credentials and tokens cannot be derived from a state. Whatever is left
out is printed to stderr.
{EXPORT_ABOUT}{OFFSET_FORMS}
"""

DIFF_EXAMPLES = """
raftlog diff __cluster_metadata-0 --from 1200 --to 1300
raftlog diff --bootstrap-server controller-1:9093 --from -15m
raftlog diff __cluster_metadata-0 --from 1200 | jq 'select(.entity == "partition") | .changed.isr'
raftlog diff cluster-a cluster-b --ignore ids,epochs,leaders && echo equal
raftlog diff ./tables /var/lib/kafka --from 2026-11-21 --ignore ids,epochs,leaders
raftlog diff backup.checkpoint --other-bootstrap-server controller-1:9093 --ignore ids
raftlog diff cluster-0 desired.checkpoint --changes --reveal > changes.json
raftlog diff cluster-a cluster-b --as terraform > changes.tf
"""


def add_diff(commands: Commands) -> None:
    """Add ``raftlog diff``."""
    command = commands.add_parser("diff", about=DIFF_ABOUT, examples=DIFF_EXAMPLES)
    command.set_defaults(run=run_diff, exit_failed=2)  # 1: the states differ
    add_source(command)
    command.add_argument(
        "other", metavar="OTHER", nargs="?", help="log or snapshot with the second state"
    )
    command.add_argument(
        "--from",
        dest="start_offset",
        metavar="OFFSET",
        type=offset_spec,
        help="first state: all records of PATH below this offset; required without OTHER",
    )
    command.add_argument(
        "--to",
        dest="end_offset",
        metavar="OFFSET",
        type=offset_spec,
        help="second state: all records below this offset, of OTHER if given; default: the end of "
        "the log",
    )
    command.add_argument(
        "--other-bootstrap-server",
        metavar="HOST:PORT,...",
        help="nodes of the cluster with the second state, instead of OTHER",
    )
    command.add_argument(
        "--other-config",
        metavar="FILE",
        help="like --config, for --other-bootstrap-server; default: the FILE of --config",
    )
    command.add_argument(
        "--other-cluster-id",
        metavar="ID",
        help="like --cluster-id, for OTHER; selects one of the clusters if OTHER is tables of "
        "several",
    )
    command.add_argument(
        "--ignore",
        metavar="GROUP,...",
        type=_ignore,
        default=(),
        help="with OTHER: ignore these groups of columns: ids (of topics, ACLs, incarnations and "
        "directories), epochs, leaders (also ISRs, ELRs and fenced brokers)",
    )
    command.add_argument(
        "--format",
        choices=("table", "json"),
        help="table: one line per row that differs, with its name and what changed; default on a "
        "terminal. json: default otherwise",
    )
    command.add_argument(
        "--changes", action="store_true", help="print the changes for `raftlog apply` instead"
    )
    add_color(command)
    add_export(command, "the changes")
    add_redaction(command)
    add_decompression_limit(command)


def run_diff(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the differences; return the exit code, 1 if the states of two sources differ."""
    if arguments.bootstrap_server is not None and arguments.other is None:
        arguments.other, arguments.path = arguments.path, None
    has_other = arguments.other is not None or arguments.other_bootstrap_server is not None
    if None not in (arguments.other, arguments.other_bootstrap_server):
        arguments.parser.error("OTHER and --other-bootstrap-server are mutually exclusive")
    if arguments.other_config is not None and arguments.other_bootstrap_server is None:
        arguments.parser.error("--other-config requires --other-bootstrap-server")
    if not has_other and arguments.start_offset is None:
        arguments.parser.error(
            "--from OFFSET, an earlier state of PATH, or OTHER, a second source, is required"
        )
    if arguments.ignore and (arguments.changes or arguments.form or not has_other):
        arguments.parser.error("--ignore is for the differences of two sources")
    if arguments.changes and arguments.form is not None:
        arguments.parser.error("--changes and --as are mutually exclusive")
    if arguments.format and (arguments.changes or arguments.form):
        arguments.parser.error("--format is for differences: --changes and --as have their own")
    check_export(arguments)

    from raftlog_state.image.differences import IGNORABLE, NO_COLUMNS, diff

    from .state_text import print_differences

    before, after = (
        _states_of_two(arguments, console) if has_other else _states_of_one(arguments, console)
    )
    if arguments.changes:
        print_changes(before, after, output, console)
        return 0
    if arguments.form is not None:
        print_export(before, after, arguments, output, console)
        return 0
    hide = redactor(arguments)
    if hide.key is None and not hide.reveal:
        console.log("secrets are masked and not compared; --redact-key-file compares them")
    ignored = NO_COLUMNS.union(*(IGNORABLE[group] for group in arguments.ignore))
    found = diff(before, after, by_name=has_other, ignored=ignored)
    as_table = arguments.format == "table" or (not arguments.format and output.is_terminal())
    count = print_differences(found, ignored, output, as_table=as_table)
    if not count:
        console.log("the states do not differ")
    return int(has_other and count > 0)


def _ignore(text: str) -> tuple[str, ...]:
    """Parse ``--ignore``."""
    from raftlog_state.image.differences import IGNORABLE

    groups = tuple(part.strip() for part in text.split(","))
    for group in groups:
        if group not in IGNORABLE:
            hint = did_you_mean(group, IGNORABLE) or f"allowed are {', '.join(IGNORABLE)}"
            raise argparse.ArgumentTypeError(f"unknown group {group!r}; {hint}")
    return groups


def _states_of_two(
    arguments: argparse.Namespace, console: Console
) -> tuple[MetadataImage, MetadataImage]:
    """Return the states of PATH at ``--from`` and of OTHER at ``--to``, by default their ends."""
    hide = redactor(arguments)
    no_nodes = dict.fromkeys(NODE_OPTIONS)
    others = {"path": arguments.other, "bootstrap_server": arguments.other_bootstrap_server}
    if arguments.other_config is not None:
        others["config"] = arguments.other_config
    others |= {"cluster_id": arguments.other_cluster_id}
    first, second = vars(arguments), vars(arguments) | others
    if None not in (arguments.path, arguments.other):
        check_no_node_options(arguments)
    elif arguments.other is not None:
        second |= no_nodes
    elif arguments.path is not None:
        first = first | no_nodes
    points = (
        (first, "--from", arguments.start_offset),
        (second, "--to", arguments.end_offset),
    )
    before, after = (
        _image_at(argparse.Namespace(**options), option, spec, hide, console)
        for options, option, spec in points
    )
    return before, after


def _states_of_one(
    arguments: argparse.Namespace, console: Console
) -> tuple[MetadataImage, MetadataImage]:
    """Return the states of one source at ``--from`` and ``--to``."""
    with open_states(arguments, redactor(arguments), console) as states:
        start, end = states_in_range(states, arguments.start_offset, arguments.end_offset, console)
        before = states.image_at(start)
        return before, states.image_at(end)


# --- raftlog snapshot -----------------------------------------------------------------------------

SNAPSHOT_ABOUT = f"""
Write the state of a metadata log to a snapshot: a .checkpoint file that kafka-dump-log and
kafka-metadata-shell can read, and that a Kafka controller loads from its metadata directory.

TO is a directory, in which the file is created with the name that Kafka would use, or a file name
that ends in .checkpoint. An existing file is never replaced.

--at OFFSET writes the state of all records below OFFSET, which is an end offset (exclusive), as in
the name of a .checkpoint file. Default: the end of one log directory, or the committed end of
several voters' directories or of running nodes.

With --bootstrap-server, the source is a running Kafka cluster, or a raftlog quorum with
values=kraft. The nodes' log is not trimmed.

Like Kafka's own snapshots, the file contains secrets in clear text: passwords in configs and the
keys of SCRAM credentials. Its mode is 0600, and --reveal is required as a confirmation.
{OFFSET_FORMS}
"""

SNAPSHOT_EXAMPLES = """
raftlog snapshot cluster-0 backup/ --reveal
raftlog snapshot __cluster_metadata-0 before.checkpoint --at 1022 --reveal
raftlog snapshot --bootstrap-server controller-1:9093 backup/ --reveal
"""


def add_snapshot(commands: Commands) -> None:
    """Add ``raftlog snapshot``."""
    command = commands.add_parser("snapshot", about=SNAPSHOT_ABOUT, examples=SNAPSHOT_EXAMPLES)
    command.set_defaults(run=run_snapshot)
    add_source(command)
    command.add_argument(
        "to", metavar="TO", help="directory, or name of a file that ends in .checkpoint"
    )
    command.add_argument(
        "--at",
        metavar="OFFSET",
        type=offset_spec,
        help="write the state of all records below OFFSET",
    )
    command.add_argument(
        "--reveal", action="store_true", help="confirm that the file contains secrets in clear text"
    )
    add_decompression_limit(command)


def run_snapshot(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Write the snapshot and print its path and id; return the exit code."""
    if arguments.path is None and arguments.bootstrap_server is None:
        arguments.parser.error("PATH and TO are required, or TO and --bootstrap-server")
    if not arguments.reveal:
        arguments.parser.error("a snapshot contains secrets in clear text: confirm with --reveal")

    from raftlog_state.loader.image_reader import newest_state_end
    from raftlog_state.snapshot_writer import export_snapshot

    with open_source(arguments) as log:
        if arguments.at is None:
            end_offset, reason = newest_state_end(log)
            console.log(f"the end offset is {end_offset} (exclusive): {reason}")
        else:
            end_offset = _committed(log, arguments.at, console)
        done = export_snapshot(log, arguments.to, end_offset=end_offset)
    found = {
        "path": done.path,
        "end_offset": done.snapshot_id.end_offset,
        "leader_epoch": done.snapshot_id.epoch,
        "bytes": done.byte_count,
    }
    output.line(compact_json(found))
    return 0


def _committed(log: LogReader, at: OffsetSpec, console: Console) -> int:
    """Return the offset that ``--at`` specifies; a time selects at most the committed end."""
    from raftlog_state.loader.image_reader import newest_state_end

    def read_end() -> int:
        return newest_state_end(log)[0]

    return offset_in(log, "--at", at, read_end, console, is_state=True)
