"""The record streams of many batches, and how long ones are split so that they go faster.

Rules of this file:

1. Splitting is a guess that the chain of lengths proves or refutes: a piece holds that many records
   and ends where the next one begins, or the guess was wrong and the stream is followed whole.
2. The guess is made for what KRaft writes: records without key, all at the batch's own time, with
   offsets that count up (Kafka: ``BatchBuilder``). Other streams are left whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .columns import Int64s
from .varint import varint
from .varints import Bytes

_PIECE_RECORDS: Final = 32
_LONG_RECORDS: Final = 3 * _PIECE_RECORDS
_MANY: Final = 96
"""So many long chains go well together as they are."""


@dataclass(frozen=True, slots=True)
class Chains:
    """Where rows of records begin and end in ``data``, and how many each holds."""

    data: Bytes
    start: Int64s
    end: Int64s
    record_count: Int64s

    def __getitem__(self, lanes: Int64s) -> Chains:
        return Chains(self.data, self.start[lanes], self.end[lanes], self.record_count[lanes])


@dataclass(frozen=True, slots=True)
class Streams:
    """The records of batches, one batch behind the other: a chain for each."""

    chains: Chains
    last_offset_delta: Int64s

    @property
    def data(self) -> Bytes:
        return self.chains.data

    @property
    def record_count(self) -> Int64s:
        return self.chains.record_count

    def first(self, count: int) -> Streams:
        """The streams of the first ``count`` batches."""
        return Streams(self.chains[np.arange(count)], self.last_offset_delta[:count])


def split_long_chains(streams: Streams) -> Chains | None:
    """The same records in more and shorter chains, or None if there is nothing to split."""
    chains = streams.chains
    counts = chains.record_count
    long = np.flatnonzero((counts >= _LONG_RECORDS) & (streams.last_offset_delta == counts - 1))
    if not 0 < len(long) < _MANY:
        return None
    end, record_count = chains.end.copy(), counts.copy()
    more: list[Int64s] = []
    for lane in long.tolist():
        start, count = int(chains.start[lane]), int(counts[lane])
        cuts = _cuts(chains.data[start : int(end[lane])].tobytes(), count)
        if not cuts:
            continue
        pieces = np.empty((3, len(cuts)), np.int64)
        pieces[0] = cuts
        pieces[0] += start
        pieces[1, :-1] = pieces[0, 1:]
        pieces[1, -1] = end[lane]
        pieces[2, :-1] = _PIECE_RECORDS
        pieces[2, -1] = count - len(cuts) * _PIECE_RECORDS
        end[lane], record_count[lane] = pieces[0, 0], _PIECE_RECORDS
        more.append(pieces)
    if not more:
        return None
    starts, ends, counts_of_more = np.concatenate(more, axis=1)
    return Chains(
        chains.data,
        np.concatenate([chains.start, starts]),
        np.concatenate([end, ends]),
        np.concatenate([record_count, counts_of_more]),
    )


def _cuts(stream: bytes, record_count: int) -> list[int]:
    """Where every 32nd record probably begins, as far as it is seen."""
    cuts: list[int] = []
    at = 0
    usual = _PIECE_RECORDS * len(stream) // record_count
    for delta in range(_PIECE_RECORDS, record_count, _PIECE_RECORDS):
        # attributes 0, timestamp delta 0, this offset delta, no key
        looks = b"\0\0" + varint(delta) + b"\x01"
        found = stream.find(looks, at + usual * 3 // 4, at + usual * 2)
        if found < 0:
            found = stream.find(looks, at + 2, at + usual * 4)
        if found < 0:
            break
        # Before it lies the record's length, and before that the last record's header count, 0.
        at = found - 2 if stream[found - 2] >= 0x80 else found - 1
        cuts.append(at)
    return cuts
