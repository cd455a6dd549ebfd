"""Reads of a log whose older segments are in an object store, beside the same log in its directory.

    python -m benchmarks.remote_read [--records N] [--rounds N] [--uri URI] [--json]

Two logs have the same appends, in segments of 8 MiB. Of one, all but the last segments are objects
only. Both are read from the start to the end as Arrow batches, in alternating rounds. Measured is
the processor time of this process, in MB of the segments: what a remote read costs without the
latency of a store. The store is a directory, read as a local file and by ``pyarrow.fs``, or that at
--uri, empty and with credentials in the environment, for which the elapsed time is measured too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.run import Row, print_row, row

import raftlog
from raftlog.limits import MIB

RECORDS = 500_000
BATCH_RECORDS = 500
VALUE_BYTES = 100
SEGMENT_BYTES = 8 * MIB


def write_log(path: Path, record_count: int, uri: str | None) -> float:
    """Write a log, with remote segments if there is a URI; return its MB."""
    rng, byte_count = random.Random(7), 0
    config = raftlog.LogConfig(segment_bytes=SEGMENT_BYTES)
    if uri is not None:
        config = raftlog.LogConfig(
            segment_bytes=SEGMENT_BYTES,
            remote_storage_enable=True,
            remote_storage_uri=uri,
            local_retention_bytes=1,
        )
    with raftlog.open(path, config=config) as log:
        for _ in range(record_count // BATCH_RECORDS):
            log.append([rng.randbytes(VALUE_BYTES) for _ in range(BATCH_RECORDS)], atomic=True)
        byte_count = sum(one.stat().st_size for one in path.glob("*.log"))
        log.clean()
    left = sum(one.stat().st_size for one in path.glob("*.log"))
    assert uri is None or left < byte_count / 4, "most segments are in the store"
    return byte_count / 1e6


def read(path: Path, record_count: int) -> tuple[float, float]:
    """Read the whole log; return processor time and elapsed time, in seconds."""
    begun_s, begun_elapsed_s = time.process_time(), time.perf_counter()
    with raftlog.open(path) as log:
        assert sum(one.num_rows for one in log.read().to_batches()) >= record_count
    return time.process_time() - begun_s, time.perf_counter() - begun_elapsed_s


def measure(record_count: int, rounds: int, uri: str | None) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        local = place / "local-0"
        mega_bytes = write_log(local, record_count, None)
        stores = {"a directory": f"{place}/store", "pyarrow.fs": f"file://{place}/arrow-store"}
        if uri is not None:
            stores = {uri.partition(":")[0]: uri}
        for at, (name, found_uri) in enumerate(stores.items()):
            remote = place / f"remote{at}-0"
            write_log(remote, record_count, found_uri)
            pairs = [(read(remote, record_count), read(local, record_count)) for _ in range(rounds)]
            what = f"read {mega_bytes:,.0f} MB of remote segments, {name}"
            kinds = ("processor time",) if uri is None else ("processor time", "elapsed time")
            for kind, label in enumerate(kinds):
                rates = [
                    mega_bytes / statistics.median(pair[side][kind] for pair in pairs)
                    for side in (0, 1)
                ]
                yield row(f"{what}, {label}", rates[0], "MB/s", rates[1], "local segments")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uri", help="an empty object store, such as s3://bucket/path")
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    for found in measure(arguments.records, arguments.rounds, arguments.uri):
        print_row(found, as_json=arguments.json)


if __name__ == "__main__":
    main()
