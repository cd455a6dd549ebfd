"""``raftlog state``: print the cluster state at an offset."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser, nearest, offset, redactor
from .source import log_of

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
"""Kinds that are not state, but history: from the log start offset on."""

ABOUT = f"""
Print the cluster state that results from the records of a metadata log, as JSON: one object, or
with KIND one row a line.

KIND is one of {", ".join(KINDS[:8])},
{", ".join(KINDS[8:])}; or {" or ".join(HISTORY_KINDS)}: the history of the log, from
its start offset on.

--at OFFSET is an end offset (exclusive), as in the name of a .checkpoint file and like --to of
`raftlog cat`: the state of all records below it. Default: the end of one log directory, or the
committed end of several voters' directories and of running nodes. The end offset in use and the
loaded snapshot are printed to stderr. Records of an open metadata transaction are not part of the
state.
"""

EXAMPLES = """
raftlog state __cluster_metadata-0 topics | jq -r .name
raftlog state __cluster_metadata-0 --at 1022 partitions
raftlog state node-1,node-2,node-3 brokers
raftlog state --bootstrap-server controller-1:9093 partitions
raftlog state __cluster_metadata-0 --at 1022 --format records
"""


def kind(name: str) -> str:
    """Parse KIND."""
    plain = name.lower().replace("-", "_")
    kinds = (*KINDS, *HISTORY_KINDS)
    if plain in kinds:
        return plain
    hint = nearest(plain, kinds) or "see --help"
    raise argparse.ArgumentTypeError(f"unknown kind {name!r}; {hint}")


def parser() -> Parser:
    """Return the parser of ``raftlog state``."""
    command = Parser("state", ABOUT, EXAMPLES, takes_nodes=True)
    command.add_argument("kind", metavar="KIND", nargs="?", type=kind, help="print only these rows")
    command.add_argument(
        "--at", metavar="OFFSET", type=offset, help="print the state of all records below OFFSET"
    )
    command.add_argument(
        "--format",
        choices=("json", "records"),
        default="json",
        help="records: the records of a snapshot of this state, as `raftlog cat` prints them",
    )
    command.add_redaction()
    command.add_decompression_limit()
    return command


def _take_kind_from_path(arguments: argparse.Namespace) -> None:
    """With ``--bootstrap-server``, use the first positional argument as KIND."""
    if arguments.bootstrap_server is None or arguments.path is None:
        return
    if arguments.kind is not None:
        parser().error("PATH and --bootstrap-server are mutually exclusive")
    try:
        arguments.kind = kind(arguments.path)
    except argparse.ArgumentTypeError as error:
        parser().error(f"argument KIND: {error}")
    arguments.path = None


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the state; return the exit code."""
    _take_kind_from_path(arguments)
    hide = redactor(arguments)
    if arguments.kind and arguments.format == "records":
        parser().error("--format records prints the whole state: it cannot be used with KIND")

    from raftlog_state.image_reader import ImageReader

    from .state_text import print_image, print_records, print_rows

    from_oldest = arguments.kind in HISTORY_KINDS
    with log_of(arguments, parser()) as log:
        images = ImageReader(log, hide, console, from_oldest=from_oldest)
        image = images.image_at(images.end_offset() if arguments.at is None else arguments.at)
    if arguments.format == "records":
        print_records(image, output)
    elif arguments.kind:
        print_rows(image, arguments.kind, output)
    else:
        print_image(image, output)
    return 0
