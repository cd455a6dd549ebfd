"""Metadata transactions of a quorum's log, found by reading it forward and kept.

Reading starts where no transaction is open: after a snapshot (KIP-630), or at the log's start.
Committed records never change, so none is read twice. Damage is raised, since it hides which
transactions the later records belong to.
"""

from __future__ import annotations

from raftlog.limits import READ_CHUNK_BYTES
from raftlog.log.reading.aborted_transactions import MARKER_COLUMNS, add_metadata_markers
from raftlog.log.reading.chunks import ColumnDecoder
from raftlog.log.reading.transactions import TransactionIndex

from .fetcher import read_chunks
from .leader_client import LeaderClient

_SETTLE_STEP = 65_536
"""Offsets to read at a time in search of the end of a transaction."""


class TransactionHistory:
    """Transactions of a metadata log from ``start_offset`` on.

    Of the ended ones the last ``kept_max`` are retained: all from ``index.complete_from`` on.
    ``is_deleted_before``: records before ``start_offset`` were deleted, so that
    a transaction may be open there.
    """

    def __init__(
        self,
        quorum: LeaderClient,
        start_offset: int,
        *,
        is_deleted_before: bool,
        kept_max: int | None,
        decompressed_bytes_max: int,
    ) -> None:
        self.index = TransactionIndex(
            quorum.path, complete_from=start_offset, retained_max=kept_max
        )
        if is_deleted_before:
            self.index.assume_open_transaction_at(start_offset)
        self._quorum = quorum
        self._decoder = ColumnDecoder(
            MARKER_COLUMNS, READ_CHUNK_BYTES, decompressed_bytes_max, whole_batches=True
        )
        self._start_offset = start_offset
        self._next_offset = start_offset

    def covers_from(self, offset: int) -> bool:
        """Return whether it has every transaction that ends at or after ``offset``."""
        return self.index.complete_from <= offset

    def follow(self, end_offset: int) -> None:
        """Read up to ``end_offset`` (exclusive, committed). Raises as ``read_chunks``."""
        if self._next_offset >= end_offset:
            return
        for chunk in read_chunks(self._quorum, self._decoder, self._next_offset, end_offset):
            add_metadata_markers(chunk, self.index, from_offset=self._start_offset)
            self._next_offset = int(chunk.batches.next_offset[-1])

    def settle(self, end_offset: int, high_watermark: int) -> None:
        """Read until all transactions that began below ``end_offset`` ended, or to the end."""
        self.follow(end_offset)
        settled = end_offset
        while settled < high_watermark and self.index.opened_before(end_offset):
            settled = min(settled + _SETTLE_STEP, high_watermark)
            self.follow(settled)
