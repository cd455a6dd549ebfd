"""The batches of appends, and the meaning of responses: without sockets and clocks."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.append import WAITING_BYTES_MAX, AppendRequest, AppendResult
from raftlog.client.log_handle import Clock
from raftlog.client.remote.producer_batches import (
    IMPOSSIBLE_OFFSET,
    LogSettings,
    ProducerBatch,
    ProducerState,
    can_share_batch,
    needs_producer_id,
    remove_requests,
    required_base_offset,
    shared_batch,
    single_batch,
    split_batches,
)
from raftlog.client.remote.record_accumulator import RecordAccumulator
from raftlog.client.remote.sender import Retry, outcome_of_error
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
from raftlog.log.reading.transactions import CommitName, ValueKind, batch_metadata
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.builder import ProducerStamp
from raftlog.records.compression import Compression
from raftlog.wire.produce_error_messages import produce_error_code, produce_error_message

SETTINGS = LogSettings(ValueKind.BYTES, 1024, Compression.NONE)
PATH = "h1:1,h2:2"


def request(*records: bytes, **conditions: Any) -> AppendRequest:
    return AppendRequest(records=records, **{"deadline_ms": 0, **conditions})


def parsed_batch(data: bytes) -> RecordBatch:
    """Return the batch, parsed as the leader does: its base offset is the required offset."""
    batch = read_batch(bytes(8) + data[8:])
    assert isinstance(batch, RecordBatch)
    return batch


def values_of(batch: ProducerBatch) -> list[bytes | None]:
    return [record.value for record in parsed_batch(batch.data_for(1)).records()]


# --- sent batches ---------------------------------------------------------------------------------


def test_an_append_has_its_required_offset_the_leader_epoch_and_its_producer() -> None:
    state = ProducerState(77, 0, 5)
    batch = single_batch(request(b"a", b"b", required_base_offset=40), SETTINGS, 1000, state)
    data = batch.data_for(9)
    assert int.from_bytes(data[:8], "big") == 40
    parsed = parsed_batch(data)
    assert (parsed.leader_epoch, parsed.producer_id, parsed.base_sequence) == (9, 77, 5)
    assert state.next_sequence == 7
    again = batch.data_for(10)
    assert again[16:] == data[16:], "nothing changes after the epoch"
    assert parsed_batch(again).leader_epoch == 10


def test_a_retry_under_a_later_epoch_requires_an_impossible_offset() -> None:
    batch = single_batch(request(b"a", epoch=3), SETTINGS, 0, ProducerState(1, 0))
    assert parsed_batch(batch.data_for(9)).leader_epoch == 3
    batch.epoch_error = NotLeaderError(epoch=3, current_epoch=9)
    data = batch.data_for(9)
    assert (int.from_bytes(data[:8], "big"), parsed_batch(data).leader_epoch) == (
        IMPOSSIBLE_OFFSET,
        9,
    )


def test_an_append_without_records_is_only_a_header() -> None:
    checked = request(required_base_offset=7)
    assert not needs_producer_id(checked)
    batch = single_batch(checked, SETTINGS, 0, None)
    data = batch.data_for(2)
    assert (len(data), parsed_batch(data).record_count) == (61, 0)
    assert int.from_bytes(data[:8], "big") == 7


def test_a_named_append_has_its_name_and_no_producer() -> None:
    named = request(b"a", commit=CommitName("app", "q", 3), take_over_from="p")
    assert not needs_producer_id(named)
    assert not can_share_batch(named)
    batch = parsed_batch(single_batch(named, SETTINGS, 0, None).data_for(1))
    (record,) = batch.records()
    assert [header.key for header in record.headers] == ["raftlog.commit", "raftlog.take-over"]
    assert record.headers[1].value == b"p"
    assert batch_metadata(batch, ValueKind.BYTES).commit == CommitName("app", "q", 3)
    assert batch.producer_id == -1


def test_in_a_kraft_log_a_named_append_is_a_transaction_in_one_batch() -> None:
    settings = LogSettings(ValueKind.KRAFT, 1024, Compression.NONE)
    named = request(b"\x01\x14\x00\x00", commit=CommitName("app", "q", 3), required_end_offset=12)
    batch = single_batch(named, settings, 0, None)
    assert (batch.record_count, batch.required_base_offset) == (3, 10)
    facts = batch_metadata(parsed_batch(batch.data_for(1)), ValueKind.KRAFT)
    assert facts.commit == CommitName("app", "q", 3)


def test_a_callers_producer_is_in_the_batch() -> None:
    stamped = request(b"a", producer=ProducerStamp(5, 1, 9))
    batch = parsed_batch(single_batch(stamped, SETTINGS, 0, None).data_for(1))
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
    batch = shared_batch(requests, SETTINGS, 0, ProducerState(1, 0))
    assert batch is not None
    assert values_of(batch) == [b"a", b"b", b"c", b"d"]
    batch.complete(AppendResult(10, 13, 2))
    found = [one.future.result() for one in requests]
    assert found == [AppendResult(10, 10, 2), AppendResult(11, 12, 2), AppendResult(13, 13, 2)]


def test_an_append_can_be_removed_from_a_batch_that_was_not_appended() -> None:
    state = ProducerState(77, 2, 4)
    requests = [request(b"a"), request(b"b", b"c"), request(b"d")]
    batch = shared_batch(requests, SETTINGS, 7, state)
    assert batch is not None
    requests[2].future.set_result(AppendResult(0, 0, 0))
    assert remove_requests(batch, requests[1:2], SETTINGS, 8)
    assert (batch.requests, values_of(batch)) == ((requests[0],), [b"a"])
    assert (batch.record_count, state.next_sequence) == (1, 5)
    assert parsed_batch(batch.data_for(1)).base_sequence == 4
    batch.complete(AppendResult(10, 10, 3))
    assert requests[0].future.result(0) == AppendResult(10, 10, 3)


def accumulator_of(settings: LogSettings = SETTINGS) -> RecordAccumulator:
    return RecordAccumulator(PATH, settings, Clock(), wake_up=lambda: None)


def built_batch(accumulator: RecordAccumulator, *requests: AppendRequest) -> ProducerBatch:
    """Return the batch of the requests, which waits in the accumulator to be sent again."""
    for one in requests:
        accumulator.append(one)
    accumulator.collect()
    assert accumulator.needs_producer_id(3)
    batch = accumulator.drain(ProducerState(77, 2, 4))
    assert batch is not None
    accumulator.reenqueue(batch)
    return batch


def test_an_append_whose_sender_cannot_be_started_takes_no_room() -> None:
    def no_thread() -> None:
        raise RuntimeError("can't start new thread")

    accumulator = RecordAccumulator(PATH, SETTINGS, Clock(), wake_up=no_thread)
    large = request(bytes(WAITING_BYTES_MAX))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="new thread"):
            accumulator.append(large)
    accumulator.collect()
    assert not accumulator.has_undrained


def unavailable() -> RaftlogError:
    return QuorumUnavailableError(path=PATH, waited_ms=0, reason="no leader")


def test_a_waiting_batch_is_sent_without_the_appends_past_their_deadline() -> None:
    accumulator = accumulator_of()
    late, patient = request(b"a"), request(b"b", deadline_ms=9)
    batch = built_batch(accumulator, late, patient)
    accumulator.expire(1, unavailable)
    assert isinstance(late.future.exception(0), QuorumUnavailableError)
    assert not patient.future.done()
    assert accumulator.next_built() is batch
    assert values_of(batch) == [b"b"]


def test_an_append_that_cannot_be_removed_from_its_batch_is_kept_past_its_deadline() -> None:
    accumulator = accumulator_of(LogSettings(ValueKind.BYTES, 100, Compression.NONE))
    late, patient = request(b"a"), request(bytes(range(150)), deadline_ms=9)
    batch = shared_batch((late, patient), SETTINGS, 7, ProducerState(77, 2, 4))
    assert batch is not None
    accumulator.reenqueue(batch)
    accumulator.expire(1, unavailable)
    assert isinstance(late.future.exception(0), AppendUnknownError)
    assert values_of(batch) == [b"a", bytes(range(150))]


@pytest.mark.parametrize("end", ["sent", "cancelled", "refused", "expired", "failed"])
def test_an_append_that_is_sent_separately_is_not_kept_after_its_result(end: str) -> None:
    accumulator = accumulator_of()
    epoch = 0 if end == "refused" else None
    one = request(b"a", epoch=epoch)
    shared = shared_batch((one,), SETTINGS, 7, ProducerState(1, 0))
    assert shared is not None
    accumulator.split_and_reenqueue(shared)
    del shared
    if end == "cancelled":
        one.future.cancel()
    elif end == "expired":
        accumulator.expire(1, unavailable)
    elif end == "failed":
        accumulator.fail_all(unavailable())
    if accumulator.needs_producer_id(3) is not None:
        assert accumulator.drain(ProducerState(77, 2, 4)) is not None
    kept = weakref.ref(one.future)
    del one
    gc.collect()
    assert kept() is None


def test_batches_to_be_sent_again_return_to_their_place() -> None:
    accumulator = accumulator_of(LogSettings(ValueKind.BYTES, 100, Compression.NONE))
    batches = []
    for number in range(3):
        accumulator.append(request(bytes([number])))
        accumulator.collect()
        batch = accumulator.drain(ProducerState(number, 0))
        assert batch is not None
        batches.append(batch)
    for number in (1, 2, 0):  # the second could not be sent; the first lost its response later
        accumulator.reenqueue(batches[number])
    assert [accumulator.next_built() for _ in batches] == batches


def test_an_append_of_several_batches_is_drained_in_its_order() -> None:
    accumulator = accumulator_of()
    first = built_batch(accumulator, request(*[bytes([number]) * 400 for number in range(5)]))
    drained = [accumulator.next_built() for _ in range(3)]
    assert drained[0] is first
    assert [one.record_count for one in drained if one is not None] == [2, 2, 1]
    assert accumulator.next_built() is None


def test_a_batch_that_cannot_be_built_without_an_append_is_unchanged() -> None:
    state = ProducerState(77, 2, 4)
    requests = [request(bytes(range(150))), request(b"b")]
    batch = shared_batch(requests, SETTINGS, 7, state)
    assert batch is not None
    before = bytes(batch.data)
    smaller = LogSettings(ValueKind.BYTES, 100, Compression.NONE)
    assert not remove_requests(batch, requests[1:], smaller, 8)
    assert (bytes(batch.data), state.next_sequence, len(batch.requests)) == (before, 6, 2)


def test_an_append_that_does_not_fit_is_not_merged_and_uses_no_sequence() -> None:
    state = ProducerState(1, 0)
    assert shared_batch([request(bytes(600)), request(bytes(600))], SETTINGS, 0, state) is None
    with pytest.raises(RecordBatchTooLargeError):
        single_batch(request(bytes(2000)), SETTINGS, 0, state)
    assert state.next_sequence == 0


def test_a_compressed_append_is_also_bounded_by_its_uncompressed_size() -> None:
    packed = LogSettings(ValueKind.BYTES, 1024 * 1024, Compression.ZSTD)
    named = request(bytes(RAW_BATCH_BYTES_MAX), commit=CommitName("app", "q", 1))
    with pytest.raises(RecordBatchTooLargeError) as refused:
        single_batch(named, packed, 0, None)
    assert refused.value.byte_count_max == RAW_BATCH_BYTES_MAX


def test_a_large_append_becomes_consecutive_batches() -> None:
    large = request(*[bytes([number]) * 400 for number in range(5)])
    state = ProducerState(1, 0, 100)
    batches = split_batches(large, SETTINGS, 0, state)
    assert [one.record_count for one in batches] == [2, 2, 1]
    sequences = [parsed_batch(one.data_for(1)).base_sequence for one in batches]
    assert sequences == [100, 102, 104]
    assert [one.producer_state for one in batches] == [None, None, state]
    batches[0].complete(AppendResult(10, 11, 1))
    batches[1].complete(AppendResult(15, 16, 1))
    assert not large.future.done()
    batches[2].complete(AppendResult(17, 17, 1))
    assert large.future.result() == AppendResult(10, 17, 1)


def test_a_large_append_that_fails_in_the_middle_is_not_refused() -> None:
    large = request(*[bytes(400)] * 5)
    first, second, _ = split_batches(large, SETTINGS, 0, ProducerState(1, 0))
    first.complete(AppendResult(10, 11, 1))
    second.fail(NotLeaderError(epoch=1, current_epoch=2))
    error = large.future.exception()
    assert isinstance(error, AppendUnknownError)
    assert "below offset 12 were appended" in str(error)


def test_each_caller_gets_its_own_error() -> None:
    requests = [request(b"a"), request(b"b")]
    batch = shared_batch(requests, SETTINGS, 0, ProducerState(1, 0))
    assert batch is not None
    batch.fail(LogClosedError(reason="x"))
    errors = [one.future.exception() for one in requests]
    assert [type(error) for error in errors] == [LogClosedError] * 2
    assert errors[0] is not errors[1]


def test_sequences_wrap_around() -> None:
    state = ProducerState(1, 0, 2**31 - 2)
    state.advance(3)
    assert state.next_sequence == 1
    state.advance(-3)
    assert state.next_sequence == 2**31 - 2


# --- meaning of responses -------------------------------------------------------------------------


def result_of(batch: ProducerBatch, error: RaftlogError) -> object:
    return outcome_of_error(batch, produce_error_code(error), produce_error_message(error), PATH)


def sent(*, may_be_appended: bool = False, **conditions: Any) -> ProducerBatch:
    batch = single_batch(request(b"a", **conditions), SETTINGS, 0, ProducerState(1, 0))
    batch.may_be_appended = may_be_appended
    return batch


@pytest.mark.parametrize(
    ("error", "may_be_appended", "is_leader_lost"),
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
    error: RaftlogError, may_be_appended: bool, is_leader_lost: bool
) -> None:
    found = result_of(sent(), error)
    assert isinstance(found, Retry)
    assert (found.may_be_appended, found.is_leader_lost) == (may_be_appended, is_leader_lost)


@pytest.mark.parametrize("code", [6, 5, 13, 19, 74])
def test_retriable_kafka_codes_are_retried(code: int) -> None:
    found = outcome_of_error(sent(), code, None, PATH)
    assert isinstance(found, Retry)
    assert not found.may_be_appended


@pytest.mark.parametrize("code", [7, 20])
def test_codes_with_an_unknown_outcome_are_retried_as_uncertain(code: int) -> None:
    found = outcome_of_error(sent(), code, None, PATH)
    assert isinstance(found, Retry)
    assert found.may_be_appended


def test_a_refused_required_offset_is_reported_in_the_callers_terms() -> None:
    refused = UnexpectedEndOffsetError(required_base_offset=19, record_count=1, log_end_offset=30)
    found = result_of(sent(required_end_offset=19), refused)
    assert isinstance(found, UnexpectedEndOffsetError)
    assert found.required_end_offset == 19
    assert found.required_base_offset is None
    assert found.log_end_offset == 30
    found = result_of(sent(may_be_appended=True, required_base_offset=19), refused)
    assert isinstance(found, UnexpectedEndOffsetError), "its identity was checked before"


def test_a_callers_outdated_epoch_is_refused_if_nothing_can_be_written() -> None:
    over = NotLeaderError(epoch=3, current_epoch=5)
    found = result_of(sent(epoch=3), over)
    assert isinstance(found, NotLeaderError)
    batch = sent(may_be_appended=True, epoch=3)
    found = result_of(batch, over)
    assert isinstance(found, Retry)
    assert isinstance(found.epoch_error, NotLeaderError)
    batch.epoch_error = found.epoch_error
    never = UnexpectedEndOffsetError(
        required_base_offset=IMPOSSIBLE_OFFSET, record_count=1, log_end_offset=9
    )
    found = result_of(batch, never)
    assert isinstance(found, NotLeaderError), "it was not appended, so the first response counts"


def test_a_node_that_does_not_lead_decides_nothing_about_a_callers_epoch() -> None:
    found = result_of(sent(epoch=3), NotLeaderError(epoch=3, current_epoch=3))
    assert isinstance(found, Retry)


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
    assert type(found) is type(error)
    found = result_of(sent(may_be_appended=True), error)
    assert isinstance(found, AppendUnknownError)


def test_a_later_leaders_lower_limit_leaves_a_lost_append_unknown() -> None:
    too_large = RecordBatchTooLargeError(byte_count=9, byte_count_max=8)
    found = result_of(sent(), too_large)
    assert isinstance(found, RecordBatchTooLargeError)
    found = result_of(sent(may_be_appended=True), too_large)
    assert isinstance(found, AppendUnknownError), "its size is checked before its identity"


def test_an_unknown_code_is_reported_with_kafkas_number() -> None:
    found = outcome_of_error(sent(), 29, None, PATH)
    assert isinstance(found, AccessDeniedError)
    found = outcome_of_error(sent(), 44, "policy", PATH)
    assert isinstance(found, NodeRefusedError)
    assert found.error == 44
