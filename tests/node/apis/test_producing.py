"""Produce: accepted and refused batches, and their errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raftlog.errors import (
    ForeignCommitError,
    FutureEpochError,
    InvalidAppendError,
    InvalidTimestampError,
    NotLeaderError,
    RaftlogError,
    RecordBatchTooLargeError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import LOG_BATCH_BYTES_MAX, RAW_BATCH_BYTES_MAX
from raftlog.log.reading.transactions import (
    CommitName,
    Marker,
    ValueKind,
    commit_transaction_name,
    marker_value,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.node.access import Rights
from raftlog.node.apis.produce import UnacknowledgedAppendError
from raftlog.node.apis.produced_batch import produced_records, read_header
from raftlog.node.request import Session
from raftlog.records.batch import (
    Compression,
    Header,
    NewRecord,
    Record,
    TimestampType,
    iter_batches,
)
from raftlog.records.compression import compress
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.produce_codec import parse_appended_message, parse_error_message

from .batches import batch, commit_header, produce, with_attributes
from .cluster import TIME_MS, Cluster, Node, answer_of, caller, is_last, run, session, settle

VERSIONS = range(3, 14)


async def put(node: Node, data: bytes | None, version: int = 13, **more: Any) -> Any:
    """Produce one batch; return the answer for its partition."""
    answer = await node.ask_client(
        ApiKey.PRODUCE, version, produce(data, **more), latest_schemas.ProduceResponse
    )
    return answer.responses[0].partition_responses[0]


def stored(node: Node, start_offset: int = 0) -> list[Record]:
    """Return the users' records in a node's log."""
    log = node.replica.log
    offset, found = start_offset, []
    while offset < log.end_offset:
        for one in iter_batches(log.read_bytes(offset, 1 << 24)):
            offset = one.next_offset
            if not one.is_control:
                found += list(one.records())
    return found


def refusal(partition: Any) -> RaftlogError:
    found = parse_error_message(partition.error_message)
    assert found is not None
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_appends_its_records(version: int) -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        before = leader.replica.log.end_offset
        answer = await put(leader, batch(b"one", b"two"), version)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, before)
        assert [record.value for record in stored(leader)] == [b"one", b"two"]
        if version >= 5:
            assert answer.log_start_offset == 0
        assert answer.log_append_time is None

    run(work())


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("count", [3, 500])
def test_records_keep_key_timestamp_and_headers_under_every_codec(
    compression: Compression, count: int
) -> None:
    records = [
        NewRecord(
            None if at % 3 else b"k%d" % at,
            None if at % 5 == 4 else b"v%d" % at,
            TIME_MS + at * 17 - 40,
            (Header("h", b"x"), Header("n", None)) if at % 7 == 1 else (),
        )
        for at in range(count)
    ]

    async def work() -> None:
        leader = Cluster().elect()
        answer = await put(leader, batch(*records, compression=compression))
        assert answer.error_code is ErrorCode.none
        found = stored(leader)
        assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in found] == [
            (r.key, r.value, r.timestamp_ms, r.headers) for r in records
        ]

    run(work())


def test_all_records_of_a_request_become_one_batch() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        start = leader.replica.log.end_offset
        await put(leader, batch(*[b"%d" % at for at in range(300)]))
        (found,) = iter_batches(leader.replica.log.read_bytes(start, 1 << 24))
        assert found.record_count == 300

    run(work())


def test_a_record_without_a_timestamp_gets_the_logs() -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        await put(leader, batch(NewRecord(None, b"x", -1), time_ms=-1))
        assert stored(leader)[0].timestamp_ms == leader.time_ms()

    run(work())


def test_an_append_is_answered_once_it_is_committed() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        for node in cluster.nodes:
            node.is_sync_held = node is not leader
        task = leader.start(ApiKey.PRODUCE, 9, produce(batch(b"x")), caller())
        await settle()
        assert not task.done()
        cluster.follower.release_syncs()
        await settle()
        answer = answer_of(task, latest_schemas.ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none

    run(work())


def test_appends_are_written_in_the_order_of_arrival() -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        leader.is_sync_held = True
        tasks = [
            leader.start(ApiKey.PRODUCE, 9, produce(batch(b"%d" % at)), caller()) for at in range(5)
        ]
        await settle()
        leader.release_syncs()
        await settle()
        found = [answer_of(task, latest_schemas.ProduceResponse, 9) for task in tasks]
        offsets = [one.responses[0].partition_responses[0].base_offset for one in found]
        assert offsets == list(range(offsets[0], offsets[0] + 5))

    run(work())


def test_appends_of_one_connection_keep_their_order_when_the_disk_is_full() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        one, other = session(), session()
        leader.disk.leave_room(4_000)

        async def ask(data: bytes, producer_id: int, connection: Session) -> ErrorCode:
            asked = produce(batch(data, producer=(producer_id, 0, 0)))
            task = leader.start(ApiKey.PRODUCE, 9, asked, connection)
            await settle()
            answer = answer_of(task, latest_schemas.ProduceResponse, 9)
            assert not is_last(task), "other requests in flight there are answered too"
            return answer.responses[0].partition_responses[0].error_code

        large = b"l" * 50_000
        assert await ask(b"before", 1, one) is ErrorCode.none
        assert await ask(large, 2, one) is ErrorCode.kafka_storage_error
        assert await ask(b"behind", 3, one) is ErrorCode.kafka_storage_error
        assert await ask(b"else", 4, other) is ErrorCode.none
        leader.disk.full_at(None)
        assert await ask(b"under way", 5, one) is ErrorCode.kafka_storage_error
        assert await ask(large, 2, one) is ErrorCode.none
        assert await ask(b"behind", 3, one) is ErrorCode.none
        found = [record.value for record in stored(leader)]
        assert found == [b"before", b"else", large, b"behind"]

    run(work())


def test_a_delayed_append_times_out_with_an_unknown_outcome() -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        leader.is_sync_held = True
        task = leader.start(ApiKey.PRODUCE, 9, produce(batch(b"x"), timeout_ms=700), caller())
        await settle()
        cluster.pass_time(600)
        await settle()
        assert not task.done()
        cluster.pass_time(600)
        await settle()
        answer = (
            answer_of(task, latest_schemas.ProduceResponse, 9).responses[0].partition_responses[0]
        )
        assert answer.error_code is ErrorCode.request_timed_out
        assert "unknown outcome" in str(refusal(answer))
        leader.release_syncs()
        assert [record.value for record in stored(leader)] == [b"x"]

    run(work())


def test_success_has_the_epoch_and_whether_it_is_a_duplicate() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        data = batch(b"x", producer=(7, 0, 0))
        first = await put(leader, data)
        again = await put(leader, data)
        assert again.error_code is ErrorCode.none
        assert again.base_offset == first.base_offset
        epoch = leader.replica.core.epoch
        appended = [parse_appended_message(one.error_message) for one in (first, again)]
        assert [(one.epoch, one.was_duplicate) for one in appended if one] == [
            (epoch, False),
            (epoch, True),
        ]
        assert len(stored(leader)) == 1

    run(work())


# --- required offsets -----------------------------------------------------------------------------


def test_of_two_rivals_with_one_required_offset_one_wins() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        epoch, end = leader.replica.core.epoch, leader.replica.log.end_offset
        won = await put(leader, batch(b"a", b"b", condition=(end, epoch)))
        lost = await put(leader, batch(b"c", condition=(end, epoch)))
        assert (won.error_code, won.base_offset) == (ErrorCode.none, end)
        assert lost.error_code is ErrorCode.invalid_update_version
        error = refusal(lost)
        assert isinstance(error, UnexpectedEndOffsetError)
        assert (error.required_base_offset, error.log_end_offset) == (end, end + 2)
        assert [record.value for record in stored(leader)] == [b"a", b"b"]

    run(work())


def test_a_base_offset_of_minus_one_requires_only_the_epoch() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        epoch = leader.replica.core.epoch
        assert (await put(leader, batch(b"a", condition=(-1, epoch)))).error_code is ErrorCode.none
        future = await put(leader, batch(b"b", condition=(-1, epoch + 1)))
        assert future.error_code is ErrorCode.unknown_leader_epoch
        assert isinstance(refusal(future), FutureEpochError)

    run(work())


def test_an_older_epoch_is_fenced() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        old_epoch = cluster.elect().replica.core.epoch
        leader = cluster.change_leader()
        answer = await put(leader, batch(b"a", condition=(-1, old_epoch)))
        assert answer.error_code is ErrorCode.fenced_leader_epoch
        error = refusal(answer)
        assert isinstance(error, NotLeaderError)
        assert (error.epoch, error.current_epoch) == (old_epoch, leader.replica.core.epoch)
        assert answer.current_leader.leader_epoch == leader.replica.core.epoch

    run(work())


@pytest.mark.parametrize("epoch", [0, -1])
def test_an_epoch_below_one_is_no_condition_whatever_the_base_offset(epoch: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        answer = await put(leader, batch(b"x", condition=(12345, epoch)))
        assert answer.error_code is ErrorCode.none

    run(work())


def test_an_empty_batch_checks_the_required_offset_and_appends_nothing() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        epoch, end = leader.replica.core.epoch, leader.replica.log.end_offset
        right = await put(leader, batch(condition=(end, epoch)))
        assert (right.error_code, right.base_offset) == (ErrorCode.none, end)
        wrong = await put(leader, batch(condition=(end - 1, epoch)))
        assert wrong.error_code is ErrorCode.invalid_update_version
        assert (await put(leader, batch(condition=(-1, epoch)))).error_code is ErrorCode.none
        assert (await put(leader, batch())).error_code is ErrorCode.invalid_record
        assert leader.replica.log.end_offset == end

    run(work())


# --- named commits --------------------------------------------------------------------------------


def named(version: int, query_id: str = "q", *more: Header) -> bytes:
    header = commit_header("app", query_id, version)
    return batch(NewRecord(None, b"v%d" % version, TIME_MS, (header, *more)), b"rest")


def test_a_named_commit_is_appended_once() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        first = await put(leader, named(1))
        again = await put(leader, named(1))
        assert (again.error_code, again.base_offset) == (ErrorCode.none, first.base_offset)
        appended = parse_appended_message(again.error_message)
        assert appended is not None
        assert appended.was_duplicate
        found = stored(leader)
        assert [record.value for record in found] == [b"v1", b"rest"]
        assert found[0].headers[0].key == "raftlog.commit"
        last = leader.replica.log.producer_state.last_commit("app")
        assert last is not None
        assert last.name == CommitName("app", "q", 1)

    run(work())


def test_an_older_or_a_foreign_commit_is_refused() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, named(2))
        stale, foreign = await put(leader, named(1)), await put(leader, named(3, "other"))
        assert stale.error_code is foreign.error_code is ErrorCode.producer_fenced
        assert isinstance(refusal(stale), StaleCommitError)
        error = refusal(foreign)
        assert isinstance(error, ForeignCommitError)
        assert (error.last_query_id, error.last_version) == ("q", 2)

    run(work())


def test_a_take_over_names_the_previous_query() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, named(2))
        taken = await put(leader, named(1, "other", Header("raftlog.take-over", b"q")))
        assert taken.error_code is ErrorCode.none
        found = stored(leader)
        assert [header.key for header in found[2].headers] == ["raftlog.commit"]

    run(work())


@pytest.mark.parametrize(
    "records",
    [
        [NewRecord(None, b"x", TIME_MS, (Header("raftlog.commit", b"no name"),))],
        [NewRecord(None, b"x", TIME_MS, (Header("raftlog.other", b""),))],
        [NewRecord(None, b"x", TIME_MS, (Header("raftlog.take-over", b"q"),))],
        [NewRecord(None, b"x", TIME_MS, (commit_header("a", "q", 1),) * 2)],
        [b"x", NewRecord(None, b"x", TIME_MS, (commit_header("a", "q", 1),))],
    ],
)
def test_headers_with_raftlogs_prefix_are_reserved(records: list[Any]) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        answer = await put(leader, batch(*records))
        assert answer.error_code is ErrorCode.invalid_record
        assert isinstance(refusal(answer), InvalidAppendError)
        assert stored(leader) == []

    run(work())


def test_a_commit_of_a_kraft_log_is_named_by_its_transaction() -> None:
    name = CommitName("app", "q", 4)
    begin = marker_value(Marker.BEGIN, commit_transaction_name(name))
    data = batch(begin, b"\x01\x0e\x00value", marker_value(Marker.END))

    async def work() -> None:
        leader = Cluster(config=LogConfig(values=ValueKind.KRAFT)).elect()
        end = leader.replica.log.end_offset
        answer = await put(leader, data)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, end)
        last = leader.replica.log.producer_state.last_commit("app")
        assert last is not None
        assert (last.name, last.base_offset, last.last_offset) == (name, end, end + 2)
        assert (await put(leader, data)).base_offset == end
        half = batch(begin, b"\x01\x0e\x00value")
        assert (await put(leader, half)).error_code is ErrorCode.invalid_record
        header = batch(NewRecord(None, b"\x01\x0e\x00v", TIME_MS, (commit_header("a", "q", 1),)))
        assert (await put(leader, header)).error_code is ErrorCode.invalid_record

    run(work())


@pytest.mark.parametrize(
    ("values", "good", "bad"),
    [
        (ValueKind.MSGPACK, b"\x93\x01\x02\xa1x", b"\x01"),
        (ValueKind.KRAFT, b"\x01\x0e\x00value", b"\x07\x00\x00"),
    ],
)
def test_a_log_accepts_only_values_of_its_format(
    values: ValueKind, good: bytes, bad: bytes
) -> None:
    async def work() -> None:
        leader = Cluster(config=LogConfig(values=values)).elect()
        assert (await put(leader, batch(good, good))).error_code is ErrorCode.none
        answer = await put(leader, batch(good, bad))
        assert answer.error_code is ErrorCode.invalid_record
        assert "the record at index 1 is invalid" in str(refusal(answer))
        assert [record.value for record in stored(leader)] == [good, good]

    run(work())


MANY = [NewRecord(b"k", b"%d" % at, TIME_MS + at) for at in range(300)]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.SNAPPY])
def test_a_commit_of_many_records_is_also_named_by_its_first_record(
    compression: Compression,
) -> None:
    user = Header("mine", b"x")
    headers = (commit_header("app", "q", 1), user)
    records = [NewRecord(b"k", b"0", TIME_MS, headers), *MANY[1:]]

    async def work() -> None:
        leader = Cluster().elect()
        first = await put(leader, batch(*records, compression=compression))
        assert first.error_code is ErrorCode.none
        assert (await put(leader, batch(*records))).base_offset == first.base_offset
        found = stored(leader)
        assert found[0].headers == headers
        assert [(one.key, one.value, one.timestamp_ms) for one in found] == [
            (one.key, one.value, one.timestamp_ms) for one in MANY
        ]
        taken = (commit_header("app", "p", 1), Header("raftlog.take-over", b"q"), user)
        over = [NewRecord(b"k", b"0", TIME_MS, taken), *MANY[1:]]
        assert (await put(leader, batch(*over))).error_code is ErrorCode.none
        assert stored(leader)[300].headers == (taken[0], user)

    run(work())


@pytest.mark.parametrize(
    "headers",
    [(Header("raftlog.x", b""),), (Header("h", b""), commit_header("a", "q", 1))],
)
@pytest.mark.parametrize("place", [0, 1, 299])
def test_raftlogs_headers_are_found_among_many(headers: tuple[Header, ...], place: int) -> None:
    records = list(MANY)
    records[place] = NewRecord(None, b"x", TIME_MS, headers)

    async def work() -> None:
        leader = Cluster().elect()
        answer = await put(leader, batch(*records))
        is_named = place == 0 and len(headers) == 2
        assert (answer.error_code is ErrorCode.none) is is_named
        if not is_named:
            assert isinstance(refusal(answer), InvalidAppendError)

    run(work())


def test_timestamps_and_values_of_many_records_are_checked() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, batch(*MANY[1:], NewRecord(None, b"now", -1)))
        assert stored(leader)[-1].timestamp_ms == leader.time_ms()
        old = await put(leader, batch(*MANY, NewRecord(None, b"x", -2)))
        assert old.error_code is ErrorCode.invalid_record
        msgpack_log = Cluster(config=LogConfig(values=ValueKind.MSGPACK)).elect()
        good = [NewRecord(None, b"\x93\x01\x02\xa1x", TIME_MS)] * 100
        assert (await put(msgpack_log, batch(*good))).error_code is ErrorCode.none
        bad = await put(msgpack_log, batch(*good, b"\x01"))
        assert "the record at index 100 is invalid" in str(refusal(bad))
        assert len(stored(msgpack_log)) == 100

    run(work())


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_malformed_records_under_a_valid_crc_are_refused(
    compression: Compression,
) -> None:
    plain = batch(*MANY)
    garbled = plain[:61] + bytes(reversed(plain[61:]))
    if compression is not Compression.NONE:
        packed = compress(garbled[61:], compression)
        length = (len(packed) + 49).to_bytes(4, "big")
        garbled = garbled[:8] + length + garbled[12:61] + packed

    async def work() -> None:
        leader = Cluster().elect()
        answer = await put(leader, with_attributes(garbled, compression))
        assert answer.error_code is ErrorCode.invalid_record
        assert stored(leader) == []

    run(work())


# --- producers ------------------------------------------------------------------------------------


def test_sequences_are_checked() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        assert (await put(leader, batch(b"a", b"b", producer=(9, 0, 0)))).error_code == 0
        gap = await put(leader, batch(b"d", producer=(9, 0, 3)))
        assert gap.error_code is ErrorCode.out_of_order_sequence_number
        assert (await put(leader, batch(b"c", producer=(9, 0, 2)))).error_code == 0
        assert (await put(leader, batch(b"e", producer=(9, 1, 0)))).error_code == 0
        old = await put(leader, batch(b"f", producer=(9, 0, 3)))
        assert old.error_code is ErrorCode.invalid_producer_epoch

    run(work())


def test_a_duplicate_waits_for_the_first_append() -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        leader.is_sync_held = True
        request = produce(batch(b"a", producer=(9, 0, 0)))
        tasks = [leader.start(ApiKey.PRODUCE, 9, request, caller()) for _ in range(2)]
        await settle()
        assert not any(task.done() for task in tasks)
        leader.release_syncs()
        await settle()
        answers = [answer_of(task, latest_schemas.ProduceResponse, 9) for task in tasks]
        offsets = {one.responses[0].partition_responses[0].base_offset for one in answers}
        assert len(offsets) == 1

    run(work())


# --- refused batches ------------------------------------------------------------------------------


def damaged() -> bytes:
    data = bytearray(batch(b"hello"))
    data[-1] ^= 1
    return bytes(data)


def test_damage_is_a_corrupt_message_which_is_retriable() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        assert (await put(leader, damaged())).error_code is ErrorCode.corrupt_message
        control = batch(b"hello")[:22] + b"\x20" + batch(b"hello")[23:]
        assert (await put(leader, control)).error_code is ErrorCode.corrupt_message
        empty = batch(condition=(-1, 1))[:-1] + b"\x01"
        assert (await put(leader, empty)).error_code is ErrorCode.corrupt_message
        cut = await put(leader, batch(b"hello")[:-1])
        assert cut.error_code is ErrorCode.corrupt_message

    run(work())


GARBLED = batch(b"hello")[:61] + b"\x40garbage"


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        batch(b"a") + batch(b"b"),
        with_attributes(batch(b"a"), 0x10),
        with_attributes(batch(b"a"), 0x20),
        with_attributes(batch(b"a"), 0x40),
        with_attributes(batch(b"a"), 0x07),
        with_attributes(batch(b"a"), 0x01),
        batch(b"a", timestamp_type=TimestampType.LOG_APPEND_TIME),
        batch(b"a", last_offset_delta=5),
        batch(b"a", producer=(5, -1, -1)),
        batch(b"a", producer=(5, 0, -1)),
        batch(b"a", condition=(-7, 3)),
        batch(NewRecord(None, b"a", -5)),
        batch(b"a")[:16] + b"\x01" + batch(b"a")[17:],
        bytes(14) + b"\x00\x00\x00\x01",
    ],
    ids=lambda data: "nothing" if data is None else str(len(data)),
)
def test_an_error_that_no_retry_resolves_is_an_invalid_record(data: bytes | None) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        answer = await put(leader, data)
        assert answer.error_code is ErrorCode.invalid_record
        assert isinstance(refusal(answer), InvalidAppendError)
        assert answer.base_offset == -1
        assert stored(leader) == []

    run(work())


def test_a_batch_has_the_logs_limit_compressed_or_not() -> None:
    async def work() -> None:
        leader = Cluster(config=LogConfig(batch_bytes_max=2048)).elect()
        large = await put(leader, batch(bytes(4096)))
        assert large.error_code is ErrorCode.message_too_large
        packed = batch(bytes(4096), compression=Compression.GZIP)
        assert len(packed) < 2048
        assert (await put(leader, packed)).error_code is ErrorCode.message_too_large
        bomb = batch(bytes(40_000_000), compression=Compression.ZSTD)
        assert len(bomb) < 8192
        assert (await put(leader, bomb)).error_code is ErrorCode.message_too_large
        roomy = Cluster(
            config=LogConfig(batch_bytes_max=2048, compression=Compression.ZSTD)
        ).elect()
        assert (await put(roomy, packed)).error_code is ErrorCode.none

    run(work())


def test_a_batch_is_bounded_before_compression_in_every_log() -> None:
    config = LogConfig(batch_bytes_max=LOG_BATCH_BYTES_MAX, compression=Compression.ZSTD)
    bomb = batch(bytes(RAW_BATCH_BYTES_MAX), compression=Compression.ZSTD)
    with pytest.raises(RecordBatchTooLargeError):
        produced_records(bomb, read_header(bomb, byte_count_max=2**20), config)


def test_a_batch_with_a_timestamp_in_the_far_future_has_kafkas_error() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        many = [NewRecord(None, b"v", TIME_MS)] * 100
        for records in ([], many):
            late = NewRecord(None, b"v", TIME_MS + 10_000_000)
            answer = await put(leader, batch(*records, late))
            assert answer.error_code is ErrorCode.invalid_timestamp
            assert isinstance(refusal(answer), InvalidTimestampError)
        assert stored(leader) == []

    run(work())


def test_zstd_is_refused_in_versions_that_do_not_support_it() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        data = batch(b"a", compression=Compression.ZSTD)
        old = await put(leader, data, 6)
        assert old.error_code is ErrorCode.unsupported_compression_type
        assert (await put(leader, data, 7)).error_code is ErrorCode.none

    run(work())


@pytest.mark.parametrize(
    ("more", "version", "error"),
    [
        ({"acks": 2}, 9, ErrorCode.invalid_required_acks),
        ({"topic": "others"}, 9, ErrorCode.unknown_topic_or_partition),
        ({"partition": 1}, 9, ErrorCode.unknown_topic_or_partition),
        ({"topic_id": "AAAAAAAAAAAAAAAAAAAAaQ"}, 13, ErrorCode.unknown_topic_id),
        ({"partition": 1}, 13, ErrorCode.unknown_topic_or_partition),
        ({"transactional_id": "t"}, 9, ErrorCode.unsupported_version),
    ],
)
def test_requests_for_other_partitions_are_refused(
    more: dict[str, Any], version: int, error: ErrorCode
) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        assert (await put(leader, batch(b"a"), version, **more)).error_code is error
        assert stored(leader) == []

    run(work())


def test_a_client_without_the_right_to_append_appends_nothing() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        principal = caller(Rights.READ | Rights.DESCRIBE | Rights.ADMIN)
        answer = await leader.ask_client(
            ApiKey.PRODUCE, 9, produce(batch(b"a")), latest_schemas.ProduceResponse, principal
        )
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code is ErrorCode.topic_authorization_failed
        assert stored(leader) == []

    run(work())


@pytest.mark.parametrize("version", [9, 10, 13])
def test_a_follower_names_the_leader(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        answer = await cluster.follower.ask_client(
            ApiKey.PRODUCE, version, produce(batch(b"a")), latest_schemas.ProduceResponse
        )
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code is ErrorCode.not_leader_or_follower
        if version >= 10:
            assert partition.current_leader.leader_id == leader.node_id
            assert partition.current_leader.leader_epoch == leader.replica.core.epoch
            (endpoint,) = answer.node_endpoints
            assert (endpoint.node_id, endpoint.host) == (
                leader.node_id,
                f"node{leader.node_id}.public",
            )

    run(work())


def test_appends_of_a_replaced_leader_have_an_unknown_outcome() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        leader.is_cut_off = True
        request = produce(batch(b"x"), timeout_ms=60_000)
        task = leader.start(ApiKey.PRODUCE, 13, request, caller())
        await settle()
        for _ in range(100):
            cluster.pass_time(100)
            if cluster.leader is not leader:
                break
        leader.is_cut_off = False
        cluster.pass_time(5_000)
        await settle()
        answer = (
            answer_of(task, latest_schemas.ProduceResponse, 13).responses[0].partition_responses[0]
        )
        assert answer.error_code is ErrorCode.request_timed_out
        assert all(stored(node) == [] for node in cluster.nodes)

    run(work())


# --- acks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_affect_only_the_response(acks: int) -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        leader.is_sync_held = True
        task = leader.start(ApiKey.PRODUCE, 9, produce(batch(b"x"), acks=acks), caller())
        await settle()
        assert not task.done()
        leader.release_syncs()
        await settle()
        assert (task.result() is None) is (acks == 0)

    run(work())


def test_a_failed_append_with_acks_0_closes_the_connection() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        task = leader.start(ApiKey.PRODUCE, 9, produce(damaged(), acks=0), caller())
        await asyncio.wait([task])
        assert isinstance(task.exception(), UnacknowledgedAppendError)

    run(work())
