"""Aborted transactions in a segment's ``.txnindex`` (Kafka: ``TransactionIndex``, ``AbortedTxn``).

Entry: int16 version 0, int64 producer id, int64 first offset, int64 last offset (that of the abort
marker), int64 last stable offset at the time of writing. The file has no checksum and may be
missing, so reads use the log itself (``transactions``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from raftlog.errors import CorruptFileError

_ENTRY: Final = struct.Struct(
    ">"
    "h"  # version: 0
    "q"  # producer_id
    "q"  # first_offset
    "q"  # last_offset: that of the abort marker
    "q"  # last_stable_offset
)
assert _ENTRY.size == 34


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
    for position in range(0, len(data), _ENTRY.size):
        if position + _ENTRY.size > len(data):
            raise CorruptFileError(path=path, position=position, reason="its last entry is torn")
        version, producer_id, first, last, stable = _ENTRY.unpack_from(data, position)
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
    return _ENTRY.pack(
        0,
        aborted.producer_id,
        aborted.first_offset,
        aborted.last_offset,
        aborted.last_stable_offset,
    )
