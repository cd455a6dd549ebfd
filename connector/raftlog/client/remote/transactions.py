"""The metadata transactions of a quorum's log, learned by reading it forward, and kept.

Rules of this file:

1. Reading begins where it is known that none is open: behind a checkpoint (KIP-630), or at the
   log's start. Nothing is read twice; what is committed never changes, so nothing is looked at
   again.
2. Damage is raised: it hides which transactions the records behind it belong to.
"""

from __future__ import annotations

from raftlog.limits import READ_CHUNK_BYTES
from raftlog.log.chunks import ColumnDecoder
from raftlog.log.transaction_markers import MARKER_COLUMNS, add_metadata_markers
from raftlog.log.transactions import TransactionIndex

from .fetcher import read_chunks
from .leader_client import LeaderClient

_SETTLE_STEP = 65_536
"""How many offsets further to look, at a time, for the end of a transaction."""


class TransactionHistory:
    """One forward reading of a metadata log, from ``start_offset`` on.

    The oldest ended transactions are dropped beyond ``kept_max``: the book says from where on it
    is complete.
    """

    def __init__(
        self,
        quorum: LeaderClient,
        start_offset: int,
        *,
        is_gone_before: bool,
        kept_max: int | None,
        decompressed_bytes_max: int,
    ) -> None:
        self.book = TransactionIndex(quorum.path, complete_from=start_offset, retained_max=kept_max)
        if is_gone_before:
            self.book.assume_open_transaction_at(start_offset)
        self._quorum = quorum
        self._reading = ColumnDecoder(
            MARKER_COLUMNS, READ_CHUNK_BYTES, decompressed_bytes_max, whole_batches=True
        )
        self._start_offset = start_offset
        self._next_offset = start_offset

    def covers_from(self, offset: int) -> bool:
        """Whether it knows every transaction that ends at ``offset`` or behind it."""
        return self.book.complete_from <= offset

    def follow(self, end_offset: int) -> None:
        """Read on to ``end_offset`` (exclusive, committed). Raises as ``read_chunks``."""
        if self._next_offset >= end_offset:
            return
        for piece in read_chunks(self._quorum, self._reading, self._next_offset, end_offset):
            add_metadata_markers(piece, self.book, from_offset=self._start_offset)
            self._next_offset = int(piece.batches.next_offset[-1])

    def settle(self, end_offset: int, high_watermark: int) -> None:
        """Read on until every transaction is decided that began below ``end_offset``, if it is."""
        self.follow(end_offset)
        settled = end_offset
        while settled < high_watermark and self.book.opened_before(end_offset):
            settled = min(settled + _SETTLE_STEP, high_watermark)
            self.follow(settled)
