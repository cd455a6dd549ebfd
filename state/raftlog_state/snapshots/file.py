"""Batches of a file; of a ``.checkpoint`` file: header, records of an image, footer.

Source: Kafka ``RecordsSnapshotWriter``, ``Snapshots``; KIP-630.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from raftlog.limits import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from raftlog.records import NewRecord, RecordToAppend, build_batch
from raftlog.records.builder import EncodedBatch
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
"""Maximum bytes of a record besides its value, without key and headers.

These are three varints of 5 bytes (length, offset delta, value length), and one byte each for
attributes, timestamp delta, key length and header count.
"""


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
    batches = encoded_batches(
        (encode(record) for record in image_records(image)),
        head=head,
        tail=[SnapshotFooter()],
        base_offset=0,
        leader_epoch=image.leader_epoch,
        written_ms=written_ms,
        batch_bytes_max=batch_bytes_max,
    )
    return b"".join(batch.data for batch in batches)


def encoded_batches(
    values: Iterable[bytes],
    *,
    head: Sequence[ControlRecord],
    tail: Sequence[ControlRecord],
    base_offset: int,
    leader_epoch: int,
    written_ms: int,
    batch_bytes_max: int,
) -> Iterator[EncodedBatch]:
    """Yield the batches of values in order, between two control batches if these have records.

    Raises ``RecordBatchTooLargeError`` if a single value does not fit into a batch.
    """
    chunks: Iterable[tuple[Sequence[RecordToAppend], bool]] = (
        (chunk, False) for chunk in batch_chunks(values, batch_bytes_max)
    )
    for records, is_control in chain([(_controls(head), True)], chunks, [(_controls(tail), True)]):
        if records:
            batch = build_batch(
                records,
                base_offset=base_offset,
                leader_epoch=leader_epoch,
                base_timestamp_ms=written_ms,
                byte_count_max=batch_bytes_max,
                is_control=is_control,
            )
            base_offset += len(records)
            yield batch


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
