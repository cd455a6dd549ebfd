"""``raftlog.connect`` and ``raftlog.open`` behave alike. Offsets are relative: all tests share the
log of a quorum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count

import msgpack
import pytest
from tests.client.remote.conftest import AnyLog, LogOpener

from raftlog import CommitName
from raftlog.append import AppendResult, UserRecord
from raftlog.client.errors import CallbackError
from raftlog.errors import (
    AppendError,
    ForeignCommitError,
    FutureEpochError,
    InvalidAppendError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    LogClosedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OptionError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)

pytestmark = pytest.mark.slow

NO_OP = b"\x01\x14\x00\x00"
BEGIN, END = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00"


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return (f"application {number}" for number in count())


def values_from(log: AnyLog, offset: int) -> list[bytes | None]:
    return [record.value for record in log.read(offset)]


# --- appending and reading ------------------------------------------------------------------------


def test_appended_records_can_be_read(log: AnyLog) -> None:
    end = log.end_offset
    first = log.append([b"a", (b"k", b"b")])
    assert (first.base_offset, first.last_offset, first.was_duplicate) == (end, end + 1, False)
    assert log.append(b"c").end_offset == end + 3
    assert [(record.offset, record.key, record.value) for record in log.read(end)] == [
        (end, None, b"a"),
        (end + 1, b"k", b"b"),
        (end + 2, None, b"c"),
    ]
    assert (log.end_offset, log.high_watermark, log.last_stable_offset) == (end + 3,) * 3
    assert [record.offset for record in log.read(end + 1, end + 2)] == [end + 1]
    table = log.read(end).to_arrow()
    assert table["value"].to_pylist() == [b"a", b"b", b"c"]
    assert set(table["leader_epoch"].to_pylist()) == {first.epoch}
    assert (log.log_start_offset, log.partition, log.values) == (0, 0, "bytes")


def test_a_read_ends_at_the_end_offset_of_its_call(log: AnyLog) -> None:
    end = log.append(b"a").base_offset
    reading = log.read(end)
    log.append(b"b")
    assert [record.value for record in reading] == [b"a"]
    assert [record.value for record in reading] == [b"a"], "equal on both reads"
    assert values_from(log, end) == [b"a", b"b"]


def test_an_offset_above_the_end_is_refused_and_the_end_is_not(log: AnyLog) -> None:
    end = log.append(b"a").end_offset
    assert list(log.read(end)) == []
    assert log.read(end).to_arrow().num_rows == 0
    for offset in (end + 1, 10**12):
        for isolation in ("read_committed", "high_watermark"):
            with pytest.raises(OffsetOutOfRangeError) as refused:
                log.read(offset, isolation=isolation)
            assert (refused.value.offset, refused.value.log_end_offset) == (offset, end)
            assert refused.value.kafka_code == 1
    assert values_from(log, end - 1) == [b"a"]


def test_headers_and_timestamps_are_returned(log: AnyLog) -> None:
    from raftlog.records.record import Header, NewRecord

    result = log.append(NewRecord(b"k", None, 1234, (Header("h", b"v"), Header("n", None))))
    (record,) = log.read(result.base_offset)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", None, 1234)
    assert record.headers == (Header("h", b"v"), Header("n", None))


def test_appends_can_be_awaited_later_and_keep_their_order(log: AnyLog) -> None:
    end = log.end_offset
    futures = [log.append_async(b"%d" % number) for number in range(500)]
    offsets = [future.result(30).base_offset for future in futures]
    assert offsets == list(range(end, end + 500))
    assert values_from(log, end) == [b"%d" % number for number in range(500)]


def test_an_append_too_large_for_one_batch_becomes_several_unless_it_is_atomic(log: AnyLog) -> None:
    large = [bytes(3 * 2**20)] * 4
    end = log.end_offset
    for arguments in ({"atomic": True}, {"required_base_offset": end}):
        with pytest.raises(RecordBatchTooLargeError) as caught:
            log.append(large, **arguments)
        assert caught.value.byte_count_max == 8 * 2**20
    with pytest.raises(RecordBatchTooLargeError):
        log.append(bytes(9 * 2**20))
    assert log.end_offset == end
    result = log.append(large)
    assert (result.base_offset, result.last_offset) == (end, end + 3)
    assert log.append(b"after").base_offset == end + 4
    assert [len(value or b"") for value in values_from(log, end)] == [3 * 2**20] * 4 + [5]


def test_a_record_with_a_timestamp_in_the_far_future_is_refused(log: AnyLog) -> None:
    from raftlog.records.record import NewRecord

    future = NewRecord(None, b"bad", 2**60)
    end = log.end_offset
    given: list[UserRecord] = [b"a", future, [b"b", future], b"c"]
    appends = [log.append_async(one) for one in given]
    appends.append(log.append_async([b"d", future], commit=("app of the future", "q", 1)))
    for refused in (appends[1], appends[2], appends[4]):
        with pytest.raises(InvalidTimestampError) as caught:
            refused.result(30)
        assert (caught.value.timestamp_ms, caught.value.kafka_code) == (2**60, 32)
        assert caught.value.after_ms_max == 60 * 60 * 1000
    assert [appends[0].result(30).base_offset, appends[3].result(30).base_offset] == [end, end + 1]
    assert values_from(log, end) == [b"a", b"c"]


# --- required offsets -----------------------------------------------------------------------------


def test_required_base_and_end_offsets_are_checked(log: AnyLog) -> None:
    end = log.end_offset
    assert log.append([b"a", b"b"], required_base_offset=end).last_offset == end + 1
    assert log.append([b"c", b"d"], required_end_offset=end + 3).base_offset == end + 2
    both = log.append([b"e"], required_base_offset=end + 4, required_end_offset=end + 4)
    assert both.base_offset == end + 4
    with pytest.raises(UnexpectedEndOffsetError) as caught:
        log.append([b"f", b"g"], required_end_offset=end + 5)
    assert f"Wanted end offset {end + 5}, but next available was {end + 6}" in str(caught.value)
    assert (caught.value.kafka_code, caught.value.log_end_offset) == (95, end + 5)
    assert (caught.value.record_count, caught.value.required_base_offset) == (2, None)
    with pytest.raises(UnexpectedEndOffsetError) as caught:
        log.append([b"f"], required_base_offset=end + 5, required_end_offset=end + 6)
    assert (caught.value.required_end_offset, caught.value.required_base_offset) == (end + 6, None)
    with pytest.raises(UnexpectedEndOffsetError):
        log.append([b"f"], required_base_offset=2**63 - 1)
    assert log.end_offset == end + 5


def test_a_required_offset_without_records_is_only_checked(log: AnyLog) -> None:
    end = log.end_offset
    epoch = log.append([], required_base_offset=end).epoch
    assert log.append([], required_end_offset=end - 1) == AppendResult(end, end - 1, epoch)
    with pytest.raises(UnexpectedEndOffsetError):
        log.append([], required_base_offset=end + 1)
    with pytest.raises(UnexpectedEndOffsetError):
        log.append([], required_base_offset=end - 1)
    assert log.append([], epoch=epoch).end_offset == end
    assert log.end_offset == end


def test_a_refusal_does_not_affect_other_appends(log: AnyLog) -> None:
    end = log.end_offset
    futures = [log.append_async(b"%d" % turn, required_base_offset=end) for turn in range(5)]
    futures += [log.append_async(b"fine")]
    errors = [future.exception(30) for future in futures]
    assert [type(error) for error in errors[1:-1]] == [UnexpectedEndOffsetError] * 4
    assert (errors[0], errors[-1]) == (None, None)
    assert values_from(log, end) == [b"0", b"fine"]


def test_of_rivals_with_one_required_offset_one_wins(opener: LogOpener) -> None:
    rivals = [opener.open() for _ in range(4)]
    end = rivals[0].end_offset
    futures = [
        rival.append_async(b"%d %d" % (number, turn), required_base_offset=end)
        for turn in range(3)
        for number, rival in enumerate(rivals)
    ]
    errors = [future.exception(30) for future in futures]
    assert errors.count(None) == 1
    assert {type(error) for error in errors if error} == {UnexpectedEndOffsetError}
    assert len(values_from(rivals[0], end)) == 1
    for rival in rivals:
        rival.close()


# --- epochs ---------------------------------------------------------------------------------------


def test_an_epoch_other_than_the_current_one_is_refused(log: AnyLog) -> None:
    epoch = log.append(b"a").epoch
    end = log.end_offset
    assert log.append(b"b", epoch=epoch).epoch == epoch
    for old in (epoch - 1, 0):
        with pytest.raises(NotLeaderError) as caught:
            log.append(b"c", epoch=old)
        assert (caught.value.epoch, caught.value.current_epoch) == (old, epoch)
    for future in (epoch + 1, 2**31 - 1, 2**40):
        with pytest.raises(FutureEpochError):
            log.append(b"c", epoch=future)
    assert log.end_offset == end + 1


# --- named commits --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "kraft", "msgpack"])
def test_a_repeated_commit_is_recognised_before_its_required_offset_is_checked(
    opener: LogOpener, names: Iterator[str], kind: str
) -> None:
    value = b"\x93\x01\x00\x90" if kind == "msgpack" else NO_OP
    app, marker_count = next(names), 2 if kind == "kraft" else 0
    with opener.open(kind) as log, opener.open(kind) as another:
        end = log.end_offset
        won = log.append([value], commit=(app, "query", 7), required_base_offset=end)
        assert (won.base_offset, won.last_offset) == (end, end + marker_count)
        again = log.append([value], commit=(app, "query", 7), required_base_offset=end)
        expected = AppendResult(won.base_offset, won.last_offset, won.epoch, was_duplicate=True)
        assert again == expected
        assert another.append([value] * 3, commit=(app, "query", 7)) == expected
        last = log.last_commit(app)
        assert last is not None
        assert last.name == CommitName(app, "query", 7)
        assert (last.base_offset, last.last_offset) == (won.base_offset, won.last_offset)
        assert log.last_commit("unauthorized") is None
        assert all(record.headers == () for record in log.read(end))
        empty = log.append([], commit=(app, "query", 7))
        assert empty == expected
        with pytest.raises(StaleCommitError):
            log.append([], commit=(app, "query", 6))
        assert log.append([], commit=(app, "query", 8)).end_offset == log.end_offset


def test_older_and_foreign_commits_are_refused(log: AnyLog, names: Iterator[str]) -> None:
    app, other = next(names), next(names)
    end = log.append(b"a", commit=(app, "query", 7)).end_offset
    with pytest.raises(StaleCommitError) as stale:
        log.append(b"b", commit=(app, "query", 6))
    assert (stale.value.version, stale.value.last_version) == (6, 7)
    with pytest.raises(ForeignCommitError, match="take over the id") as foreign:
        log.append(b"b", commit=(app, "rival", 8))
    assert foreign.value.last_query_id == "query"
    taken = log.append(b"b", commit=(app, "rival", 0), take_over_from="query")
    assert taken.base_offset == end
    with pytest.raises(ForeignCommitError):
        log.append(b"c", commit=(app, "third", 0), take_over_from="query")
    assert log.append(b"c", commit=(other, "query", 0)).base_offset == end + 1


def test_a_commit_takes_over_from_another_query_in_a_kraft_log(
    opener: LogOpener, names: Iterator[str]
) -> None:
    app = next(names)
    with opener.open("kraft") as log:
        log.append(NO_OP, commit=(app, "query", 1))
        assert not log.append(NO_OP, commit=(app, "rival", 0), take_over_from="query").was_duplicate
        last = log.last_commit(app)
        assert last is not None
        assert last.name.query_id == "rival"


def test_a_commit_sent_concurrently_is_written_once(log: AnyLog, names: Iterator[str]) -> None:
    app, end = next(names), log.end_offset
    futures = [log.append_async(b"a", commit=(app, "q", 1)) for _ in range(8)]
    results = [future.result(30) for future in futures]
    assert {result.base_offset for result in results} == {end}
    assert [result.was_duplicate for result in results] == [False] + [True] * 7
    assert log.end_offset == end + 1


def test_producer_sequences_are_checked(opener: LogOpener, log: AnyLog) -> None:
    producer, end = int.from_bytes(os.urandom(6), "big"), log.end_offset
    for sequence in range(3):
        log.append(b"x", producer=(producer, 1, sequence))
    again = log.append(b"x", producer=(producer, 1, 1))
    assert (again.base_offset, again.was_duplicate) == (end + 1, True)
    with pytest.raises(OutOfOrderSequenceError) as caught:
        log.append(b"x", producer=(producer, 1, 4))
    assert (caught.value.sequence, caught.value.expected_sequence) == (4, 3)
    with pytest.raises(InvalidProducerEpochError):
        log.append(b"x", producer=(producer, 0, 3))
    assert log.end_offset == end + 3


def test_a_call_in_a_callback_never_waits_for_itself(log: AnyLog) -> None:
    """The callback runs on the thread that completes appends, which would wait for itself."""
    end = log.end_offset
    refused: Future[list[str]] = Future()
    queued: Future[Future[AppendResult]] = Future()

    def call(_: Future[AppendResult]) -> None:
        queued.set_result(log.append_async(b"second"))
        messages = []
        for wait in (lambda: log.append(b"refused"), lambda: log.last_commit("unknown")):
            try:
                wait()
            except CallbackError as error:
                messages.append(str(error))
        refused.set_result(messages)

    log.append_async(b"first").add_done_callback(call)
    assert queued.result(30).result(30).base_offset == end + 1
    remedy = "use append_async there, or call it in another thread"
    assert [remedy in message for message in refused.result(30)] == [True, True]
    log.append(b"third")
    assert [record.value for record in log.read(end)] == [b"first", b"second", b"third"]


# --- invalid arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"commit": ("a", "q", 1), "producer": (1, 0, 0)},
        {"take_over_from": "query"},
        {"required_base_offset": -1},
        {"epoch": -1},
    ],
)
def test_invalid_appends_are_refused_before_they_are_sent(
    log: AnyLog, arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidAppendError):
        log.append_async(b"x", **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidAppendError):
        log.append([])
    with pytest.raises(OptionError):
        log.append(b"x", commit=(1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        log.last_commit(7)  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        log.read(isolation="whatever")
    with pytest.raises(InvalidAppendError, match="begins with"):
        log.append(_ReservedHeaders())


class _ReservedHeaders:
    key = None
    value = b"x"
    headers = (("raftlog.commit", b""),)


def test_contradicting_transactions_are_refused(opener: LogOpener, names: Iterator[str]) -> None:
    with opener.open("kraft") as log:
        end = log.end_offset
        for wrong in ([END], [BEGIN, BEGIN], [BEGIN, END, END]):
            with pytest.raises(InvalidAppendError, match="a transaction"):
                log.append(wrong)
        with pytest.raises(InvalidAppendError, match="is a transaction itself"):
            log.append([BEGIN, END], commit=(next(names), "query", 1))
        log.append([BEGIN, NO_OP])
        assert (log.end_offset, log.last_stable_offset) == (end + 2, end)
        with pytest.raises(InvalidAppendError, match="a transaction is open"):
            log.append([NO_OP], commit=(next(names), "query", 1))
        assert log.append([END]).last_offset == end + 2
        assert log.last_stable_offset == log.end_offset == end + 3
        fine, bad = log.append_async([NO_OP]), log.append_async([END])
        assert fine.result(30).base_offset == end + 3
        assert isinstance(bad.exception(30), InvalidAppendError)


def test_msgpack_values_are_checked(opener: LogOpener) -> None:
    with opener.open("msgpack") as log:
        result = log.append([[1, 0, {"total": 5}]])
        (record,) = log.read(result.base_offset)
        assert record.value is not None
        assert msgpack.unpackb(record.value) == [1, 0, {"total": 5}]
        with pytest.raises(InvalidAppendError):
            log.append(b"text")
        assert log.values == "msgpack"


# --- closing --------------------------------------------------------------------------------------


def test_closing_waits_for_queued_appends_and_refuses_new_ones(opener: LogOpener) -> None:
    with opener.open() as log:
        futures = [log.append_async(b"x") for _ in range(200)]
    assert all(future.exception() is None for future in futures if future.done())
    assert all(future.done() for future in futures)
    with pytest.raises(LogClosedError):
        log.append(b"x")
    log.close()


def test_an_unclosed_log_writes_queued_appends_at_exit(opener: LogOpener) -> None:
    log = opener.open()
    end = log.end_offset
    future = log.append_async(b"x")
    del log
    assert future.result(30).base_offset == end


def test_a_forked_process_can_read_and_not_append(log: AnyLog) -> None:
    end = log.append(b"before the fork").base_offset
    child = os.fork()
    if child == 0:
        code = 1
        try:
            read = [record.value for record in log.read(end)]
            try:
                log.append(b"x")
            except LogClosedError:
                code = 0 if read == [b"before the fork"] else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert log.append(b"after").base_offset == end + 1, "the parent process continues"


def test_refusals_are_append_errors(log: AnyLog) -> None:
    with pytest.raises(AppendError):
        log.append(b"x", required_base_offset=0)
