"""Producer state replayed from logs that Kafka wrote equals Kafka's own snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.batch_feeder import restarted

from raftlog.log.format.directory import encode_producer_snapshot, parse_producer_snapshot
from raftlog.log.reading.transactions import ValueKind, batch_metadata
from raftlog.log.segment import AbortedTransaction, parse_txn_index
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.records.batch import iter_batches

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
SNAPSHOTS = sorted(
    path
    for path in LOGS.rglob("*.snapshot")
    if (path.parent / f"{0:020d}.log").exists()  # the log is replayed from its first record
)


def replayed(
    directory: Path, end_offset: int
) -> tuple[ProducerStateManager, list[AbortedTransaction]]:
    is_metadata = directory.name.startswith("__cluster_metadata")
    values = ValueKind.KRAFT if is_metadata else ValueKind.BYTES
    producer_state = ProducerStateManager(str(directory))
    aborted: list[AbortedTransaction] = []
    for segment in sorted(directory.glob("*.log")):
        for batch in iter_batches(segment.read_bytes(), path=str(segment)):
            if batch.base_offset < end_offset:
                aborted += producer_state.apply(batch_metadata(batch, values))
    return producer_state, aborted


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_producer_snapshots_equal_kafkas_byte_for_byte(snapshot: Path) -> None:
    producer_state, aborted = replayed(snapshot.parent, int(snapshot.stem))
    ours = parse_producer_snapshot(producer_state.encode_snapshot(), "/ours")
    assert encode_producer_snapshot(ours) == snapshot.read_bytes()
    txn_index = snapshot.parent / f"{0:020d}.txnindex"
    if txn_index.exists():
        assert tuple(aborted) == parse_txn_index(txn_index.read_bytes(), str(txn_index))
    assert producer_state.open_transaction is None
    assert producer_state.last_stable_offset(producer_state.end_offset) == producer_state.end_offset
    assert producer_state.commits == ()
    assert restarted(producer_state).encode_snapshot() == producer_state.encode_snapshot()


def test_some_logs_have_producers_and_aborted_transactions() -> None:
    directories = {path.parent for path in SNAPSHOTS}
    assert sum(any(each.glob("*.txnindex")) for each in directories) >= 8
