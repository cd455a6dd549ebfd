"""``raftlog backup`` and ``raftlog restore``: a log in a directory or an object store."""

from __future__ import annotations

import argparse
from typing import Final

from .output import Console, Output
from .parser import Commands, offset
from .source import add_kind, kind_of

BACKUP_ABOUT: Final = """
Back up a log: copy what URI does not contain yet. PATH is a directory of a log of Kafka or raftlog.
It may belong to a running node: it is not locked, and data that is still being written is not part
of the backup. Each range of a segment is copied once, after its checksums are verified. If a backup
is interrupted, the next one continues it.

URI is a directory, or a URI of S3 (s3://bucket/path), Google Cloud Storage (gs://) or Azure
(abfs://) with the options of pyarrow.fs. Use a separate URI for each log. It contains all backups
of the log, and a manifest whose records are those of Kafka's __remote_log_metadata. If URI is
local, `raftlog cat URI/manifest/*` prints the manifest.

A backup contains the secrets of the log in clear text. If nothing changed since the last backup,
nothing is written.

--prune backs up nothing. It prints the objects of the log that no manifest names and that
interrupted backups uploaded more than a day ago. With --write, these objects are deleted, and a
manifest of many objects is compacted. A backup can run at the same time.
"""

BACKUP_EXAMPLES: Final = """
raftlog backup /var/lib/kafka/__cluster_metadata-0 s3://backups/eu/__cluster_metadata-0
raftlog backup decisions-0 /mnt/backups/decisions-0
raftlog backup decisions-0 /mnt/backups/decisions-0 --prune
"""

RESTORE_ABOUT: Final = """
Restore a log from its last backup in URI: write its directory, DIR, and print the time and the end
of that backup. DIR must not exist. It is created completely or not at all; give it the name of the
log's directory, such as __cluster_metadata-0. The segments are identical to the log's byte for
byte, and are read and verified before DIR gets its name. An interrupted restore leaves DIR.part.

The last records of a node's log may not have been committed when they were backed up. No file
contains the high watermark, so a reader of DIR, or a quorum that is started from it, treats these
records as committed.

--to-offset restores only the batches that end below this offset, with the snapshots and checkpoints
of that time.

Never replace the directory of a node that has voted since the backup with a restored one: the node
would forget what it has acknowledged. See docs/backup-and-rescue.md.
"""

RESTORE_EXAMPLES: Final = """
raftlog restore s3://backups/eu/__cluster_metadata-0 restored/__cluster_metadata-0
raftlog restore /mnt/backups/decisions-0 decisions-0 --to-offset 4711
"""


def add_backup(commands: Commands) -> None:
    """Add ``raftlog backup``."""
    command = commands.add_parser("backup", about=BACKUP_ABOUT, examples=BACKUP_EXAMPLES)
    command.set_defaults(run=run_backup)
    command.add_argument("path", metavar="PATH", help="directory of a log, or of a node")
    add_kind(command)
    command.add_argument("uri", metavar="URI", help="directory or URI with the backups of the log")
    command.add_argument(
        "--prune", action="store_true", help="print the objects that no manifest names"
    )
    command.add_argument("--write", action="store_true", help="with --prune: delete them")


def run_backup(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Back up a log and print its extent, or prune its backups; return the exit code."""
    from raftlog.errors import OptionError
    from raftlog_state.backups import backup

    if arguments.prune:
        return _run_prune(arguments, output)
    if arguments.write:
        raise OptionError(option="--write", reason="it needs --prune; a backup is always written")

    done = backup(arguments.path, arguments.uri, kind=kind_of(arguments))
    extent = f"offsets from {done.log_start_offset} to {done.end_offset} (exclusive)"
    if not done.is_new:
        output.line(f"unchanged: {extent}; nothing was written")
        return 0
    output.line(
        f"backed up: {extent}; {done.uploaded_bytes} bytes uploaded, {done.reused_bytes} bytes are "
        "in earlier backups"
    )
    return 0


def _run_prune(arguments: argparse.Namespace, output: Output) -> int:
    from raftlog_state.backups import prune

    done = prune(
        arguments.path, arguments.uri, kind=kind_of(arguments), is_dry_run=not arguments.write
    )
    for name in done.names:
        output.line(name)
    verb = "deleted" if arguments.write else "would be deleted with --write"
    output.line(f"{len(done.names)} objects with {done.byte_count} bytes {verb}")
    return 0


def add_restore(commands: Commands) -> None:
    """Add ``raftlog restore``."""
    command = commands.add_parser("restore", about=RESTORE_ABOUT, examples=RESTORE_EXAMPLES)
    command.set_defaults(run=run_restore)
    command.add_argument("uri", metavar="URI", help="directory or URI with the backups of the log")
    command.add_argument("directory", metavar="DIR", help="new directory to write")
    command.add_argument(
        "--to-offset",
        metavar="OFFSET",
        type=offset,
        help="restore only the batches that end below this offset",
    )


def run_restore(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Restore a log and print its extent; return the exit code."""
    from raftlog.client.offset_spec import time_text
    from raftlog_state.backups import restore

    done = restore(arguments.uri, arguments.directory, to_offset=arguments.to_offset)
    output.line(
        f"restored: {arguments.directory}: offsets from {done.log_start_offset} to "
        f"{done.end_offset} (exclusive), {done.byte_count} bytes; backup of "
        f"{time_text(done.backup_time_ms)}, which ends at {done.backup_end_offset}"
    )
    if done.unfinished_time_ms is not None:
        console.warn(
            "an upload of a later backup, started at "
            f"{time_text(done.unfinished_time_ms)}, is not finished: that backup is running, was "
            "interrupted, or its last object in manifest is missing or damaged"
        )
    return 0
