"""Replay scanned batches into a producer state, one call for each run of plain batches.

A batch must be decoded if it is a control batch, has a producer, is compressed (its records are not
visible), or if its bytes may contain a commit's name or a transaction marker. Of all others the
producer state needs only end offset and timestamp, so a run of them is applied as one batch:

    batches     [plain plain plain] [producer] [plain plain] [control] [plain]
    apply()           once             once         once        once     once
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from raftlog.errors import CorruptBatchError
from raftlog.log.marker_values import FRAME_VERSION
from raftlog.log.transactions import Marker
from raftlog.log.txn_index import AbortedTransaction
from raftlog.records.batch_columns import Bools

from .batch_metadata import COMMIT_HEADER, BatchMetadata, ValueKind, batch_metadata
from .producer_state_manager import ProducerStateManager
from .recovered import Anomaly, ScanEnd
from .segment_recovery import ValidChunk

_COMMIT_BYTES: Final = (COMMIT_HEADER.encode(),)
_MARKER_BYTES: Final = tuple(bytes((FRAME_VERSION, marker)) for marker in Marker)


def replay(
    producer_state: ProducerStateManager, chunk: ValidChunk, values: ValueKind
) -> tuple[list[AbortedTransaction], list[Anomaly]]:
    """Apply the batches of a scan from ``producer_state.end_offset`` on.

    Returns the aborted transactions, and the control batches whose records do not parse: raftlog
    did not write them, and only their headers are applied. Raises ``DecompressionLimitError``.
    """
    aborted: list[AbortedTransaction] = []
    anomalies: list[Anomaly] = []
    first = int(np.searchsorted(chunk.batches.base_offset, producer_state.end_offset))
    is_needed = np.flatnonzero(_needs_decoding(chunk, values))
    for ordinal in is_needed[is_needed >= first].tolist():
        _skip_batches(producer_state, chunk, first, ordinal)
        try:
            metadata = batch_metadata(chunk.batch(ordinal), values)
        except CorruptBatchError as error:
            if not chunk.batches.is_control[ordinal]:
                raise  # a limit: the batch may hold the name of a commit
            metadata = replace(_run(chunk, ordinal, ordinal + 1), is_control=True)
            anomalies.append(
                Anomaly(
                    kind=ScanEnd.DAMAGE,
                    path=chunk.path,
                    position=error.position,
                    reason=f"{error.reason}; only its header is used",
                    found_base_offset=metadata.base_offset,
                    found_last_offset=metadata.last_offset,
                    found_epoch=metadata.leader_epoch,
                )
            )
        aborted += producer_state.apply(metadata)
        first = ordinal + 1
    _skip_batches(producer_state, chunk, first, len(chunk.batches))
    return aborted, anomalies


def _skip_batches(
    producer_state: ProducerStateManager, chunk: ValidChunk, start: int, end: int
) -> None:
    if start < end:
        producer_state.apply(_run(chunk, start, end))


def _run(chunk: ValidChunk, start: int, end: int) -> BatchMetadata:
    """Return the metadata of the batches [start, end) as one batch."""
    batches = chunk.batches
    return BatchMetadata(
        base_offset=int(batches.base_offset[start]),
        last_offset=int(batches.last_offset[end - 1]),
        leader_epoch=int(batches.leader_epoch[end - 1]),
        max_timestamp_ms=int(batches.max_timestamp_ms[start:end].max()),
        record_count=int(batches.record_count[start:end].sum()),
    )


def _needs_decoding(chunk: ValidChunk, values: ValueKind) -> Bools:
    batches = chunk.batches
    is_needed: Bools = batches.is_control | (batches.producer_id >= 0) | (batches.compression != 0)
    patterns = _MARKER_BYTES if values is ValueKind.KRAFT else _COMMIT_BYTES
    found = [position for pattern in patterns for position in _find_all(chunk.buffer, pattern)]
    if found and len(batches):
        positions = np.array(found, np.int64) + chunk.buffer_position
        positions = positions[
            (positions >= batches.position[0]) & (positions < chunk.next_position)
        ]
        is_needed[np.searchsorted(batches.position, positions, side="right") - 1] = True
    return is_needed


def _find_all(buffer: bytes, pattern: bytes) -> Iterator[int]:
    at = buffer.find(pattern)
    while at >= 0:
        yield at
        at = buffer.find(pattern, at + 1)
