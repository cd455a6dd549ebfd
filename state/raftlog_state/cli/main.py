"""Entry point of ``raftlog``: selects the command and maps its outcome to an exit code.

Only the module of the selected command is imported, so that ``raftlog --help`` loads neither numpy
nor pyarrow. A ``RaftlogError`` is printed as one sentence on stderr, without a stack trace, after
all output that precedes it.

Exit codes: 0 success; 1 the log is damaged, or does not contain what was requested, or the command
failed; 2 invalid arguments, or a path that cannot be read; 130 Ctrl-C; 141 the reader of stdout
closed the pipe. 130 and 141 are 128 + SIGINT and 128 + SIGPIPE, as in a shell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import BinaryIO, Final, TextIO

from raftlog import __version__
from raftlog.errors import (
    AlreadyFormattedError,
    ConfigError,
    LogAccessError,
    LogNotFoundError,
    NodeAddressError,
    NotALogError,
    NotFormattedError,
    OptionError,
    RaftlogError,
    WrongDirectoryError,
)

from .output import Console, Output, OutputFailedError
from .parser import WrongCallError, nearest

EXIT_FAILED: Final = 1
EXIT_WRONG_CALL: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

_USAGE_ERRORS: Final = (
    AlreadyFormattedError,
    ConfigError,
    LogAccessError,
    LogNotFoundError,
    NodeAddressError,
    NotALogError,
    NotFormattedError,
    OptionError,
    WrongDirectoryError,
)

HELP: Final = """\
usage: raftlog COMMAND PATH [OPTION ...]

Read the logs of Apache Kafka from their files, also of a running broker or controller: without
locks, and without writing to them. Secrets are redacted.

commands:
  cat        print records or record batches, one JSON object a line
  state      print the cluster state at an offset
  diff       print the differences between the states at two offsets
  check      verify a log; exit code 0: no damage, 1: damaged
  snapshot   write the cluster state at an offset to a snapshot that Kafka can load

commands for logs created by raftlog (raftlog.open), not for Kafka's:
  configure  print or change the settings of a log
  repair     recover a log after a crash, or truncate it where it is damaged

commands for a log replicated by a raftlog quorum:
  node       run a node of the quorum, see `raftlog node --help`
  quorum     describe the leader, voters and observers; add or remove a voter

PATH is a metadata directory, a log directory of a broker or controller, a partition directory, a
.log segment, a .checkpoint file, or several replicas of one log, comma-separated or as a glob.
cat, state, diff and snapshot can read from the controllers of a running cluster instead, with
--bootstrap-server HOST:PORT,...

examples:
  raftlog cat /var/lib/kafka/__cluster_metadata-0 --type partition | jq .
  raftlog state /var/lib/kafka topics
  raftlog diff /var/lib/kafka --from 1200 --to 1300
  raftlog state --bootstrap-server controller-1:9093 brokers
  raftlog check /var/lib/kafka && echo valid

`raftlog COMMAND --help` describes a command. `raftlog --version` prints the version.
Exit codes: 0 success, 1 damaged or not found in the log, 2 invalid arguments or unreadable path.
"""

COMMANDS: Final = (
    "cat",
    "state",
    "diff",
    "check",
    "snapshot",
    "configure",
    "repair",
    "quorum",
    "node",
)


def main(
    argv: Sequence[str] | None = None,
    stdout: BinaryIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Run one command and return its exit code. The streams default to the process's."""
    console = Console(sys.stderr if stderr is None else stderr)
    output = Output(sys.stdout.buffer if stdout is None else stdout)
    try:
        status = _run(sys.argv[1:] if argv is None else argv, output, console)
        console.clear()
        output.flush()
    except RaftlogError as error:
        return _print_error(error, output, console)
    except WrongCallError as error:
        console.write(f"{error.usage}{error.program}: error: {error.reason}\n")
        return EXIT_WRONG_CALL
    except BrokenPipeError:
        console.clear()
        return _broken_pipe(output)
    except OutputFailedError as error:
        console.log(f"cannot write to stdout: {error.reason}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        console.clear()
        return EXIT_INTERRUPTED
    except MemoryError:
        console.log("out of memory; select fewer offsets")
        return EXIT_FAILED
    return status


def _run(argv: Sequence[str], output: Output, console: Console) -> int:
    if not argv:
        raise WrongCallError("raftlog", HELP.partition("\n")[0] + "\n", "a command is missing")
    name, *rest = argv
    if name in ("-h", "--help", "help"):
        output.text(HELP)
        return 0
    if name == "--version":
        output.text(f"raftlog {__version__}\n")
        return 0
    if name == "node":
        if rest[:1] in (["-h"], ["--help"], ["help"]):
            from .node import HELP as NODE_HELP

            output.text(NODE_HELP)
            return 0
        command, rest = _node_command(rest[0] if rest else None), rest[1:]
    else:
        command = _command(name)
    parser = command.parser()
    if not {"-h", "--help"}.isdisjoint(rest):
        output.text(parser.format_help())
        return 0
    status = command.run(parser.parse(rest), output, console)
    assert isinstance(status, int)
    return status


def _command(name: str) -> ModuleType:
    match name:
        case "cat":
            from . import cat

            return cat
        case "state":
            from . import state

            return state
        case "diff":
            from . import diff

            return diff
        case "check":
            from . import check

            return check
        case "snapshot":
            from . import snapshot

            return snapshot
        case "configure":
            from . import configure

            return configure
        case "repair":
            from . import repair

            return repair
        case "quorum":
            from . import quorum

            return quorum
    usage = HELP.partition("\n")[0] + "\n"
    hint = nearest(name, COMMANDS) or "the commands are " + ", ".join(COMMANDS)
    raise WrongCallError("raftlog", usage, f"unknown command {name!r}; {hint}")


def _node_command(name: str | None) -> ModuleType:
    match name:
        case "format":
            from . import node_format

            return node_format
        case "start":
            from . import node_start

            return node_start
        case "recover":
            from . import node_recover

            return node_recover
        case "workload":
            from . import node_workload

            return node_workload
        case "random-uuid":
            from . import node_random_uuid

            return node_random_uuid
    from .node import COMMANDS as NODE_COMMANDS
    from .node import HELP as NODE_HELP

    usage = NODE_HELP.partition("\n")[0] + "\n"
    if name is None:
        raise WrongCallError("raftlog node", usage, "a command is missing")
    hint = nearest(name, NODE_COMMANDS) or "the commands are " + ", ".join(NODE_COMMANDS)
    raise WrongCallError("raftlog node", usage, f"unknown command {name!r}; {hint}")


def _print_error(error: RaftlogError, output: Output, console: Console) -> int:
    console.clear()
    try:
        output.flush()
    except BrokenPipeError:
        return _broken_pipe(output)
    except OutputFailedError as failed:
        console.log(f"cannot write to stdout: {failed.reason}")
        return EXIT_FAILED
    console.log(str(error))
    return EXIT_WRONG_CALL if isinstance(error, _USAGE_ERRORS) else EXIT_FAILED


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
