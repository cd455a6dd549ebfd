"""``raftlog state``: the cluster's state at an offset."""

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
"""Not state, but how it came about: as far back as the log goes."""

ABOUT = f"""
Print the state that the records of a metadata log add up to, as JSON: one object, or with KIND
one line a row.

KIND is one of {", ".join(KINDS[:8])},
{", ".join(KINDS[8:])}; or {" or ".join(HISTORY_KINDS)}: the log's own history, as far
back as it goes.

--at OFFSET is an end offset, as in a checkpoint's name and as --to of `raftlog cat`: the state of
all records below it. Without it: all that is committed, as far as files tell; nodes know. stderr
says which end was taken, and which checkpoint the state was built on. Records of a metadata
transaction that is open there are not part of the state.
"""

EXAMPLES = """
raftlog state __cluster_metadata-0 topics | jq -r .name
raftlog state __cluster_metadata-0 --at 1022 partitions
raftlog state node-1,node-2,node-3 brokers
raftlog state --bootstrap-server controller-1:9093 partitions
raftlog state __cluster_metadata-0 --at 1022 --format records
"""


def kind(name: str) -> str:
    """A KIND on the command line."""
    plain = name.lower().replace("-", "_")
    kinds = (*KINDS, *HISTORY_KINDS)
    if plain in kinds:
        return plain
    hint = nearest(plain, kinds) or "see --help"
    raise argparse.ArgumentTypeError(f"no kind {name!r}; {hint}")


def parser() -> Parser:
    """What ``raftlog state`` takes."""
    command = Parser("state", ABOUT, EXAMPLES, takes_nodes=True)
    command.add_argument("kind", metavar="KIND", nargs="?", type=kind, help="print these rows only")
    command.add_argument(
        "--at", metavar="OFFSET", type=offset, help="the state of all records below this offset"
    )
    command.add_argument(
        "--format",
        choices=("json", "records"),
        default="json",
        help="records: what Kafka would write into a checkpoint of this state, as `raftlog cat` "
        "prints it",
    )
    command.add_redaction()
    command.add_decompression_limit()
    return command


def _take_kind_from_path(arguments: argparse.Namespace) -> None:
    """Where nodes are named in place of a path, the first word is the KIND."""
    if arguments.bootstrap_server is None or arguments.path is None:
        return
    if arguments.kind is not None:
        parser().error("beside --bootstrap-server there is one KIND, and no PATH")
    try:
        arguments.kind = kind(arguments.path)
    except argparse.ArgumentTypeError as error:
        parser().error(f"argument KIND: {error}")
    arguments.path = None


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the state. Returns the exit code."""
    _take_kind_from_path(arguments)
    hide = redactor(arguments)
    if arguments.kind and arguments.format == "records":
        parser().error("--format records prints the whole state: it takes no KIND")

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
