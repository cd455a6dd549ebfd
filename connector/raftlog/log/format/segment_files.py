"""Files that accompany a segment's ``.log``: its indexes' entries, and its producer snapshot.

No index file has a checksum, and any of them may be missing or wrong. Therefore readers check an
offset entry against the batch at its position, and find transactions in the log itself
(``transactions``).

Kafka: ``OffsetIndex``, ``TimeIndex``, ``TransactionIndex`` and ``AbortedTxn``. This module does not
import numpy, because an append uses it. ``reading.chunks`` parses whole offset and time indexes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

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

    Raises ``CorruptFileError`` unless it consists of whole entries in ascending order.
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
    """Encode one entry of a ``.txnindex``, which has 34 bytes (Kafka: ``AbortedTxn``)."""
    return _ABORTED_ENTRY.pack(
        0,
        aborted.producer_id,
        aborted.first_offset,
        aborted.last_offset,
        aborted.last_stable_offset,
    )


# --- Producer states up to an offset: a segment's file ``<offset>.snapshot`` ----------------------
# Layout: int16 version, uint32 CRC-32C of all bytes after it, int32 count, one entry per producer.
# More bytes may follow the entries; the CRC covers them.
#
# Kafka: ``ProducerStateManager``, ``ProducerSnapshot`` version 1.

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIi")
_CRC_START: Final = struct.calcsize(">hI")
_ENTRY: Final = struct.Struct(
    ">"
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # last_sequence
    "q"  # last_offset
    "i"  # offset_delta
    "q"  # timestamp_ms
    "i"  # coordinator_epoch
    "q"  # current_txn_first_offset: -1 if none is open
)
assert (_HEAD.size, _ENTRY.size) == (10, 46)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """State of one producer in a snapshot."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    open_transaction_first_offset: int | None


def parse_producer_snapshot(data: bytes, path: str) -> tuple[ProducerState, ...]:
    """Parse a producer snapshot and check its CRC. Raises ``CorruptFileError``."""
    return split_producer_snapshot(data, path)[0]


def split_producer_snapshot(data: bytes, path: str) -> tuple[tuple[ProducerState, ...], bytes]:
    """Parse a producer snapshot; return its entries, and the bytes after them.

    Kafka checks those bytes only by the CRC. Raises ``CorruptFileError``.
    """
    if len(data) < _HEAD.size:
        raise CorruptFileError(path=path, reason=f"it has {len(data)} bytes, fewer than 10")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptFileError(path=path, reason=f"its version is {version}, not {_VERSION}")
    actual = crc32c(memoryview(data)[_CRC_START:])
    if actual != crc:
        raise CorruptFileError(path=path, reason=f"its CRC is {crc}, computed {actual}")
    if count < 0 or _HEAD.size + count * _ENTRY.size > len(data):
        raise CorruptFileError(path=path, reason=f"it claims {count} producers")
    found = []
    for ordinal in range(count):
        fields = _ENTRY.unpack_from(data, _HEAD.size + ordinal * _ENTRY.size)
        found.append(
            ProducerState(
                producer_id=fields[0],
                producer_epoch=fields[1],
                last_sequence=fields[2],
                last_offset=fields[3],
                offset_delta=fields[4],
                timestamp_ms=fields[5],
                coordinator_epoch=fields[6],
                open_transaction_first_offset=None if fields[7] < 0 else fields[7],
            )
        )
    return tuple(found), data[_HEAD.size + count * _ENTRY.size :]


def encode_producer_snapshot(producers: Iterable[ProducerState], trailing: bytes = b"") -> bytes:
    """Encode a producer snapshot as Kafka does, with ``trailing`` after its entries."""
    entries = [
        _ENTRY.pack(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_offset,
            producer.offset_delta,
            producer.timestamp_ms,
            producer.coordinator_epoch,
            _offset_or_none(producer.open_transaction_first_offset),
        )
        for producer in producers
    ]
    body = b"".join((struct.pack(">i", len(entries)), *entries, trailing))
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def _offset_or_none(offset: int | None) -> int:
    return -1 if offset is None else offset
