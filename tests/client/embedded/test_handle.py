"""``raftlog.open``: append, refuse, read, claim, named commits, sharing, close."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from tests.client.embedded.conftest import PATH, Machine

import raftlog
from raftlog import client
from raftlog.append import AppendResult
from raftlog.client.embedded.handle import EmbeddedLog
from raftlog.client.embedded.writer import LOCK_NAME
from raftlog.errors import (
    ForeignCommitError,
    FutureEpochError,
    InvalidAppendError,
    InvalidProducerEpochError,
    LogClosedError,
    LogLockedError,
    LogNotFoundError,
    LogReadOnlyError,
    NotALogError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OptionError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
    SnapshotRefusedError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import KIB, MIB, RAW_BATCH_BYTES_MAX
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.properties import LogConfig
from raftlog.records.compression import Compression
from raftlog.types import SnapshotId


@pytest.fixture
def log(machine: Machine) -> EmbeddedLog:
    return machine.open()


def values(log: EmbeddedLog) -> list[bytes | None]:
    return [record.value for record in log.read()]


# --- appending and reading ------------------------------------------------------------------------


def test_a_new_log_has_a_leader_change_and_no_records(log: EmbeddedLog) -> None:
    assert (log.log_start_offset, log.end_offset, log.topic, log.partition) == (0, 1, "orders", 3)
    assert list(log.read()) == []
    assert log.read().to_arrow().num_rows == 0


def test_appended_records_can_be_read(log: EmbeddedLog) -> None:
    assert log.append([b"a", (b"k", b"b")]) == AppendResult(1, 2, 1)
    assert log.append(b"c").end_offset == 4
    assert [(record.offset, record.key, record.value) for record in log.read()] == [
        (1, None, b"a"),
        (2, b"k", b"b"),
        (3, None, b"c"),
    ]
    assert (log.end_offset, log.high_watermark, log.last_stable_offset) == (4, 4, 4)
    assert [record.offset for record in log.read(2, 3)] == [2]
    assert log.read(3).to_arrow()["value"].to_pylist() == [b"c"]


def test_a_read_ends_at_the_end_offset_of_its_call(log: EmbeddedLog) -> None:
    log.append(b"a")
    reading = log.read()
    log.append(b"b")
    assert [record.value for record in reading] == [b"a"]
    assert values(log) == [b"a", b"b"]


def test_appends_can_be_awaited_later_and_keep_their_order(log: EmbeddedLog) -> None:
    futures = [log.append_async(b"%d" % number) for number in range(50)]
    assert [future.result(30).base_offset for future in futures] == list(range(1, 51))
    assert values(log) == [b"%d" % number for number in range(50)]


def test_an_append_needs_a_record(log: EmbeddedLog) -> None:
    with pytest.raises(InvalidAppendError):
        log.append([])


def test_an_atomic_append_is_one_batch_or_refused(machine: Machine) -> None:
    log = machine.open(config=LogConfig(batch_bytes_max=KIB))
    large = [bytes(600)] * 2
    with pytest.raises(RecordBatchTooLargeError):
        log.append(large, atomic=True)
    with pytest.raises(RecordBatchTooLargeError):
        log.append(large, required_base_offset=1)
    assert log.end_offset == 1
    assert log.append(large) == AppendResult(1, 2, 1), "in two batches"
    assert log.append([b"a", b"b"], atomic=True).base_offset == 3


@pytest.mark.parametrize("compression", [one for one in Compression if one])
def test_batches_that_readers_would_refuse_are_refused_before_acknowledgement(
    machine: Machine, compression: Compression
) -> None:
    log = machine.open(config=LogConfig(compression=compression))
    assert log.append(b"before").end_offset == 2
    for _ in range(2):
        with pytest.raises(RecordBatchTooLargeError) as refused:
            log.append([bytes(513 * MIB)], commit=("app", "q", 1))
        assert refused.value.byte_count_max == RAW_BATCH_BYTES_MAX
    assert log.last_commit("app") is None
    assert log.append(b"after").base_offset == 2
    assert values(log) == [b"before", b"after"]


def test_the_largest_accepted_batch_can_be_read(machine: Machine) -> None:
    log = machine.open(config=LogConfig(compression=Compression.ZSTD))
    largest = RAW_BATCH_BYTES_MAX - 2 * KIB
    result = log.append([bytes(largest)], commit=("app", "q", 1))
    assert log.append([bytes(largest)], commit=("app", "q", 1)) == replace(
        result, was_duplicate=True
    )
    log.append(b"after")
    assert [len(value or b"") for value in values(log)] == [largest, 5]
    log.close()
    again = machine.open()
    assert again.append([b""], commit=("app", "q", 1)).was_duplicate


def test_an_offset_above_the_last_stable_offset_is_in_range(machine: Machine) -> None:
    log = machine.open(values="kraft")
    begin = log.append(b"\x01\x17\x00\x00").base_offset
    last = log.append(b"\x01\x14\x00\x00").base_offset
    assert log.last_stable_offset == begin
    assert list(log.read(last)) == []
    assert [record.offset for record in log.read(last, isolation="high_watermark")] == [last]
    with pytest.raises(OffsetOutOfRangeError):
        log.read(last + 2)


# --- required offsets -----------------------------------------------------------------------------


def test_required_base_and_end_offsets_are_checked(log: EmbeddedLog) -> None:
    assert log.append([b"a", b"b"], required_base_offset=1).last_offset == 2
    assert log.append([b"c", b"d"], required_end_offset=4).base_offset == 3
    assert log.append([b"e"], required_base_offset=5, required_end_offset=5).base_offset == 5
    with pytest.raises(UnexpectedEndOffsetError) as caught:
        log.append([b"f", b"g"], required_end_offset=6)
    assert "Wanted end offset 6, but next available was 7" in str(caught.value)
    assert (caught.value.kafka_code, caught.value.log_end_offset) == (95, 6)
    with pytest.raises(UnexpectedEndOffsetError):
        log.append([b"f"], required_base_offset=6, required_end_offset=7)
    assert log.end_offset == 6


def test_a_required_offset_without_records_is_only_checked(log: EmbeddedLog) -> None:
    assert log.append([], required_base_offset=1) == AppendResult(1, 0, 1)
    with pytest.raises(UnexpectedEndOffsetError):
        log.append([], required_base_offset=2)
    assert log.append([], epoch=1).end_offset == 1
    assert log.end_offset == 1


def test_a_refusal_does_not_affect_other_appends(log: EmbeddedLog) -> None:
    futures = [log.append_async(b"%d" % turn, required_base_offset=1) for turn in range(5)]
    futures += [log.append_async(b"fine")]
    errors = [future.exception(30) for future in futures]
    assert [type(error) for error in errors[1:-1]] == [UnexpectedEndOffsetError] * 4
    assert (errors[0], errors[-1]) == (None, None)
    assert values(log) == [b"0", b"fine"]


# --- epochs ---------------------------------------------------------------------------------------


def test_a_claim_fences_appends_with_an_older_epoch(machine: Machine) -> None:
    first, second = machine.open(), machine.open()
    assert first.append(b"a", epoch=1).epoch == 1
    assert second.claim() == 2
    with pytest.raises(NotLeaderError) as caught:
        first.append(b"b", epoch=1)
    assert (caught.value.current_epoch, caught.value.kafka_code) == (2, 6)
    with pytest.raises(FutureEpochError):
        first.append(b"b", epoch=3)
    assert second.append(b"c", epoch=2) == AppendResult(3, 3, 2)
    assert first.append(b"d").epoch == 2, "an append without an epoch is not fenced"
    assert values(first) == [b"a", b"c", b"d"]


def test_a_claim_aborts_an_open_transaction(machine: Machine) -> None:
    log = machine.open(values="kraft")
    log.append([b"\x01\x17\x00\x00", b"\x01\x14\x00\x00"])
    assert (log.end_offset, log.last_stable_offset) == (3, 1)
    log.claim()
    assert (log.end_offset, log.last_stable_offset) == (5, 5)
    assert values(log) == []


# --- named commits --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "kraft"])
def test_a_repeated_commit_is_recognised_before_its_required_offset_is_checked(
    machine: Machine, kind: str
) -> None:
    value = b"\x01\x14\x00\x00"
    log = machine.open(values=kind)
    won = log.append([value], commit=("app", "query", 7), required_base_offset=1)
    again = log.append([value], commit=("app", "query", 7), required_base_offset=1)
    assert again == AppendResult(won.base_offset, won.last_offset, 1, was_duplicate=True)
    later = machine.open().append([value], commit=("app", "query", 7))
    assert later == again, "by another process too"
    last = log.last_commit("app")
    assert last is not None
    assert (last.name.version, last.base_offset) == (7, 1)
    assert log.last_commit("another") is None
    assert all(record.headers == () for record in log.read())


def test_older_and_foreign_commits_are_refused(log: EmbeddedLog) -> None:
    log.append(b"a", commit=("app", "query", 7))
    with pytest.raises(StaleCommitError):
        log.append(b"b", commit=("app", "query", 6))
    with pytest.raises(ForeignCommitError, match="take over the id"):
        log.append(b"b", commit=("app", "rival", 8))
    assert log.append(b"b", commit=("app", "rival", 0), take_over_from="query").base_offset == 2
    # a second rival is too late: the commits are no longer those of "query"
    with pytest.raises(ForeignCommitError):
        log.append(b"c", commit=("app", "third", 0), take_over_from="query")
    with pytest.raises(ForeignCommitError):
        log.append(b"c", commit=("app", "query", 8))
    assert log.append(b"c", commit=("other", "query", 0)).base_offset == 3


def test_a_commit_repeated_in_one_group_is_written_once(log: EmbeddedLog) -> None:
    futures = [log.append_async(b"a", commit=("app", "q", 1)) for _ in range(8)]
    results = [future.result(30) for future in futures]
    assert {result.base_offset for result in results} == {1}
    assert [result.was_duplicate for result in results] == [False] + [True] * 7
    assert log.end_offset == 2


def test_commits_and_producers_survive_a_restart(machine: Machine) -> None:
    log = machine.open()
    log.append(b"a", commit=("app", "query", 7))
    log.append([b"b", b"c"], producer=(9, 0, 0))
    log.close()
    log = machine.open()
    assert log.append(b"a", commit=("app", "query", 7)) == AppendResult(1, 1, 1, True)
    assert log.append([b"b", b"c"], producer=(9, 0, 0)) == AppendResult(2, 3, 1, True)
    assert log.append([b"d"], producer=(9, 0, 2)).base_offset == 4


def test_producer_sequences_are_checked(log: EmbeddedLog) -> None:
    for sequence in range(3):
        log.append(b"x", producer=(9, 1, sequence))
    assert log.append(b"x", producer=(9, 1, 1)) == AppendResult(2, 2, 1, True)
    with pytest.raises(OutOfOrderSequenceError):
        log.append(b"x", producer=(9, 1, 4))
    with pytest.raises(InvalidProducerEpochError):
        log.append(b"x", producer=(9, 0, 3))
    assert log.end_offset == 4


@pytest.mark.parametrize(
    "arguments",
    [
        {"commit": ("a", "q", 1), "producer": (1, 0, 0)},
        {"take_over_from": "query"},
        {"required_base_offset": -1},
        {"epoch": -1},
    ],
)
def test_invalid_appends_are_refused_before_they_are_queued(
    log: EmbeddedLog, arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidAppendError):
        log.append_async(b"x", **arguments)  # type: ignore[arg-type]


def test_contradicting_transactions_are_refused(machine: Machine) -> None:
    log = machine.open(values="kraft")
    begin, end, no_op = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x14\x00\x00"
    for wrong in ([end], [begin, begin], [begin, end, end]):
        with pytest.raises(InvalidAppendError, match="a transaction"):
            log.append(wrong)
    with pytest.raises(InvalidAppendError, match="is a transaction itself"):
        log.append([begin, end], commit=("app", "query", 1))
    log.append([begin, no_op])
    with pytest.raises(InvalidAppendError, match="begins while another is open"):
        log.append([begin])
    with pytest.raises(InvalidAppendError, match="a transaction is open"):
        log.append([no_op], commit=("app", "query", 1))
    log.append([no_op])
    assert log.append([end]).last_offset == 4
    assert log.append([no_op], commit=("app", "query", 1)).base_offset == 5
    assert log.last_stable_offset == log.end_offset == 8


# --- formats of values ----------------------------------------------------------------------------


def test_the_format_of_values_is_declared_once(machine: Machine) -> None:
    log = machine.open(values="msgpack")
    log.append([[1, 0, {"total": 5}]])
    (record,) = log.read()
    assert record.value is not None
    assert msgpack.unpackb(record.value) == [1, 0, {"total": 5}]
    assert machine.open().values == "msgpack"
    assert machine.open(values="msgpack").end_offset == 2
    with pytest.raises(OptionError, match="has msgpack values"):
        machine.open(values="bytes")
    with pytest.raises(OptionError, match="must be one of bytes, msgpack, kraft"):
        machine.open(values="json")
    with pytest.raises(InvalidAppendError):
        log.append(b"text")


# --- directories ----------------------------------------------------------------------------------


def test_a_missing_log_is_created_only_on_request(machine: Machine) -> None:
    with pytest.raises(LogNotFoundError):
        machine.open(create=False)
    assert machine.disk.list_names("/logs") == []
    machine.open().close()
    assert machine.open(create=False).end_offset == 1


def test_the_parent_directory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError) as caught:
        raftlog.open(tmp_path / "missing" / "log")
    assert caught.value.path == str(tmp_path / "missing")


def test_cluster_metadata_has_kafkas_topic_id(tmp_path: Path) -> None:
    """Any other log has a topic id of its own."""
    found = []
    for name in ("__cluster_metadata-0", "orders-0", "orders-1"):
        raftlog.open(tmp_path / name, values="kraft").close()
        text = (tmp_path / name / "partition.metadata").read_text()
        found.append(text.split("topic_id: ")[1].strip())
    assert found[0] == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert len(set(found)) == 3


def test_a_path_may_be_a_file_uri(tmp_path: Path) -> None:
    with raftlog.open(f"file://{tmp_path}/log") as log:
        log.append(b"x")
    assert raftlog.open(tmp_path / "log", create=False).end_offset == 2


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotALogError, match="only created in an empty directory"):
        raftlog.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_kafkas_log_is_read_and_never_written(data: Path, tmp_path: Path) -> None:
    source = data / "kraft-logs" / "three-nodes-4.3.1" / "node-100" / "__cluster_metadata-0"
    copy = shutil.copytree(source, tmp_path / "__cluster_metadata-0")
    before = {path.name: path.stat().st_mtime_ns for path in copy.iterdir()}
    with raftlog.open(copy) as log:
        assert log.end_offset > 3000
        assert sum(1 for _ in log.read(3000)) > 0
        assert list(log.read(log.end_offset)) == []
        with pytest.raises(OffsetOutOfRangeError):
            log.read(log.end_offset + 1)
        with pytest.raises(LogReadOnlyError, match="not created by raftlog"):
            log.append(b"x")
        with pytest.raises(LogReadOnlyError):
            log.claim()
    assert {path.name: path.stat().st_mtime_ns for path in copy.iterdir()} == before


def test_an_interrupted_creation_is_completed_by_the_next_open(machine: Machine) -> None:
    created = machine.open()
    created.close()
    files = machine.disk.files()
    names = [path for path in files if path.startswith(PATH)]
    for kept in ([], ["raftlog.properties", "checksums"], ["partition.metadata", "checksums"]):
        other = Machine()
        other.disk.make_directory(PATH)
        for path in names:
            if path.rsplit("/", 1)[1] in [LOCK_NAME, *kept]:
                other.disk.put(path, files[path])
        log = other.open()
        assert log.append(b"a").base_offset == 1
        other.close()


# --- closing and locking --------------------------------------------------------------------------


def test_closing_writes_queued_appends_and_refuses_new_ones(machine: Machine) -> None:
    with machine.open() as log:
        futures = [log.append_async(b"x") for _ in range(20)]
    assert all(future.done() for future in futures)
    with pytest.raises(LogClosedError):
        log.append(b"x")
    assert log.end_offset == 21, "it can still be read"
    log.close()
    again = machine.open()
    again.append(b"y")
    assert again.recovery_report is not None
    assert again.recovery_report.was_clean


def test_an_append_that_times_out_on_the_lock_changes_nothing(machine: Machine) -> None:
    log = machine.open()
    hog = machine.disk.another_process()
    lock = hog.try_lock(f"{PATH}/{LOCK_NAME}")
    assert lock is not None
    with pytest.raises(LogLockedError) as caught:
        log.append(b"x", timeout_ms=20)
    assert caught.value.retriable
    assert log.end_offset == 1, "a read takes no lock"
    hog.kill()
    assert log.append(b"y").base_offset == 1


# --- retention ------------------------------------------------------------------------------------


def test_after_a_snapshot_the_log_starts_at_its_end(machine: Machine) -> None:
    config = LogConfig(values=ValueKind.MSGPACK, segment_bytes=400)
    log = machine.open(values="msgpack", config=config)
    for number in range(20):
        log.append([[1, 0, number]])
    created = log.snapshot([[2, 0, "state"]], delete_before=True)
    assert created == SnapshotId(epoch=1, end_offset=21)
    assert log.snapshots == (created,)
    assert log.log_start_offset > 0
    assert log.snapshot() is None, "a log exists already"
    assert log.append([[1, 0, 20]]).base_offset == 21
    with pytest.raises(SnapshotRefusedError):
        log.snapshot(end_offset=99)
    assert log.append([[1, 0, 21]]).base_offset == 22, "a refusal does not affect other appends"
    assert machine.open().snapshots == (created,)


def test_the_state_in_a_snapshot_can_be_read(machine: Machine) -> None:
    log = machine.open(values="msgpack")
    with pytest.raises(OptionError, match="existing ones: none"):
        log.read_snapshot()
    for version in range(2):
        log.append([[1, 0, "record"]])
        log.snapshot([[2, version, number] for number in range(3)])
    first, second = log.snapshots
    other = machine.open()
    for snapshot_id, version in ((first, 0), (second, 1), (None, 1)):
        state = [msgpack.unpackb(one.value) for one in other.read_snapshot(snapshot_id)]
        assert state == [[2, version, number] for number in range(3)]
    with pytest.raises(OptionError, match="00000000000000000003-0000000001"):
        other.read_snapshot(SnapshotId(epoch=1, end_offset=1))


def test_a_snapshot_without_state_keeps_the_commits(machine: Machine) -> None:
    log = machine.open()
    log.append(b"a", commit=("app", "q", 1))
    log.append(b"b")
    with pytest.raises(InvalidAppendError, match="has no state"):
        log.snapshot([b"state"])
    assert log.snapshot(delete_before=True) is not None
    log.close()
    assert machine.open().append(b"a", commit=("app", "q", 1)).was_duplicate


def test_an_unclosed_log_writes_queued_appends_at_exit(machine: Machine) -> None:
    log = machine.open()
    machine.logs.clear()
    future = log.append_async(b"x")
    del log
    gc.collect()
    assert future.result(30).base_offset == 1
    assert machine.open().end_offset == 2


# --- imports --------------------------------------------------------------------------------------


def test_importing_raftlog_is_cheap() -> None:
    code = "import raftlog, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "pyarrow", "msgpack", "crc32c", "threading", "raftlog.client"}
    assert not set(done.stdout.split()) & heavy


def test_an_appending_process_does_not_import_readers(tmp_path: Path) -> None:
    code = (
        "import raftlog, sys\n"
        "for _ in range(2):\n"
        "    with raftlog.open(sys.argv[1]) as log:\n"
        "        log.append(b'x', commit=('app', 'query', 1))\n"
        "        log.last_commit('app')\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "orders-0")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"numpy", "pyarrow"}


def test_every_public_name_can_be_imported() -> None:
    for module in (raftlog, client):
        for name in module.__all__:
            assert getattr(module, name) is not None
        with pytest.raises(AttributeError):
            module.no_such_name  # noqa: B018 - asking is the test
