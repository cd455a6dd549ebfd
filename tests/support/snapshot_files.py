"""Records and image of a complete ``.checkpoint`` file in memory.

Source: Kafka ``RecordsSnapshotReader``; KIP-630.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.errors import CorruptSnapshotError
from raftlog.records import iter_batches
from raftlog.records.control import SnapshotFooter, SnapshotHeader
from raftlog.types import SnapshotId
from raftlog_state.image import MetadataImage
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.loader.payload import Decode, LogRecord, batch_records
from raftlog_state.records import decode


def snapshot_log_records(data: bytes, *, path: str | None = None) -> list[LogRecord]:
    """Return the records of a complete ``.checkpoint``, including control records, for a loader.

    Raises ``CorruptSnapshotError`` if header or footer is missing or the end is torn,
    ``CorruptBatchError`` where a batch is damaged.
    """
    name = path or "the buffer"
    records: list[LogRecord] = []
    position = 0
    for batch in iter_batches(data, path=path):
        records.extend(batch_records(batch))
        position = batch.position + batch.byte_count
    if position < len(data):
        reason = f"its last {len(data) - position} bytes hold no whole batch"
        raise CorruptSnapshotError(path=name, reason=reason, position=position)
    if not records or not isinstance(records[0].payload, SnapshotHeader):
        raise CorruptSnapshotError(path=name, reason="it does not begin with a snapshot header")
    if not isinstance(records[-1].payload, SnapshotFooter):
        raise CorruptSnapshotError(path=name, reason="it does not end with a snapshot footer")
    return records


def image_from_records(
    snapshot_id: SnapshotId, records: Iterable[LogRecord], *, decode: Decode = decode
) -> MetadataImage:
    """Return the image of a snapshot's records. Raises ``ReplayError``."""
    loader = MetadataLoader(decode=decode)
    loader.bootstrap(snapshot_id, records)
    return loader.image
