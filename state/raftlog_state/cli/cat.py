"""``raftlog cat``: print records or record batches."""

from __future__ import annotations

import argparse
from contextlib import suppress

from .output import Console, Output
from .parser import OFFSET_FORMS, Commands, add_redaction, offset, offset_spec, redactor
from .source import (
    add_decompression_limit,
    add_decryption,
    add_kind,
    add_source,
    open_source,
    with_decryption,
)

ABOUT = f"""
Print the records of a log, one JSON object per line:

  {{"offset":4,"leaderEpoch":1,"timestamp":1795248204043,"type":"TOPIC_RECORD","version":0,
   "data":{{...}}}}

type, version and data are printed as kafka-dump-log prints them; timestamp is in milliseconds.

From a single directory or file, all records are printed, whether committed or not. From the
directories of several voters, or from running nodes, only committed records are printed. The end
offset in use is printed to stderr.

Other kinds of logs are recognized by the name of the directory. Their records have these fields:

  __consumer_offsets, __transaction_state, __share_group_state
      type, and key and value as kafka-dump-log prints them with the decoder of that topic; value is
      null for a tombstone
  __remote_log_metadata
      type, version and data
  ordinary partitions
      key, value and headers: as text if they are valid UTF-8, otherwise as base64, in keyBase64 and
      valueBase64

The records of a .checkpoint file are numbered from 0; these are not offsets of the log.
{OFFSET_FORMS}
"""

EXAMPLES = """
raftlog cat __cluster_metadata-0 --type topic --type partition_change
raftlog cat __cluster_metadata-0 --from 1200 --to 1300 --control --noop
raftlog cat __cluster_metadata-0 --from '2026-11-21 10:02' --to '2026-11-21 10:05'
raftlog cat __cluster_metadata-0 --topic orders --from -1h
raftlog cat --bootstrap-server controller-1:9093 --from end --follow
raftlog cat 00000000000000001022-0000000002.checkpoint | jq -r .type | sort | uniq -c
raftlog cat __consumer_offsets-12 --type offset_commit | jq -c '[.key.data, .value.data.offset]'
raftlog cat __consumer_offsets-12 --key group=billing --key topic=orders --key partition=0
raftlog cat orders-0 --batches | jq 'select(.isTransactional)'
raftlog cat --bootstrap-server controller-1:9093 --from 1200 --type config
raftlog cat customers-0 --encryption-keys keys.properties --encryption-context customers
"""


def add_cat(commands: Commands) -> None:
    """Add ``raftlog cat``."""
    command = commands.add_parser("cat", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_cat)
    add_source(command)
    command.add_argument(
        "--from",
        dest="start_offset",
        metavar="OFFSET",
        type=offset_spec,
        help="first offset to print; default: the log start offset",
    )
    command.add_argument(
        "--to",
        dest="end_offset",
        metavar="OFFSET",
        type=offset_spec,
        help="print records below this offset; default: the end of the log",
    )
    command.add_argument(
        "--type",
        dest="types",
        metavar="TYPE",
        action="append",
        default=[],
        help="print only records of this type; can be repeated. PARTITION_RECORD, PartitionRecord, "
        "partition and 3 (the API key) are equivalent",
    )
    command.add_argument(
        "--topic",
        metavar="NAME",
        help="print only records of this topic, including its configs and ACLs, and records that "
        "contain only its id",
    )
    command.add_argument(
        "--broker",
        metavar="ID",
        type=offset,
        help="print only the registration, state changes and configs of this broker; `raftlog log` "
        "also prints what happened to partitions",
    )
    command.add_argument(
        "--key",
        dest="keys",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="print only records whose key has this value in this field, as it is printed. If "
        "repeated, a record must match all of them. In __consumer_offsets, FIELD is group (or "
        "its synonym groupId), topic, partition, memberId or regularExpression; in "
        "__transaction_state, transactionalId; in __share_group_state, group, topicId or "
        "partition. Metadata records and those of __remote_log_metadata have no key: FIELD is "
        "a field of data, and a.b is field b of a. For an ordinary partition, the whole "
        "argument is the key",
    )
    command.add_argument(
        "--follow",
        action="store_true",
        help="keep printing records as they are appended, until Ctrl-C. From a single directory, a "
        "record is printed once it is 5 s old, because a younger one may still be truncated",
    )
    command.add_argument("--control", action="store_true", help="also print control records")
    command.add_argument("--noop", action="store_true", help="also print NoOpRecords")
    command.add_argument(
        "--batches", action="store_true", help="print the headers of record batches, not records"
    )
    add_kind(command)
    add_redaction(command, full=True)
    add_decompression_limit(command)
    add_decryption(command)


def run_cat(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print records or batches; return the exit code."""
    names = arguments.topic, arguments.broker
    of_records = arguments.types, arguments.keys, arguments.control, arguments.noop
    if arguments.batches and (any(of_records) or names != (None, None)):
        options = "--type, --topic, --broker, --key, --control or --noop"
        arguments.parser.error(f"--batches cannot be combined with {options}")
    if arguments.follow and (arguments.batches or arguments.end_offset is not None):
        arguments.parser.error("--follow cannot be combined with --to or --batches")
    if None not in names:
        arguments.parser.error("--topic and --broker are mutually exclusive")

    from raftlog.clock import Clock

    from .cat_log import (
        follow_records,
        internal_log,
        print_batches,
        print_records,
        select,
    )
    from .signals import StopSignals, TerminatedError

    hide = redactor(arguments)
    start, end = arguments.start_offset, arguments.end_offset
    with open_source(arguments) as log:
        if arguments.batches:
            return print_batches(log, start, end, output, console)
        log = with_decryption(arguments, log)
        internal = internal_log(log, arguments.record_kind)
        selection = select(
            arguments.types, internal, control=arguments.control, noop=arguments.noop
        )
        wanted = None
        if names != (None, None) or arguments.keys:
            from .record_filter import record_filter

            wanted = record_filter(*names, arguments.keys, log, internal, hide)
        if not arguments.follow:
            return print_records(
                *(log, start, end, selection, hide, output, console, wanted), internal=internal
            )
        with StopSignals() as signals, suppress(TerminatedError):
            follow_records(
                *(log, start, selection, hide, output, console, wanted),
                internal=internal,
                clock=Clock(),
                raise_if_stopped=signals.raise_received,
            )
        return 0
