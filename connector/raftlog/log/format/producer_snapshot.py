"""Producer states up to an offset: the file ``<offset>.snapshot`` of a segment.

Kafka: ``ProducerStateManager``, ``ProducerSnapshot`` version 1. Layout: int16 version, uint32
CRC-32C of all bytes after it, int32 count, one entry per producer. Bytes after the entries are
allowed and covered by the CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from raftlog.errors import CorruptFileError

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

    Kafka checks those bytes by the CRC only. Raises ``CorruptFileError``.
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
