"""Spark's calls of a stream's reader, without Spark."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raftlog
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.stream_reader import RaftlogStreamReader
from raftlog.errors import DataLossError
from raftlog_state.source_rows.data_loss import DataLoss
from tests.support.clock import StoppedClock

METADATA = "kraft-logs/three-nodes-4.3.1/node-100/__cluster_metadata-0"
END = 3131
Json = dict[str, Any]


def stream(path: Path, clock: StoppedClock | None = None, /, **options: str) -> RaftlogStreamReader:
    """Return a reader as Spark's stream process creates it."""
    parsed = RaftlogOptions.parse({"path": str(path), "pollWaitMs": "0", **options})
    return RaftlogStreamReader(
        parsed, ("offset", "snapshotPosition"), (clock or StoppedClock()).as_clock()
    )


def rows(reader: RaftlogStreamReader, start: Json, end: Json) -> list[tuple[int, int | None]]:
    """Return (offset, snapshotPosition) of a batch, as its tasks return them."""
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return found


def run(reader: RaftlogStreamReader, start: Json | None = None) -> list[tuple[Json, Json]]:
    """Return the batches, each as (start, end), until no records are new."""
    start = start or reader.initialOffset()
    done = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        done.append((start, end))
        start = end
    return done


def at(metadata: Path, offset: int, **options: str) -> Json:
    """Return the offset of a stream that has read up to ``offset``."""
    reader = stream(metadata, startingOffset="earliest", **options)
    return reader.latestOffset(reader.initialOffset()) | {"offset": offset, "from": offset}


def loss_of(call: Callable[[], object], condition: DataLoss) -> str:
    """Return the text of the error with this condition that ``call`` raises."""
    with pytest.raises(DataLossError) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(f"[RAFTLOG_DATA_LOSS.{condition}] ")
    return text


def create_again(path: Path, *values: bytes) -> None:
    """Create a log of raftlog, instead of the one that is there."""
    shutil.rmtree(path, ignore_errors=True)
    with raftlog.open(path) as log:
        for value in values:
            log.append([value])
