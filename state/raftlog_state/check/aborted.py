"""Check that the transaction index contains all aborted transactions of the log.

Kafka filters aborted records by ``.txnindex`` alone: a transaction that is missing there is visible
to ``read_committed`` consumers. ``indexes.TxnIndexCheck`` finds entries that the log does not have.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.client import Isolation, Outcome
from raftlog.client.inspection import (
    TXN_INDEX_SUFFIX,
    DirectoryLog,
    parse_txn_index,
    read_small_file,
)
from raftlog.errors import CorruptBatchError, CorruptFileError, DataLossError, SegmentDeletedError

from .findings import Finding, Kind, damage, note


def unindexed_aborts(log: DirectoryLog) -> Iterator[Finding]:
    """Yield the aborted transactions that are missing in the index; none if the log is damaged."""
    try:
        plan = log.plan(
            log.log_start_offset, log.log_end_offset, isolation=Isolation.READ_COMMITTED
        )
    except (CorruptBatchError, DataLossError, SegmentDeletedError):
        return
    known: dict[int, set[tuple[int, int]] | None] = {}
    spans = dict.fromkeys(span for one in plan.splits for span in one.spans)
    for span in spans:
        if span.outcome is not Outcome.ABORTED or span.marker_offset is None:
            continue
        segment = log.files.segment_at(span.marker_offset)
        assert segment is not None, "contains the marker"
        path = log.files.segment_path(segment, TXN_INDEX_SUFFIX)
        if segment not in known:
            known[segment] = _named(log, path)
        named = known[segment]
        if named is not None and (span.producer_id, span.marker_offset) in named:
            continue
        make = note if named is None else damage
        yield make(
            Kind.INDEX,
            path,
            f"no entry for the aborted transaction of producer {span.producer_id}, offsets "
            f"{span.first_offset} to {span.marker_offset}",
            offset=span.marker_offset,
        )


def _named(log: DirectoryLog, path: str) -> set[tuple[int, int]] | None:
    """Return producer ids and marker offsets of an index, None if it is missing or corrupt."""
    try:
        data = read_small_file(log.files.storage, path)
        entries = None if data is None else parse_txn_index(data, path)
    except CorruptFileError:
        return None
    if entries is None:
        return None
    return {(entry.producer_id, entry.last_offset) for entry in entries}
