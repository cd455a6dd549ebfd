"""Errors of appends round trip through the text of a response."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import (
    AppendUnknownError,
    BufferAllocationError,
    DiskFullError,
    ForeignCommitError,
    FutureEpochError,
    InvalidAppendError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    LogAccessError,
    LogClosedError,
    LogLockedError,
    LogReadOnlyError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RaftlogError,
    RecordBatchTooLargeError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import STRING_BYTES_MAX
from raftlog.wire.produce_codec import (
    Appended,
    appended_message,
    parse_appended_message,
    parse_error_message,
    produce_error_code,
    produce_error_message,
)

REFUSALS: list[tuple[RaftlogError, int]] = [
    (UnexpectedEndOffsetError(required_base_offset=5, record_count=2, log_end_offset=9), 95),
    (UnexpectedEndOffsetError(required_end_offset=5, record_count=1, log_end_offset=9), 95),
    (NotLeaderError(epoch=4, current_epoch=4), 6),
    (NotLeaderError(epoch=3, current_epoch=4), 74),
    (FutureEpochError(epoch=5, current_epoch=4), 75),
    (InvalidAppendError(reason="record 3: {it is} odd"), 87),
    (InvalidTimestampError(timestamp_ms=2**60, now_ms=5, after_ms_max=3_600_000), 32),
    (RecordBatchTooLargeError(byte_count=9_000_000, byte_count_max=8_000_000), 10),
    (BufferAllocationError(byte_count=1, byte_count_max=2), 19),
    (DiskFullError(path="0.log", reason="no room"), 56),
    (
        OutOfOrderSequenceError(
            producer_id=2**40, producer_epoch=0, sequence=7, expected_sequence=5
        ),
        45,
    ),
    (
        InvalidProducerEpochError(producer_id=1, producer_epoch=0, current_producer_epoch=2),
        47,
    ),
    (StaleCommitError(application_id="a b", query_id='"q"', version=1, last_version=2), 90),
    (
        ForeignCommitError(
            application_id="é\n]", query_id="{}", version=1, last_query_id=" ", last_version=2
        ),
        90,
    ),
    (LogClosedError(reason="the node stops"), 6),
    (LogLockedError(path="raftlog-0", waited_ms=3), 19),
    (LogReadOnlyError(path="0.log", reason="damage", remedy="repair it", offset=7), 56),
    (AppendUnknownError(path="raftlog-0", reason="another node leads now"), 7),
]


@pytest.mark.parametrize(("error", "code"), REFUSALS, ids=lambda one: type(one).__name__)
def test_an_error_round_trips_with_all_its_fields(error: RaftlogError, code: int) -> None:
    assert produce_error_code(error) == code
    text = produce_error_message(error)
    assert text.startswith(str(error))
    found = parse_error_message(text)
    assert type(found) is type(error)
    assert all(
        getattr(found, field.name) == getattr(error, field.name)
        for field in dataclasses.fields(error)
    )


def test_a_path_of_the_node_is_not_sent() -> None:
    error = AppendUnknownError(path="/var/lib/secret/raftlog-0", reason="the disk failed")
    text = produce_error_message(error)
    assert "secret" not in text
    found = parse_error_message(text)
    assert isinstance(found, AppendUnknownError)
    assert found.path == "raftlog-0"


def test_the_refusal_of_a_required_offset_has_both_offsets_in_its_text() -> None:
    error = UnexpectedEndOffsetError(required_end_offset=5, record_count=1, log_end_offset=9)
    assert "Wanted end offset 5, but next available was 9" in produce_error_message(error)


def test_an_error_that_no_append_raises_keeps_its_text_without_fields() -> None:
    error = LogAccessError(path="0.log", reason="no right")
    assert produce_error_message(error) == str(error)
    assert produce_error_message(LogAccessError(path="/srv/0.log", reason="no right")) == str(error)
    assert produce_error_code(error) == (-1 if error.kafka_code is None else error.kafka_code)
    assert parse_error_message(str(error)) is None


@pytest.mark.parametrize("was_duplicate", [False, True])
def test_success_has_epoch_and_duplicate_flag(was_duplicate: bool) -> None:
    appended = Appended(7, was_duplicate, 12)
    assert parse_appended_message(appended_message(appended)) == appended
    assert parse_error_message(appended_message(appended)) is None


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[RAFTLOG_NOT_LEADER]",
        "[RAFTLOG_NOT_LEADER] words",
        "[RAFTLOG_NOT_LEADER] words {}",
        '[RAFTLOG_NOT_LEADER] words {"epoch":1}',
        '[RAFTLOG_NOT_LEADER] words {"epoch":1,"current_epoch":"2"}',
        '[RAFTLOG_NOT_LEADER] words {"epoch":true,"current_epoch":2}',
        '[RAFTLOG_NOT_LEADER] words {"epoch":1,"current_epoch":' + "9" * 30 + "}",
        '[RAFTLOG_NOT_LEADER] words [{"epoch":1,"current_epoch":2}]',
        '[RAFTLOG_NO_SUCH_CODE] words {"epoch":1,"current_epoch":2}',
        "[RAFTLOG_NOT_LEADER] " + "[" * 5000,
        'NOT_LEADER {"epoch":1,"current_epoch":2}',
    ],
)
def test_any_other_text_is_no_append_error(text: str | None) -> None:
    assert parse_error_message(text) is None
    assert parse_appended_message(text) is None


def test_fields_of_a_later_release_are_ignored() -> None:
    found = parse_error_message(
        '[RAFTLOG_NOT_LEADER] words {"epoch":1,"current_epoch":2,"leader":3}'
    )
    assert isinstance(found, NotLeaderError)
    assert (found.epoch, found.current_epoch) == (1, 2)


@given(st.text(max_size=200))
def test_arbitrary_text_is_parsed_without_an_exception(text: str) -> None:
    parse_error_message(text)
    parse_appended_message(f"[RAFTLOG_APPENDED] {text}")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(min_size=1, max_size=40_000))
def test_a_text_fits_into_a_string_of_the_protocol(reason: str, path: str) -> None:
    error = AppendUnknownError(path=path, reason=reason)
    assert len(produce_error_message(error).encode(errors="replace")) <= STRING_BYTES_MAX
