"""Decoding of record batches: raftlog's scan and aiokafka's reader, same bytes, same run, one core.

    python -m benchmarks.decode [--records N] [--rounds N] [--json]

Streams of records with values of 60 bytes and no keys, as in a metadata log: 100 per batch, one
per batch, a controller's mix (60 % of the batches have one record, 30 % two to ten, 10 % 50 to
500), and 10,000 per batch as in a snapshot. Each stream is split into chunks of about 1 MiB at
batch boundaries, as by the log reader. Both verify CRCs.

A loop in C (scan_loop.c, built by cc if there is one) writes the same columns from the same bytes,
without a check but the CRC: a bound of what is possible.

The results differ: raftlog returns Arrow columns (offset, timestamp, leader epoch, key, value)
without an object per record. aiokafka returns one Python object per record, of which offset,
timestamp, key and value are read.

Processor time of this process is measured, so that other processes disturb less; the rounds of the
two alternate, and the table has medians.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from benchmarks.run import Row, row

from raftlog import compiled
from raftlog.limits import READ_CHUNK_BYTES
from raftlog.records.builder import BatchBuilder
from raftlog.records.header import RECORD_BYTES_MIN
from raftlog.records.scan import Stop, scan

LOOP = "a loop in C to the same columns, CRC alone checked"
VALUE_BYTES = 60
BASE_MS = 1_700_000_000_000
COMPILED = "_crecords" in DefaultRecordBatch.__module__
OTHER = f"aiokafka's {'compiled' if COMPILED else 'pure Python'} reader (objects)"


def batch_counts(shape: str, record_count: int) -> Iterator[int]:
    """Yield the number of records of each batch of the stream."""
    chance = random.Random(shape)
    left = record_count
    while left > 0:
        if shape == "mix":
            roll = chance.random()
            if roll < 0.6:
                count = 1
            else:
                count = chance.randint(2, 10) if roll < 0.9 else chance.randint(50, 500)
        else:
            count = int(shape)
        count = min(count, left)
        yield count
        left -= count


def make_chunks(shape: str, record_count: int) -> list[bytes]:
    """Return the stream in chunks of at least 1 MiB that end at batch boundaries."""
    chance = random.Random(shape + "values")
    chunks: list[bytes] = []
    held = bytearray()
    offset = 0
    for count in batch_counts(shape, record_count):
        batch = BatchBuilder(base_timestamp_ms=BASE_MS + offset)
        batch.append([chance.randbytes(VALUE_BYTES) for _ in range(count)])
        held += batch.build(offset, 7).data
        offset += count
        if len(held) >= READ_CHUNK_BYTES:
            chunks.append(bytes(held))
            held.clear()
    if held:
        chunks.append(bytes(held))
    return chunks


def decode_raftlog(chunks: list[bytes]) -> int:
    """Decode each chunk to Arrow columns, and release them."""
    count = 0
    for chunk in chunks:
        scanned = scan(chunk)
        assert scanned.stop is Stop.END
        count += len(scanned.records)
    return count


def decode_aiokafka(chunks: list[bytes]) -> int:
    """Decode to record objects, and read each field once."""
    count = 0
    for chunk in chunks:
        records = MemoryRecords(chunk)
        while (batch := records.next_batch()) is not None:
            if not batch.validate_crc():
                raise SystemExit("aiokafka found a damaged batch")
            for record in batch:
                _ = record.offset, record.timestamp, record.key, record.value
                count += 1
    return count


class Loop:
    """The loop in C, and columns that are large enough for one chunk."""

    def __init__(self, library: Path, chunk_bytes: int) -> None:
        self._scan = ctypes.CDLL(str(library)).scan
        self._scan.restype = ctypes.c_int64
        rows = chunk_bytes // RECORD_BYTES_MIN
        self._columns = [
            np.empty(rows, kind) for kind in (np.int64, np.int64, np.int32, np.int32)
        ] + [np.empty(chunk_bytes, np.uint8)]
        self._addresses = [ctypes.c_void_p(column.ctypes.data) for column in self._columns]

    def decode(self, chunks: list[bytes]) -> int:
        """Decode each chunk to the same columns."""
        counts = [
            self._scan(chunk, ctypes.c_size_t(len(chunk)), *self._addresses) for chunk in chunks
        ]
        if min(counts) < 0:
            raise SystemExit("the loop in C found a damaged batch")
        return sum(counts)


def build_loop(directory: str) -> Path | None:
    """Build the loop in C; return None without a compiler, or for another processor."""
    library = Path(directory) / "scan_loop.so"
    source = Path(__file__).with_name("scan_loop.c")
    flags = ["-O3", "-march=native", "-shared", "-fPIC"]
    try:
        done = subprocess.run(
            ["cc", *flags, "-o", str(library), str(source)], capture_output=True, check=False
        )
    except FileNotFoundError:
        return None
    return library if done.returncode == 0 else None


def rate(decode: Callable[[list[bytes]], int], chunks: list[bytes], record_count: int) -> float:
    """Return records per second of processor time."""
    gc.collect()
    start = time.process_time()
    count = decode(chunks)
    elapsed = time.process_time() - start
    if count != record_count:
        raise SystemExit(f"{decode.__name__} found {count} records of {record_count}")
    return count / elapsed


@dataclass(frozen=True)
class Figures:
    """Medians for one stream in records per second, and the mean size of a record in bytes."""

    shape: str
    record_bytes: float
    measured: float
    compared: float
    loop: float | None


def measure(shape: str, record_count: int, rounds: int, library: Path | None) -> Figures:
    """Return the medians of all readers for one stream, with alternating rounds."""
    chunks = make_chunks(shape, record_count)
    readers = {"raftlog": decode_raftlog, "aiokafka": decode_aiokafka}
    if library is not None:
        readers["loop"] = Loop(library, max(map(len, chunks))).decode
    rates: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds + 1):
        for name, reader in readers.items():
            rates[name].append(rate(reader, chunks, record_count))
    medians = {name: statistics.median(found[1:]) for name, found in rates.items()}  # warm
    record_bytes = sum(map(len, chunks)) / record_count
    return Figures(
        shape, record_bytes, medians["raftlog"], medians["aiokafka"], medians.get("loop")
    )


def rows_of(found: Figures) -> list[Row]:
    """Return the rows of one stream."""
    kinds = {"mix": "a controller's mix of batches", "1": "batches of one record"}
    what = "decode, " + kinds.get(found.shape, f"batches of {found.shape} records")
    rows = [row(what, found.measured, "records/s", found.compared, OTHER)]
    if found.loop is not None:
        rows.append(row(what, found.measured, "records/s", found.loop, LOOP))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=500_000, help="records in each stream")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON object a stream")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as directory:
        library = build_loop(directory)
        results = [
            measure(shape, arguments.records, arguments.rounds, library)
            for shape in ("100", "1", "mix", "10000")
        ]
    if arguments.json:
        for figures in (one for found in results for one in rows_of(found)):
            print(json.dumps(figures))
        return
    print(f"raftlog with {compiled.describe()}, beside {OTHER}, and {LOOP}; one core")
    print(f"{'batches of':>10} {'bytes/rec':>9} {'raftlog':>12} {'MB/s':>6}", end="")
    print(f" {'aiokafka':>12} {'ratio':>6} {'loop':>12} {'ratio':>6}")
    for found in results:
        print(f"{found.shape:>10} {found.record_bytes:>9.1f}", end="")
        print(
            f" {found.measured:>12,.0f} {found.measured * found.record_bytes / 1e6:>6.0f}", end=""
        )
        print(f" {found.compared:>12,.0f} {found.measured / found.compared:>6.2f}", end="")
        print(
            ""
            if found.loop is None
            else f" {found.loop:>12,.0f} {found.measured / found.loop:>6.2f}"
        )


if __name__ == "__main__":
    main()
