"""``raftlog apply``: changes of a cluster's metadata; and those of ``raftlog diff``, exported."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from raftlog.printable import compact_json

from .output import Console, Output
from .parser import Commands, Parser, add_redaction, redactor
from .source import (
    add_decompression_limit,
    add_source,
    open_source,
    open_target,
    stdin,
)

if TYPE_CHECKING:
    from raftlog_state.image import MetadataImage

ABOUT: Final = """
Apply changes to the cluster metadata: in a log created by raftlog.open with values="kraft", or in
the log of a raftlog quorum with values=kraft. Either all changes are applied or none.

CHANGES is a file with one change per line, as JSON objects like those that `raftlog diff --changes`
prints; - is stdin. The key change is the kind of change; the other keys are the columns of that
kind:

  {"change":"create_topic","topic":"orders","partitions":3,"replication_factor":1}
  {"change":"set_config","resource_type":"TOPIC","resource_name":"orders","name":"retention.ms",
   "value":"1000"}

--dry-run validates the changes and prints the records that they would write, in the form that
`raftlog cat` prints. It also works for the logs and the running controllers of Apache Kafka.
"""

EXAMPLES: Final = """
raftlog apply --dry-run __cluster_metadata-0 changes.json
raftlog diff cluster-0 desired.checkpoint --changes --reveal | raftlog apply cluster-0 -
raftlog apply --bootstrap-server node-1:9092 changes.json --attempts 3
"""


def add_apply(commands: Commands) -> None:
    """Add ``raftlog apply``."""
    command = commands.add_parser("apply", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_apply)
    add_source(command)
    command.add_argument(
        "changes", metavar="CHANGES", nargs="?", help="file with one change per line; -: stdin"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="print the records instead of writing them"
    )
    command.add_argument(
        "--attempts",
        metavar="N",
        type=int,
        default=1,
        help="how many times to validate and append the changes if other writers append in the "
        "meantime; default: 1",
    )
    command.add_argument(
        "--abort-open-transaction",
        action="store_true",
        help="abort a metadata transaction that another writer has left open",
    )
    add_redaction(command)
    add_decompression_limit(command)


def run_apply(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Apply the changes, or print their records; return the exit code."""
    if arguments.bootstrap_server is not None and arguments.changes is None:
        arguments.changes, arguments.path = arguments.path, None
    if arguments.changes is None:
        arguments.parser.error("PATH and CHANGES are required, or CHANGES and --bootstrap-server")
    rows = _read_rows(arguments.changes)
    if arguments.dry_run:
        _print_records(rows, arguments, output, console)
        return 0

    from raftlog_state.changes import apply_changes

    with open_target(arguments) as log:
        done = apply_changes(
            log,
            rows,
            attempts=arguments.attempts,
            abort_open_transaction=arguments.abort_open_transaction,
        )
    found: dict[str, object] = {
        "base_offset": done.result.base_offset,
        "end_offset": done.result.end_offset,
        "leader_epoch": done.result.epoch,
        "records": done.record_count,
    }
    output.line(compact_json(found))
    return 0


def _print_records(
    rows: list[dict[str, Any]], arguments: argparse.Namespace, output: Output, console: Console
) -> None:
    """Print the records that the changes would write at the end of the log, redacted."""
    hide = redactor(arguments)

    import random

    from raftlog_state.controller import plan_changes
    from raftlog_state.loader.image_reader import ImageReader
    from raftlog_state.records import Redactor, to_json_text

    with open_source(arguments) as log:
        images = ImageReader(log, Redactor(reveal=True), console)
        image = images.image_at(images.end_offset())
    planned = plan_changes(image, rows, rng=random.SystemRandom())
    for offset, record in enumerate(planned.records, start=planned.base_offset):
        text = to_json_text(hide.redact(record))
        output.line(f'{{"offset":{offset},{text[1:]}')


def _read_rows(file_name: str) -> list[dict[str, Any]]:
    """Return the changes in a file. Raises ``OptionError`` if it is not such a file."""
    from raftlog.errors import OptionError

    try:
        if file_name == "-":
            lines = stdin().read().splitlines()
        else:
            with open(file_name, encoding="utf-8") as file:
                lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read: {type(error).__name__}"
        raise OptionError(option="CHANGES", reason=reason) from error
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            reason = f"line {number} is not a JSON object"
            raise OptionError(option="CHANGES", reason=reason)
        found.append(row)
    return found


# --- raftlog diff --changes -----------------------------------------------------------------------


def print_changes(
    before: MetadataImage, after: MetadataImage, output: Output, console: Console
) -> None:
    """Print the changes from one state to another; log what they leave out."""
    from raftlog_state.desired_state import change_row, plan
    from raftlog_state.records import is_redacted

    planned = plan(before, after)
    left_out = list(planned.left_out)
    for change in planned.changes:
        row = change_row(change)
        if is_redacted(str(row.get("value", ""))):
            left_out.append(f"{row['name']!r} of {row['resource_name']!r}: it requires --reveal")
        else:
            output.line(compact_json(row))
    for what in left_out:
        console.warn(f"left out: {what}")


# --- raftlog diff --as, raftlog state --as --------------------------------------------------------

EXPORT_FORMS: Final = ("commands", "strimzi", "terraform")
EXPORT_ABOUT: Final = """
--as prints the result for other tools: commands, a shell script of Kafka's own tools (kafka-topics,
kafka-configs, kafka-acls); strimzi, the Kubernetes resources KafkaTopic and KafkaUser; terraform,
resources of the provider Mongey/kafka. Only values that were set are included, never defaults.
SCRAM credentials have no passwords. Secrets in configs require --reveal. Whatever a form cannot
express is printed to stderr.
"""
"""Paragraph of the help text of a command that exports."""


def add_export(command: Parser, what: str) -> None:
    """Add ``--as`` and ``--strimzi-cluster``."""
    command.add_argument(
        "--as", dest="form", choices=EXPORT_FORMS, help=f"print {what} for other tools, see above"
    )
    command.add_argument(
        "--strimzi-cluster",
        metavar="NAME",
        help="name of the Kafka resource to which the resources of --as strimzi belong; default: "
        "my-cluster",
    )


def print_export(
    before: MetadataImage | None,
    after: MetadataImage,
    arguments: argparse.Namespace,
    output: Output,
    console: Console,
) -> None:
    """Print what changes one state (None: the empty one) to another; log what is left out."""
    from raftlog_state.exports import CLUSTER_DEFAULT, export
    from raftlog_state.image import MetadataImage

    first = MetadataImage.empty() if before is None else before
    cluster = arguments.strimzi_cluster or CLUSTER_DEFAULT
    exported = export(first, after, arguments.form, cluster=cluster)
    output.lines(exported.lines)
    for what in exported.left_out:
        console.warn(f"left out: {what}")


def check_export(arguments: argparse.Namespace) -> None:
    """End the command if ``--strimzi-cluster`` is specified without its form."""
    if arguments.strimzi_cluster is not None and arguments.form != "strimzi":
        arguments.parser.error("--strimzi-cluster requires --as strimzi")
