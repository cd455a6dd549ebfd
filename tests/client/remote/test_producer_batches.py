"""The batches of appends, and the meaning of responses: without sockets and clocks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.append.requests import AppendRequest, AppendResult
from raftlog.client.clock import Clock
from raftlog.client.remote.packing import Packing
from raftlog.client.remote.sendings import (
    IMPOSSIBLE_OFFSET,
    AskWhether,
    Lane,
    LogSettings,
    Refused,
    SendAgain,
    Sending,
    alone,
    judged,
    may_share,
    merged,
    needs_lane,
    required_base_offset,
    split_up,
    without,
)
from raftlog.errors import (
    AccessDeniedError,
    AppendUnknownError,
    BufferAllocationError,
    ForeignCommitError,
    FutureEpochError,
    LogClosedError,
    NodeRefusedError,
    NotLeaderError,
    QuorumUnavailableError,
    RaftlogError,
    RecordBatchTooLargeError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import RAW_BATCH_BYTES_MAX
from raftlog.log.writing.batch_metadata import CommitName, ValueKind, batch_metadata
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.builder import ProducerStamp
from raftlog.records.compression import Compression
from raftlog.wire.produce_error_messages import produce_error_code, produce_error_message

SETTINGS = LogSettings(ValueKind.BYTES, 1024, Compression.NONE)
PATH = "h1:1,h2:2"


def request(*records: bytes, **conditions: Any) -> AppendRequest:
    return AppendRequest(records=records, **{"deadline_ms": 0, **conditions})


def batch_of(data: bytes) -> RecordBatch:
    """Return the batch, parsed as the leader does: its base offset is the required offset."""
    batch = read_batch(bytes(8) + data[8:])
    assert isinstance(batch, RecordBatch)
    return batch


def values_of(sending: Sending) -> list[bytes | None]:
    return [record.value for record in batch_of(sending.stamped(1)).records()]


# --- sent batches ---------------------------------------------------------------------------------


def test_an_append_has_its_required_offset_the_leader_epoch_and_its_producer() -> None:
    lane = Lane(77, 0, 5)
    sending = alone(request(b"a", b"b", required_base_offset=40), SETTINGS, 1000, lane)
    data = sending.stamped(9)
    assert int.from_bytes(data[:8], "big") == 40
    batch = batch_of(data)
    assert (batch.leader_epoch, batch.producer_id, batch.base_sequence) == (9, 77, 5)
    assert lane.next_sequence == 7
    again = sending.stamped(10)
    assert again[16:] == data[16:], "nothing changes after the epoch"
    assert batch_of(again).leader_epoch == 10


def test_a_retry_under_a_later_epoch_requires_an_impossible_offset() -> None:
    sending = alone(request(b"a", epoch=3), SETTINGS, 0, Lane(1, 0))
    assert batch_of(sending.stamped(9)).leader_epoch == 3
    sending.refusal = NotLeaderError(epoch=3, current_epoch=9)
    data = sending.stamped(9)
    assert (int.from_bytes(data[:8], "big"), batch_of(data).leader_epoch) == (IMPOSSIBLE_OFFSET, 9)


def test_an_append_without_records_is_only_a_header() -> None:
    checked = request(required_base_offset=7)
    assert not needs_lane(checked)
    sending = alone(checked, SETTINGS, 0, None)
    data = sending.stamped(2)
    assert (len(data), batch_of(data).record_count) == (61, 0)
    assert int.from_bytes(data[:8], "big") == 7


def test_a_named_append_has_its_name_and_no_producer() -> None:
    named = request(b"a", commit=CommitName("app", "q", 3), take_over_from="p")
    assert not needs_lane(named)
    assert not may_share(named)
    batch = batch_of(alone(named, SETTINGS, 0, None).stamped(1))
    (record,) = batch.records()
    assert [header.key for header in record.headers] == ["raftlog.commit", "raftlog.take-over"]
    assert record.headers[1].value == b"p"
    assert batch_metadata(batch, ValueKind.BYTES).commit == CommitName("app", "q", 3)
    assert batch.producer_id == -1


def test_in_a_kraft_log_a_named_append_is_a_transaction_in_one_batch() -> None:
    settings = LogSettings(ValueKind.KRAFT, 1024, Compression.NONE)
    named = request(b"\x01\x14\x00\x00", commit=CommitName("app", "q", 3), required_end_offset=12)
    sending = alone(named, settings, 0, None)
    assert (sending.record_count, sending.base_offset) == (3, 10)
    facts = batch_metadata(batch_of(sending.stamped(1)), ValueKind.KRAFT)
    assert facts.commit == CommitName("app", "q", 3)


def test_a_callers_producer_is_in_the_batch() -> None:
    stamped = request(b"a", producer=ProducerStamp(5, 1, 9))
    batch = batch_of(alone(stamped, SETTINGS, 0, None).stamped(1))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 1, 9)


@given(
    base=st.none() | st.integers(0, 2**63 - 1),
    end=st.none() | st.integers(0, 2**63 - 1),
    count=st.integers(0, 5),
)
def test_the_required_offset_of_the_request_implies_those_of_the_callers(
    base: int | None, end: int | None, count: int
) -> None:
    wanted = request(required_base_offset=base, required_end_offset=end)
    found = required_base_offset(wanted, count)
    if base is None and end is None:
        assert found == -1
        return
    for log_end in {max(found, 0), *(one for one in (base, end) if one is not None), 0, 7}:
        if log_end >= IMPOSSIBLE_OFFSET:
            continue
        holds = base in (None, log_end) and end in (None, log_end + count - 1)
        assert (found == log_end) == holds


# --- several appends, several batches -------------------------------------------------------------


def test_appends_in_a_shared_batch_get_their_own_offsets() -> None:
    requests = [request(b"a"), request(b"b", b"c"), request(b"d", is_atomic=True)]
    sending = merged(requests, SETTINGS, 0, Lane(1, 0))
    assert sending is not None
    assert values_of(sending) == [b"a", b"b", b"c", b"d"]
    sending.finish(AppendResult(10, 13, 2))
    found = [one.future.result() for one in requests]
    assert found == [AppendResult(10, 10, 2), AppendResult(11, 12, 2), AppendResult(13, 13, 2)]


def test_an_append_can_be_removed_from_a_batch_that_was_not_appended() -> None:
    lane = Lane(77, 2, 4)
    requests = [request(b"a"), request(b"b", b"c"), request(b"d")]
    sending = merged(requests, SETTINGS, 7, lane)
    assert sending is not None
    requests[2].future.set_result(AppendResult(0, 0, 0))
    assert without(sending, requests[1:2], SETTINGS, 8)
    assert (sending.requests, values_of(sending)) == ((requests[0],), [b"a"])
    assert (sending.record_count, lane.next_sequence) == (1, 5)
    assert batch_of(sending.stamped(1)).base_sequence == 4
    sending.finish(AppendResult(10, 10, 3))
    assert requests[0].future.result(0) == AppendResult(10, 10, 3)


def packed_batch(packing: Packing, *requests: AppendRequest) -> Sending:
    """Return the batch of the requests; it could not be sent, and is the next batch again."""
    packing.add(list(requests))
    assert packing.needs_lane(3)
    sending = packing.pack(Lane(77, 2, 4))
    assert sending is not None
    packing.put_back(sending)
    return sending


def unavailable() -> RaftlogError:
    return QuorumUnavailableError(path=PATH, waited_ms=0, reason="no leader")


def test_a_waiting_batch_is_sent_without_the_appends_past_their_deadline() -> None:
    packing = Packing(SETTINGS, Clock())
    late, patient = request(b"a"), request(b"b", deadline_ms=9)
    sending = packed_batch(packing, late, patient)
    packing.expire(1, PATH, unavailable)
    assert isinstance(late.future.exception(0), QuorumUnavailableError)
    assert not patient.future.done()
    assert packing.packed() is sending
    assert values_of(sending) == [b"b"]


def test_an_append_that_cannot_be_removed_from_its_batch_is_kept_past_its_deadline() -> None:
    settings = LogSettings(ValueKind.BYTES, 100, Compression.NONE)
    packing = Packing(settings, Clock())
    late, patient = request(b"a"), request(bytes(range(150)), deadline_ms=9)
    sending = merged((late, patient), SETTINGS, 7, Lane(77, 2, 4))
    assert sending is not None
    packing.put_back(sending)
    packing.expire(1, PATH, unavailable)
    assert isinstance(late.future.exception(0), AppendUnknownError)
    assert values_of(sending) == [b"a", bytes(range(150))]


def test_a_batch_that_cannot_be_built_without_an_append_is_unchanged() -> None:
    lane = Lane(77, 2, 4)
    requests = [request(bytes(range(150))), request(b"b")]
    sending = merged(requests, SETTINGS, 7, lane)
    assert sending is not None
    before = bytes(sending.data)
    smaller = LogSettings(ValueKind.BYTES, 100, Compression.NONE)
    assert not without(sending, requests[1:], smaller, 8)
    assert (bytes(sending.data), lane.next_sequence, len(sending.requests)) == (before, 6, 2)


def test_an_append_that_does_not_fit_is_not_merged_and_uses_no_sequence() -> None:
    lane = Lane(1, 0)
    assert merged([request(bytes(600)), request(bytes(600))], SETTINGS, 0, lane) is None
    with pytest.raises(RecordBatchTooLargeError):
        alone(request(bytes(2000)), SETTINGS, 0, lane)
    assert lane.next_sequence == 0


def test_a_compressed_append_is_also_bounded_by_its_uncompressed_size() -> None:
    packed = LogSettings(ValueKind.BYTES, 1024 * 1024, Compression.ZSTD)
    named = request(bytes(RAW_BATCH_BYTES_MAX), commit=CommitName("app", "q", 1))
    with pytest.raises(RecordBatchTooLargeError) as refused:
        alone(named, packed, 0, None)
    assert refused.value.byte_count_max == RAW_BATCH_BYTES_MAX


def test_a_large_append_becomes_consecutive_batches() -> None:
    large = request(*[bytes([number]) * 400 for number in range(5)])
    lane = Lane(1, 0, 100)
    sendings = split_up(large, SETTINGS, 0, lane)
    assert [sending.record_count for sending in sendings] == [2, 2, 1]
    sequences = [batch_of(sending.stamped(1)).base_sequence for sending in sendings]
    assert sequences == [100, 102, 104]
    assert [sending.lane for sending in sendings] == [None, None, lane]
    sendings[0].finish(AppendResult(10, 11, 1))
    sendings[1].finish(AppendResult(15, 16, 1))
    assert not large.future.done()
    sendings[2].finish(AppendResult(17, 17, 1))
    assert large.future.result() == AppendResult(10, 17, 1)


def test_a_large_append_that_fails_in_the_middle_is_not_refused() -> None:
    large = request(*[bytes(400)] * 5)
    first, second, _ = split_up(large, SETTINGS, 0, Lane(1, 0))
    first.finish(AppendResult(10, 11, 1))
    second.fail(NotLeaderError(epoch=1, current_epoch=2))
    error = large.future.exception()
    assert isinstance(error, AppendUnknownError)
    assert "below offset 12 were appended" in str(error)


def test_each_caller_gets_its_own_error() -> None:
    requests = [request(b"a"), request(b"b")]
    sending = merged(requests, SETTINGS, 0, Lane(1, 0))
    assert sending is not None
    sending.fail(LogClosedError(reason="x"))
    errors = [one.future.exception() for one in requests]
    assert [type(error) for error in errors] == [LogClosedError] * 2
    assert errors[0] is not errors[1]


def test_sequences_wrap_around() -> None:
    lane = Lane(1, 0, 2**31 - 2)
    lane.advance(3)
    assert lane.next_sequence == 1
    lane.advance(-3)
    assert lane.next_sequence == 2**31 - 2


# --- meaning of responses -------------------------------------------------------------------------


def result_of(sending: Sending, error: RaftlogError) -> object:
    return judged(sending, produce_error_code(error), produce_error_message(error), PATH)


def sent(*, is_uncertain: bool = False, **conditions: Any) -> Sending:
    sending = alone(request(b"a", **conditions), SETTINGS, 0, Lane(1, 0))
    sending.is_uncertain = is_uncertain
    return sending


@pytest.mark.parametrize(
    ("error", "is_uncertain", "is_leader_lost"),
    [
        (AppendUnknownError(path="n", reason="another node leads"), True, False),
        (NotLeaderError(epoch=3, current_epoch=3), False, True),
        (NotLeaderError(epoch=2, current_epoch=3), False, True),
        (FutureEpochError(epoch=4, current_epoch=3), False, True),
        (LogClosedError(reason="it stops"), False, True),
        (BufferAllocationError(byte_count=1, byte_count_max=1), False, False),
    ],
)
def test_retriable_errors_are_retried(
    error: RaftlogError, is_uncertain: bool, is_leader_lost: bool
) -> None:
    found = result_of(sent(), error)
    assert isinstance(found, SendAgain)
    assert (found.is_uncertain, found.is_leader_gone) == (is_uncertain, is_leader_lost)


@pytest.mark.parametrize("code", [6, 5, 13, 19, 74])
def test_retriable_kafka_codes_are_retried(code: int) -> None:
    found = judged(sent(), code, None, PATH)
    assert isinstance(found, SendAgain)
    assert not found.is_uncertain


@pytest.mark.parametrize("code", [7, 20])
def test_codes_with_an_unknown_outcome_are_retried_as_uncertain(code: int) -> None:
    found = judged(sent(), code, None, PATH)
    assert isinstance(found, SendAgain)
    assert found.is_uncertain


def test_a_refused_required_offset_is_reported_in_the_callers_terms() -> None:
    refused = UnexpectedEndOffsetError(required_base_offset=19, record_count=1, log_end_offset=30)
    found = result_of(sent(required_end_offset=19), refused)
    assert isinstance(found, Refused)
    assert isinstance(found.error, UnexpectedEndOffsetError)
    assert found.error.required_end_offset == 19
    assert found.error.required_base_offset is None
    assert found.error.log_end_offset == 30
    found = result_of(sent(is_uncertain=True, required_base_offset=19), refused)
    assert isinstance(found, Refused)
    assert isinstance(found.error, UnexpectedEndOffsetError), "its identity was checked before"


def test_a_callers_outdated_epoch_is_refused_if_nothing_can_be_written() -> None:
    over = NotLeaderError(epoch=3, current_epoch=5)
    found = result_of(sent(epoch=3), over)
    assert isinstance(found, Refused)
    assert isinstance(found.error, NotLeaderError)
    sending = sent(is_uncertain=True, epoch=3)
    found = result_of(sending, over)
    assert isinstance(found, AskWhether)
    sending.refusal = found.error
    never = UnexpectedEndOffsetError(
        required_base_offset=IMPOSSIBLE_OFFSET, record_count=1, log_end_offset=9
    )
    found = result_of(sending, never)
    assert isinstance(found, Refused)
    assert isinstance(found.error, NotLeaderError), (
        "it was not appended, so the first response counts"
    )


def test_a_node_that_does_not_lead_decides_nothing_about_a_callers_epoch() -> None:
    found = result_of(sent(epoch=3), NotLeaderError(epoch=3, current_epoch=3))
    assert isinstance(found, SendAgain)


@pytest.mark.parametrize(
    "error",
    [
        StaleCommitError(application_id="a", query_id="q", version=1, last_version=2),
        ForeignCommitError(
            application_id="a", query_id="q", version=1, last_query_id="r", last_version=1
        ),
    ],
)
def test_after_a_later_commit_the_outcome_of_a_lost_one_is_unknown(error: RaftlogError) -> None:
    found = result_of(sent(), error)
    assert isinstance(found, Refused)
    assert type(found.error) is type(error)
    found = result_of(sent(is_uncertain=True), error)
    assert isinstance(found, Refused)
    assert isinstance(found.error, AppendUnknownError)


def test_a_later_leaders_lower_limit_leaves_a_lost_append_unknown() -> None:
    too_large = RecordBatchTooLargeError(byte_count=9, byte_count_max=8)
    found = result_of(sent(), too_large)
    assert isinstance(found, Refused)
    assert isinstance(found.error, RecordBatchTooLargeError)
    found = result_of(sent(is_uncertain=True), too_large)
    assert isinstance(found, Refused)
    assert isinstance(found.error, AppendUnknownError), "its size is checked before its identity"


def test_an_unknown_code_is_reported_with_kafkas_number() -> None:
    found = judged(sent(), 29, None, PATH)
    assert isinstance(found, Refused)
    assert isinstance(found.error, AccessDeniedError)
    found = judged(sent(), 44, "policy", PATH)
    assert isinstance(found, Refused)
    assert isinstance(found.error, NodeRefusedError)
    assert found.error.error == 44
