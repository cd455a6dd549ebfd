"""Batch jobs that change an embedded log's metadata: one transaction, one batch, one winner."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import raftlog
from raftlog import EmbeddedLog
from raftlog.client import open_path
from raftlog.errors import (
    InvalidAppendError,
    OptionError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog_state import AppliedChanges, apply_changes
from raftlog_state.controller import Random
from raftlog_state.errors import InvalidChangesError, UnsupportedVersionError
from raftlog_state.followed_log import FollowedLog
from raftlog_state.image import MetadataImage, PartitionRow, TopicRow
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import (
    BeginTransactionRecord,
    DecodedRecord,
    NoOpRecord,
    Redactor,
    encode,
)

FIRST = [
    {"change": "set_feature", "feature": "metadata.version", "level": 30},
    {"change": "register_broker", "broker_id": 1, "endpoints": {"CLIENT": "localhost:9092"}},
    {"change": "register_broker", "broker_id": 2, "endpoints": {"CLIENT": "localhost:9093"}},
    {"change": "unfence_broker", "broker_id": 1},
    {"change": "unfence_broker", "broker_id": 2},
]


def topic(name: str, **columns: Any) -> dict[str, Any]:
    return {"change": "create_topic", "topic": name, "partitions": 2} | columns


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with raftlog.open(tmp_path / "cluster-0", values="kraft") as cluster:
        apply_changes(cluster, FIRST)
        yield cluster


def image_of(log: EmbeddedLog) -> MetadataImage:
    images = ImageReader(log.path, Redactor(reveal=True))
    return images.image_at(images.end_offset())


def names(log: EmbeddedLog) -> set[str]:
    return {row.name for row in image_of(log).rows_of(TopicRow)}


def test_changes_are_one_transaction_in_one_batch(log: EmbeddedLog) -> None:
    before = log.end_offset
    done = apply_changes(log, [topic("a"), topic("b")], transaction_name="nightly")
    assert (done.result.base_offset, done.record_count) == (before, 6)
    assert done.result.end_offset == log.end_offset == before + 8
    batches = [b for b in open_path(log.path).batches(before, log.end_offset) if not b.is_control]
    assert len(batches) == 1
    values = [record.value for record in batches[0].records()]
    assert values[0] == encode(DecodedRecord(0, BeginTransactionRecord(name="nightly")))
    image = image_of(log)
    assert {row.name for row in image.rows_of(TopicRow)} == {"a", "b"}
    assert len(image.rows_of(PartitionRow)) == 4


def test_if_a_row_is_refused_nothing_is_written(log: EmbeddedLog) -> None:
    before = log.end_offset
    with pytest.raises(InvalidChangesError) as caught:
        apply_changes(log, [topic("a"), {"change": "delete_topic", "topic": "x"}, topic("a")])
    assert [one.row for one in caught.value.refused] == [1, 2]
    assert log.end_offset == before
    apply_changes(log, [topic("a")])
    assert names(log) == {"a"}


@pytest.mark.parametrize("level", [0, 1])
def test_an_embedded_log_has_no_voters_for_kraft_version(level: int, log: EmbeddedLog) -> None:
    before = log.end_offset
    change = {"change": "set_feature", "feature": "kraft.version", "level": level}
    if not level:  # it has that version
        assert [type(one.record) for one in apply_changes(log, [change]).records] == [NoOpRecord]
        return
    for validate_only in (True, False):
        with pytest.raises(InvalidChangesError, match="leave it out") as caught:
            apply_changes(log, [change, topic("a")], validate_only=validate_only)
        assert [(one.row, one.kafka_code) for one in caught.value.refused] == [(0, 95)]
    assert log.end_offset == before


def test_rows_may_be_arrow_tables(log: EmbeddedLog) -> None:
    schema = pa.schema(
        [
            ("change", pa.string()),
            ("topic", pa.string()),
            ("partitions", pa.int32()),
            ("assignment", pa.list_(pa.list_(pa.int32()))),
            ("configs", pa.map_(pa.string(), pa.string())),
            ("entity", pa.map_(pa.string(), pa.string())),
            ("quota", pa.string()),
            ("limit", pa.float64()),
        ]
    )
    rows = [
        topic("a", partitions=None, assignment=[[1, 2]], configs=[("retention.ms", "1")]),
        {
            "change": "set_quota",
            "entity": [("user", None)],
            "quota": "producer_byte_rate",
            "limit": 9,
        },
    ]
    table = pa.Table.from_pylist(rows, schema=schema)

    class Frame:
        """Rows as a DataFrame returns them to the driver."""

        def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
            return table

    assert apply_changes(log, Frame()).record_count == 4
    (batch,) = pa.Table.from_pylist([topic("b")]).to_batches()
    assert apply_changes(log, batch).record_count == 3
    assert names(log) == {"a", "b"}


def test_changes_without_effect_append_nothing(log: EmbeddedLog) -> None:
    rule = {"change": "add_acl", "resource_type": "TOPIC", "resource_name": "a"}
    rule |= {"principal": "User:a", "operation": "READ"}
    apply_changes(log, [rule])
    before = log.end_offset
    done = apply_changes(log, [rule], commit=("app", "query", 1))
    assert (done.record_count, done.result.base_offset) == (0, before)
    assert log.end_offset == before
    assert apply_changes(log, []).record_count == 0


def test_a_dry_run_returns_the_records_and_writes_nothing(log: EmbeddedLog) -> None:
    before = log.end_offset
    rows = [topic("a"), topic("b")]
    dry = apply_changes(log, rows, validate_only=True, rng=random.Random(1))
    assert (dry.result.base_offset, dry.result.end_offset) == (before, before)
    assert log.end_offset == before
    with pytest.raises(InvalidChangesError):
        apply_changes(log, [topic("a"), topic("a")], validate_only=True)
    done = apply_changes(log, rows, rng=random.Random(1))
    assert done.records == dry.records
    (batch,) = open_path(log.path).batches(before, log.end_offset)
    values = [record.value for record in batch.records()]
    assert values[1:-1] == [encode(record) for record in dry.records]


def test_a_handle_keeps_the_state_of_its_log_and_reads_what_follows(log: EmbeddedLog) -> None:
    apply_changes(log, [topic("a")])
    with raftlog.open(log.path, values="kraft") as other:
        apply_changes(other, [topic("b")])
    assert apply_changes(log, [topic("c")], validate_only=True).record_count == 3
    log.snapshot([], delete_before=True)  # an empty state, which a kept one does not read
    with pytest.raises(InvalidChangesError, match="'b' already exists"):
        apply_changes(log, [topic("b")])
    other = raftlog.open(log.path, values="kraft")
    with other, pytest.raises(InvalidChangesError, match=r"has no metadata\.version yet"):
        apply_changes(other, [topic("b")])


def test_a_state_is_built_again_if_its_log_is_another_one(tmp_path: Path) -> None:
    paths = [tmp_path / "one-0", tmp_path / "two-0"]
    for path, name in zip(paths, ("a", "b"), strict=True):
        with raftlog.open(path, values="kraft") as log:
            apply_changes(log, FIRST)
            apply_changes(log, [topic(name)])
            if name == "b":
                apply_changes(log, [topic("c")])
    followed = FollowedLog(lambda: open_path(str(paths[0])))
    followed.catch_up()
    assert [row.name for row in followed.state.rows_of(TopicRow)] == ["a"]
    shutil.rmtree(paths[0])
    shutil.copytree(paths[1], paths[0])
    followed.catch_up()
    assert {row.name for row in followed.state.rows_of(TopicRow)} == {"b", "c"}


# --- conflicts ------------------------------------------------------------------------------------


class Rival(random.Random):
    """Random generator during whose use another job writes."""

    def __init__(self, log: EmbeddedLog, *rows: dict[str, Any]) -> None:
        super().__init__(1)
        self._path = log.path
        self._rows = list(rows)

    def randbytes(self, n: int) -> bytes:
        if self._rows:
            with raftlog.open(self._path, values="kraft") as other:
                apply_changes(other, [self._rows.pop(0)])
        return super().randbytes(n)


def test_a_conflict_is_raised_and_nothing_is_written(log: EmbeddedLog) -> None:
    before = log.end_offset
    rng: Random = Rival(log, topic("rival"))
    with pytest.raises(UnexpectedEndOffsetError) as caught:
        apply_changes(log, [topic("a")], rng=rng)
    assert caught.value.required_base_offset == before
    assert names(log) == {"rival"}


def test_changes_are_checked_again_after_a_conflict(log: EmbeddedLog) -> None:
    rng: Random = Rival(log, topic("one"), topic("two"))
    done = apply_changes(log, [topic("a")], rng=rng, attempts=3)
    assert done.result.end_offset == log.end_offset
    assert names(log) == {"one", "two", "a"}
    same: Random = Rival(log, topic("b"))
    with pytest.raises(InvalidChangesError, match="already exists"):
        apply_changes(log, [topic("b")], rng=same, attempts=2)


def test_racing_jobs_each_apply_their_changes_once(log: EmbeddedLog) -> None:
    done: list[AppliedChanges] = []

    def job(number: int) -> None:
        for turn in range(3):
            rows = [topic(f"t-{number}-{turn}")]
            done.append(apply_changes(log, rows, attempts=100))

    threads = [threading.Thread(target=job, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(log) == {f"t-{number}-{turn}" for number in range(4) for turn in range(3)}
    ranges = sorted((one.result.base_offset, one.result.end_offset) for one in done)
    assert all(one[1] == two[0] for one, two in itertools.pairwise(ranges))


def test_a_named_commit_is_applied_once_although_its_changes_would_be_refused(
    log: EmbeddedLog,
) -> None:
    commit = ("nightly", "job", 7)
    first = apply_changes(log, [topic("a")], commit=commit)
    end_offset = log.end_offset
    again = apply_changes(log, [topic("a")], commit=commit)
    assert (again.result.was_duplicate, again.record_count) == (True, 0)
    assert (again.result.base_offset, again.result.last_offset) == (
        first.result.base_offset,
        first.result.last_offset,
    )
    assert log.end_offset == end_offset
    register = {"change": "register_broker", "broker_id": 3, "endpoints": {"A": "h:1"}}
    done = apply_changes(log, [register], commit=("nightly", "job", 8))
    brokers = image_of(log).to_json()["brokers"]
    assert isinstance(brokers, list)
    assert brokers[-1]["broker_epoch"] == done.result.base_offset + 1, "after the begin marker"


# --- logs that cannot be changed ------------------------------------------------------------------


def test_a_log_of_other_values_is_refused(tmp_path: Path) -> None:
    with raftlog.open(tmp_path / "other-0") as other:
        with pytest.raises(OptionError, match='created with values="kraft"'):
            apply_changes(other, FIRST)
        assert other.end_offset == 1


def test_at_least_one_attempt_is_needed(log: EmbeddedLog) -> None:
    with pytest.raises(OptionError, match="attempts"):
        apply_changes(log, FIRST, attempts=0)


def test_an_open_transaction_at_the_end_is_refused_until_it_is_aborted(log: EmbeddedLog) -> None:
    log.append([encode(DecodedRecord(0, BeginTransactionRecord(name="left open")))])
    with pytest.raises(InvalidAppendError, match="is open; wait until its writer ends it"):
        apply_changes(log, [topic("a")])
    log.claim()
    apply_changes(log, [topic("a")])
    assert names(log) == {"a"}


def test_a_log_of_a_later_release_is_refused(log: EmbeddedLog) -> None:
    log.append([b"\x01\x7f\x00\x00"])  # an unknown record type
    with pytest.raises(UnsupportedVersionError, match="use a newer release"):
        apply_changes(log, [topic("a")])


def test_changes_above_the_limit_of_a_batch_are_one_transaction_in_several(tmp_path: Path) -> None:
    with small_log(tmp_path) as small:
        before = small.end_offset
        done = apply_changes(small, [topic("a", partitions=100)])
        assert (done.result.base_offset, done.record_count) == (before, 101)
        assert done.result.end_offset == small.end_offset == before + 103
        batches = list(open_path(small.path).batches(before, small.end_offset))
        assert len(batches) > 3
        assert max(batch.byte_count for batch in batches) <= 2_000
        assert len(image_of(small).rows_of(PartitionRow)) == 100
        apply_changes(small, [topic("b")])
        assert names(small) == {"a", "b"}


@pytest.mark.parametrize("reason", ["named commit", "metadata.version"])
def test_changes_that_cannot_be_in_several_batches_are_refused_as_a_whole(
    reason: str, tmp_path: Path
) -> None:
    with small_log(tmp_path, level=30 if reason == "named commit" else 7) as small:
        before = small.end_offset
        commit = ("app", "query", 1) if reason == "named commit" else None
        with pytest.raises(RecordBatchTooLargeError):
            apply_changes(small, [topic("a", partitions=100)], commit=commit)
        assert small.end_offset == before
        apply_changes(small, [topic("b")])


def small_log(tmp_path: Path, level: int = 30) -> EmbeddedLog:
    """Return a log with small batches, and a cluster in it."""
    config = raftlog.LogConfig(batch_bytes_max=2_000)
    small = raftlog.open(tmp_path / "small-0", values="kraft", config=config)
    apply_changes(small, [FIRST[0] | {"level": level}, *FIRST[1:]])
    return small


# --- transactions in several batches --------------------------------------------------------------


def test_a_transaction_that_was_left_open_is_aborted_and_its_writer_fenced(tmp_path: Path) -> None:
    with small_log(tmp_path) as small:
        begin = encode(DecodedRecord(0, BeginTransactionRecord(name="left open")))
        left = small.append([begin, encode(DecodedRecord(0, NoOpRecord()))])
        with pytest.raises(InvalidAppendError, match="set abort_open_transaction"):
            apply_changes(small, [topic("a")])
        dry = apply_changes(small, [topic("a")], abort_open_transaction=True, validate_only=True)
        assert dry.record_count == 3
        assert small.end_offset == left.end_offset
        apply_changes(small, [topic("a")], abort_open_transaction=True)
        with pytest.raises(UnexpectedEndOffsetError):
            small.append(
                encode(DecodedRecord(0, NoOpRecord())), required_base_offset=left.end_offset
            )
        assert names(small) == {"a"}
