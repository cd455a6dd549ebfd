"""``raftlog bench``: throughput and latency of appends, as a client measures them."""

from __future__ import annotations

import argparse
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from raftlog.limits import BATCH_BYTES_MAX
from raftlog.printable import compact_json

from .output import Console, Output
from .parser import Commands
from .source import add_target, open_target

if TYPE_CHECKING:
    from raftlog.client.location import AnyLog
    from raftlog.client.log_handle import LogHandle

ABOUT: Final = """
Measure the throughput and latency of appends, like Kafka's kafka-producer-perf-test. Records of
random bytes are appended to a log created by raftlog, or to the log of a raftlog quorum. The
latency of an append is the time until it is durable or, in a quorum, committed.

The records remain in the log, so use a test log, such as one of `raftlog dev`. A log that already
contains records requires --existing.

Each client has a connection or handle of its own and appends --batch records at a time, each time
after the previous append is acknowledged. One client with --batch 1 therefore measures the latency
of a single append; many clients measure the throughput of appends that share their syncs.
"""

EXAMPLES: Final = """
raftlog bench --bootstrap-server 127.0.0.1:9192 --records 1000
raftlog bench --bootstrap-server 127.0.0.1:9192 --records 100000 --batch 100 --clients 8
raftlog bench /tmp/bench-0 --create --size 1000 --json
"""

CLIENTS_MAX: Final = 256
RECORDS_DEFAULT: Final = 10_000
SIZE_DEFAULT: Final = 100
QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
_NUMBER_MAX: Final = 10**12


class Latencies:
    """Latencies counted in buckets, each 1 % wider than the previous one, so memory is bounded."""

    _GROWTH: Final = math.log(1.01)
    _FIRST_MS: Final = 0.001

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.sum_ms = 0.0
        self.max_ms = 0.0

    def add(self, latency_ms: float) -> None:
        """Count one latency."""
        steps = math.log(max(latency_ms, self._FIRST_MS) / self._FIRST_MS) / self._GROWTH
        self._counts[math.ceil(steps)] += 1
        self.count += 1
        self.sum_ms += latency_ms
        self.max_ms = max(self.max_ms, latency_ms)

    def merge(self, other: Latencies) -> None:
        """Add the latencies of another client."""
        self._counts.update(other._counts)
        self.count += other.count
        self.sum_ms += other.sum_ms
        self.max_ms = max(self.max_ms, other.max_ms)

    def quantile(self, share: float) -> float:
        """Return a bound that this share of the latencies does not exceed, at most 1 % above."""
        wanted, seen = math.ceil(share * self.count), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(self._FIRST_MS * math.exp(bucket * self._GROWTH), self.max_ms)
        return 0.0


def add_bench(commands: Commands) -> None:
    """Add ``raftlog bench``."""
    command = commands.add_parser("bench", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_bench)
    add_target(command)
    command.add_argument(
        "--create", action="store_true", help="create the log in PATH if it does not exist"
    )
    command.add_argument(
        "--existing", action="store_true", help="append to a log that already contains records"
    )
    for name, default, help_text in (
        ("records", RECORDS_DEFAULT, "total number of records of all clients"),
        ("size", SIZE_DEFAULT, "size of each record's value in bytes"),
        ("clients", 1, f"number of clients, at most {CLIENTS_MAX}"),
        ("batch", 1, "number of records per append"),
    ):
        command.add_argument(
            f"--{name}",
            metavar="N",
            type=int,
            default=default,
            help=f"{help_text}; default: {default}",
        )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def run_bench(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Append the records and print what was measured; return the exit code."""
    from random import Random

    records, size, batch = arguments.records, arguments.size, arguments.batch
    _check(arguments)
    client_count = min(arguments.clients, math.ceil(records / batch))
    with ExitStack() as opened:
        logs = [
            opened.enter_context(open_target(arguments, create=arguments.create))
            for _ in range(client_count)
        ]
        if not arguments.existing:
            _check_is_empty(logs[0])
        value = Random(size).randbytes(size)
        rounds = _Rounds(records, batch)
        clients = [_Client(log, value, rounds, arguments.timeout_ms) for log in logs]
        started_s = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.join_with(lambda: console.progress(rounds.taken_count, records))
        elapsed_s = time.monotonic() - started_s
    latencies = Latencies()
    for client in clients:
        if client.error is not None:
            raise client.error
        latencies.merge(client.latencies)
    found = _found(arguments, client_count, latencies, elapsed_s)
    output.lines([compact_json(found)] if arguments.json else _lines(found))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise ``OptionError`` for a number that is out of its bounds."""
    from raftlog.errors import OptionError

    for name, at_least, at_most in (
        ("records", 1, _NUMBER_MAX),
        ("size", 0, BATCH_BYTES_MAX),
        ("clients", 1, CLIENTS_MAX),
        ("batch", 1, BATCH_BYTES_MAX),
    ):
        if not at_least <= getattr(arguments, name) <= at_most:
            reason = f"must be from {at_least} to {at_most}"
            raise OptionError(option=f"--{name}", reason=reason)
    if arguments.size * arguments.batch > BATCH_BYTES_MAX:
        reason = f"an append of --batch records of --size bytes exceeds {BATCH_BYTES_MAX} bytes"
        raise OptionError(option="--batch", reason=reason)
    if arguments.create and arguments.bootstrap_server is not None:
        arguments.parser.error("--create requires PATH")


def _check_is_empty(log: AnyLog) -> None:
    """Raise ``OptionError`` if a log has records, because the benchmark's could not be removed."""
    from raftlog.errors import OptionError, UnexpectedEndOffsetError

    with suppress(UnexpectedEndOffsetError):  # a log that cannot be written has its own error
        log.append([], required_end_offset=log.end_offset)
    for record in log.read():
        reason = (
            f"must be given: the log has records from offset {record.offset} on, and those of the "
            "benchmark stay in it"
        )
        raise OptionError(option="--existing", reason=reason)


class _Rounds:
    """Records that no client has taken yet."""

    def __init__(self, record_count: int, batch: int) -> None:
        self._lock = threading.Lock()
        self._record_count = record_count
        self._batch = batch
        self.taken_count = 0

    def take(self) -> int:
        """Return the number of records for the next append, 0 at the end."""
        with self._lock:
            count = min(self._batch, self._record_count - self.taken_count)
            self.taken_count += count
            return count

    def end(self) -> None:
        """Let the clients end."""
        with self._lock:
            self._record_count = self.taken_count


class _Client(threading.Thread):
    """Client that appends in its own thread until nothing is left or an append fails."""

    def __init__(
        self, log: LogHandle, value: bytes, rounds: _Rounds, timeout_ms: int | None
    ) -> None:
        from raftlog.client.log_handle import TIMEOUT_MS_DEFAULT

        super().__init__(daemon=True)
        self.latencies = Latencies()
        self.error: Exception | None = None
        self._log = log
        self._value = value
        self._rounds = rounds
        self._timeout_ms = TIMEOUT_MS_DEFAULT if timeout_ms is None else timeout_ms

    def run(self) -> None:
        """Append, and measure each append."""
        try:
            while count := self._rounds.take():
                started_s = time.perf_counter()
                self._log.append([self._value] * count, timeout_ms=self._timeout_ms)
                self.latencies.add((time.perf_counter() - started_s) * 1_000)
        except Exception as error:  # noqa: BLE001 - raised by the main thread
            self.error = error
            self._rounds.end()

    def join_with(self, look: Callable[[], None]) -> None:
        """Wait for the end; call ``look`` meanwhile."""
        while self.is_alive():
            self.join(0.1)
            look()


def _found(
    arguments: argparse.Namespace, client_count: int, latencies: Latencies, elapsed_s: float
) -> dict[str, object]:
    per_second = arguments.records / elapsed_s
    return {
        "records": arguments.records,
        "size": arguments.size,
        "clients": client_count,
        "batch": arguments.batch,
        "seconds": round(elapsed_s, 3),
        "records_per_second": round(per_second, 1),
        "bytes_per_second": round(per_second * arguments.size),
        "mean_ms": round(latencies.sum_ms / latencies.count, 3),
        **{f"p{share * 100:g}_ms": round(latencies.quantile(share), 3) for share in QUANTILES},
        "max_ms": round(latencies.max_ms, 3),
    }


def _lines(found: dict[str, object]) -> Iterator[str]:
    yield (
        f"{found['records']} records of {found['size']} bytes in {found['seconds']} s "
        f"(clients: {found['clients']}, records of an append: {found['batch']})"
    )
    per_second = f"{found['records_per_second']} records/s, {found['bytes_per_second']} bytes/s"
    yield f"throughput: {per_second}"
    shown = [f"{name.removesuffix('_ms')} {found[name]} ms" for name in _latency_names(found)]
    yield "latency of an append: " + ", ".join(shown)


def _latency_names(found: dict[str, object]) -> Sequence[str]:
    return [name for name in found if name.endswith("_ms")]
