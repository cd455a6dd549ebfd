"""Decode record batches: raftlog's scan beside aiokafka's reader, same bytes, same run, one core.

    python benchmarks/decode.py [--records N] [--rounds N] [--json]

Streams of records with 60-byte values and no keys, as a metadata log has them: 100 a batch, one a
batch, a controller's mix (60 % of the batches hold one record, 30 % two to ten, 10 % 50 to 500),
and a snapshot's 10 000 a batch. Each is cut into chunks of about 1 MiB at batch boundaries, as the
log reader does. CRCs are checked by both.

The two do not give the same thing. raftlog gives Arrow columns (offset, timestamp, leader epoch,
key, value) and no object per record. aiokafka gives one Python object per record; its offset,
timestamp, key and value are read, and nothing is built of them.

The clock is the processor time of this process, so that a busy machine disturbs less; the rounds of
the two alternate, and the table shows medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from raftlog.limits import READ_CHUNK_BYTES
from raftlog.records.batch import NewRecord
from raftlog.records.builder import NewRecordBatch, encode_batch
from raftlog.records.scan import Stop, scan

VALUE_BYTES = 60
BASE_MS = 1_700_000_000_000
COMPILED = "_crecords" in DefaultRecordBatch.__module__
OTHER = f"aiokafka's {'compiled' if COMPILED else 'pure Python'} reader (objects)"


def batch_counts(shape: str, record_count: int) -> Iterator[int]:
    """How many records each batch of the stream holds."""
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
    """The stream, cut at batch boundaries into pieces of at least 1 MiB."""
    chance = random.Random(shape + "values")
    chunks: list[bytes] = []
    held = bytearray()
    offset = 0
    for count in batch_counts(shape, record_count):
        records = tuple(NewRecord(None, chance.randbytes(VALUE_BYTES)) for _ in range(count))
        batch = NewRecordBatch(records=records, base_timestamp_ms=BASE_MS + offset)
        held += encode_batch(batch, base_offset=offset, leader_epoch=7)
        offset += count
        if len(held) >= READ_CHUNK_BYTES:
            chunks.append(bytes(held))
            held.clear()
    if held:
        chunks.append(bytes(held))
    return chunks


def decode_raftlog(chunks: list[bytes]) -> int:
    """Arrow columns, dropped chunk by chunk."""
    count = 0
    for chunk in chunks:
        scanned = scan(chunk)
        assert scanned.stop is Stop.END
        count += len(scanned.records)
    return count


def decode_aiokafka(chunks: list[bytes]) -> int:
    """Record objects, each of whose parts is read once."""
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


def rate(decode: Callable[[list[bytes]], int], chunks: list[bytes], record_count: int) -> float:
    """Records a second of processor time."""
    gc.collect()
    start = time.process_time()
    count = decode(chunks)
    elapsed = time.process_time() - start
    if count != record_count:
        raise SystemExit(f"{decode.__name__} found {count} records of {record_count}")
    return count / elapsed


@dataclass(frozen=True)
class Figures:
    """Medians over one stream, in records a second, and the bytes of a record."""

    shape: str
    record_bytes: float
    ours: float
    theirs: float


def measure(shape: str, record_count: int, rounds: int) -> Figures:
    """Medians of both readers over one stream, rounds alternating."""
    chunks = make_chunks(shape, record_count)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds + 1):
        ours.append(rate(decode_raftlog, chunks, record_count))
        theirs.append(rate(decode_aiokafka, chunks, record_count))
    del ours[0], theirs[0]  # the first round only warms up
    record_bytes = sum(map(len, chunks)) / record_count
    return Figures(shape, record_bytes, statistics.median(ours), statistics.median(theirs))


def as_json(row: Figures) -> dict[str, str | float]:
    """One line for the table of all benchmarks."""
    kinds = {"mix": "a controller's mix of batches", "1": "batches of one record"}
    return {
        "what": "decode, " + kinds.get(row.shape, f"batches of {row.shape} records"),
        "ours": row.ours,
        "against": row.theirs,
        "unit": "records/s",
        "other": OTHER,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=500_000, help="records in each stream")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON object a stream")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    results = [
        measure(shape, arguments.records, arguments.rounds)
        for shape in ("100", "1", "mix", "10000")
    ]
    if arguments.json:
        for row in results:
            print(json.dumps(as_json(row)))
        return
    print(f"beside {OTHER}; CRCs on, one core")
    print(f"{'batches of':>10} {'bytes/rec':>9} {'raftlog':>12} {'MB/s':>6}", end="")
    print(f" {'aiokafka':>12} {'ratio':>6}")
    for row in results:
        print(f"{row.shape:>10} {row.record_bytes:>9.1f}", end="")
        print(f" {row.ours:>12,.0f} {row.ours * row.record_bytes / 1e6:>6.0f}", end="")
        print(f" {row.theirs:>12,.0f} {row.ours / row.theirs:>6.2f}")


if __name__ == "__main__":
    main()
