"""Offsets, groups and transactions of a real node, as its admin client saw them."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.internal_records import GROUPS_NODE, InternalLogFile

from raftlog.client import Isolation, LogKind, open_path
from raftlog.errors import CorruptBatchError
from raftlog.records import iter_batches
from raftlog_state.errors import ReplayError
from raftlog_state.image import MetadataImage
from raftlog_state.image.rows import ConsumerOffsetRow, Entity, PendingOffsetRow
from raftlog_state.internal.group_replay import InternalRecord
from raftlog_state.internal.loader import InternalLoader, InternalState
from raftlog_state.internal.rows import ROW_KINDS
from raftlog_state.records import Message, Redactor
from raftlog_state.records.internal_logs import GROUP_RECORDS, TRANSACTION_RECORDS
from raftlog_state.records.keyed_serde import KeyedRecord
from raftlog_state.records.schema_coordinators import TransactionLogKey, TransactionLogValue
from raftlog_state.records.schema_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from raftlog_state.records.schema_streams import (
    AssignedTasks,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
)

SHOWN = Redactor()


def rows_of(kind: str, *paths: Path, redactor: Redactor = SHOWN) -> list[dict[str, Any]]:
    """Return the rows of partitions, by default of those of the bundled node."""
    found = ROW_KINDS[kind]
    partitions = []
    for path in paths or sorted(GROUPS_NODE.glob(f"{found.topic}-*")):
        log = open_path(str(path), kind=LogKind.PARTITION)
        partitions.append(InternalState(found.topic, redactor))
        end_offset = log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset
        partitions[-1].read(log, end_offset)
    return found.rows(partitions)


@pytest.fixture(scope="module")
def admin() -> dict[str, Any]:
    seen: dict[str, Any] = json.loads((GROUPS_NODE.parent / "admin.json").read_text())
    return seen


def test_committed_offsets_are_those_of_the_admin_client(admin: dict[str, Any]) -> None:
    found = rows_of("consumer_offsets")
    by_group: dict[str, list[Any]] = {}
    for row in found:
        by_group.setdefault(row["group"], []).append(
            [row["topic"], row["partition"], row["offset"], row["metadata"]]
        )
    assert by_group == {group: sorted(one) for group, one in admin["offsets"].items()}
    assert [row["group"] for row in found] == sorted(row["group"] for row in found)


def test_groups_and_members_are_those_of_the_admin_client(admin: dict[str, Any]) -> None:
    found = rows_of("groups")
    assert {
        row["group"]: [row["type"].capitalize(), row["protocol_type"], row["state"]]
        for row in found
    } == admin["groups"]
    for row in found:
        if row["group"] in admin["members"]:
            assert [
                [one["member_id"], one["instance_id"] or "", one["client_id"], one["client_host"]]
                for one in row["members"]
            ] == [one[:4] for one in admin["members"][row["group"]]]
            assigned = [one["partitions"] for one in row["members"][0]["assignment"]]
            assert assigned == [[0, 1, 2]]
    shared = next(row for row in found if row["group"] == "shared")
    assert [one["client_id"] for one in shared["members"]] == ["four"]


def test_transactions_are_those_of_the_admin_client(admin: dict[str, Any]) -> None:
    found = rows_of("transactions")
    assert {row["transactional_id"]: [row["producer_id"], row["state"]] for row in found} == admin[
        "transactions"
    ]
    hanging = next(row for row in found if row["state"] == "Ongoing")
    assert "bills-0" in hanging["partitions"]
    assert hanging["start_timestamp_ms"] > 0


def test_the_open_transaction_is_no_committed_offset() -> None:
    (pending,) = rows_of("pending_offsets")
    assert (pending["group"], pending["topic"], pending["offset"]) == ("atomic", "orders", 99)
    assert pending["producer_id"] in {row["producer_id"] for row in rows_of("transactions")}
    assert 99 not in {row["offset"] for row in rows_of("consumer_offsets")}


def test_full_redaction_hides_hosts_and_metadata() -> None:
    kinds = ("groups", "consumer_offsets", "pending_offsets")
    shown = str([rows_of(kind) for kind in kinds])
    hidden = str([rows_of(kind, redactor=Redactor(full=True)) for kind in kinds])
    for text in ("/127.0.0.1", "note of orders-0"):
        assert text in shown
        assert text not in hidden


# --- Rows of single records -----------------------------------------------------------------------


def written(path: Path, *records: tuple[Message, Message]) -> Path:
    log = InternalLogFile(path)
    serde = TRANSACTION_RECORDS if "transaction" in path.name else GROUP_RECORDS
    log.append(*[serde.encode(KeyedRecord(key, value, None)) for key, value in records])
    return log.path


def test_of_a_legacy_commit_and_a_later_one_the_later_is_the_offset(tmp_path: Path) -> None:
    place: dict[str, Any] = {"group": "g", "topic": "t", "partition": 1}
    old = LegacyOffsetCommitKey(**place), LegacyOffsetCommitValue(offset=5, metadata="old")
    new = OffsetCommitKey(**place), OffsetCommitValue(offset=6)
    (row,) = rows_of("consumer_offsets", written(tmp_path / "__consumer_offsets-0", old, new))
    assert (row["offset"], row["leader_epoch"]) == (6, None)
    (row,) = rows_of("consumer_offsets", written(tmp_path / "__consumer_offsets-1", new, old))
    assert (row["offset"], row["metadata"]) == (5, "old")


@pytest.mark.parametrize(
    ("member_epoch", "member_state", "target_epoch", "state"),
    [
        (4, 0, 4, "Stable"),
        (3, 0, 4, "Reconciling"),
        (4, 1, 4, "Reconciling"),
        (3, 0, 3, "Assigning"),
    ],
)
def test_the_state_of_a_consumer_group_is_derived_as_by_the_coordinator(
    member_epoch: int, member_state: int, target_epoch: int, state: str, tmp_path: Path
) -> None:
    member: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    found = written(
        tmp_path / "__consumer_offsets-0",
        (ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=4)),
        (
            ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=target_epoch),
        ),
        (ConsumerGroupMemberMetadataKey(**member), ConsumerGroupMemberMetadataValue()),
        (
            ConsumerGroupCurrentMemberAssignmentKey(**member),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=member_epoch, state=member_state
            ),
        ),
    )
    (row,) = rows_of("groups", found)
    assert (row["type"], row["state"], row["epoch"]) == ("consumer", state, 4)


def test_an_unknown_transaction_status_is_its_number(tmp_path: Path) -> None:
    value = TransactionLogValue(transaction_status=42, transaction_partitions=None)
    key = TransactionLogKey(transactional_id="t")
    (row,) = rows_of("transactions", written(tmp_path / "__transaction_state-0", (key, value)))
    assert (row["state"], row["partitions"]) == ("42", [])


def test_unknown_records_are_left_out_and_damaged_ones_named(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append((b"\x00\x63x", b"\x00\x00"))
    assert rows_of("groups", log.path) == []
    log.append((b"\x00\x02\x00\x01g", b"\x00\x03"))
    with pytest.raises(CorruptBatchError, match="GroupMetadataValue") as caught:
        rows_of("groups", log.path)
    assert caught.value.offset == 1


def members_of(path: Path) -> list[tuple[Any, ...]]:
    names = ("member_id", "client_id", "epoch", "state", "topics")
    return [tuple(row[name] for name in names) for row in rows_of("group_members", path)]


def test_records_of_a_member_are_applied_in_any_order(tmp_path: Path) -> None:
    """A compaction keeps the last record of each key."""
    member: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    client = (
        ConsumerGroupMemberMetadataKey(**member),
        ConsumerGroupMemberMetadataValue(client_id="c", subscribed_topic_names=("b", "a")),
    )
    assignment = (
        ConsumerGroupCurrentMemberAssignmentKey(**member),
        ConsumerGroupCurrentMemberAssignmentValue(member_epoch=4, state=2),
    )
    group = (ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=4))
    for number, records in enumerate(permutations((client, assignment, group))):
        path = written(tmp_path / f"__consumer_offsets-{number}", *records)
        assert members_of(path) == [("m", "c", 4, "UnreleasedPartitions", ["a", "b"])]
        (row,) = rows_of("groups", path)
        assert (row["state"], row["epoch"]) == ("Assigning", 4)


def test_a_member_without_records_and_a_group_without_one_are_deleted(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    member: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    joined = (ConsumerGroupMemberMetadataKey(**member), ConsumerGroupMemberMetadataValue())
    epoch = (ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=4))
    log.append(
        GROUP_RECORDS.encode(KeyedRecord(joined[0], joined[1], None)),
        GROUP_RECORDS.encode(KeyedRecord(epoch[0], epoch[1], None)),
    )
    assert [row["member_id"] for row in rows_of("group_members", log.path)] == ["m"]
    log.append(GROUP_RECORDS.encode(KeyedRecord(joined[0], None, None)))
    assert rows_of("group_members", log.path) == []
    assert [row["state"] for row in rows_of("groups", log.path)] == ["Empty"]
    log.append(GROUP_RECORDS.encode(KeyedRecord(epoch[0], None, None)))
    assert rows_of("groups", log.path) == []


def test_a_group_that_only_has_offsets_is_a_simple_one_until_they_are_deleted(
    tmp_path: Path,
) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append(commit("a", 1), commit("b", 1))
    log.append(commit("c", 1), producer_id=7)
    log.append(GROUP_RECORDS.encode(KeyedRecord(GroupMetadataKey(group="b"), None, None)))
    names = ("group", "type", "protocol_type", "state", "members")
    assert [tuple(row[name] for name in names) for row in rows_of("groups", log.path)] == [
        (group, "classic", "", "Empty", []) for group in "abc"
    ]
    log.append(commit("a", None))
    log.end(7, commit=False)
    assert [row["group"] for row in rows_of("groups", log.path)] == ["b"]


def test_members_of_a_streams_group_have_subtopologies(tmp_path: Path) -> None:
    member: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    path = written(
        tmp_path / "__consumer_offsets-0",
        (StreamsGroupMetadataKey(group_id="g"), StreamsGroupMetadataValue(epoch=2)),
        (StreamsGroupMemberMetadataKey(**member), StreamsGroupMemberMetadataValue(client_id="c")),
        (
            StreamsGroupCurrentMemberAssignmentKey(**member),
            StreamsGroupCurrentMemberAssignmentValue(
                member_epoch=2,
                state=1,
                active_tasks=(AssignedTasks(subtopology_id="s", partitions=(1, 0)),),
            ),
        ),
    )
    assert members_of(path) == [("m", "c", 2, "Stable", [])]
    (row,) = rows_of("groups", path)
    assert (row["type"], row["state"], row["epoch"]) == ("streams", None, 2)
    assert row["members"][0]["assignment"] == [{"subtopology_id": "s", "partitions": [0, 1]}]


def test_a_consumer_group_replaces_a_classic_one(tmp_path: Path) -> None:
    classic = (
        GroupMetadataKey(group="g"),
        GroupMetadataValue(
            protocol_type="consumer", generation=7, members=(MemberMetadata(member_id="old"),)
        ),
    )
    member: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    joined = (ConsumerGroupMemberMetadataKey(**member), ConsumerGroupMemberMetadataValue())
    path = written(tmp_path / "__consumer_offsets-0", classic, joined)
    assert [row["member_id"] for row in rows_of("group_members", path)] == ["m"]
    (row,) = rows_of("groups", path)
    assert (row["type"], row["protocol_type"], row["epoch"]) == ("consumer", "consumer", 0)


# --- Offsets that transactions commit -------------------------------------------------------------


def commit(group: str, offset: int | None) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a commit of t-0, or of its deletion."""
    key = OffsetCommitKey(group=group, topic="t", partition=0)
    value = None if offset is None else OffsetCommitValue(offset=offset)
    return GROUP_RECORDS.encode(KeyedRecord(key, value, None))


def offsets_at(path: Path, end_offset: int) -> tuple[dict[str, int], list[tuple[int, str, int]]]:
    """Return the committed offsets of groups, and those pending of producers."""
    state = InternalState("__consumer_offsets")
    state.read(open_path(str(path), kind=LogKind.PARTITION), end_offset)
    pending = [(row.producer_id, row.group, row.offset) for row in state.rows(PendingOffsetRow)]
    return {row.group: row.offset for row in state.rows(ConsumerOffsetRow)}, pending


def test_a_commit_of_a_transaction_counts_from_its_marker_on_and_others_immediately(
    tmp_path: Path,
) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append(commit("a", 1))
    log.append(commit("a", 2), commit("b", 2), producer_id=7)
    log.append(commit("c", 3))
    log.append(commit("c", 4), producer_id=8)
    log.end(8, commit=False)
    log.end(7, commit=True)
    pending = [(7, "a", 2), (7, "b", 2)]
    assert [offsets_at(log.path, end) for end in (2, 3, 4, 5, 6, 7)] == [
        ({"a": 1}, [(7, "a", 2)]),
        ({"a": 1}, pending),
        ({"a": 1, "c": 3}, pending),
        ({"a": 1, "c": 3}, [*pending, (8, "c", 4)]),
        ({"a": 1, "c": 3}, pending),
        ({"a": 2, "b": 2, "c": 3}, []),
    ]


def test_of_commits_for_a_partition_the_last_written_one_decides(tmp_path: Path) -> None:
    """As after a compaction, which knows no markers."""
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append(commit("a", 1), commit("b", 1), producer_id=7)
    log.append(commit("a", 2), commit("b", 2), producer_id=8)
    log.append(commit("b", None))
    log.append(commit("c", 1), producer_id=7)
    log.append(commit("c", 2))
    log.end(8, commit=True)
    log.end(7, commit=True)
    assert offsets_at(log.path, log.next_offset) == ({"a": 2, "c": 2}, [])


def test_a_damaged_marker_is_reported_with_its_offset() -> None:
    marker = InternalRecord(1, b"\x00\x00\x00\x01", b"", producer_id=7, is_control=True)
    with pytest.raises(ReplayError) as caught:
        InternalLoader("__consumer_offsets").append([marker], [0], [0], [None])
    assert caught.value.offset == 1


# --- Records that are not decoded -----------------------------------------------------------------


def random_record(rng: Random) -> tuple[bytes | None, bytes | None]:
    """Return a commit, or a record of its group; both also as tombstones."""
    group, member_id = rng.choice("ab"), rng.choice("mn")
    place: dict[str, Any] = {"group": group, "topic": "t", "partition": rng.randrange(2)}
    number = rng.randrange(5)
    key, value = rng.choice(
        [
            (OffsetCommitKey(**place), OffsetCommitValue(offset=number)),
            (OffsetCommitKey(**place), OffsetCommitValue(offset=number)),
            (LegacyOffsetCommitKey(**place), LegacyOffsetCommitValue(offset=number)),
            (GroupMetadataKey(group=group), GroupMetadataValue(generation=number + 1)),
            (
                ConsumerGroupMetadataKey(group_id=group),
                ConsumerGroupMetadataValue(epoch=number),
            ),
            (
                ConsumerGroupMemberMetadataKey(group_id=group, member_id=member_id),
                ConsumerGroupMemberMetadataValue(),
            ),
        ]
    )
    return GROUP_RECORDS.encode(KeyedRecord(key, rng.choice([value, value, None]), None))


def write_random_log(path: Path, rng: Random) -> InternalLogFile:
    """Write batches of commits, some of them in transactions, in several leader epochs."""
    log = InternalLogFile(path)
    epoch = 0
    for _ in range(rng.randrange(1, 40)):
        epoch += rng.random() < 0.1
        records = [random_record(rng) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.25:
            is_commit = rng.random() < 0.7
            log.end(rng.choice([7, 8]), commit=is_commit, epoch_of_leader=epoch)
        elif rng.random() < 0.1:
            log.append((b"\0\1\0\1a\0\1t\0\0\0\0", b"\0\x63"), epoch_of_leader=epoch)
        elif rng.random() < 0.5:
            log.append(*records, epoch_of_leader=epoch)
        else:
            commits = [one for one in records if one[0] is not None and one[0][:2] <= b"\0\1"]
            if commits:
                log.append(*commits, producer_id=rng.choice([7, 8]), epoch_of_leader=epoch)
    return log


def replayed_one_by_one(path: Path, end_offset: int) -> MetadataImage:
    """Return the state after each record is applied at its place, as for tables."""
    loader = InternalLoader("__consumer_offsets")
    (segment,) = path.glob("*.log")
    for batch in iter_batches(segment.read_bytes()):
        producer_id = batch.producer_id if batch.is_transactional else None
        for one in batch.records():
            if one.offset < end_offset:
                at = (one.offset, one.key, one.value, producer_id, batch.is_control)
                columns = ([batch.leader_epoch], [one.timestamp_ms], [None])
                loader.append([InternalRecord(*at)], *columns)
    return loader.image


@pytest.mark.parametrize("seed", range(60))
def test_a_state_of_last_records_is_that_of_a_replay_of_all(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    log = write_random_log(tmp_path / "__consumer_offsets-0", rng)
    for end_offset in {log.next_offset, rng.randrange(log.next_offset + 1)}:
        state = InternalState("__consumer_offsets")
        state.read(open_path(str(log.path), kind=LogKind.PARTITION), end_offset)
        found, expected = state.image(), replayed_one_by_one(log.path, end_offset)
        for entity in Entity:
            assert found.map(entity) == expected.map(entity)
        assert (found.offset, found.leader_epoch, found.timestamp_ms) == (
            expected.offset,
            expected.leader_epoch,
            expected.timestamp_ms,
        )


def test_a_commit_that_a_later_one_overwrites_is_not_decoded(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    key, value = commit("a", 1)
    log.append((key, (value or b"") + b"more"))
    with pytest.raises(CorruptBatchError, match="4 trailing bytes") as caught:
        rows_of("consumer_offsets", log.path)
    assert caught.value.offset == 0
    log.append(commit("a", 2))
    assert [row["offset"] for row in rows_of("consumer_offsets", log.path)] == [2]
