"""Logs that real Kafka wrote, compared with kafka-dump-log and Kafka's own files."""

from __future__ import annotations

import itertools
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.dumps import DumpBatch, dumped_logs, read_dump

from raftlog.client import EpochEntry, Isolation, LogKind, LogReader, Outcome, SourceKind, open_path
from raftlog.log.segment import parse_txn_index
from raftlog.records.batch_columns import Column
from raftlog.types import SnapshotId

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
THREE = LOGS / "three-nodes-4.3.1"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"
DIRECTORIES = sorted({path.parent for path in dumped_logs(LOGS) if path.suffix == ".log"})
CHECKPOINTS = [path for path in dumped_logs(LOGS) if path.suffix == ".checkpoint"]
ORDINARY = [path for path in DIRECTORIES if not path.name.startswith("__cluster")]


def name_of(path: Path) -> str:
    return str(path.relative_to(LOGS))


def dumped_batches(directory: Path) -> list[DumpBatch]:
    """Return the batches of all live segments that dump-log printed."""
    logs = [path for path in dumped_logs(directory) if path.suffix == ".log"]
    return [batch for log in logs for batch in read_dump(log)]


def rows(log: LogReader, start: int, end: int) -> list[tuple[int, int, bytes | None]]:
    columns = Column.OFFSET | Column.TIMESTAMP | Column.VALUE
    found: list[tuple[int, int, bytes | None]] = []
    for scan in log.scan(start, end, columns=columns, chunk_bytes=4096):
        records = scan.records
        assert records.offset is not None
        assert records.timestamp_ms is not None
        assert records.value is not None
        found += zip(
            records.offset.to_pylist(),
            records.timestamp_ms.to_pylist(),
            records.value.to_pylist(),
            strict=True,
        )
    return found


@pytest.mark.parametrize("directory", DIRECTORIES, ids=name_of)
def test_every_record_of_a_directory_equals_dump_logs_output(directory: Path) -> None:
    log = open_path(str(directory))
    expected = [
        (record.offset, record.timestamp_ms, record.value_bytes)
        for batch in dumped_batches(directory)
        for record in batch.records
    ]
    found = rows(log, log.log_start_offset, log.log_end_offset)
    sized = [(offset, ms, -1 if value is None else len(value)) for offset, ms, value in found]
    assert sized == expected
    assert log.log_end_offset == expected[-1][0] + 1


@pytest.mark.parametrize("directory", DIRECTORIES, ids=name_of)
def test_batches_have_dump_logs_headers(directory: Path) -> None:
    log = open_path(str(directory))
    found = list(log.batches(log.log_start_offset, log.log_end_offset))
    expected = dumped_batches(directory)
    assert [(b.base_offset, b.last_offset, b.crc, b.position) for b in found] == [
        (b.base_offset, b.last_offset, b.crc, b.position) for b in expected
    ]


@pytest.mark.parametrize("directory", DIRECTORIES, ids=name_of)
def test_epochs_are_those_of_the_batches(directory: Path) -> None:
    log = open_path(str(directory))
    runs = itertools.groupby(dumped_batches(directory), key=lambda batch: batch.leader_epoch)
    expected = tuple(
        EpochEntry(epoch=epoch, start_offset=next(run).base_offset) for epoch, run in runs
    )
    assert log.epochs.entries == expected
    log.read_end(isolation=Isolation.READ_UNCOMMITTED)
    assert log.epochs.entries == expected


@pytest.mark.parametrize("node", ["node-1", "node-100", "node-101", "node-102"])
def test_a_nodes_directory_resolves_to_its_metadata_log(node: str) -> None:
    log = open_path(str(THREE / node))
    assert (log.kind, log.source) == (LogKind.METADATA, SourceKind.DIRECTORY)
    assert (log.topic, log.partition) == ("__cluster_metadata", 0)
    assert log.cluster_id == "I9iQnKeLSA2lyZwVZic7Xg"
    assert f"node-{log.node_id}" == node
    assert (
        log.log_end_offset == open_path(str(THREE / node / "__cluster_metadata-0")).log_end_offset
    )


def test_snapshots_are_listed_without_the_bootstrap_file() -> None:
    log = open_path(str(THREE / "node-100"))
    assert log.snapshots == (
        SnapshotId(epoch=1, end_offset=636),
        SnapshotId(epoch=2, end_offset=1762),
        SnapshotId(epoch=2, end_offset=3128),
    )
    assert log.newest_snapshot() == SnapshotId(epoch=2, end_offset=3128)


def test_a_trimmed_log_starts_at_its_first_segment() -> None:
    log = open_path(str(TRIMMED))
    assert (log.log_start_offset, log.log_end_offset) == (416, 1305)
    assert log.snapshots == (SnapshotId(epoch=2, end_offset=1022),)
    # Kafka's checkpoint has epoch 2 at 1022, the log start offset; the batches have its real start.
    assert log.epochs.entries == (
        EpochEntry(epoch=1, start_offset=416),
        EpochEntry(epoch=2, start_offset=643),
    )
    assert log.quorum_state is not None
    assert log.quorum_state.voters == (1,)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=name_of)
def test_a_snapshot_equals_dump_logs_output(checkpoint: Path) -> None:
    log = open_path(str(checkpoint))
    assert log.source is SourceKind.CHECKPOINT
    assert log.log_start_offset == log.log_end_offset
    (snapshot_id,) = log.snapshots
    snapshot = log.read_snapshot(snapshot_id)
    expected = read_dump(checkpoint)
    sizes = [len(scan.records) for scan in snapshot.scan(chunk_bytes=2048)]
    assert sum(sizes) == sum(batch.record_count for batch in expected)
    assert [batch.crc for batch in snapshot.batches()] == [batch.crc for batch in expected]
    head = expected[0].records[0].text
    assert f'"lastContainedLogTimestamp":{snapshot.last_contained_log_timestamp_ms}' in head
    assert (snapshot.voters is not None) == ("KRaftVoters" in str(expected[0].records))
    assert snapshot.kraft_version == (1 if snapshot.voters else 0)


def test_a_snapshot_opened_by_path_is_a_log_that_is_empty_after_it() -> None:
    path = THREE / "node-100/__cluster_metadata-0/00000000000000003128-0000000002.checkpoint"
    log = open_path(str(path))
    end = log.read_end(isolation=Isolation.READ_COMMITTED)
    assert (log.log_start_offset, end.offset, end.epoch) == (3128, 3128, 2)
    assert list(log.scan(3128, 3128)) == []
    assert log.cluster_id == "I9iQnKeLSA2lyZwVZic7Xg"


@pytest.mark.parametrize(
    "path",
    [
        TRIMMED / "bootstrap.checkpoint",
        THREE / "node-100/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint",
        TRIMMED / "__cluster_metadata-0/00000000000000000376-0000000001.checkpoint.deleted",
    ],
    ids=lambda path: path.name,
)
def test_unlisted_snapshots_can_be_read_by_path(path: Path) -> None:
    log = open_path(str(path))
    (snapshot_id,) = log.snapshots
    assert sum(len(scan.records) for scan in log.read_snapshot(snapshot_id).scan()) > 0
    assert snapshot_id not in open_path(str(path.parent)).snapshots


@pytest.mark.parametrize("name", ["00000000000000000436.log", "00000000000000002232.log"])
def test_a_single_segment_is_a_log(name: str) -> None:
    path = THREE / "node-102/__cluster_metadata-0" / name
    log = open_path(str(path))
    assert (log.kind, log.source) == (LogKind.METADATA, SourceKind.SEGMENT)
    assert log.log_start_offset == int(path.stem)
    expected = [record.offset for batch in read_dump(path) for record in batch.records]
    assert [row[0] for row in rows(log, log.log_start_offset, log.log_end_offset)] == expected


def test_a_deleted_segment_can_be_read_by_its_path() -> None:
    log = open_path(str(TRIMMED / "__cluster_metadata-0/00000000000000000000.log.deleted"))
    assert (log.log_start_offset, log.log_end_offset) == (0, 416)


def test_a_copied_segment_is_identified_by_its_first_batch(tmp_path: Path) -> None:
    source = THREE / "node-102/__cluster_metadata-0/00000000000000000436.log"
    (tmp_path / "copy.log").write_bytes(source.read_bytes())
    log = open_path(str(tmp_path / "copy.log"))
    assert (log.kind, log.topic) == (LogKind.METADATA, "__cluster_metadata")
    assert (log.log_start_offset, log.log_end_offset) == (436, 1288)


def test_a_running_nodes_directory_is_read(tmp_path: Path) -> None:
    with tarfile.open(LOGS / "running-4.3.1/running.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    log = open_path(str(tmp_path))
    end = log.read_end(isolation=Isolation.READ_COMMITTED)
    assert log.snapshots == ()
    found = rows(log, 0, end.offset)
    assert [row[0] for row in found] == list(range(end.offset))
    assert end.offset > 20
    assert log.tail is not None
    assert log.tail.error is None


@pytest.mark.parametrize("directory", ORDINARY, ids=name_of)
def test_aborted_transactions_equal_kafkas_transaction_index(directory: Path) -> None:
    log = open_path(str(directory))
    end = log.read_end(isolation=Isolation.READ_COMMITTED)
    assert end.offset == log.log_end_offset
    plan = log.plan(log.log_start_offset, end.offset, isolation=Isolation.READ_COMMITTED)
    found = [(s.producer_id, s.first_offset, s.marker_offset) for s in plan.splits[0].spans]
    expected = [
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for path in sorted(directory.glob("*.txnindex"))
        for entry in parse_txn_index(path.read_bytes(), str(path))
    ]
    assert found == expected
    assert all(span.outcome is Outcome.ABORTED for span in plan.splits[0].spans)


@pytest.mark.parametrize("directory", ORDINARY, ids=name_of)
def test_every_abort_marker_that_dump_log_prints_ends_a_span_or_an_empty_transaction(
    directory: Path,
) -> None:
    log = open_path(str(directory))
    plan = log.plan(0, log.log_end_offset, isolation=Isolation.READ_COMMITTED)
    ended = {span.marker_offset for slice_ in plan.splits for span in slice_.spans}
    batches = dumped_batches(directory)
    written: set[int] = set()
    for batch in batches:
        if batch.is_transactional and not batch.is_control:
            written.add(batch.producer_id)
        for record in batch.records if batch.is_control else ():
            if "endTxnMarker: ABORT" in record.text:
                assert (record.offset in ended) == (batch.producer_id in written)
            written.discard(batch.producer_id)


def test_the_bootstrap_transaction_of_a_new_cluster_is_found() -> None:
    log = open_path(str(THREE / "node-102"))
    plan = log.plan(0, log.log_end_offset, isolation=Isolation.READ_COMMITTED, max_splits=4)
    assert len(plan.splits) == 4
    (span,) = plan.splits[0].spans
    assert (span.first_offset, span.marker_offset, span.outcome) == (3, 11, Outcome.COMMITTED)
    assert (span.producer_id, span.name) == (-1, "Bootstrap records")
    assert not any(slice_.spans for slice_ in plan.splits[1:])


@pytest.mark.parametrize("directory", DIRECTORIES, ids=name_of)
def test_the_offset_of_a_timestamp_is_the_first_that_is_not_older(directory: Path) -> None:
    log = open_path(str(directory))
    records = [record for batch in dumped_batches(directory) for record in batch.records]
    times = sorted({record.timestamp_ms for record in records})
    for wanted in [times[0] - 1, *times[:: max(len(times) // 7, 1)], times[-1], times[-1] + 1]:
        expected = next((r.offset for r in records if r.timestamp_ms >= wanted), None)
        assert log.offset_for_timestamp(wanted) == expected


def test_headers_of_a_scan_equal_those_of_the_buffer_reader() -> None:
    log = open_path(str(TRIMMED / "pay-0-0"))
    scan = next(log.scan(0, 34, columns=Column.ALL))
    assert isinstance(scan.records.headers, pa.ListArray)


def test_a_log_is_opened_through_a_file_uri() -> None:
    assert open_path(f"file://{TRIMMED}").log_end_offset == 1305
    assert open_path(f"file:{TRIMMED}").log_end_offset == 1305


def test_nothing_is_written_to_the_directory_of_a_log(tmp_path: Path) -> None:
    with tarfile.open(LOGS / "running-4.3.1/running.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    log = open_path(str(tmp_path))
    log.read_end(isolation=Isolation.READ_COMMITTED)
    rows(log, 0, log.log_end_offset)
    log.refresh()
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


def test_the_repr_of_a_log_is_its_path() -> None:
    assert repr(open_path(str(TRIMMED))) == f"DirectoryLog({str(TRIMMED)!r})"
    voters = ",".join(str(THREE / f"node-{node}") for node in (100, 101))
    assert repr(open_path(voters)) == f"QuorumCopies({voters!r})"
