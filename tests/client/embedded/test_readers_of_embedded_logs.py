"""Readers of an embedded log stop at the end that its writers published."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.both_implementations import in_each
from tests.support.log_builder import END, begin, control_batch, data_batch, leader_change

from raftlog.client import EndBasis, Isolation, LogKind, open_path
from raftlog.client.log_records import ARROW_SCHEMA, LogRecords
from raftlog.errors import UnknownRecordKindError
from raftlog.log.format.directory import (
    PUBLISHED_NAME,
    RAFTLOG_PROPERTIES_NAME,
    Published,
    encode_published,
)
from raftlog.log.reading.log_reader import LogReader
from raftlog.records import Header, NewRecord, Record

DIRECTORY = "/logs/decisions-0"
INTERNAL_LOGS = Path(__file__).parents[2] / "data" / "internal-logs-4.3.1" / "node-1"
SEGMENT = f"{DIRECTORY}/{0:020d}.log"
COMMITTED = Isolation.READ_COMMITTED


class Writer:
    """Writer of a log in the order of the embedded log: batches first, then ``published``."""

    def __init__(self, values: str = "bytes") -> None:
        self.disk = SimulatedDisk()
        text = f"version=1\ntopic.id=AAAAAAAAAAAAAAAAAAAAAw\nvalues={values}\n"
        self.disk.put(f"{DIRECTORY}/{RAFTLOG_PROPERTIES_NAME}", text.encode())
        self.disk.put(f"{DIRECTORY}/{PUBLISHED_NAME}", b"")
        self.data = b""
        self.end_offset = 0
        self.add(control_batch([leader_change(1, [1])], base_offset=0), 1)

    def add(self, batch: bytes, count: int) -> None:
        """Write a batch without publishing it."""
        self.data += batch
        self.end_offset += count
        self.disk.put(SEGMENT, self.data)

    def append(self, *values: bytes) -> None:
        self.add(data_batch(values, base_offset=self.end_offset), len(values))

    def publish(self) -> None:
        published = Published(
            boot_id=self.disk.boot_id(),
            end_offset=self.end_offset,
            segment_base_offset=0,
            file_position=len(self.data),
            epoch=1,
        )
        with self.disk.open_for_writing(f"{DIRECTORY}/{PUBLISHED_NAME}") as file:
            file.write_at(0, encode_published(published))

    def open(self) -> LogReader:
        return open_path(DIRECTORY, storage=self.disk)

    def reading(self, start_offset: int = 0) -> LogRecords:
        end = self.open().read_end(isolation=COMMITTED)
        return LogRecords(self.open, start_offset, end.offset, COMMITTED)

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.reading()]


@pytest.fixture
def writer() -> Writer:
    created = Writer()
    created.append(b"a", b"b")
    created.publish()
    return created


def test_a_reader_stops_at_the_published_end(writer: Writer) -> None:
    writer.append(b"not synced")
    log = writer.open()
    assert log.log_end_offset == 3
    assert writer.values() == [b"a", b"b"]
    writer.publish()
    assert log.log_end_offset == 3, "as of the last refresh"
    log.refresh()
    assert log.log_end_offset == 4
    assert writer.values() == [b"a", b"b", b"not synced"]


def test_the_published_end_is_committed_and_ignores_the_holdback(writer: Writer) -> None:
    writer.append(b"not synced")
    end = writer.open().read_end(isolation=COMMITTED, holdback_ms=10**9, now_ms=1)
    assert (end.offset, end.epoch, end.basis) == (3, 1, EndBasis.EMBEDDED)
    assert "synced" in end.explanation


def test_garbage_after_the_published_end_does_not_affect_readers(writer: Writer) -> None:
    for rubbish in (b"\xff" * 300, b"\0" * 300, writer.data[-40:], writer.data[:70]):
        writer.disk.put(SEGMENT, writer.data + rubbish)
        assert writer.values() == [b"a", b"b"]
        assert writer.open().tail is not None


def test_a_truncated_and_rewritten_tail_was_never_visible(writer: Writer) -> None:
    log = writer.open()
    assert log.read_end(isolation=COMMITTED).offset == 3
    kept, end_offset = writer.data, writer.end_offset
    writer.append(b"of a dead writer")
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 3
    writer.data, writer.end_offset = kept, end_offset
    writer.append(b"of", b"the next")
    writer.publish()
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 5
    assert writer.values() == [b"a", b"b", b"of", b"the next"]


def test_the_published_end_may_be_in_a_segment_that_the_listing_lacks(writer: Writer) -> None:
    """The listing is older than ``published``."""
    log = writer.open()
    batch = data_batch([b"c"], base_offset=3)
    writer.disk.put(f"{DIRECTORY}/{3:020d}.log", batch)
    published = Published(
        boot_id=writer.disk.boot_id(),
        end_offset=4,
        segment_base_offset=3,
        file_position=len(batch),
        epoch=1,
    )
    with writer.disk.open_for_writing(f"{DIRECTORY}/{PUBLISHED_NAME}") as file:
        file.write_at(0, encode_published(published))
    assert log.log_end_offset == 4
    assert [r.value for r in LogRecords(lambda: log, 0, 4, COMMITTED)] == [b"a", b"b", b"c"]


def test_after_a_reboot_the_log_ends_at_its_last_valid_batch(writer: Writer) -> None:
    writer.append(b"whole on disk")
    writer.disk.crash(Survival.EVERYTHING)
    assert writer.values() == [b"a", b"b", b"whole on disk"]
    writer.disk.put(SEGMENT, writer.data[:-3])
    assert writer.values() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [("bytes", LogKind.PARTITION), ("msgpack", LogKind.PARTITION), ("kraft", LogKind.METADATA)],
)
def test_the_format_of_values_is_read_from_the_logs_properties(values: str, kind: LogKind) -> None:
    log = Writer(values).open()
    assert (log.kind, log.topic, log.partition) == (kind, "decisions", 0)


def test_a_log_with_damaged_properties_is_read_in_the_format_that_the_caller_declares(
    writer: Writer,
) -> None:
    writer.disk.put(f"{DIRECTORY}/{RAFTLOG_PROPERTIES_NAME}", b"values=\\u12")
    with pytest.raises(UnknownRecordKindError, match=r"is damaged or has no 'values'.*--as"):
        writer.open()
    log = open_path(DIRECTORY, kind=LogKind.PARTITION, storage=writer.disk)
    assert log.kind is LogKind.PARTITION
    assert [r.value for r in LogRecords(lambda: log, 0, 3, COMMITTED)] == [b"a", b"b"]


def test_a_kraft_log_ends_before_an_open_transaction() -> None:
    writer = Writer("kraft")
    writer.append(b"\x01\x14\x00\x00")
    writer.append(begin("open"), b"\x01\x14\x00\x00")
    writer.publish()
    assert writer.open().log_end_offset == 4
    assert writer.reading().end_offset == 2
    writer.append(END)
    assert writer.reading().end_offset == 2, "its end is not synced"
    writer.publish()
    assert writer.reading().end_offset == 5


def test_records_of_aborted_transactions_are_not_returned() -> None:
    writer = Writer("kraft")
    writer.append(begin("gone"), b"\x01\x14\x00\x00", b"\x01\x19\x00\x00")
    writer.append(b"\x01\x14\x00\x01\x00")
    writer.publish()
    assert writer.values() == [b"\x01\x14\x00\x01\x00"]
    assert writer.reading().to_arrow()["offset"].to_pylist() == [4]
    everything = LogRecords(writer.open, 0, 5, Isolation.READ_UNCOMMITTED)
    assert len(list(everything)) == 4


def test_records_and_columns_agree_and_raftlogs_headers_are_hidden(writer: Writer) -> None:
    user = Header("h", b"1")
    batch = NewRecordBatch(
        records=(
            NewRecord(b"k", b"c", 1234, (Header("raftlog.commit", b"x"), user)),
            NewRecord(None, None, 1235),
        ),
        base_timestamp_ms=1234,
    )
    writer.add(encode_batch(batch, base_offset=3, leader_epoch=1), 2)
    writer.publish()
    records = list(writer.reading())
    table = writer.reading().to_arrow()
    assert table.schema == ARROW_SCHEMA
    assert [record.offset for record in records] == table["offset"].to_pylist() == [1, 2, 3, 4]
    assert [record.value for record in records] == table["value"].to_pylist()
    assert [record.key for record in records] == table["key"].to_pylist()
    assert records[2].headers == (user,)
    assert table["headers"].to_pylist()[2] == [{"key": "h", "value": b"1"}]
    assert table["timestamp"][2].as_py().timestamp() == 1.234
    assert set(table["leader_epoch"].to_pylist()) == {1}


def random_record(chance: random.Random) -> NewRecord:
    names = ("h", "", "raftlog.commit", "ü", "\ufffd")
    headers = [
        Header(chance.choice(names), chance.choice((None, b"", b"1")))
        for _ in range(chance.choice((0, 0, 1, 3)))
    ]
    if headers and chance.random() < 0.2:
        headers[0] = Header("h\ufffd", b"2", b"h\xff")  # not UTF-8
    some = (None, b"", b"some bytes")
    return NewRecord(chance.choice(some), chance.choice(some), 1234, tuple(headers))


@pytest.mark.parametrize("seed", range(8))
def test_iteration_returns_what_batches_decoded_one_by_one_have(seed: int) -> None:
    chance = random.Random(seed)
    writer = Writer()
    for _ in range(chance.randint(1, 12)):
        records = tuple(random_record(chance) for _ in range(chance.randint(1, 9)))
        batch = NewRecordBatch(records=records, base_timestamp_ms=1234)
        data = encode_batch(batch, base_offset=writer.end_offset, leader_epoch=1)
        writer.add(data, len(records))
    writer.publish()
    for _ in range(10):
        first = chance.randint(0, writer.end_offset)
        reading = LogRecords(writer.open, first, chance.randint(0, writer.end_offset), COMMITTED)
        expected = [record for chunk in reading.chunks() for record in chunk]
        for found in in_each(partial(list[Record], reading)):
            assert found == expected


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("partition", range(4))
def test_iteration_leaves_out_what_kafkas_producers_aborted(
    partition: int, isolation: Isolation
) -> None:
    directory = INTERNAL_LOGS / f"__consumer_offsets-{partition}"

    def open_partition() -> LogReader:
        return open_path(str(directory))

    end = open_partition().read_end(isolation=isolation)
    reading = LogRecords(open_partition, 0, end.offset, isolation)
    assert list(reading) == [record for chunk in reading.chunks() for record in chunk]


def test_a_read_may_start_and_end_inside_batches(writer: Writer) -> None:
    reading = LogRecords(writer.open, 2, 3, COMMITTED)
    assert [record.offset for record in reading] == [2]
    assert reading.to_arrow()["value"].to_pylist() == [b"b"]
    assert list(reading) == list(reading), "it can be read twice"
    assert list(LogRecords(writer.open, 3, 1, COMMITTED)) == []
