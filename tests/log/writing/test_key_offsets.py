"""Conditions on keys are exact where the range decides, and refused where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    begin_next_epoch,
    created_log,
    created_replica,
    disk_with_parent,
)
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from raftlog.append import AppendBatch, AppendRequest, AppendResult, Done, Failed, RequestResult
from raftlog.errors import KeyChangedError, LogError, UnexpectedEndOffsetError
from raftlog.log.writing.key_offsets import (
    KeyOffsets,
    UnchangedKeys,
    parse_unchanged_header,
)
from raftlog.log.writing.properties import CleanupPolicy, LogConfig
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.records.builder import ProducerStamp
from raftlog.records.compression import Compression
from raftlog.records.record import NewRecord
from raftlog.types import OffsetAndEpoch

KEYS = [b"a", b"b", b"c", b"d" * 40]


class WrittenLog:
    """Batches in memory, and what is known of their keys by reading all of them."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.end_offset = 0
        self.records: list[tuple[int, bytes, bool]] = []

    def append(self, *records: NewRecord, compression: Compression = Compression.NONE) -> None:
        new = NewRecordBatch(records=records, base_timestamp_ms=1, compression=compression)
        data = encode_batch(new, base_offset=self.end_offset, leader_epoch=1)
        self.batches.append((self.end_offset, data))
        for offset, one in enumerate(records, self.end_offset):
            if one.key is not None:
                self.records.append((offset, one.key, one.value is None))
        self.end_offset += len(records)

    def last(self, key: bytes, end_offset: int) -> int | None:
        """Return the offset of the key's last record below an end, None if it has no value."""
        found = [one for one in self.records if one[0] < end_offset and one[1] == key]
        return found[-1][0] if found and not found[-1][2] else None

    def is_unchanged(self, unchanged: UnchangedKeys) -> bool:
        """Return whether the log has no record of the keys since the writer has read them."""
        return all(
            not any(
                one[1] == key and one[0] >= (unchanged.since if offset is None else offset + 1)
                for one in self.records
            )
            for key, offset in unchanged.offsets.items()
        )

    def read(self, offset: int, byte_count_max: int) -> bytes:
        at = next(at for at, one in enumerate(self.batches) if one[0] == offset)
        data = self.batches[at][1]
        for _, more in self.batches[at + 1 :]:
            if len(data) + len(more) > byte_count_max:
                return data + more[: max(byte_count_max - len(data), 0)]
            data += more
        return data

    def base_offset_at(self, offset: int) -> int:
        return max(one[0] for one in self.batches if one[0] <= offset)


def drawn_records(rng: Random) -> list[NewRecord]:
    return [
        NewRecord(rng.choice([*KEYS, None]), rng.choice([b"", b"v" * 30, None]))
        for _ in range(rng.choice((1, 1, 2, 6)))
    ]


def refusal(
    keys: KeyOffsets, unchanged: UnchangedKeys
) -> KeyChangedError | UnexpectedEndOffsetError | None:
    try:
        keys.check(unchanged, 1)
    except (KeyChangedError, UnexpectedEndOffsetError) as error:
        return error
    return None


@pytest.mark.parametrize("seed", range(40))
def test_a_random_history_accepts_unchanged_keys_only(seed: int) -> None:
    """Writers have read the log up to some end; ranges of a few keys are evicted and restarted."""
    rng = Random(seed)
    log = WrittenLog()
    keys = KeyOffsets(
        "log",
        log.read,
        log.base_offset_at,
        byte_count_max=rng.choice((300, 600, 10_000)),
        scan_bytes_max=rng.choice((120, 400, 10_000)),
    )
    outcomes = {"accepted": 0, "changed": 0, "unknown": 0}
    refused: list[UnchangedKeys] = []
    for _ in range(300):
        codec = rng.choice((Compression.NONE, Compression.GZIP))
        if rng.random() < 0.6:
            log.append(*drawn_records(rng), compression=codec)
            continue
        since = rng.choice((log.end_offset, rng.randrange(log.end_offset + 1)))
        some = rng.sample(KEYS, rng.randrange(1, 4))
        unchanged = UnchangedKeys({key: log.last(key, since) for key in some}, since)
        if all(one is not None for one in unchanged.offsets.values()) and rng.random() < 0.3:
            unchanged = UnchangedKeys(unchanged.offsets)
        if refused and rng.random() < 0.3:
            unchanged = rng.choice(refused)  # a retry
        floor = rng.choice((0, 0, log.base_offset_at(since) if log.batches else 0))
        keys.follow(floor, log.end_offset)
        assert keys.end_offset == log.end_offset
        error = refusal(keys, unchanged)
        if error is None:
            outcomes["accepted"] += 1
            assert log.is_unchanged(unchanged), unchanged
            assert unchanged not in refused, "a refusal is final"
            continue
        refused.append(unchanged)
        if isinstance(error, KeyChangedError):
            outcomes["changed"] += 1
            assert not log.is_unchanged(unchanged), unchanged
            assert error.offset in [log.last(key, log.end_offset) for key in unchanged.offsets]
        else:
            outcomes["unknown"] += 1
            assert error.log_end_offset == log.end_offset
            assert unchanged.since != log.end_offset, "the writer has read everything"
    assert outcomes["accepted"] > 10, outcomes
    assert outcomes["changed"] + outcomes["unknown"] > 10, outcomes


def test_an_end_that_the_log_does_not_have_is_refused_as_a_longer_log() -> None:
    keys = KeyOffsets("log", lambda *_: b"", lambda offset: offset)
    with pytest.raises(UnexpectedEndOffsetError) as caught:
        keys.check(UnchangedKeys({b"a": None}, 5), 1)
    assert caught.value.required_base_offset == 5
    with pytest.raises(UnexpectedEndOffsetError) as caught:
        keys.check(UnchangedKeys({b"a": 7}, 0), 1)
    assert caught.value.required_base_offset == 8


def test_a_damaged_log_is_unknown() -> None:
    log = WrittenLog()
    log.append(NewRecord(b"a", b"1"))
    log.append(NewRecord(b"b", b"1"))
    base_offset, data = log.batches[1]
    log.batches[1] = base_offset, data[:-1] + bytes((data[-1] ^ 1,))
    keys = KeyOffsets("log", log.read, log.base_offset_at)
    keys.follow(0, log.end_offset)
    assert keys.start_offset == keys.end_offset == 2
    with pytest.raises(UnexpectedEndOffsetError):
        keys.check(UnchangedKeys({b"a": 0}), 1)


def test_a_check_decompresses_as_much_as_it_reads() -> None:
    """A log of well compressed batches would keep a leader from its followers for seconds."""
    log = WrittenLog()
    for start_offset, end_offset in ((0, 1), (0, 2), (3, 3)):
        log.append(NewRecord(b"a", bytes(600)), compression=Compression.GZIP)
        keys = KeyOffsets("log", log.read, log.base_offset_at, scan_bytes_max=1_500)
        keys.follow(0, end_offset)
        assert (keys.start_offset, keys.end_offset) == (start_offset, end_offset)
        assert len(keys) == (start_offset < end_offset)


# --- Headers --------------------------------------------------------------------------------------


def test_a_header_has_the_condition() -> None:
    unchanged = UnchangedKeys({b"a": 7, bytes(range(256)): None}, 2**40)
    header = unchanged.header()
    assert (header.key, parse_unchanged_header(header.value)) == ("raftlog.unchanged", unchanged)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xc0",
        bytes.fromhex("920080"),  # no keys
        bytes.fromhex("92ff81c4016100"),  # since -1
        bytes.fromhex("920081c40161ff"),  # offset -1
        bytes.fromhex("920081c40161c3"),  # offset true
        bytes.fromhex("920081a16100"),  # a key of text
        bytes.fromhex("9200810100"),  # a key that is a number
        bytes.fromhex("9200819000"),  # a key that is an array
        bytes.fromhex("9200818000"),  # a key that is a map
        bytes.fromhex("930081c401610000"),  # three fields
        bytes.fromhex("9200dfffffffff"),  # more keys than bytes
        b"\x92" * 5000,
    ],
)
def test_invalid_headers_are_no_condition(value: bytes | None) -> None:
    assert parse_unchanged_header(value) is None


# --- Logs -----------------------------------------------------------------------------------------


def put(key: bytes, value: bytes | None, unchanged: UnchangedKeys | None = None) -> AppendRequest:
    return AppendRequest(records=(NewRecord(key, value),), unchanged=unchanged, deadline_ms=0)


def results_of(log: ReplicatedLog, *requests: AppendRequest) -> list[RequestResult]:
    group = AppendBatch(log, NOW_MS)
    results = [group.process(one) for one in requests]
    group.write()
    log.flush()
    return results


def shown(results: Sequence[RequestResult]) -> list[int | type[LogError]]:
    """Return the base offset of each append, or its error."""
    found: list[int | type[LogError]] = []
    for one in results:
        if isinstance(one, Failed):
            assert isinstance(one.error, LogError)
            found.append(type(one.error))
        else:
            assert isinstance(one, Done)
            assert isinstance(one.value, AppendResult)
            found.append(one.value.base_offset)
    return found


def test_appends_of_one_group_are_compared_with_those_before_them() -> None:
    log = created_log(disk_with_parent())
    results = results_of(
        log,
        put(b"a", b"1"),
        put(b"b", b"1"),
        put(b"a", b"2", UnchangedKeys({b"a": 1, b"c": None}, since=1)),
        put(b"a", b"3", UnchangedKeys({b"a": 1})),
        put(b"b", b"2", UnchangedKeys({b"b": 2, b"c": None}, since=1)),
        put(b"b", b"3", UnchangedKeys({b"b": 4, b"a": 3})),
    )
    assert shown(results) == [1, 2, 3, KeyChangedError, 4, 5]


def test_a_retry_has_the_result_of_the_first_append() -> None:
    log = created_log(disk_with_parent())
    request = AppendRequest(
        records=(NewRecord(b"a", b"1"),),
        unchanged=UnchangedKeys({b"a": None}, since=1),
        producer=ProducerStamp(7, 0, 0),
        deadline_ms=0,
    )
    assert shown(results_of(log, request, put(b"a", b"2"), request)) == [1, 2, 1]


def test_a_new_leader_refuses_what_was_read_before_its_epoch_once() -> None:
    """Its replica may have fetched batches that another leader had compacted."""
    log = created_replica(disk_with_parent())
    assert shown(results_of(log, put(b"a", b"1"), put(b"b", b"1"))) == [1, 2]
    assert shown(results_of(log, put(b"a", b"2", UnchangedKeys({b"a": 1})))) == [3]
    begin_next_epoch(log)
    results = results_of(
        log,
        put(b"b", b"2", UnchangedKeys({b"b": 2})),
        put(b"b", b"2", UnchangedKeys({b"b": 2}, since=5)),
        put(b"b", b"3", UnchangedKeys({b"b": 2}, since=5)),
    )
    assert shown(results) == [UnexpectedEndOffsetError, 5, KeyChangedError]


def test_truncated_records_change_no_key() -> None:
    log = created_replica(disk_with_parent())
    assert shown(results_of(log, put(b"a", b"1"))) == [1]
    begin_next_epoch(log)
    since = log.end_offset
    condition = UnchangedKeys({b"a": 1}, since)
    results = results_of(log, put(b"a", b"2", condition), put(b"a", b"3", condition))
    assert shown(results) == [since, KeyChangedError]
    log.truncate_to_end_of_epoch(OffsetAndEpoch(offset=since, epoch=log.epoch))
    assert log.end_offset == since
    assert shown(results_of(log, put(b"a", b"3", condition))) == [since]


def test_a_key_whose_record_is_deleted_before_the_log_start_has_none() -> None:
    """A new table does not have the key, and its writer could never create it."""
    log = created_log(disk_with_parent(), config=LogConfig(segment_bytes=300))
    results_of(log, put(b"a", b"1"), put(b"b", b"1", UnchangedKeys({b"d": None}, since=1)))
    for _ in range(9):
        results_of(log, put(b"c", bytes(100), UnchangedKeys({b"d": None}, since=1)))
    log.delete_records(log.end_offset - 2, now_ms=NOW_MS)
    end_offset = log.end_offset
    assert log.log_start_offset > 2
    results = results_of(
        log,
        put(b"a", b"2", UnchangedKeys({b"a": None}, since=end_offset)),
        put(b"a", b"3", UnchangedKeys({b"a": None}, since=end_offset)),
        put(b"b", b"2", UnchangedKeys({b"b": 2}, since=end_offset)),  # read before the deletion
        put(b"b", b"3", UnchangedKeys({b"b": 2})),
    )
    assert shown(results) == [end_offset, KeyChangedError, end_offset + 1, KeyChangedError]


def test_tombstones_that_a_compaction_has_dropped_are_not_overlooked() -> None:
    """Key a is deleted at offset 3, and its tombstone is dropped: only a writer that has read up to
    what was compacted may compare it."""
    config = LogConfig(
        segment_bytes=300,
        cleanup_policy=CleanupPolicy.COMPACT,
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=0,
    )
    disk = disk_with_parent()
    log = created_log(disk, config=config)
    results_of(log, put(b"a", b"1"), put(b"b", b"1"), put(b"a", None))
    for at in range(20):
        results_of(log, put(b"c", b"%d" % at))
    for now_ms in (NOW_MS + 1_000, NOW_MS + 2_000):
        compaction = log.begin_compaction(now_ms=now_ms)
        if compaction is None:
            continue
        with compaction:
            compaction.run()
            log.complete_compaction(compaction)
        results_of(log, put(b"c", b"more"), put(b"c", b"more"), put(b"c", b"more"))
    again = type(log).open(disk.another_process(), DIRECTORY, now_ms=NOW_MS)
    kept = [one.key for one in stored(again) if one.key in (b"a", b"b")]
    assert kept == [b"b"], "the tombstone is dropped"
    end_offset = again.end_offset
    results = results_of(
        again,
        put(b"a", b"2", UnchangedKeys({b"a": 1})),
        put(b"a", b"2", UnchangedKeys({b"a": None}, since=end_offset)),
        put(b"b", b"2", UnchangedKeys({b"b": 2}, since=end_offset)),
    )
    assert shown(results) == [UnexpectedEndOffsetError, end_offset, end_offset + 1]


def stored(log: ReplicatedLog) -> list[NewRecord]:
    found = []
    for batch in log._segments.batches(log.log_start_offset, log.end_offset):
        if not batch.is_control:
            found += [NewRecord(one.key, one.value) for one in batch.stored_records()]
    return found
