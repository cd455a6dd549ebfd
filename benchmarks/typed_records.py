"""Printing of typed records: `raftlog cat` and kafka-dump-log, whole processes, the same segment.

    python -m benchmarks.typed_records [--records N] [--memory-records N] [--rounds N] [--jars DIR]
                                       [--json]

The segment is built from the batches of a bundled metadata log, repeated with new offsets (which
no CRC covers) until it has enough records. Both print every record, NoOp and control records
included, without redaction, to /dev/null. Measured is the processor time of each process, its
start-up included. The rounds alternate, and the table has medians.

A figure of its own is the conversion of row changes to Arrow rows of the table `changes`, compared
with the tests' reference (tests/support/row_wise_tables.py), which is simple and not tuned.

The peak memory of `raftlog cat` and `raftlog state` is that of a process with the log of
`bulk_load`, compared with a tenth of its records. Both read a log in pieces.

Kafka's jars are searched in --jars, $RAFTLOG_KAFKA_JARS and build/kafka/4.3.1. Without them, or
without Java, only raftlog is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from benchmarks.bulk_load import write_log
from benchmarks.run import Row, jars, print_row, row
from tests.support.peak_memory import peak_memory

from raftlog import compiled
from raftlog.limits import ARROW_ROWS_DEFAULT, MIB
from raftlog.records import RecordBatch, iter_batches
from raftlog_state.image.delta import RecordChanges
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.loader.payload import batch_records
from raftlog_state.records import RECORD_TYPES, Redactor, decode, to_json_text
from raftlog_state.records.native_json import LineStart, write_json
from raftlog_state.records.typed_columns import typed_columns
from raftlog_state.tables.convert import changes_table
from raftlog_state.tables.origins import RowOrigins

HOME = Path(__file__).parents[1]
LOGS = HOME / "tests" / "data" / "kraft-logs" / "three-nodes-4.3.1"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"


def bundled_batches() -> list[tuple[RecordBatch, bytes]]:
    """Return the batches of one controller's log, and their bytes."""
    found = []
    for path in sorted((LOGS / "node-100" / "__cluster_metadata-0").glob("*.log")):
        data = path.read_bytes()
        for batch in iter_batches(data):
            found.append((batch, data[batch.position : batch.position + batch.byte_count]))
    return found


def write_segment(path: Path, record_count: int) -> int:
    """Write at least ``record_count`` records, contiguous from offset 0. Returns how many."""
    batches = bundled_batches()
    offset = 0
    with path.open("wb") as file:
        while offset < record_count:
            for batch, data in batches:
                file.write(struct.pack(">q", offset) + data[8:])
                offset += batch.last_offset - batch.base_offset + 1
    return offset


def values_of(record_count: int) -> list[bytes]:
    """Yield the values of metadata records in the order of the segment."""
    values: list[bytes] = []
    batches = [batch for batch, _ in bundled_batches() if not batch.is_control]
    while len(values) < record_count:
        values += [record.value for batch in batches for record in batch.records() if record.value]
    return values[:record_count]


def seconds_of(command: list[str]) -> float:
    """Return the processor time of a process whose output is discarded."""
    start = _children_seconds()
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    elapsed = _children_seconds() - start
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed: {done.stderr[-500:]}")
    return elapsed


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def cat_commands(segment: Path) -> dict[str, list[str]]:
    """Return the commands by name."""
    cat = [sys.executable, "-m", "raftlog_state.cli", "cat", str(segment), "--noop", "--control"]
    return {"revealed": [*cat, "--reveal"], "redacted": cat}


def measure(record_count: int, rounds: int, kafka: Path | None) -> Iterator[Row]:
    """Print one row per figure, in records per second."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "__cluster_metadata-0"
        directory.mkdir()
        segment = directory / f"{0:020d}.log"
        count = write_segment(segment, record_count)
        commands = cat_commands(segment)
        if kafka is not None:
            dump = ["java", "-cp", f"{kafka}/*", DUMP_LOG, "--cluster-metadata-decoder", "--files"]
            commands["dump-log"] = [*dump, str(segment)]
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                seconds[name].append(seconds_of(command))
    rates = {name: count / statistics.median(times) for name, times in seconds.items()}
    for name, what in (
        ("revealed", f"raftlog cat, {count:,} typed records, processor time"),
        ("redacted", "the same with secrets redacted"),
    ):
        yield row(what, rates[name], "records/s", rates.get("dump-log"), "kafka-dump-log (JVM)")


def measure_in_process(record_count: int, rounds: int, dump_log: float | None) -> Iterator[Row]:
    """Measure decoding and JSON alone, without reading a log."""
    values = values_of(record_count)
    redact = Redactor().record_json
    for what, work in (
        ("typed records decoded, in process", decode),
        ("typed records to JSON, in process", lambda value: to_json_text(decode(value))),
        ("typed records to redacted JSON, in process", redact),
    ):
        times = []
        for _ in range(rounds):
            start = time.process_time()
            for value in values:
                work(value)
            times.append(time.process_time() - start)
        yield row(what, len(values) / statistics.median(times), "records/s")
    if compiled.is_native:
        yield measure_core(values, rounds, dump_log)
    yield measure_typed(values, rounds)


def measure_core(values: list[bytes], rounds: int, dump_log: float | None) -> Row:
    """Measure the lines of the compiled core, redacted, beside kafka-dump-log's whole process."""
    column, count = pa.array(values, pa.binary()), len(values)
    numbers = pa.array(range(count), pa.int64())
    start = LineStart(numbers, pa.nulls(count, pa.int32()).fill_null(1), numbers)
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        write_json(column, np.zeros(count, np.bool_), reveal=False, start=start)
        times.append(time.process_time() - begin)
    what = "typed records to redacted JSON lines by the compiled core, in process"
    rate = count / statistics.median(times)
    return row(what, rate, "records/s", dump_log, "kafka-dump-log (JVM), whole process")


def measure_typed(values: list[bytes], rounds: int) -> Row:
    """Measure typed columns of all record types, redacted, beside decoding to Python objects."""
    column = pa.array(values, pa.binary())
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        begin = time.process_time()
        for first in range(0, len(values), ARROW_ROWS_DEFAULT):
            typed_columns(column[first : first + ARROW_ROWS_DEFAULT], RECORD_TYPES, Redactor())
        middle = time.process_time()
        for value in values:
            decode(value)
        times[0].append(middle - begin)
        times[1].append(time.process_time() - middle)
    columns, objects = (len(values) / statistics.median(one) for one in times)
    what = "typed records to redacted Arrow columns, in process"
    return row(what, columns, "records/s", objects, "the same records as Python objects")


def measure_changes(record_count: int, rounds: int) -> Iterator[Row]:
    """Measure the conversion of row changes to rows of `changes`, and that of row by row."""
    from tests.support.row_wise_tables import row_wise_changes

    records = [record for batch, _ in bundled_batches() for record in batch_records(batch)]
    done: list[RecordChanges] = []
    while len(done) < record_count:
        done += MetadataLoader().append(records)
    count = sum(len(record.changes) for record in done)
    shared = {"cluster_id": None, "topic": "", "partition": 0, "incarnation": 0, "committed_at": 0}
    rates = []
    for convert in (changes_table, row_wise_changes):
        times = []
        for _ in range(rounds):
            start = time.process_time()
            convert(done, RowOrigins().apply(done), shared)
            times.append(time.process_time() - start)
        rates.append(count / statistics.median(times))
    what = "row changes to Arrow rows of the table changes, in process"
    by_columns, by_rows = rates
    yield row(what, by_columns, "changes/s", by_rows, "the tests' reference, row by row")


def measure_memory(record_count: int) -> Iterator[Row]:
    """Measure the peak memory of the commands that read a whole log, and that for a tenth of it."""
    counts = (record_count // 10, record_count)
    peaks: dict[str, list[float]] = {"cat": [], "state": []}
    for count in counts:
        with tempfile.TemporaryDirectory() as place:
            log = write_log(Path(place), count)
            for command, found in peaks.items():
                status, peak_bytes, err = peak_memory(command, log)
                if status != 0:
                    raise SystemExit(f"raftlog {command} failed: {err[-500:]}")
                found.append(peak_bytes / MIB)
    for command, (of_fewer, of_all) in peaks.items():
        what = f"raftlog {command}, {record_count:,} records: peak memory"
        yield row(what, of_all, "MiB", of_fewer, f"{counts[0]:,} records")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--memory-records", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jars", help="the directory of Apache Kafka's jars")
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    kafka = jars(arguments.jars)
    if kafka is None:
        print("no Java or no Kafka jars: measured alone", file=sys.stderr)
    printed = list(measure(arguments.records, arguments.rounds, kafka))
    rows = [
        *printed,
        *measure_in_process(
            min(arguments.records, 100_000), arguments.rounds, printed[0]["against"]
        ),
        *measure_changes(min(arguments.records, 20_000), arguments.rounds),
        *measure_memory(arguments.memory_records),
    ]
    for figures in rows:
        print_row(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
