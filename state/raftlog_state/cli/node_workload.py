"""``raftlog node workload``: append to a running quorum, then verify its log."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .output import Console, Output
from .parser import Parser

if TYPE_CHECKING:
    from .counter_workload import CounterWriter, Tally, Verdict

ABOUT = """
Increment one counter in the log of a running quorum, from several writers: each writer reads the
counter and appends the next number at the end of the log, or fails if another writer was faster.
Nodes can be killed meanwhile. At the end the log is read: every acknowledged number must be in it,
once and in order. The records are not deleted: use a log for this purpose only.

With --config, run the node of FILE like `raftlog node start`; while it leads, it increments the
counter itself and logs its value every second. Three nodes started this way are a quorum under
load. No other client may append to its log.

The exit code is 1 if an acknowledged number is missing or duplicated.
"""

EXAMPLES = """
raftlog node workload --bootstrap-server 127.0.0.1:9192,127.0.0.1:9292,127.0.0.1:9392
raftlog node workload --config node.toml
raftlog node workload --bootstrap-server log-1.example:9192 --seconds 60 --writers 8 \\
  --tls-ca clients-ca.pem --tls-certificate jobs-1.pem --tls-key jobs-1.key
"""

_WRITERS_MAX: Final = 256
_DAY_S: Final = 24 * 60 * 60


def parser() -> Parser:
    """Return the parser of ``raftlog node workload``."""
    command = Parser("node workload", ABOUT, EXAMPLES, takes_path=False)
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--bootstrap-server", metavar="HOST:PORT,...", help="one or more nodes of the quorum"
    )
    where.add_argument("-c", "--config", metavar="FILE", help="run the node that FILE configures")
    command.add_argument(
        "--seconds",
        type=_int_between(1, _DAY_S),
        default=10,
        metavar="N",
        help="duration; default: 10",
    )
    command.add_argument(
        "--writers",
        type=_int_between(1, _WRITERS_MAX),
        default=4,
        metavar="N",
        help="number of concurrent writers; default: 4",
    )
    command.add_argument(
        "--tls-ca", metavar="FILE", help="PEM file of the CA that signed the nodes' certificates"
    )
    command.add_argument(
        "--tls-certificate", metavar="FILE", help="PEM file of this client's certificate"
    )
    command.add_argument(
        "--tls-key", metavar="FILE", help="PEM file of the private key of --tls-certificate"
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Run the writers, print a line a second and the result; return the exit code."""
    if arguments.config is not None:
        return _run_node(arguments.config)
    import raftlog

    from .counter_workload import CounterWriter, Tally, verify

    def connect() -> raftlog.ConnectedLog:
        return raftlog.connect(
            arguments.bootstrap_server,
            tls_ca=arguments.tls_ca,
            tls_certificate=arguments.tls_certificate,
            tls_key=arguments.tls_key,
        )

    with connect() as log:
        tally = Tally()
        until_s = time.monotonic() + arguments.seconds
        writers = [CounterWriter(connect, tally, until_s) for _ in range(arguments.writers)]
        for writer in writers:
            writer.start()
        try:
            _watch(writers, tally, output)
        except KeyboardInterrupt:
            console.log("stopping; verifying the acknowledged increments")
        finally:
            for writer in writers:
                writer.stop()
        for writer in writers:
            writer.join()
        if tally.error is not None and not tally.acknowledged:
            raise tally.error
        verdict = verify(log, tally)
    _print_result(tally, verdict, output)
    return 0 if verdict.is_correct else 1


def _run_node(path: str) -> int:
    """Run a node that increments the counter while it leads, until a signal."""
    from raftlog.node.config import read_config

    config = read_config(path)

    from raftlog.node.process import run_node

    return run_node(config, runs_counter=True)


def _watch(writers: list[CounterWriter], tally: Tally, output: Output) -> None:
    """Print a line a second until all writers have ended."""
    before = 0
    while not _are_done(writers, time.monotonic() + 1):
        count = len(tally.acknowledged)
        output.line(
            f"{count - before} increments/s, {tally.conflict_count} conflicts so far, "
            f"{tally.timeout_count} timeouts"
        )
        output.flush()
        before = count


def _are_done(writers: list[CounterWriter], until_s: float) -> bool:
    """Wait for all writers until ``until_s``; return whether all have ended."""
    return all(writer.join(max(until_s - time.monotonic(), 0)) for writer in writers)


def _print_result(tally: Tally, verdict: Verdict, output: Output) -> None:
    if tally.error is not None:
        output.line(f"a writer failed: {tally.error}")
    output.line(
        f"{len(tally.acknowledged)} increments acknowledged, {tally.conflict_count} conflicts "
        f"with another writer, {tally.timeout_count} timeouts"
    )
    output.line(
        f"latency p50 {tally.latency_ms(0.5):.1f} ms, p99 {tally.latency_ms(0.99):.1f} ms, max "
        f"{tally.latency_ms(1):.1f} ms; longest time without progress "
        f"{tally.longest_gap_ms:.0f} ms"
    )
    output.line(
        f"the counter is {verdict.value}: {len(verdict.lost)} acknowledged increments lost, "
        f"{len(verdict.out_of_order)} out of order or duplicated"
    )
    if verdict.lost:
        output.line(f"first lost increment: offset {verdict.lost[0]}")
    if verdict.out_of_order:
        output.line(f"first increment out of order: offset {verdict.out_of_order[0]}")


def _int_between(at_least: int, at_most: int) -> Callable[[str], int]:
    """Return a parser of integers between two inclusive bounds."""

    def number(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) < 10
        if not is_number or not at_least <= int(text) <= at_most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not an integer from {at_least} to {at_most}"
            )
        return int(text)

    return number
