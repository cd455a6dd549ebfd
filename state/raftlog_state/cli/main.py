"""Entry point of ``raftlog``: the tree of its commands, and the exit code of each outcome.

Each command has a function ``add_...``, which adds its parser to the tree, and a function
``run_...``, which the parser sets as ``run``. All parsers are built at each start. Modules of
commands therefore import at module level only what parsers need, and ``run_...`` imports the rest:
`raftlog --help` loads neither numpy nor pyarrow nor the error classes.

A ``RaftlogError`` or an error of the operating system is printed as one sentence on stderr, without
a stack trace, after all output that precedes it. Ctrl-C prints no stack trace either: ``main``
imports the modules itself, and handles the interrupt.

Exit codes: 0 success; 1 the log is damaged or does not contain what was requested, or the command
failed; 2 invalid arguments, a path that cannot be read, or the log of another cluster; 3 warnings
of ``doctor``; 130 Ctrl-C; 141 the reader of stdout closed the pipe. 130 and 141 are 128 + SIGINT
and 128 + SIGPIPE, as in a shell. A command for which 1 is an answer sets ``exit_failed`` to the
code of a failure: ``diff`` fails with 2, as diff(1) does.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from raftlog.errors import RaftlogError

    from .output import Console, Output
    from .parser import Parser

EXIT_FAILED: Final = 1
EXIT_WRONG_CALL: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
_COMPARED_NAMES_MAX: Final = 1_000
"""Entries of a directory that are compared with a path that does not exist."""

USAGE: Final = "raftlog COMMAND PATH [OPTION ...]"
ABOUT: Final = """
Read the logs of Apache Kafka directly from their files, even while a broker or controller is
running: without taking locks and without writing to them. Secrets are redacted.

commands:
  cat        print records or record batches, one JSON object per line
  log        print the history of a topic, a broker, a config, ..., one line per change
  state      print the cluster state at an offset
  diff       print the differences between two states, or the changes that lead to the second
  check      verify a log; exit code 0: no damage, 1: damaged
  doctor     check a log, a node or a running quorum; explain each finding and the next step
  report     write an HTML report, with charts, of what happened to a cluster
  snapshot   write the cluster state at an offset to a snapshot that Kafka can load
  tables     write a log to Delta tables, see `raftlog tables --help`
  backup     copy a log to a directory or an object store, incrementally
  restore    write a log's directory from a backup, completely or up to an offset
  rescue     write the directories of a new quorum from a surviving controller

commands for logs created by raftlog (raftlog.open), not for Kafka's:
  append     append the lines of stdin
  bench      measure the throughput and latency of appends
  apply      apply changes to the cluster metadata, or print the records that they would write
  configure  print or change the settings of a log
  repair     recover a log after a crash, or truncate it where it is damaged
  keys       create, rotate and delete encryption keys, see `raftlog keys --help`

commands for a log replicated by a raftlog quorum:
  node       run a node of the quorum, see `raftlog node --help`
  users      set the passwords of clients that use SASL, see `raftlog users --help`
  quorum     describe the leader, voters and observers; add or remove a voter
  dev        start a quorum on this machine, to try raftlog

other commands:
  completion  print a shell script that completes commands and options
  man         print the manual page of a command

PATH is a metadata directory, a log directory of a broker or controller, a partition directory, a
.log segment, a .checkpoint file, or several replicas of one log, comma-separated or as a glob.
To read a log, PATH can also be a URI of an object store, such as
s3://backups/node-1?region=eu-central-1. Instead of PATH, cat, log, state, diff, report, snapshot
and doctor accept --bootstrap-server HOST:PORT,... to read from the controllers of a running
cluster.

examples:
  raftlog cat /var/lib/kafka/__cluster_metadata-0 --type partition | jq .
  raftlog log /var/lib/kafka topic/orders --partitions --from -1h
  raftlog state /var/lib/kafka topics
  raftlog diff /var/lib/kafka --from 1200 --to 1300
  raftlog state --bootstrap-server controller-1:9093 brokers
  raftlog check /var/lib/kafka && echo valid

`raftlog COMMAND --help` describes a command. `raftlog --version` prints the version.
Exit codes: 0 success; 1 the log is damaged or does not contain what was requested; 2 invalid
arguments, an unreadable path, or a log of another cluster. doctor also exits with 3: warnings.
diff exits with 1 if two sources differ, and with 2 for any error.
"""


def main(
    argv: Sequence[str] | None = None,
    stdout: BinaryIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Run one command and return its exit code. The streams default to the process's."""
    try:
        return _run(argv, stdout, stderr)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str] | None, stdout: BinaryIO | None, stderr: TextIO | None) -> int:
    from .output import Console, Output, OutputFailedError
    from .parser import WrongCallError

    console = Console(sys.stderr or io.StringIO() if stderr is None else stderr)
    if stdout is None:
        if sys.stdout is None:
            console.warn("cannot write to stdout: it is closed")
            return EXIT_FAILED
        stdout = sys.stdout.buffer
    output = Output(stdout)
    failed = EXIT_FAILED
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
        failed = getattr(arguments, "exit_failed", EXIT_FAILED)
        if getattr(arguments, "quiet", False):
            console.be_quiet()
        output.color = getattr(arguments, "color", output.color)
        status: int = arguments.run(arguments, output, console)
        console.clear()
        output.flush()
    except WrongCallError as error:
        console.write(f"{error.usage}{error.program}: error: {error.reason}\n")
        return EXIT_WRONG_CALL
    except BrokenPipeError:
        console.clear()
        return _broken_pipe(output)
    except OutputFailedError as error:
        console.warn(f"cannot write to stdout: {error.reason}")
        return failed
    except KeyboardInterrupt:
        console.clear()
        raise
    except MemoryError:
        console.warn("out of memory; select fewer offsets")
        return failed
    except OSError as error:
        from raftlog_state.errors import OperatingSystemError

        name = error.filename if error.filename2 is None else error.filename2
        path = name if isinstance(name, str) else None
        reason = (error.strerror or str(error)).lower()
        return _print_error(OperatingSystemError(path=path, reason=reason), failed, output, console)
    except Exception as error:
        from raftlog.errors import RaftlogError

        if not isinstance(error, RaftlogError):
            raise
        return _print_error(error, failed, output, console)
    return status


def parser() -> Parser:
    """Return the parser of ``raftlog`` with all commands, in the order of the help text."""
    from . import (
        append,
        apply,
        backup,
        bench,
        cat,
        dev,
        doctor,
        keys,
        log,
        maintenance,
        manual,
        node,
        quorum,
        report,
        rescue,
        state,
        tables,
        users,
    )
    from .parser import Parser

    root = Parser(prog="raftlog", usage=USAGE, about=ABOUT)
    commands = root.add_commands()
    for add_command in (
        cat.add_cat,
        log.add_log,
        state.add_state,
        state.add_diff,
        maintenance.add_check,
        doctor.add_doctor,
        report.add_report,
        state.add_snapshot,
        tables.add_tables,
        backup.add_backup,
        backup.add_restore,
        rescue.add_rescue,
        append.add_append,
        bench.add_bench,
        apply.add_apply,
        maintenance.add_configure,
        maintenance.add_repair,
        keys.add_keys,
        quorum.add_quorum,
        node.add_node,
        users.add_users,
        dev.add_dev,
        manual.add_completion,
        manual.add_man,
    ):
        add_command(commands)
    for command in commands.choices.values():
        command.set_defaults(root=root)
    return root


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raises ``WrongCallError``."""
    if argv[:1] == ["--version"]:
        import argparse

        return argparse.Namespace(run=_print_version)
    return parser().parse(argv)


def _print_version(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    from raftlog import __version__, compiled

    output.line(f"raftlog {__version__} ({compiled.describe()})")
    return 0


def _print_error(error: RaftlogError, failed: int, output: Output, console: Console) -> int:
    """Print an error after the output before it; return the exit code, by default ``failed``."""
    from .output import OutputFailedError

    console.clear()
    try:
        output.flush()
    except BrokenPipeError:
        return _broken_pipe(output)
    except OutputFailedError as closed:
        console.warn(f"cannot write to stdout: {closed.reason}")
        return failed
    hint = _similar_path(error)
    console.warn(f"{error}; {hint}" if hint else str(error))
    return EXIT_WRONG_CALL if _is_usage_error(error) else failed


def _similar_path(error: RaftlogError) -> str | None:
    """Return a hint for a path that does not exist: where its link points, or the most similar name
    beside it; None without one or for another error."""
    from raftlog.errors import LogNotFoundError

    if not isinstance(error, LogNotFoundError) or os.path.exists(error.path):
        return None
    from raftlog.printable import did_you_mean

    if os.path.islink(error.path):
        return f"it is a symbolic link to {os.readlink(error.path)}"
    folder, name = os.path.split(error.path.rstrip(os.sep))
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [one.name for one in itertools.islice(entries, _COMPARED_NAMES_MAX)]
    except OSError:
        return None
    return did_you_mean(name, names)


def _is_usage_error(error: RaftlogError) -> bool:
    """Return whether the command was not run, because of its arguments or of PATH."""
    from raftlog import errors
    from raftlog.client.backup import WrongBackupError
    from raftlog.node import errors as node_errors

    return isinstance(
        error,
        (
            node_errors.AlreadyFormattedError,
            node_errors.ConfigError,
            errors.LogAccessError,
            errors.LogNotFoundError,
            node_errors.NodeAddressError,
            errors.NotALogError,
            node_errors.NotFormattedError,
            errors.OptionError,
            errors.WrongClusterError,
            node_errors.WrongDirectoryError,
            WrongBackupError,
        ),
    )


def _broken_pipe(output: Output) -> int:
    # Python flushes stdout at exit, and would raise BrokenPipeError again.
    descriptor = output.fileno()
    if descriptor is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return EXIT_BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
