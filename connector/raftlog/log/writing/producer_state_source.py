"""Find the newest stored producer state, so that only the batches after it must be replayed.

A source is a producer snapshot or the header of a checkpoint. Each has a CRC, so one that parses is
used; one that does not is an anomaly, and the next older one is tried. ``offset_max`` must be known
to be of this history: a source above it may have been written for a tail that was truncated since.
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
    """Return the newest valid producer state up to ``offset_max``, and the damaged sources."""
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
    """Yield end offset, kind and name, newest first; a producer snapshot before a checkpoint."""
    found = [
        (offset, False, offset_name(offset, PRODUCER_SNAPSHOT_SUFFIX))
        for offset in listing.producer_snapshots
    ]
    found += [(one.end_offset, True, checkpoint_name(one)) for one in listing.snapshots]
    found.sort(key=lambda source: (-source[0], source[1]))
    return (source for source in found if source[0] <= offset_max)


def _of_checkpoint(data: bytes, path: str, offset: int) -> ProducerStateManager | None:
    """Return the producer state in a checkpoint's header; None if Kafka wrote the checkpoint.

    Raises ``CorruptFileError``.
    """
    try:
        batch = read_batch(data, path=path) if len(data) > LOG_OVERHEAD_BYTES else None
        if not isinstance(batch, RecordBatch) or not batch.is_control:
            raise CorruptFileError(path=path, reason="its first batch is incomplete or not control")
        first = next(batch.records(), None)
        header = None if first is None else decode_control(first.key, first.value)
    except CorruptBatchError as error:
        raise CorruptFileError(path=path, position=0, reason=error.reason) from None
    if not isinstance(header, SnapshotHeader):
        raise CorruptFileError(path=path, reason="its first record is not a SnapshotHeader")
    return ProducerStateManager.from_header_field(header.tagged_fields, path, offset)
