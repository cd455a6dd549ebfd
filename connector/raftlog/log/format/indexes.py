"""Entries of a segment's index files: ``.index``, ``.timeindex`` and ``.txnindex``.

None of these files has a checksum, and each may be missing or wrong: readers check an offset entry
against the batch at its position, and use the log itself for transactions (``transactions``).

Kafka: ``OffsetIndex``, ``TimeIndex``, ``TransactionIndex`` and ``AbortedTxn``. No numpy: an append
must not import it. ``reading.files`` parses whole offset and time indexes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from raftlog.errors import CorruptFileError

OFFSET_ENTRY: Final = struct.Struct(">ii")  # last offset - base offset, position of the batch
TIME_ENTRY: Final = struct.Struct(">qi")  # greatest timestamp (ms), its last offset - base offset
NO_TIMESTAMP_MS: Final = -1

_ABORTED_ENTRY: Final = struct.Struct(
    ">"
    "h"  # version: 0
    "q"  # producer_id
    "q"  # first_offset
    "q"  # last_offset: that of the abort marker
    "q"  # last_stable_offset at the time of writing
)
assert (OFFSET_ENTRY.size, TIME_ENTRY.size, _ABORTED_ENTRY.size) == (8, 12, 34)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """Aborted transaction of ``producer_id``, from first to last offset (both inclusive)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_txn_index(data: bytes, path: str) -> tuple[AbortedTransaction, ...]:
    """Parse a ``.txnindex`` (Kafka: ``TransactionIndex.sanityCheck``).

    Raises ``CorruptFileError`` unless it consists of whole entries that ascend.
    """
    found: list[AbortedTransaction] = []
    for position in range(0, len(data), _ABORTED_ENTRY.size):
        if position + _ABORTED_ENTRY.size > len(data):
            raise CorruptFileError(path=path, position=position, reason="its last entry is torn")
        version, producer_id, first, last, stable = _ABORTED_ENTRY.unpack_from(data, position)
        if version < 0 or not 0 <= first <= last:
            raise CorruptFileError(
                path=path,
                position=position,
                reason=f"version {version}, offsets {first} to {last} are invalid",
            )
        if found and found[-1].last_offset >= last:
            raise CorruptFileError(
                path=path, position=position, reason=f"offset {last} follows a greater one"
            )
        found.append(
            AbortedTransaction(
                producer_id=producer_id,
                first_offset=first,
                last_offset=last,
                last_stable_offset=stable,
            )
        )
    return tuple(found)


def encode_aborted(aborted: AbortedTransaction) -> bytes:
    """Encode one entry of a ``.txnindex``, 34 bytes (Kafka: ``AbortedTxn``)."""
    return _ABORTED_ENTRY.pack(
        0,
        aborted.producer_id,
        aborted.first_offset,
        aborted.last_offset,
        aborted.last_stable_offset,
    )
