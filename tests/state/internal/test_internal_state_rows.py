"""Offsets, groups and transactions of a real node, as its admin client saw them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.internal_records import GROUPS_NODE, InternalLogFile

from raftlog.client import Isolation, LatestByKey, LogKind, open_path
from raftlog.errors import CorruptBatchError
from raftlog_state.internal import rows
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
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

SHOWN = Redactor()


def latest_in(path: Path) -> LatestByKey:
    log = open_path(str(path), kind=LogKind.PARTITION)
    latest = LatestByKey(str(path))
    latest.read(log, log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset)
    return latest


def partitions(topic: str) -> list[LatestByKey]:
    return [latest_in(path) for path in sorted(GROUPS_NODE.glob(f"{topic}-*"))]


@pytest.fixture(scope="module")
def admin() -> dict[str, Any]:
    seen: dict[str, Any] = json.loads((GROUPS_NODE.parent / "admin.json").read_text())
    return seen


def test_committed_offsets_are_those_of_the_admin_client(admin: dict[str, Any]) -> None:
    found = rows.consumer_offsets(partitions("__consumer_offsets"), SHOWN)
    by_group: dict[str, list[Any]] = {}
    for row in found:
        by_group.setdefault(row["group"], []).append(
            [row["topic"], row["partition"], row["offset"], row["metadata"]]
        )
    assert by_group == {group: sorted(one) for group, one in admin["offsets"].items()}
    assert [row["group"] for row in found] == sorted(row["group"] for row in found)


def test_groups_and_members_are_those_of_the_admin_client(admin: dict[str, Any]) -> None:
    found = rows.groups(partitions("__consumer_offsets"), SHOWN)
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
    found = rows.transactions(partitions("__transaction_state"), SHOWN)
    assert {row["transactional_id"]: [row["producer_id"], row["state"]] for row in found} == admin[
        "transactions"
    ]
    hanging = next(row for row in found if row["state"] == "Ongoing")
    assert "bills-0" in hanging["partitions"]
    assert hanging["start_timestamp_ms"] > 0


def test_the_open_transaction_is_no_committed_offset() -> None:
    (open_transaction,) = [
        one for latest in partitions("__consumer_offsets") for one in latest.open_transactions()
    ]
    pending = [
        GROUP_RECORDS.decode(key, one.value) for key, one in open_transaction.records.items()
    ]
    assert [
        record.value.offset for record in pending if isinstance(record.value, OffsetCommitValue)
    ] == [99]


def test_full_redaction_hides_hosts_and_metadata() -> None:
    found = partitions("__consumer_offsets")
    shown = str(rows.groups(found, SHOWN)) + str(rows.consumer_offsets(found, SHOWN))
    full = Redactor(full=True)
    hidden = str(rows.groups(found, full)) + str(rows.consumer_offsets(found, full))
    for text in ("/127.0.0.1", "note of orders-0"):
        assert text in shown
        assert text not in hidden


# --- Rows of single records -----------------------------------------------------------------------


def written(path: Path, *records: tuple[Message, Message]) -> list[LatestByKey]:
    log = InternalLogFile(path)
    serde = TRANSACTION_RECORDS if "transaction" in path.name else GROUP_RECORDS
    log.append(*[serde.encode(KeyedRecord(key, value, None)) for key, value in records])
    return [latest_in(log.path)]


def test_of_a_legacy_commit_and_a_later_one_the_later_is_the_offset(tmp_path: Path) -> None:
    place: dict[str, Any] = {"group": "g", "topic": "t", "partition": 1}
    old = LegacyOffsetCommitKey(**place), LegacyOffsetCommitValue(offset=5, metadata="old")
    new = OffsetCommitKey(**place), OffsetCommitValue(offset=6)
    (row,) = rows.consumer_offsets(written(tmp_path / "__consumer_offsets-0", old, new), SHOWN)
    assert (row["offset"], row["leader_epoch"]) == (6, None)
    (row,) = rows.consumer_offsets(written(tmp_path / "__consumer_offsets-1", new, old), SHOWN)
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
    (row,) = rows.groups(found, SHOWN)
    assert (row["type"], row["state"], row["epoch"]) == ("consumer", state, 4)


def test_an_unknown_transaction_status_is_its_number(tmp_path: Path) -> None:
    value = TransactionLogValue(transaction_status=42, transaction_partitions=None)
    key = TransactionLogKey(transactional_id="t")
    (row,) = rows.transactions(written(tmp_path / "__transaction_state-0", (key, value)), SHOWN)
    assert (row["state"], row["partitions"]) == ("42", [])


def test_unknown_records_are_left_out_and_damaged_ones_named(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append((b"\x00\x63x", b"\x00\x00"))
    assert rows.groups([latest_in(log.path)], SHOWN) == []
    log.append((b"\x00\x02\x00\x01g", b"\x00\x03"))
    with pytest.raises(CorruptBatchError, match="GroupMetadataValue") as caught:
        rows.groups([latest_in(log.path)], SHOWN)
    assert caught.value.offset == 1
