"""Bytes of a ``.checkpoint`` file: header, records of an image, footer.

Source: Kafka ``RecordsSnapshotWriter``, ``Snapshots``; KIP-630.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from raftlog.limits import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from raftlog.records import NewRecord, RecordToAppend, build_batch
from raftlog.records.control import (
    ControlRecord,
    KRaftVersion,
    SnapshotFooter,
    SnapshotHeader,
    encode_control,
)
from raftlog_state.image import MetadataImage
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.control_records import kraft_voters
from raftlog_state.records import encode

RECORD_OVERHEAD_BYTES_MAX: Final = 19
"""Maximum bytes of a record besides its value, without key and headers: three varints of 5 bytes
(length, offset delta, value length), and one byte each for attributes, timestamp delta, key length
and header count."""


def snapshot_bytes(
    image: MetadataImage, *, written_ms: int, batch_bytes_max: int = BATCH_BYTES_MAX
) -> bytes:
    """Encode a snapshot, to be stored as ``f"{image.snapshot_id}.checkpoint"``.

    ``written_ms`` is the timestamp of the batches, the time of writing as in Kafka; the timestamp
    of the state is in the header record. Offsets in a snapshot start at 0 and have no meaning.

    Raises ``UnsupportedVersionError`` as ``image_records``, and ``RecordBatchTooLargeError`` if a
    single record does not fit into a batch.
    """
    head: list[ControlRecord] = [SnapshotHeader(last_contained_log_timestamp_ms=image.timestamp_ms)]
    if image.quorum.kraft_version > 0:
        head.append(KRaftVersion(kraft_version=image.quorum.kraft_version))
        if image.quorum.voters:
            head.append(kraft_voters(image.quorum.voters))
    values = (encode(record) for record in image_records(image))
    batches = [(_controls(head), True)]
    batches += [(chunk, False) for chunk in batch_chunks(values, batch_bytes_max)]
    batches.append((_controls([SnapshotFooter()]), True))
    written = bytearray()
    offset = 0
    for records, is_control in batches:
        written += build_batch(
            records,
            base_offset=offset,
            leader_epoch=image.leader_epoch,
            base_timestamp_ms=written_ms,
            byte_count_max=batch_bytes_max,
            is_control=is_control,
        ).data
        offset += len(records)
    return bytes(written)


def _controls(controls: Iterable[ControlRecord]) -> Sequence[RecordToAppend]:
    return [NewRecord(*encode_control(control)) for control in controls]


def batch_chunks(values: Iterable[bytes], batch_bytes_max: int) -> Iterator[list[bytes]]:
    """Split values into non-empty chunks that each fit into one batch, if each value does."""
    byte_count_max = batch_bytes_max - BATCH_HEADER_BYTES
    chunk: list[bytes] = []
    byte_count = 0
    for value in values:
        needed = len(value) + RECORD_OVERHEAD_BYTES_MAX
        if chunk and byte_count + needed > byte_count_max:
            yield chunk
            chunk, byte_count = [], 0
        chunk.append(value)
        byte_count += needed
    if chunk:
        yield chunk
