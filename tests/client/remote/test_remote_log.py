"""The log of a quorum, read over the network: equal to the leader's directory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.client.remote.conftest import Quorums
from tests.support.record_rows import listed

import raftlog
from raftlog import ConnectedLog
from raftlog.client import EndBasis, Isolation, LogKind, LogReader, SourceKind, open_path
from raftlog.client.remote.log import RemoteLog
from raftlog.errors import DataLossError, OffsetOutOfRangeError
from raftlog.limits import KIB
from raftlog.records.batch_columns import Column

pytestmark = pytest.mark.slow

BEGIN, END, ABORT = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"
NO_OP = b"\x01\x14\x00\x00"


@pytest.fixture(params=["bytes", "kraft"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def log(quorums: Quorums, kind: str) -> Iterator[ConnectedLog]:
    with raftlog.connect(quorums.of(kind).bootstrap) as opened:
        yield opened


@pytest.fixture
def files(quorums: Quorums, kind: str, log: ConnectedLog) -> LogReader:
    """Directory of the only node; its log has every kind of batch."""
    for number in range(5):
        log.append([NO_OP] * (number + 1), atomic=True)
        log.append(NO_OP, commit=(f"remote log {number} of {log.end_offset}", "query", 0))
    if kind == "kraft":
        for batch in ([BEGIN, NO_OP], [NO_OP], [NO_OP, END], [BEGIN, NO_OP], [ABORT, NO_OP]):
            log.append(batch)
        log.append([BEGIN, NO_OP, END, BEGIN])
        log.append([END])
    declared = LogKind.METADATA if kind == "kraft" else LogKind.PARTITION
    return open_path(str(quorums.of(kind).nodes[0].directory / "raftlog-0"), kind=declared)


def batches(log: LogReader, start: int, end: int) -> list[object]:
    return [
        (batch.base_offset, batch.leader_epoch, batch.producer_id, list(batch.records()))
        for batch in log.batches(start, end)
    ]


def test_records_are_those_of_the_directory(log: ConnectedLog, files: LogReader, kind: str) -> None:
    remote = log.reader()
    assert isinstance(remote, RemoteLog)
    end = remote.read_end(isolation=Isolation.READ_UNCOMMITTED)
    assert end.basis is EndBasis.HIGH_WATERMARK
    assert end.offset == remote.log_end_offset == files.log_end_offset
    assert remote.kind is files.kind is (LogKind.METADATA if kind == "kraft" else LogKind.PARTITION)
    assert (remote.source, remote.is_raftlog) == (SourceKind.QUORUM, True)
    assert (remote.topic, remote.partition) == (files.topic, files.partition)
    assert remote.epochs == files.epochs
    assert batches(remote, 0, end.offset) == batches(files, 0, end.offset)
    tables = [
        [listed(scan.records.value) for scan in one.scan(3, end.offset, columns=Column.ALL)]
        for one in (remote, files)
    ]
    assert list(itertools.chain(*tables[0])) == list(itertools.chain(*tables[1]))


def test_plans_and_boundaries_are_those_of_the_directory(
    log: ConnectedLog, files: LogReader
) -> None:
    remote, committed = log.reader(), Isolation.READ_COMMITTED
    end = remote.read_end(isolation=committed).offset
    assert end == files.read_end(isolation=committed).offset
    for start, isolation, count in itertools.product((0, 7, end - 9), Isolation, (1, 4)):
        readers: tuple[LogReader, ...] = (remote, files)
        first, second = (
            one.plan(start, end, isolation=isolation, max_splits=count, max_records_per_split=11)
            for one in readers
        )
        assert first == second
    begins = [batch.base_offset for batch in files.batches(0, end)][-16:]
    for start, limit in itertools.product(begins, range(1, 9)):
        for limits in ({"max_records": limit}, {"max_bytes": 70 * limit}):
            found = remote.next_boundary(start, end_offset=end, **limits)
            assert found == files.next_boundary(start, end_offset=end, **limits), (start, limits)


def test_offsets_are_found_by_timestamp(log: ConnectedLog, files: LogReader) -> None:
    remote = log.reader()
    times = [
        record.timestamp_ms
        for batch in files.batches(0, files.log_end_offset)
        for record in batch.records()
    ]
    for time_ms in (0, times[-1], times[len(times) // 2] + 1, max(times) + 1):
        assert remote.offset_for_timestamp(time_ms) == files.offset_for_timestamp(time_ms)


def test_the_oldest_record_of_a_range_is_that_of_the_directory(
    log: ConnectedLog, files: LogReader
) -> None:
    remote, end = log.reader(), files.log_end_offset
    for start in (0, 7, end - 1, end):
        found, expected = remote.range_size(start, end), files.range_size(start, end)
        assert found.first_timestamp_ms == expected.first_timestamp_ms
        assert found.byte_count == (0 if start == end else None)


def test_batches_are_equal_for_each_size_of_a_read(log: ConnectedLog, files: LogReader) -> None:
    end = files.log_end_offset
    for reader, chunk_bytes in itertools.product((log.reader(), files), (61, 200, 16 * KIB)):
        found = [one.crc for one in reader.batches(3, end, chunk_bytes=chunk_bytes)]
        assert found == [one.crc for one in files.batches(3, end)]


def test_an_open_transaction_bounds_committed_reads(quorums: Quorums) -> None:
    with raftlog.connect(quorums.of("kraft").bootstrap) as log:
        end = log.append([BEGIN, NO_OP]).base_offset
        remote = log.reader()
        found = remote.read_end(isolation=Isolation.READ_COMMITTED)
        assert (found.offset, remote.log_end_offset) == (end, end + 2)
        assert f"offset {end} is not decided" in found.explanation
        assert list(log.read(end)) == []
        assert len(list(log.read(end, isolation="high_watermark"))) == 2
        log.append([ABORT])
        directory = quorums.of("kraft").nodes[0].directory / "raftlog-0"
        log.append([BEGIN, NO_OP])
        log.append([END, BEGIN])  # in one batch, so that it cannot be split
        for isolation in Isolation:
            both = (log.reader(), open_path(str(directory)))
            ends = [one.read_end(isolation=isolation).offset for one in both]
            assert ends[0] == ends[1]
        log.append([END])
        remote.refresh()
        previous = remote.read_end(isolation=Isolation.READ_COMMITTED, previous=found)
        assert previous.offset == end + 8
        assert next(record.offset for record in log.read(end)) > end + 2, "it was aborted"


def test_missing_offsets_and_topics_are_reported(log: ConnectedLog) -> None:
    remote = log.reader()
    end = remote.log_end_offset
    with pytest.raises(OffsetOutOfRangeError):
        remote.plan(0, end + 1, isolation=Isolation.READ_UNCOMMITTED)
    with pytest.raises(DataLossError) as caught:
        list(remote.scan(end + 5, end + 6))
    assert caught.value.condition == "LOG_TRUNCATED"


def test_a_batch_larger_than_a_fetch_is_read_whole(quorums: Quorums) -> None:
    with raftlog.connect(quorums.of("bytes").bootstrap) as log:
        large = [bytes([number]) * 2**20 for number in range(7)]
        start = log.append(large, atomic=True).base_offset
        log.append(b"behind")
        assert [record.value for record in log.read(start)] == [*large, b"behind"]
        assert log.read(start).to_arrow().num_rows == 8
