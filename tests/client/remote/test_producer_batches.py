"""The batches of appends, and the meaning of responses: without sockets and clocks."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raftlog.append import WAITING_BYTES_MAX, AppendRequest, AppendResult
from raftlog.client.remote.connection import NetworkThread
from raftlog.client.remote.metadata import Metadata
from raftlog.client.remote.nodes import parse_addresses
from raftlog.client.remote.producer import Producer, Retry, outcome_of_error
from raftlog.client.remote.producer_batches import (
    IMPOSSIBLE_OFFSET,
    LogSettings,
    ProducerBatch,
    can_share_batch,
    needs_producer_id,
    remove_requests,
    required_base_offset,
    shared_batch,
    single_batch,
    split_batches,
)
from raftlog.client.remote.sender import Sender
from raftlog.clock import Clock
from raftlog.errors import (
    AccessDeniedError,
    AppendUnknownError,
    BufferAllocationError,
    ForeignCommitError,
    FutureEpochError,
    InvalidAppendError,
    KeyChangedError,
    LogClosedError,
    NodeRefusedError,
    NotLeaderError,
    OutOfOrderSequenceError,
    QuorumUnavailableError,
    RaftlogError,
    RecordBatchTooLargeError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import RAW_BATCH_BYTES_MAX
from raftlog.log.reading.transactions import CommitName, ValueKind, batch_metadata
from raftlog.log.writing.key_offsets import UnchangedKeys, parse_unchanged_header
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.builder import ProducerStamp
from raftlog.records.compression import Compression
from raftlog.wire.produce_codec import produce_error_code, produce_error_message

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
    batch = single_batch(request(b"a", b"b", required_base_offset=40), SETTINGS, 1000)
    assert parsed_batch(batch.data_for(9)).producer_id == -1
    batch.assign(ProducerStamp(77, 3, 5))
    data = batch.data_for(9)
    assert int.from_bytes(data[:8], "big") == 40
    parsed = parsed_batch(data)
    stamp = parsed.producer_id, parsed.producer_epoch, parsed.base_sequence
    assert (parsed.leader_epoch, *stamp, parsed.record_count) == (9, 77, 3, 5, 2)
    again = batch.data_for(10)
    assert again[16:] == data[16:], "nothing changes after the epoch"
    assert parsed_batch(again).leader_epoch == 10


def test_a_retry_under_a_later_epoch_requires_an_impossible_offset() -> None:
    batch = single_batch(request(b"a", epoch=3), SETTINGS, 0)
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
    batch = single_batch(checked, SETTINGS, 0)
    data = batch.data_for(2)
    assert (len(data), parsed_batch(data).record_count) == (61, 0)
    assert int.from_bytes(data[:8], "big") == 7


def test_a_named_append_has_its_name_and_a_batch_of_its_own() -> None:
    named = request(b"a", commit=CommitName("app", "q", 3), take_over_from="p")
    assert needs_producer_id(named)
    assert not can_share_batch(named)
    batch = parsed_batch(single_batch(named, SETTINGS, 0).data_for(1))
    (record,) = batch.records()
    assert [header.key for header in record.headers] == ["raftlog.commit", "raftlog.take-over"]
    assert record.headers[1].value == b"p"
    assert batch_metadata(batch, ValueKind.BYTES).commit == CommitName("app", "q", 3)


def test_a_condition_on_keys_is_a_header_of_a_batch_of_its_own() -> None:
    unchanged = UnchangedKeys({b"a": 7, b"b": None}, 12)
    keyed = request(b"a", b"b", unchanged=unchanged)
    assert needs_producer_id(keyed)
    assert not can_share_batch(keyed)
    batch = parsed_batch(single_batch(keyed, SETTINGS, 0).data_for(1))
    first, second = batch.records()
    assert [header.key for header in first.headers] == ["raftlog.unchanged"]
    assert parse_unchanged_header(first.headers[0].value) == unchanged
    assert not second.headers


@pytest.mark.parametrize("since", [3, 30])
def test_a_refusal_of_unchanged_keys_is_final_unless_the_log_is_shorter(since: int) -> None:
    """The leader names the end that the writer has read; after a lost response only a refusal
    by what is in the log proves that nothing was appended."""
    keyed = request(b"a", unchanged=UnchangedKeys({b"a": None}, since))
    batch = single_batch(keyed, SETTINGS, 0)
    batch.may_be_appended = True
    error = UnexpectedEndOffsetError(required_base_offset=since, record_count=1, log_end_offset=20)
    text = produce_error_message(error)
    outcome = outcome_of_error(batch, 95, text, "nodes")
    assert type(outcome) is (UnexpectedEndOffsetError if since == 3 else AppendUnknownError)
    changed = KeyChangedError(path="log", expected_offset=None, offset=4)
    refused = outcome_of_error(batch, 95, produce_error_message(changed), "nodes")
    assert isinstance(refused, KeyChangedError)
    assert (refused.expected_offset, refused.offset) == (None, 4)


def test_a_refusal_by_a_node_without_conditions_on_keys_is_not_final() -> None:
    """During a rolling upgrade it refuses the header of a batch that is in its log."""
    batch = single_batch(request(b"a", unchanged=UnchangedKeys({b"a": 1}, 3)), SETTINGS, 0)
    text = produce_error_message(
        InvalidAppendError(reason="the header 'raftlog.unchanged' is unknown or repeated")
    )
    assert isinstance(outcome_of_error(batch, 87, text, "nodes"), InvalidAppendError)
    batch.may_be_appended = True
    assert isinstance(outcome_of_error(batch, 87, text, "nodes"), AppendUnknownError)


def test_in_a_kraft_log_a_named_append_is_a_transaction_in_one_batch() -> None:
    settings = LogSettings(ValueKind.KRAFT, 1024, Compression.NONE)
    named = request(b"\x01\x14\x00\x00", commit=CommitName("app", "q", 3), required_end_offset=12)
    batch = single_batch(named, settings, 0)
    assert (batch.record_count, batch.required_base_offset) == (3, 10)
    facts = batch_metadata(parsed_batch(batch.data_for(1)), ValueKind.KRAFT)
    assert facts.commit == CommitName("app", "q", 3)


def test_a_callers_producer_is_in_the_batch() -> None:
    stamped = request(b"a", producer=ProducerStamp(5, 1, 9))
    assert not needs_producer_id(stamped)
    batch = parsed_batch(single_batch(stamped, SETTINGS, 0).data_for(1))
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
    batch = shared_batch(requests, SETTINGS, 0)
    assert batch is not None
    assert values_of(batch) == [b"a", b"b", b"c", b"d"]
    batch.complete(AppendResult(10, 13, 2))
    found = [one.future.result() for one in requests]
    assert found == [AppendResult(10, 10, 2), AppendResult(11, 12, 2), AppendResult(13, 13, 2)]


def test_an_append_can_be_removed_from_a_batch_that_was_not_appended() -> None:
    requests = [request(b"a"), request(b"b", b"c"), request(b"d")]
    batch = shared_batch(requests, SETTINGS, 7)
    assert batch is not None
    batch.assign(ProducerStamp(77, 2, 4))
    requests[2].future.set_result(AppendResult(0, 0, 0))
    assert remove_requests(batch, requests[1:2], SETTINGS, 8)
    assert (batch.requests, values_of(batch)) == ((requests[0],), [b"a"])
    assert (batch.record_count, batch.stamp) == (1, None)
    batch.complete(AppendResult(10, 10, 3))
    assert requests[0].future.result(0) == AppendResult(10, 10, 3)


def producer_of(settings: LogSettings = SETTINGS) -> Producer:
    producer = Producer(PATH, settings)
    producer.set_producer_id(77, 0)
    return producer


def sent_batch(producer: Producer, *requests: AppendRequest) -> ProducerBatch:
    """Return the batch of the requests, which is in flight."""
    producer.add(requests)
    batch = producer.next_batch(3, 0)
    assert batch is not None
    return batch


def test_an_append_whose_sender_cannot_be_started_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    network = NetworkThread(PATH, on_end=lambda: None)
    sender = Sender(Metadata(parse_addresses("a:1"), None), network, SETTINGS, Clock())
    large = request(bytes(WAITING_BYTES_MAX))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="new thread"):
            sender.append(large)
    sender.close()


def unavailable() -> RaftlogError:
    return QuorumUnavailableError(path=PATH, waited_ms=0, reason="no leader")


def test_a_waiting_batch_is_sent_without_the_appends_past_their_deadline() -> None:
    producer = producer_of()
    late, patient = request(b"a"), request(b"b", deadline_ms=9)
    batch = sent_batch(producer, late, patient)
    producer.return_unsent(batch)
    producer.expire(1, 0, unavailable)
    assert isinstance(late.future.exception(0), QuorumUnavailableError)
    assert not patient.future.done()
    assert producer.next_batch(3, 0) is batch
    assert values_of(batch) == [b"b"]


def test_an_append_that_cannot_be_removed_from_its_batch_is_kept_past_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = producer_of()
    late, patient = request(b"a"), request(bytes(range(150)), deadline_ms=9)
    batch = sent_batch(producer, late, patient)
    producer.return_unsent(batch)
    monkeypatch.setattr(
        producer, "_settings", LogSettings(ValueKind.BYTES, 100, Compression.NONE)
    )  # as if the rest was larger when compressed alone
    producer.expire(1, 0, unavailable)
    assert isinstance(late.future.exception(0), AppendUnknownError)
    assert producer.next_batch(3, 0) is batch
    assert values_of(batch) == [b"a", bytes(range(150))]


def test_a_producer_that_has_results_keeps_no_append() -> None:
    producer = producer_of()
    one = request(b"a")
    batch = sent_batch(producer, one, request(b"b"))
    code = produce_error_code(InvalidAppendError(reason="x"))
    text = produce_error_message(InvalidAppendError(reason="x"))
    producer.handle_error(batch, code, text)  # both are sent separately
    for _ in range(2):
        again = producer.next_batch(3, 0)
        assert again is not None
        producer.complete(again, AppendResult(4, 4, 3))
    assert producer.is_idle
    del batch, again
    kept = weakref.ref(one.future)
    del one
    gc.collect()
    assert kept() is None


def test_an_append_of_several_batches_is_sent_in_its_order() -> None:
    producer = producer_of()
    first = sent_batch(producer, request(*[bytes([number]) * 400 for number in range(5)]))
    assert producer.next_batch(3, 0) is None, "the id is not known yet"
    producer.complete(first, AppendResult(7, 8, 3))
    sent = [producer.next_batch(3, 0) for _ in range(2)]
    assert [one.record_count for one in sent if one is not None] == [2, 1]
    assert producer.next_batch(3, 0) is None


def test_no_more_batches_follow_one_without_an_outcome_than_a_log_remembers() -> None:
    producer = producer_of()
    large = request(*[bytes([number]) * 900 for number in range(8)])
    first = sent_batch(producer, large)
    producer.complete(first, AppendResult(0, 0, 3))
    lost = [producer.next_batch(3, 0) for _ in range(5)]
    assert producer.next_batch(3, 0) is None
    for batch in lost:
        assert batch is not None
        producer.handle_lost(batch, "connection lost")
    again = [producer.next_batch(3, 0) for _ in range(5)]
    assert again == lost
    busy = BufferAllocationError(byte_count=1, byte_count_max=1)
    assert again[0] is not None
    producer.handle_error(again[0], produce_error_code(busy), produce_error_message(busy))
    for number, batch in enumerate(again[1:], 2):
        assert batch is not None
        producer.complete(batch, AppendResult(number, number, 3))
    assert producer.next_batch(3, 0) is lost[0]
    assert producer.next_batch(3, 0) is None, "a log may have forgotten the lost one after it"
    producer.complete(again[0], AppendResult(1, 1, 3))
    assert producer.next_batch(3, 0) is not None


def test_a_commit_of_another_process_does_not_show_that_the_log_knows_the_producer() -> None:
    producer = producer_of()
    named = sent_batch(producer, request(b"a", commit=CommitName("app", "q", 3)))
    producer.complete(named, AppendResult(0, 0, 3, was_duplicate=True))
    first = sent_batch(producer, request(b"b"))
    producer.add([request(b"c")])
    assert producer.next_batch(3, 0) is None
    producer.complete(first, AppendResult(1, 1, 3))
    assert producer.next_batch(3, 0) is not None


def test_a_batch_that_cannot_be_built_without_an_append_is_unchanged() -> None:
    requests = [request(bytes(range(150))), request(b"b")]
    batch = shared_batch(requests, SETTINGS, 7)
    assert batch is not None
    before = bytes(batch.data)
    smaller = LogSettings(ValueKind.BYTES, 100, Compression.NONE)
    assert not remove_requests(batch, requests[1:], smaller, 8)
    assert (bytes(batch.data), len(batch.requests)) == (before, 2)


def test_an_append_that_does_not_fit_is_not_merged() -> None:
    assert shared_batch([request(bytes(600)), request(bytes(600))], SETTINGS, 0) is None
    with pytest.raises(RecordBatchTooLargeError):
        single_batch(request(bytes(2000)), SETTINGS, 0)


def test_a_compressed_append_is_also_bounded_by_its_uncompressed_size() -> None:
    packed = LogSettings(ValueKind.BYTES, 1024 * 1024, Compression.ZSTD)
    named = request(bytes(RAW_BATCH_BYTES_MAX), commit=CommitName("app", "q", 1))
    with pytest.raises(RecordBatchTooLargeError) as refused:
        single_batch(named, packed, 0)
    assert refused.value.byte_count_max == RAW_BATCH_BYTES_MAX


def test_a_large_append_becomes_consecutive_batches() -> None:
    large = request(*[bytes([number]) * 400 for number in range(5)])
    batches = split_batches(large, SETTINGS, 0)
    assert [one.record_count for one in batches] == [2, 2, 1]
    batches[0].complete(AppendResult(10, 11, 1))
    batches[1].complete(AppendResult(15, 16, 1))
    assert not large.future.done()
    batches[2].complete(AppendResult(17, 17, 1))
    assert large.future.result() == AppendResult(10, 17, 1)


def test_a_large_append_that_fails_in_the_middle_is_not_refused() -> None:
    large = request(*[bytes(400)] * 5)
    first, second, _ = split_batches(large, SETTINGS, 0)
    first.complete(AppendResult(10, 11, 1))
    second.fail(NotLeaderError(epoch=1, current_epoch=2))
    error = large.future.exception()
    assert isinstance(error, AppendUnknownError)
    assert "below offset 12 were appended" in str(error)


def test_each_caller_gets_its_own_error() -> None:
    requests = [request(b"a"), request(b"b")]
    batch = shared_batch(requests, SETTINGS, 0)
    assert batch is not None
    batch.fail(LogClosedError(reason="x"))
    errors = [one.future.exception() for one in requests]
    assert [type(error) for error in errors] == [LogClosedError] * 2
    assert errors[0] is not errors[1]


# --- meaning of responses -------------------------------------------------------------------------


def result_of(batch: ProducerBatch, error: RaftlogError) -> object:
    return outcome_of_error(batch, produce_error_code(error), produce_error_message(error), PATH)


def sent(*, may_be_appended: bool = False, **conditions: Any) -> ProducerBatch:
    batch = single_batch(request(b"a", **conditions), SETTINGS, 0)
    batch.may_be_appended = may_be_appended
    return batch


def stamped_batch(sequence: int) -> ProducerBatch:
    batch = sent()
    batch.assign(ProducerStamp(77, 0, sequence))
    return batch


def out_of_order(sequence: int, expected_sequence: int) -> OutOfOrderSequenceError:
    return OutOfOrderSequenceError(
        producer_id=77, producer_epoch=0, sequence=sequence, expected_sequence=expected_sequence
    )


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


@pytest.mark.parametrize(("earlier", "later"), [(4, 5), (4, 2**30), (2**31 - 1, 3)])
def test_a_batch_that_the_log_has_forgotten_after_later_ones_may_be_in_it(
    earlier: int, later: int
) -> None:
    found = result_of(stamped_batch(earlier), out_of_order(earlier, expected_sequence=later))
    assert isinstance(found, AppendUnknownError)
    found = result_of(stamped_batch(later), out_of_order(later, expected_sequence=earlier))
    assert isinstance(found, Retry)
    assert found.is_out_of_order


@pytest.mark.parametrize(
    "code", [code for code in ErrorCode if not code.retriable and code not in (0, 104)], ids=str
)
def test_other_kafka_codes_are_refusals(code: ErrorCode) -> None:
    found = outcome_of_error(sent(), code, None, PATH)
    assert isinstance(found, NodeRefusedError | AccessDeniedError)


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


def test_an_offset_after_the_end_of_the_log_leaves_a_lost_append_unknown() -> None:
    early = UnexpectedEndOffsetError(required_base_offset=19, record_count=1, log_end_offset=18)
    found = result_of(sent(required_base_offset=19), early)
    assert isinstance(found, UnexpectedEndOffsetError)
    found = result_of(sent(may_be_appended=True, required_base_offset=19), early)
    assert isinstance(found, AppendUnknownError), "its copy may be read when the log has grown"


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
