"""Feed a log's memory from a scan: batch by batch where a batch matters, in one step where none do.

Rules of this file:

1. A batch matters if it is a control batch, of a producer, compressed (what it holds is not seen
   from outside), or if its bytes may hold the name of a commit or a transaction's marker. Of any
   other batch a memory keeps its end and its time, and many of them are as one.
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
from raftlog.records.columns import Bools

from .batch_facts import COMMIT_HEADER, BatchFacts, ValueKind, batch_facts
from .memory import LogMemory
from .recovered import Anomaly, ScanEnd
from .segment_scan import SoundPiece

_COMMIT_SIGN: Final = (COMMIT_HEADER.encode(),)
_MARKER_SIGNS: Final = tuple(bytes((FRAME_VERSION, marker)) for marker in Marker)


def remember(
    memory: LogMemory, piece: SoundPiece, values: ValueKind
) -> tuple[list[AbortedTransaction], list[Anomaly]]:
    """Tell a memory of a scan's batches from its own end on.

    Gives what was aborted, and the control batches whose records do not parse: strangers wrote
    them, and only their headers are remembered.
    """
    aborted: list[AbortedTransaction] = []
    anomalies: list[Anomaly] = []
    first = int(np.searchsorted(piece.batches.base_offset, memory.end_offset))
    matters = np.flatnonzero(_matters(piece, values))
    for ordinal in matters[matters >= first].tolist():
        _pass_over(memory, piece, first, ordinal)
        try:
            facts = batch_facts(piece.batch(ordinal), values)
        except CorruptBatchError as error:
            if not piece.batches.is_control[ordinal]:
                raise  # a limit: the batch may hold a name that must not be forgotten
            facts = replace(_run(piece, ordinal, ordinal + 1), is_control=True)
            anomalies.append(
                Anomaly(
                    kind=ScanEnd.DAMAGE,
                    path=piece.path,
                    position=error.position,
                    reason=f"{error.reason}; its header alone is remembered",
                    found_base_offset=facts.base_offset,
                    found_last_offset=facts.last_offset,
                    found_epoch=facts.leader_epoch,
                )
            )
        aborted += memory.apply(facts)
        first = ordinal + 1
    _pass_over(memory, piece, first, len(piece.batches))
    return aborted, anomalies


def _pass_over(memory: LogMemory, piece: SoundPiece, start: int, end: int) -> None:
    if start < end:
        memory.apply(_run(piece, start, end))


def _run(piece: SoundPiece, start: int, end: int) -> BatchFacts:
    """Batches from ``start`` up to, not including, ``end`` as if they were one."""
    batches = piece.batches
    return BatchFacts(
        base_offset=int(batches.base_offset[start]),
        last_offset=int(batches.last_offset[end - 1]),
        leader_epoch=int(batches.leader_epoch[end - 1]),
        max_timestamp_ms=int(batches.max_timestamp_ms[start:end].max()),
        record_count=int(batches.record_count[start:end].sum()),
    )


def _matters(piece: SoundPiece, values: ValueKind) -> Bools:
    batches = piece.batches
    matters: Bools = batches.is_control | (batches.producer_id >= 0) | (batches.compression != 0)
    signs = _MARKER_SIGNS if values is ValueKind.KRAFT else _COMMIT_SIGN
    found = [position for sign in signs for position in _places(piece.buffer, sign)]
    if found and len(batches):
        places = np.array(found, np.int64) + piece.buffer_position
        places = places[(places >= batches.position[0]) & (places < piece.behind)]
        matters[np.searchsorted(batches.position, places, side="right") - 1] = True
    return matters


def _places(buffer: bytes, sign: bytes) -> Iterator[int]:
    at = buffer.find(sign)
    while at >= 0:
        yield at
        at = buffer.find(sign, at + 1)
