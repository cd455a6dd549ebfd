"""Logs that Kafka wrote, told to a memory: it must come to what Kafka's own files say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.facts import restarted

from raftlog.log.producer_snapshot import encode_producer_snapshot, parse_producer_snapshot
from raftlog.log.txn_index import AbortedTransaction, parse_txn_index
from raftlog.log.writing.batch_facts import ValueKind, batch_facts
from raftlog.log.writing.memory import LogMemory
from raftlog.records.batch import iter_batches

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
SNAPSHOTS = sorted(
    path
    for path in LOGS.rglob("*.snapshot")
    if (path.parent / f"{0:020d}.log").exists()  # the log is told from its first record on
)


def told(directory: Path, end_offset: int) -> tuple[LogMemory, list[AbortedTransaction]]:
    is_metadata = directory.name.startswith("__cluster_metadata")
    values = ValueKind.KRAFT if is_metadata else ValueKind.BYTES
    memory = LogMemory(str(directory))
    aborted: list[AbortedTransaction] = []
    for segment in sorted(directory.glob("*.log")):
        for batch in iter_batches(segment.read_bytes(), path=str(segment)):
            if batch.base_offset < end_offset:
                aborted += memory.apply(batch_facts(batch, values))
    return memory, aborted


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_producers_are_those_of_kafka_s_snapshot_to_the_byte(snapshot: Path) -> None:
    memory, aborted = told(snapshot.parent, int(snapshot.stem))
    ours = parse_producer_snapshot(memory.encode_snapshot(), "/ours")
    assert encode_producer_snapshot(ours) == snapshot.read_bytes()
    txn_index = snapshot.parent / f"{0:020d}.txnindex"
    if txn_index.exists():
        assert tuple(aborted) == parse_txn_index(txn_index.read_bytes(), str(txn_index))
    assert memory.open_transaction is None
    assert memory.last_stable_offset(memory.end_offset) == memory.end_offset
    assert memory.commits == ()
    assert restarted(memory).encode_snapshot() == memory.encode_snapshot()


def test_some_of_them_hold_producers_and_aborted_transactions() -> None:
    directories = {path.parent for path in SNAPSHOTS}
    assert sum(any(each.glob("*.txnindex")) for each in directories) >= 8
