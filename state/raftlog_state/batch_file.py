"""Files of metadata records that Kafka's tools read: a segment, or a snapshot.

    00000000000000000000.log                  a LeaderChange record, if a leader is given; records
    00000000000000000100-0000000002.checkpoint    SnapshotHeader, records, SnapshotFooter

The name has the offset of the first record, or the id of the snapshot, as ``kafka-dump-log`` and
``kafka-metadata-shell`` expect it. To read a file: ``raftlog.client.open_path``.

Source: Kafka ``BatchFileWriter``, ``BatchFileReader``, ``RecordsSnapshotWriter``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog.client import parse_checkpoint_name, parse_offset_name, write_new_file
from raftlog.client.log_handle import whole_number
from raftlog.errors import OptionError
from raftlog.limits import BATCH_BYTES_MAX, INT32_MAX, INT64_MAX, LOG_BATCH_BYTES_MAX
from raftlog.records.control import (
    ControlRecord,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
)
from raftlog.types import SnapshotId

from .records import DecodedRecord, encode
from .snapshots import encoded_batches

_BATCH_BYTES_MIN: Final = 256
"""A batch of a control record has less."""
_END_OFFSET_MAX: Final = INT64_MAX - INT32_MAX
"""Readers accept no higher base offset."""
_EXAMPLE: Final = SnapshotId(end_offset=100, epoch=2)


@dataclass(frozen=True, slots=True)
class BatchFile:
    """File that was written. ``end_offset`` is exclusive and includes control records."""

    path: str
    base_offset: int
    end_offset: int
    batch_count: int
    byte_count: int


def write_batch_file(
    path: str | os.PathLike[str],
    records: Iterable[DecodedRecord],
    *,
    leader_epoch: int = 1,
    leader_id: int | None = None,
    written_ms: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> BatchFile:
    """Write metadata records in as few batches as possible into a new file.

    Memory is bounded by one batch. The file is created with all records or not at all, even if
    ``records`` raises an error. Secrets are in clear text, so only the owner can read the file.

    Args:
        path: ``OFFSET.log`` with 20 digits, or ``OFFSET-EPOCH.checkpoint`` with 20 and 10.
        records: with their versions, as ``raftlog_state.records.decode`` returns them.
        leader_epoch: leader epoch of a segment's batches; a snapshot's is in its name.
        leader_id: node of a LeaderChange record at the beginning of a segment; None: no such
        record.
        written_ms: timestamp of the batches, and in the header of a snapshot; None: now.
        batch_bytes_max: maximum size of a batch, from 256 bytes to 64 MiB.

    Raises:
        OptionError: ``path`` is not such a name, a leader was given for a snapshot, or a number is
            out of range.
        RecordBatchTooLargeError: a record does not fit into a batch.
        FileExistsLogError: the file exists, or is being written.
        Also the errors of encoding a record and of writing a file.
    """
    place = os.fspath(path)
    now_ms = time.time_ns() // 1_000_000
    time_ms = now_ms if written_ms is None else whole_number(written_ms, "written_ms")
    whole_number(leader_epoch, "leader_epoch", at_most=INT32_MAX)
    if leader_id is not None:
        whole_number(leader_id, "leader_id", at_most=INT32_MAX)
    whole_number(
        batch_bytes_max, "batch_bytes_max", at_least=_BATCH_BYTES_MIN, at_most=LOG_BATCH_BYTES_MAX
    )
    base_offset, leader_epoch, head, tail = _frame(place, leader_epoch, leader_id, time_ms)
    batch_count, byte_count, end_offset = 0, 0, base_offset

    def chunks() -> Iterator[bytes]:
        nonlocal batch_count, byte_count, end_offset
        for batch in encoded_batches(
            map(encode, records),
            head=head,
            tail=tail,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            written_ms=time_ms,
            batch_bytes_max=batch_bytes_max,
        ):
            batch_count += 1
            byte_count += len(batch.data)
            end_offset += batch.record_count
            if end_offset > _END_OFFSET_MAX:
                raise OptionError(option="path", reason="its offset is too high for the records")
            yield batch.data

    target = write_new_file(place, chunks())
    return BatchFile(target, base_offset, end_offset, batch_count, byte_count)


def _frame(
    path: str, leader_epoch: int, leader_id: int | None, time_ms: int
) -> tuple[int, int, Sequence[ControlRecord], Sequence[ControlRecord]]:
    """Return base offset, epoch, and the control records around the others, by a file's name."""
    name = os.path.basename(path)
    snapshot_id, base_offset = parse_checkpoint_name(name), parse_offset_name(name, ".log")
    if snapshot_id is not None:
        if leader_id is not None:
            reason = f"a snapshot has no leader; leave it out, or write a segment instead of {name}"
            raise OptionError(option="leader_id", reason=reason)
        header = SnapshotHeader(last_contained_log_timestamp_ms=time_ms)
        return 0, snapshot_id.epoch, [header], [SnapshotFooter()]
    if base_offset is None:
        reason = (
            f"its name must be the offset of the first record, such as {0:020}.log, or the id of a "
            f"snapshot, such as {_EXAMPLE}.checkpoint: Kafka's tools read them from it"
        )
        raise OptionError(option="path", reason=reason)
    if leader_id is None:
        return base_offset, leader_epoch, [], []
    voters = (LeaderChangeVoter(leader_id),)
    change = LeaderChange(leader_id=leader_id, voters=voters, granting_voters=voters)
    return base_offset, leader_epoch, [change], []
