"""Append of a write on a simulated machine: commits, required offsets, limits, failing disks."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk

from pyspark_raftlog.commit import RowsMessage, WritePlan, append_rows, pack_rows
from pyspark_raftlog.errors import CommitTooLargeError
from pyspark_raftlog.options import WriteOptions
from pyspark_raftlog.sink_rows import InputColumns, RecordForm
from raftlog import AppendResult, CommitName, ValueKind
from raftlog.client.embedded.handle import EmbeddedLog, open_embedded
from raftlog.errors import (
    AppendUnknownError,
    DiskFullError,
    ForeignCommitError,
    LogAccessError,
    NotLeaderError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.log.writing.properties import LogConfig

PATH = "/logs/ids-0"
SCHEMA = pa.schema([("value", pa.binary())])
LIMIT = 4096


class Job:
    """Job that writes to a log of its own on its own machine."""

    def __init__(self, values: ValueKind = ValueKind.BYTES) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_directory("/logs")
        self.disk.sync_directory("/")
        self.values = values
        config = LogConfig(values=values, batch_bytes_max=LIMIT)
        open_embedded(PATH, storage=self.disk, config=config).close()

    def open(self, path: str = PATH) -> EmbeddedLog:
        return open_embedded(path, storage=self.disk.another_process(), create=False)

    def plan(self, **options: Any) -> WritePlan:
        return WritePlan(
            options=WriteOptions(path=PATH, **options),
            values=self.values,
            columns=InputColumns(("value",), RecordForm.VALUE),
            byte_count_max=LIMIT,
            log_byte_count_max=LIMIT,
        )

    def write(
        self, *partitions: list[bytes], commit: CommitName | None = None, **options: Any
    ) -> AppendResult:
        messages = [rows(values, at) for at, values in enumerate(partitions)]
        result = append_rows(self.plan(**options), messages, commit, open_log=self.open)
        assert result is not None
        return result

    def read(self) -> list[tuple[int, bytes | None]]:
        with self.open() as log:
            return [(record.offset, record.value) for record in log.read()]


def rows(values: list[bytes], partition: int) -> RowsMessage:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=SCHEMA)
    return pack_rows([batch], SCHEMA, partition=partition, byte_count_max=LIMIT - 61)


@pytest.fixture
def job() -> Job:
    return Job()


def version(number: int, query: str = "q") -> CommitName:
    return CommitName("app", query, number)


def test_rows_are_one_batch_in_the_order_of_their_partitions(job: Job) -> None:
    result = job.write([b"a", b"b"], [], [b"c"], required_base_offset=1)
    assert (result.base_offset, result.last_offset, result.end_offset) == (1, 3, 4)
    assert job.read() == [(1, b"a"), (2, b"b"), (3, b"c")]


@pytest.mark.parametrize(
    "requirement", [{"required_base_offset": 2}, {"required_end_offset": 1}, {"required_epoch": 2}]
)
def test_a_failed_required_offset_writes_nothing(job: Job, requirement: dict[str, Any]) -> None:
    wanted = NotLeaderError if "required_epoch" in requirement else UnexpectedEndOffsetError
    if wanted is NotLeaderError:
        with job.open() as log:
            assert log.claim() == 2
            assert log.claim() == 3
    before = job.read()
    for partition in ([b"a", b"b"], []):
        with pytest.raises(wanted):
            job.write(partition, **requirement)
    assert job.read() == before


def test_an_empty_frame_only_checks_its_required_offset(job: Job) -> None:
    messages = [rows([], 0), rows([], 1)]
    assert append_rows(job.plan(), messages, open_log=job.open) is None
    assert job.write([], required_base_offset=1).end_offset == 1
    assert job.write([], required_end_offset=0).end_offset == 1
    assert job.write([], commit=version(0)).end_offset == 1
    assert job.read() == []


def test_a_repeated_commit_returns_its_offsets_with_one_log_line(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    first = job.write([b"a", b"b"], commit=version(0))
    job.write([b"c"])
    with caplog.at_level(logging.WARNING, "pyspark_raftlog"):
        again = job.write([b"a", b"b"], commit=version(0))
    assert again == replace(first, was_duplicate=True)
    assert len(caplog.records) == 1
    assert "at offsets 1 to 2; nothing was written" in caplog.text
    assert len(job.read()) == 3


def test_an_older_version_is_refused(job: Job) -> None:
    job.write([b"a"], commit=version(4))
    with pytest.raises(StaleCommitError, match="commit 3 of application 'app'"):
        job.write([b"b"], commit=version(3))
    assert job.write([b"c"], commit=version(9)).base_offset == 2


def test_a_second_query_fails_unless_it_takes_over_from_the_first(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.write([b"a"], commit=version(7, "first"))
    name = version(0, "second")
    with pytest.raises(ForeignCommitError, match="belongs to query 'first'"):
        job.write([b"b"], commit=name)
    with pytest.raises(ForeignCommitError):
        job.write([b"b"], commit=name, txn_app_id="app", txn_take_over_from="other")
    takes_over = {"txn_app_id": "app", "txn_take_over_from": "first"}
    assert job.write([b"b"], commit=name, **takes_over).base_offset == 2
    assert "takes over from query first" in caplog.text
    with pytest.raises(ForeignCommitError, match="belongs to query 'second'"):
        job.write([b"c"], commit=version(8, "first"))
    with pytest.raises(ForeignCommitError):
        job.write([b"c"], commit=version(0, "third"), **takes_over)
    again = job.write([b"b"], commit=name, **takes_over)
    assert again.was_duplicate, "keeping the option has no effect"


def test_a_write_above_the_limit_reports_its_size_and_writes_nothing(job: Job) -> None:
    with pytest.raises(CommitTooLargeError) as caught:
        job.write([b"x" * 1000] * 2, [b"y" * 2100])
    error = caught.value
    assert (error.byte_count, error.byte_count_max) == (61 + 4100 + 3 * 7, LIMIT)
    assert f"raftlog configure {PATH} max.message.bytes=" in str(error)
    job.write([b"x" * 1000] * 2, [b"y" * 1900])
    with pytest.raises(CommitTooLargeError, match="record batch too large"):
        job.write([b"" for _ in range(576)])  # the lower bound of its size just fits
    assert len(job.read()) == 3


def test_a_writes_own_limit_is_reported(job: Job) -> None:
    plan = replace(job.plan(max_bytes_per_commit=100), byte_count_max=100)
    with pytest.raises(CommitTooLargeError, match="raise maxBytesPerCommit"):
        append_rows(plan, [rows([b"x" * 50], 0)], open_log=job.open)


def test_a_named_write_is_retried_until_its_outcome_is_known(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.disk.fail_sync_once("*.log")
    result = job.write([b"a"], commit=version(0))
    assert "retrying version 0" in caplog.text
    assert job.read() == [(result.base_offset, b"a")]


def test_a_write_without_a_name_is_never_retried(job: Job) -> None:
    job.disk.fail_sync_once("*.log")
    with pytest.raises(AppendUnknownError):
        job.write([b"a"], required_base_offset=1)
    assert job.read() in ([], [(1, b"a")])
    job.write([b"b"])
    assert [value for _, value in job.read()].count(b"b") == 1


def test_a_full_disk_leaves_no_partial_write(job: Job) -> None:
    used = sum(map(len, job.disk.files().values()))
    job.disk.full_at(used + 100)
    with pytest.raises(DiskFullError):
        job.write([b"x" * 2000])
    job.disk.full_at(None)
    assert job.write([b"a"]).base_offset == 1
    assert job.read() == [(1, b"a")]


def test_a_read_only_directory_leaves_no_partial_write(job: Job) -> None:
    job.disk.refuse_writing("*")
    with pytest.raises(LogAccessError, match="grant this user write permission"):
        job.write([b"x"], required_base_offset=1)
    job.disk.refuse_writing(None)
    job.write([b"a"], required_base_offset=1)
    assert job.read() == [(1, b"a")]


@pytest.fixture
def kraft() -> Job:
    return Job(ValueKind.KRAFT)


def test_a_named_write_to_a_kraft_log_is_one_transaction(kraft: Job) -> None:
    value = b"\x01\x14\x00\x00"
    result = kraft.write([value, value], commit=version(0), required_base_offset=1)
    assert (result.base_offset, result.last_offset) == (1, 4)
    assert kraft.write([value, value], commit=version(0)).was_duplicate
    with kraft.open() as log:
        last = log.last_commit("app")
    assert last is not None
    assert last.name == version(0)
