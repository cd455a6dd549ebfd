"""Durable appends and opening: raftlog's embedded log compared with SQLite, aiokafka and files.

    python -m benchmarks.append [--log-mib N ...] [--appends N] [--rounds N] [--quick]
                                [--directory D] [--json]

Durable appends: one record of 100 bytes per append, synced before the next append of the same
thread. SQLite runs in WAL mode with synchronous=FULL, one INSERT and COMMIT per append; with
several threads the better figure of one connection per thread and of one shared connection is
used. The rounds of the two alternate on the same disk, and the table has medians. fdatasync of the
disk is measured in the same run, because it bounds durable appends.

Opening is measured from `raftlog.open` to the first durable append. "Unclean" logs were written by
a process that exited without closing them, all in one active segment: the worst case. Their pages
are in the page cache, as after a crash of the process. Memory is that of a separate process.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import multiprocessing
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.run import Row, print_row, row

import raftlog
from raftlog.limits import MIB
from raftlog.log.reading.transactions import encoded_metadata
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records import BatchAccumulator, NewRecord, RecordToAppend, build_batch
from raftlog.storage.local import WritableLocalStorage

HOME = Path(__file__).parents[1]
VALUE_BYTES = 100
TIME_MS = 1_700_000_000_000
APPENDERS = 64
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
SQLITE = "SQLite, WAL, synchronous=FULL"


def values_of(count: int) -> list[bytes]:
    chance = random.Random(17)
    return [chance.randbytes(VALUE_BYTES) for _ in range(count)]


# --- building batches -----------------------------------------------------------------------------


def build_raftlog(records: Sequence[RecordToAppend]) -> bytes:
    return build_batch(
        records,
        base_offset=0,
        leader_epoch=1,
        base_timestamp_ms=TIME_MS,
        byte_count_max=64 * MIB,
    ).data


def build_aiokafka(records: Sequence[RecordToAppend]) -> bytes:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 64 * MIB)
    for offset, record in enumerate(records):
        if isinstance(record, bytes):
            builder.append(offset, TIME_MS, None, record, [])
        else:
            builder.append(offset, TIME_MS, record.key, record.value, [])
    return bytes(builder.build())


def measure_building(rounds: int) -> Iterator[Row]:
    """Return records per second of processor time, CRC included, after comparing the bytes."""
    for count, has_keys in ((1, False), (100, False), (10_000, False), (10_000, True)):
        values = values_of(count)
        records: list[RecordToAppend] = list(values)
        if has_keys:
            records = [NewRecord(b"key %06d" % at, value) for at, value in enumerate(values)]
        # Equal except for the leader epoch, which aiokafka does not set.
        if build_raftlog(records)[16:] != build_aiokafka(records)[16:]:
            raise SystemExit("the two do not build the same batch")
        rates: dict[Callable[[Sequence[RecordToAppend]], bytes], list[float]] = {}
        for _ in range(rounds + 1):
            for build in (build_raftlog, build_aiokafka):
                gc.collect()
                repeats = max(1, 100_000 // count)
                start = time.process_time()
                for _ in range(repeats):
                    build(records)
                elapsed = time.process_time() - start
                rates.setdefault(build, []).append(repeats * count / elapsed)
        measured, compared = (
            statistics.median(rates[build][1:]) for build in (build_raftlog, build_aiokafka)
        )
        what = f"build batches of {count:,} records of {VALUE_BYTES} bytes"
        what += " with keys" if has_keys else ""
        yield row(what, measured, "records/s", compared, "aiokafka's compiled builder")


# --- durable appends ------------------------------------------------------------------------------


def measure_disk(directory: Path) -> Iterator[Row]:
    """Return the seconds that each of several fdatasyncs of 4 KiB takes."""
    times = []
    with (directory / "sync-probe").open("wb", buffering=0) as file:
        for _ in range(300):
            file.write(bytes(4096))
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(1000 * (time.perf_counter() - start))
    times.sort()
    yield row("fdatasync of 4 KiB, median", times[len(times) // 2], "ms")
    yield row("fdatasync of 4 KiB, 99th of 100", times[len(times) * 99 // 100], "ms")


@contextmanager
def counted_syncs() -> Iterator[list[int]]:
    """Count the fdatasyncs of this process."""
    counted = [0]
    real = os.fdatasync

    def counting(file: int) -> None:
        counted[0] += 1
        real(file)

    os.fdatasync = counting  # type: ignore[assignment]
    try:
        yield counted
    finally:
        os.fdatasync = real


def rate_of(appenders: int, append_count: int, append: Callable[[int, bytes], None]) -> float:
    """Return the appends per second of threads that each wait for their previous append."""
    each = append_count // appenders
    values = values_of(each)
    barrier = threading.Barrier(appenders + 1)

    def work(number: int) -> None:
        barrier.wait()
        for value in values:
            append(number, value)

    with ThreadPoolExecutor(appenders) as pool:
        done = [pool.submit(work, number) for number in range(appenders)]
        barrier.wait()
        start = time.perf_counter()
        for one in done:
            one.result()
        elapsed = time.perf_counter() - start
    return each * appenders / elapsed


def raftlog_rate(place: Path, appenders: int, append_count: int) -> tuple[float, float]:
    """Return appends per second, and syncs per append."""
    with raftlog.open(place) as log:
        log.append([b"the first one opens the log"])
        with counted_syncs() as syncs:
            rate = rate_of(appenders, append_count, lambda _, value: void(log.append([value])))
        return rate, syncs[0] / (append_count // appenders * appenders)


def void(_: object) -> None:
    return None


def connect(place: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=60, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def insert(connection: sqlite3.Connection, value: bytes) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO log (value) VALUES (?)", (value,))
    connection.execute("COMMIT")


def sqlite_rate(place: Path, appenders: int, append_count: int, *, is_shared: bool) -> float:
    """Return appends per second; ``is_shared``: one connection, guarded by a lock."""
    with closing(connect(place)) as first:
        first.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB NOT NULL)")
        insert(first, b"the first one opens the log")
        if is_shared:
            lock = threading.Lock()

            def append(_: int, value: bytes) -> None:
                with lock:
                    insert(first, value)

            return rate_of(appenders, append_count, append)
        connections = [connect(place) for _ in range(appenders)]
        try:
            return rate_of(appenders, append_count, lambda n, value: insert(connections[n], value))
        finally:
            for connection in connections:
                connection.close()


def measure_durable(directory: Path, append_count: int, rounds: int) -> Iterator[Row]:
    for appenders in (1, APPENDERS):
        measured: list[float] = []
        syncs: list[float] = []
        compared: dict[bool, list[float]] = {}
        # Connections that wait for SQLite's lock sleep for increasing times: use fewer rounds.
        kinds = {True: append_count, False: append_count if appenders == 1 else append_count // 8}
        for number in range(rounds):
            name = f"{appenders}-{number}"
            rate, sync = raftlog_rate(directory / f"log{name}-0", appenders, append_count)
            measured.append(rate)
            syncs.append(sync)
            for is_shared, count in kinds.items():
                place = directory / f"{name}-{is_shared}.sqlite"
                found = sqlite_rate(place, appenders, count, is_shared=is_shared)
                compared.setdefault(is_shared, []).append(found)
        against = max(statistics.median(rates) for rates in compared.values())
        label = "1 appender" if appenders == 1 else f"{appenders} appenders"
        what = f"durable appends of one record, {label}"
        yield row(what, statistics.median(measured), "appends/s", against, SQLITE)
        yield row(f"syncs an append, {label}", statistics.median(syncs), "syncs", 1.0, SQLITE)


# --- unsynced appends -----------------------------------------------------------------------------


def new_log(directory: Path) -> SingleVoterLog:
    """Return the configuration of a log with one segment of up to 1 GiB."""
    return SingleVoterLog.create(
        WritableLocalStorage(),
        str(directory),
        config=LogConfig(segment_bytes=2**31 - 1),
        topic_id=TOPIC_ID,
        now_ms=TIME_MS,
    )


def fill(log: SingleVoterLog, byte_count: int) -> int:
    """Append through an accumulator without a sync; return the bytes of the batches."""
    collected = BatchAccumulator(epoch=log.epoch, next_offset=log.end_offset)
    records, values = values_of(10_000), log.config.values
    written = 0
    while written < byte_count:
        collected.append_atomic(log.epoch, records, now_ms=TIME_MS, standalone=True)
        batches = collected.drain()
        log.append_as_leader([(one.data, encoded_metadata(one, values)) for one in batches])
        written += sum(len(one.data) for one in batches)
    return written


def measure_unsynced(directory: Path, byte_count: int, rounds: int) -> Iterator[Row]:
    measured, compared = [], []
    chunk = build_raftlog(values_of(10_000))
    for number in range(rounds):
        log = new_log(directory / f"unsynced{number}-0")
        start = time.perf_counter()
        written = fill(log, byte_count)
        measured.append(written / 1e6 / (time.perf_counter() - start))
        log.close()
        with (directory / f"plain{number}").open("wb", buffering=0) as file:
            start = time.perf_counter()
            for _ in range(written // len(chunk)):
                file.write(chunk)
            compared.append(written / 1e6 / (time.perf_counter() - start))
            os.fdatasync(file.fileno())  # not counted in the next round
    what = f"unsynced appends, {VALUE_BYTES}-byte records, batches of 10,000"
    other = "writing the same bytes to a file"
    yield row(what, statistics.median(measured), "MB/s", statistics.median(compared), other)


# --- opening --------------------------------------------------------------------------------------


def in_a_process(work: Callable[..., float], *arguments: Any) -> float:
    """Return the result of a separate process, which exits without closing the log."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        raise SystemExit(f"{work.__name__} failed") from None
    process.join()
    return float(found)


def answer(sender: Any, work: Callable[..., float], arguments: tuple[Any, ...]) -> None:
    sender.send(work(*arguments))
    sender.close()
    os._exit(0)


def fill_and_die(directory: str, byte_count: int) -> float:
    """Write a log of about this size, synced once at its end and not closed."""
    log = new_log(Path(directory))
    fill(log, byte_count)
    return log.flush()


def seconds_to_append(directory: str, is_closed: bool) -> float:
    """Return the seconds from ``raftlog.open`` to the first durable append; leave the log open."""
    for imported in ("raftlog.client.embedded.handle", "raftlog.log.recovery.recover"):
        importlib.import_module(imported)  # imports are not what is measured
    start = time.perf_counter()
    log = raftlog.open(directory)
    log.append([b"x" * VALUE_BYTES])
    elapsed = time.perf_counter() - start
    if is_closed:
        log.close()
    return elapsed


def resident_mib(directory: str, append_count: int) -> float:
    """Return the memory of a process that opened the log and appended; 0 appends: without a log."""
    if append_count:
        log = raftlog.open(directory)
        for value in values_of(append_count):
            log.append_async([value])
        log.append([b"x"])
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    lines = [line for line in status.read_text().splitlines() if line.startswith("VmRSS:")]
    return int(lines[0].split()[1]) / 1024


def measure_opening(directory: Path, log_mib: list[int], rounds: int) -> Iterator[Row]:
    clean: dict[int, float] = {}
    memory: dict[int, float] = {}
    unclean: dict[int, float] = {}
    for size in log_mib:
        print(f"logs of {size} MiB", file=sys.stderr, flush=True)
        left = str(directory / f"unclean{size}-0")
        in_a_process(fill_and_die, left, size * MIB)
        unclean[size] = in_a_process(seconds_to_append, left, True)
        clean[size] = statistics.median(
            in_a_process(seconds_to_append, left, True) for _ in range(rounds)
        )
        memory[size] = in_a_process(resident_mib, left, 1000)
        for path in Path(left).iterdir():
            path.unlink()
    first = log_mib[0]
    for size in log_mib:
        other = "" if size == first else f"a log of {first} MiB"
        against = clean[first] if other else None
        yield row(
            f"clean open to a durable append, {size:,} MiB",
            1000 * clean[size],
            "ms",
            1000 * against if against else None,
            other,
        )
    for size in log_mib:
        per_64 = unclean[size] / max(size / 64, 1)
        yield row(f"unclean open, {size:,} MiB in the active segment", unclean[size], "s")
        yield row(f"unclean open, {size:,} MiB, per 64 MiB (or less)", per_64, "s")
    bare = in_a_process(resident_mib, "", 0)
    for size in log_mib:
        other = "the same process without a log"
        yield row(f"memory with a log of {size:,} MiB open", memory[size], "MiB", bare, other)


# --- command line --------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    parent = Path(arguments.directory or HOME / "build")
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="append-") as place:
        directory = Path(place)
        yield from measure_building(arguments.rounds)
        yield from measure_disk(directory)
        yield from measure_durable(directory, arguments.appends, arguments.rounds)
        yield from measure_unsynced(directory, arguments.log_mib[-1] * MIB // 4, arguments.rounds)
        yield from measure_opening(directory, arguments.log_mib, arguments.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--log-mib", type=int, nargs="+", default=[10, 100, 1024])
    parser.add_argument("--appends", type=int, default=6400, help="appends in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small logs, few rounds: a smoke test")
    parser.add_argument("--directory", help="a directory on the disk to measure (default: build)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.log_mib, arguments.appends, arguments.rounds = [1, 4, 16], 640, 2
    for figures in measure(arguments):
        print_row(figures, as_json=arguments.json, decimals=3)


if __name__ == "__main__":
    main()
