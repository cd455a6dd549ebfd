"""``raftlog tables load``: a long log into Delta tables, by several processes."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from typing import Final

from .output import Console, Output
from .parser import Commands
from .source import add_path
from .tables_options import add_place, add_written, follow_settings, place_of

LOAD_ABOUT: Final = """
Write the metadata log in PATH to TABLES, up to the end that it has when the command starts. The
tables are the same as those of `raftlog tables follow`, which can continue them, but a long log
takes a fraction of the time: each append has a million records, and topics are divided into buckets
that processes replay in parallel.

If a load is interrupted, even by a crash, the next one continues it. PATH is a metadata directory,
or several voters' directories: see `raftlog --help`. From a single directory, only records older
than --tail-holdback-ms are read, because younger ones may not be committed.

The staging directory contains the records and rows to be written next: several hundred bytes per
record, for a million records. They are deleted at the end.

Events are logged to stderr, one per line, with a progress bar on a terminal. Ctrl-C and SIGTERM end
the command after the current append, with exit code 130 or 143; a second signal ends it
immediately.
"""

LOAD_EXAMPLES: Final = """
raftlog tables load /var/lib/kafka ./tables
raftlog tables load /backup/metadata ./tables --workers 8 --no-log
"""
BUCKETS: Final = 8
"""Buckets of a range, unless there are more workers; memory is that of a bucket for each worker."""
_TERMINATED: Final = 143


def add_load(commands: Commands) -> None:
    """Add ``raftlog tables load``."""
    command = commands.add_parser("load", about=LOAD_ABOUT, examples=LOAD_EXAMPLES)
    command.set_defaults(run=_run_load)
    add_path(command)
    add_place(command)
    command.add_argument(
        "--workers",
        metavar="COUNT",
        type=_count,
        help="number of processes that replay records; default: the number of cores",
    )
    command.add_argument(
        "--staging",
        metavar="DIR",
        help="directory for rows that are written next; default: .load in TABLES, from where files "
        "are linked instead of copied",
    )
    add_written(command)


def _run_load(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Load the log; return the exit code."""
    from raftlog.client.location import PATH
    from raftlog_state.tables.bulk_load import BulkLoad, LoadSettings
    from raftlog_state.tables.source_options import MAX_DECOMPRESSED_BYTES
    from raftlog_state.tables.stores.delta_rs import DeltaRsStore
    from raftlog_state.tables.task_processes import TaskProcesses

    from .signals import StopSignals, TerminatedError

    store = DeltaRsStore(place_of(arguments))
    staging = os.path.abspath(arguments.staging or store.directory / ".load")
    workers = arguments.workers or len(os.sched_getaffinity(0))
    load = LoadSettings(
        options={
            PATH: arguments.path,
            MAX_DECOMPRESSED_BYTES: str(arguments.max_decompressed_bytes),
        },
        staging=staging,
        bucket_count=max(BUCKETS, workers),
    )
    with TaskProcesses(workers) as processes, StopSignals() as signals:
        bulk_load = BulkLoad(
            store,
            follow_settings(arguments),
            load,
            processes.run,
            log_event=console.log,
            on_progress=console.progress,
            uninterrupted=signals.uninterrupted,
            raise_if_stopped=signals.raise_received,
        )
        try:
            last_offset = bulk_load.run()
        except TerminatedError:
            return _TERMINATED
    console.log(f"the tables end at offset {last_offset}")
    with suppress(OSError):
        os.rmdir(staging)  # has other loads, or files that are not of a load
    return 0


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 4 and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes from 1 to 9999")
