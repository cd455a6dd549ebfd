"""Where a log's memory can be taken from, so that only what lies behind it must be read.

Rules of this file:

1. A producer snapshot, or the header of a checkpoint: each has a CRC of its own, so one that reads
   well is believed. One that does not is an anomaly, and the next older one is tried.
2. A source counts up to an offset that the caller knows to be of this history: what was written
   for a tail that was truncated since may lie above it.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.errors import CorruptBatchError, CorruptFileError
from raftlog.limits import BATCH_BYTES_MAX, LOG_OVERHEAD_BYTES
from raftlog.log.names import (
    PRODUCER_SNAPSHOT_SUFFIX,
    Listing,
    checkpoint_name,
    offset_name,
)
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.control import SnapshotHeader, decode_control
from raftlog.storage.protocol import Storage

from .producer_state_manager import ProducerStateManager
from .recovered import Anomaly


def newest_producer_state(
    storage: Storage, directory: str, listing: Listing, offset_max: int
) -> tuple[ProducerStateManager | None, tuple[Anomaly, ...]]:
    """The memory of the newest sound source at or below ``offset_max``, and what was wrong."""
    anomalies: list[Anomaly] = []
    for offset, is_checkpoint, name in _sources(listing, offset_max):
        path = storage.join(directory, name)
        try:
            with storage.open_file(path) as file:
                if is_checkpoint:
                    producer_state = _of_checkpoint(file.read_at(0, BATCH_BYTES_MAX), path, offset)
                else:
                    data = file.read_at(0, file.byte_count())
                    producer_state = ProducerStateManager.decode_snapshot(data, path, offset)
        except CorruptFileError as error:
            anomalies.append(
                Anomaly(kind=None, path=path, position=error.position, reason=error.reason)
            )
            continue
        if producer_state is not None:
            return producer_state, tuple(anomalies)
    return None, tuple(anomalies)


def _sources(listing: Listing, offset_max: int) -> Iterator[tuple[int, bool, str]]:
    """End offset, kind and name, the newest first; of two equal ones the producer snapshot."""
    found = [
        (offset, False, offset_name(offset, PRODUCER_SNAPSHOT_SUFFIX))
        for offset in listing.producer_snapshots
    ]
    found += [(one.end_offset, True, checkpoint_name(one)) for one in listing.snapshots]
    found.sort(key=lambda source: (-source[0], source[1]))
    return (source for source in found if source[0] <= offset_max)


def _of_checkpoint(data: bytes, path: str, offset: int) -> ProducerStateManager | None:
    """The memory in a checkpoint's header; None if Kafka wrote it. Raises ``CorruptFileError``."""
    try:
        batch = read_batch(data, path=path) if len(data) > LOG_OVERHEAD_BYTES else None
        if not isinstance(batch, RecordBatch) or not batch.is_control:
            raise CorruptFileError(path=path, reason="it does not begin with a whole header")
        first = next(batch.records(), None)
        header = None if first is None else decode_control(first.key, first.value)
    except CorruptBatchError as error:
        raise CorruptFileError(path=path, position=0, reason=error.reason) from None
    if not isinstance(header, SnapshotHeader):
        raise CorruptFileError(path=path, reason="it does not begin with a SnapshotHeader record")
    return ProducerStateManager.from_header_field(header.tagged_fields, path, offset)
