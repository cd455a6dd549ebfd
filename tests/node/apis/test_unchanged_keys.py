"""Conditions on keys in a header of a produced batch, as stock clients can send them."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raftlog.append import AppendRequest, Failed, RequestResult
from raftlog.errors import InvalidAppendError, KeyChangedError, NotLeaderError, RaftlogError
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.key_offsets import UnchangedKeys
from raftlog.log.writing.properties import LogConfig
from raftlog.node.access import AccessTable
from raftlog.records.batch import Compression, Header, NewRecord, iter_batches
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.produce_codec import parse_error_message

from .batches import batch, commit_header, produce
from .cluster import TIME_MS, Cluster, Node, run, settle
from .test_commit_owners import principal

TABLE = AccessTable(read=("reader", "both"), append=("writer", "both"), nodes={1: "node-1.example"})


def keyed(
    key: bytes,
    value: bytes | None,
    unchanged: dict[bytes, int | None],
    since: int = 0,
    more: tuple[Header, ...] = (),
) -> NewRecord:
    headers = (*more, UnchangedKeys(unchanged, since).header(), Header("user", b"1"))
    return NewRecord(key, value, TIME_MS, headers)


async def put(node: Node, *records: NewRecord, caller: Any = None, **more: Any) -> Any:
    answer = await node.ask_client(
        ApiKey.PRODUCE, 13, produce(batch(*records, **more)), latest_schemas.ProduceResponse, caller
    )
    return answer.responses[0].partition_responses[0]


def refusal(partition: Any) -> RaftlogError:
    found = parse_error_message(partition.error_message)
    assert found is not None
    return found


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("count", [1, 100])
def test_a_header_is_a_condition_and_is_not_stored(compression: Compression, count: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        log = leader.replica.log
        start = log.end_offset
        others = [NewRecord(b"c", b"1", TIME_MS)] * (count - 1)
        first = keyed(b"a", b"1", {b"a": None, b"b": None}, start)
        done = await put(leader, first, *others, compression=compression)
        assert (done.error_code, done.base_offset) == (ErrorCode.none, start)
        for one in iter_batches(log.read_bytes(start, 1 << 20)):
            names = [header.key for record in one.records() for header in record.headers]
            assert names == ["user"]
        refused = await put(leader, keyed(b"a", b"2", {b"a": None}, start), compression=compression)
        error = refusal(refused)
        assert isinstance(error, KeyChangedError)
        assert (error.expected_offset, error.offset) == (None, start)
        done = await put(leader, keyed(b"a", None, {b"a": start, b"b": None}, start))
        assert done.base_offset == start + count
        named = keyed(b"b", b"1", {b"a": start}, more=(commit_header("app", "q", 1),))
        assert isinstance(refusal(await put(leader, named)), KeyChangedError)

    run(work())


@pytest.mark.parametrize("value", [None, b"", b"\xc0"])
def test_an_invalid_condition_is_refused(value: bytes | None) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        before = leader.replica.log.end_offset
        record = NewRecord(b"a", b"1", TIME_MS, (Header("raftlog.unchanged", value),))
        error = refusal(await put(leader, record))
        assert isinstance(error, InvalidAppendError)
        assert "raftlog.unchanged" in error.reason
        twice = UnchangedKeys({b"a": 1}).header()
        record = NewRecord(b"a", b"1", TIME_MS, (twice, twice))
        assert isinstance(refusal(await put(leader, record)), InvalidAppendError)
        assert leader.replica.log.end_offset == before

    run(work())


def test_a_log_without_keys_has_no_such_conditions() -> None:
    async def work() -> None:
        leader = Cluster(config=LogConfig(values=ValueKind.KRAFT)).elect()
        header = UnchangedKeys({b"a": 1}).header()
        record = NewRecord(None, b"\x01\x02\x00", TIME_MS, (header,))
        error = refusal(await put(leader, record))
        assert isinstance(error, InvalidAppendError)

    run(work())


def test_only_principals_that_may_read_learn_whether_a_key_has_changed() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        record = keyed(b"a", b"1", {b"a": None}, leader.replica.log.end_offset)
        refused = await put(leader, record, caller=principal("writer", TABLE))
        assert refused.error_code is ErrorCode.topic_authorization_failed
        assert "may not read the log" in refused.error_message
        done = await put(leader, record, caller=principal("both", TABLE))
        assert done.error_code is ErrorCode.none

    run(work())


def test_a_refusal_by_records_that_are_not_committed_waits_for_them() -> None:
    """A leader that is cut off refuses nothing: its records may never be committed."""

    async def work() -> None:
        cluster = Cluster(3)
        old = cluster.elect()
        old.is_cut_off = True
        end_offset = old.replica.log.end_offset
        results: list[RequestResult] = []
        for value in (b"1", b"2"):
            request = AppendRequest(
                records=(NewRecord(b"a", value),),
                unchanged=UnchangedKeys({b"a": None}, end_offset),
                deadline_ms=1e12,
            )
            old.raft_node.append(request, results.append)
        await settle()
        assert not results
        cluster.pass_time(6_000)
        await settle()
        assert len(results) == 2
        (refused,) = [one for one in results if isinstance(one, Failed)][1:]
        assert isinstance(refused.error, NotLeaderError)

    run(work())
