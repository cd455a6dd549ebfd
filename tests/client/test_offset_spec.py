"""Offsets by time, age, leader epoch and name: on bundled logs, and with clocks that disagree."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.small_logs import NO_OP, TIME_MS, LogWriter, copy_log

from raftlog.client import Isolation, LogReader, open_path
from raftlog.client.offset_spec import (
    EARLIEST,
    LATEST,
    SNAPSHOT,
    OffsetSpec,
    OffsetSpecKind,
    Resolved,
    iso_micros,
    parse_offset_spec,
    resolve,
    time_text,
)
from raftlog.errors import DataLossError, OffsetNotFoundError, OptionError
from raftlog.records.batch_columns import Column

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
THREE = LOGS / "three-nodes-4.3.1"
NODE = THREE / "node-100"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"


def spec(kind: OffsetSpecKind, number: int) -> OffsetSpec:
    return OffsetSpec(kind, number)


def found(log: LogReader, text: str, *, now_ms: int = TIME_MS, is_state: bool = False) -> Resolved:
    def read_end() -> int:
        return log.read_end(isolation=Isolation.READ_COMMITTED).offset

    wanted = parse_offset_spec("--at", text)
    return resolve(wanted, log, now_ms=now_ms, read_end=read_end, is_state=is_state)


def timestamps(log: LogReader) -> list[int]:
    columns = Column.OFFSET | Column.TIMESTAMP
    scans = log.scan(log.log_start_offset, log.log_end_offset, columns=columns)
    return [time for scan in scans for time in scan.records.timestamp_ms.to_pylist()]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", spec(OffsetSpecKind.OFFSET, 0)),
        ("2026", spec(OffsetSpecKind.OFFSET, 2026)),
        ("1795248204043", spec(OffsetSpecKind.OFFSET, 1795248204043)),
        ("9223372036854775807", spec(OffsetSpecKind.OFFSET, 2**63 - 1)),
        ("timestamp:1795248204043", spec(OffsetSpecKind.TIME, 1795248204043)),
        ("2026-11-21T03:12:00Z", spec(OffsetSpecKind.TIME, 1795230720000)),
        ("2026-11-21 03:12", spec(OffsetSpecKind.TIME, 1795230720000)),
        ("2026-11-21T04:12:00.5+01:00", spec(OffsetSpecKind.TIME, 1795230720500)),
        ("2026-11-21", spec(OffsetSpecKind.TIME, 1795219200000)),
        ("-90s", spec(OffsetSpecKind.AGE, 90_000)),
        ("-15m", spec(OffsetSpecKind.AGE, 900_000)),
        ("-2h", spec(OffsetSpecKind.AGE, 7_200_000)),
        ("-1d", spec(OffsetSpecKind.AGE, 86_400_000)),
        (" Epoch:5 ", spec(OffsetSpecKind.EPOCH, 5)),
        ("snapshot", SNAPSHOT),
        ("start", EARLIEST),
        ("earliest", EARLIEST),
        ("end", LATEST),
        ("Latest", LATEST),
    ],
)
def test_each_form_is_parsed(text: str, expected: OffsetSpec) -> None:
    assert parse_offset_spec("--at", text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "+1", "1_000", "١", "1.5", "yesterday", "10:02", "15m", "-15", "-15w"),
        *("epoch:", "epoch:-1", "epoch:2147483648", "timestamp:", "9223372036854775808"),
        *("2026-13-01", "2026-11-21T25:00", "timestamp:2026-11-21", "offset:5"),
    ],
)
def test_any_other_text_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_offset_spec("--at", text)
    assert caught.value.option == "--at"
    for form in ("an offset", "2026-11-21T03:12:00Z", "timestamp:", "-15m", "epoch:N", "snapshot"):
        assert form in caught.value.reason


@given(st.text(max_size=30))
def test_no_text_fails_otherwise(text: str) -> None:
    with suppress(OptionError):
        parse_offset_spec("--at", text)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_the_text_of_a_time_is_that_time(time_ms: int) -> None:
    assert iso_micros(time_text(time_ms)) == time_ms * 1_000
    assert parse_offset_spec("--at", time_text(time_ms)).number == time_ms


@pytest.mark.parametrize("path", [NODE, THREE / "node-102", TRIMMED], ids=str)
def test_a_time_is_the_first_offset_that_is_not_earlier(path: Path) -> None:
    log = open_path(str(path))
    start, times = log.log_start_offset, timestamps(log)
    for time in {times[0], times[len(times) // 3] + 1, times[len(times) // 2], times[-1]}:
        expected = start + next(at for at, other in enumerate(times) if other >= time)
        resolved = found(log, f"timestamp:{time}")
        assert resolved.offset == expected
        assert f"at or after {time_text(time)}" in resolved.reason
        assert f"its time is {time_text(times[expected - start])}" in resolved.reason
        assert found(log, "-7s", now_ms=time + 7_000) == resolved


def test_a_time_after_the_last_record_is_the_end() -> None:
    log = open_path(str(NODE))
    resolved = found(log, "2026-12-24T00:00:00Z")
    assert resolved.offset == 3131
    assert resolved.reason == "the end: no record is as late as 2026-12-24T00:00:00.000Z"


def test_a_time_is_never_after_the_committed_end() -> None:
    log = open_path(str(NODE))
    last = timestamps(log)[-1]
    wanted = spec(OffsetSpecKind.TIME, last)
    resolved = resolve(wanted, log, now_ms=0, read_end=lambda: 3000)
    assert resolved.offset == 3000
    assert "is not committed" in resolved.reason


def test_a_time_between_the_log_and_a_snapshot_after_it_is_unknown(tmp_path: Path) -> None:
    log = copy_log(NODE / "__cluster_metadata-0", tmp_path / "copy", end_offset=2232)
    (newest,) = (NODE / "__cluster_metadata-0").glob("*3128-*.checkpoint")
    shutil.copy(newest, log / newest.name)
    reader = open_path(str(log))
    last_ms = 1795248297886
    for wanted_ms in (timestamps(reader)[-1] + 1, last_ms):
        with pytest.raises(DataLossError) as caught:
            at(reader, wanted_ms, end_offset=3128)
        assert "3128-0000000002 has records up to 2026-11-21T08:04:57.886Z" in str(caught.value)
    assert at(reader, last_ms + 1, end_offset=3128).offset == 3128
    assert at(reader, last_ms, end_offset=2232).offset == 2232


def at(log: LogReader, time_ms: int, *, end_offset: int) -> Resolved:
    """Return what a time is in a log whose newest state ends at ``end_offset``."""
    wanted = spec(OffsetSpecKind.TIME, time_ms)
    return resolve(wanted, log, now_ms=0, read_end=lambda: end_offset, is_state=True)


def test_clocks_that_go_back_do_not_move_a_time_forward(tmp_path: Path) -> None:
    # The leader of epoch 1 was 60 s ahead of that of epoch 2.
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    for ahead in (0, 60, 61):
        writer.append(NO_OP, epoch=1, timestamp_ms=TIME_MS + ahead * 1_000)
    for later in (5, 30, 90):
        writer.append(NO_OP, epoch=2, timestamp_ms=TIME_MS + later * 1_000)
    log = open_path(str(tmp_path))
    expected = {0: 0, 1: 1, 5: 1, 30: 1, 60: 1, 61: 2, 62: 5, 90: 5, 91: 6}
    for seconds, offset in expected.items():
        assert found(log, f"timestamp:{TIME_MS + seconds * 1_000}").offset == offset
    times = timestamps(log)
    for seconds, offset in expected.items():
        assert all(time < TIME_MS + seconds * 1_000 for time in times[:offset])


def test_an_epoch_is_its_start_offset() -> None:
    log = open_path(str(NODE))
    assert found(log, "epoch:1").offset == 0
    assert found(log, "epoch:2") == Resolved(721, "the start of leader epoch 2")
    with pytest.raises(OffsetNotFoundError, match="no leader epoch 3; its leader epochs are 1, 2"):
        found(log, "epoch:3")


def test_names_are_the_ends_and_the_newest_snapshot(tmp_path: Path) -> None:
    log = open_path(str(TRIMMED))
    newest = log.newest_snapshot()
    assert newest is not None
    assert found(log, "start").offset == log.log_start_offset > 0
    assert found(log, "end").offset == log.log_end_offset
    assert found(log, "snapshot").offset == newest.end_offset
    LogWriter(tmp_path / "__cluster_metadata-0").append(NO_OP)
    with pytest.raises(OffsetNotFoundError, match="has no snapshot; choose an offset or a time"):
        found(open_path(str(tmp_path)), "snapshot")


def test_a_state_at_a_time_whose_records_were_deleted_is_refused() -> None:
    log = open_path(str(TRIMMED))
    start = log.log_start_offset
    assert "earlier records were deleted" in found(log, "2020-01-01").reason
    with pytest.raises(DataLossError, match=f"the log starts at offset {start}, whose time is 20"):
        found(log, "2020-01-01", is_state=True)
