"""Records of the coordinators and of remote storage, judged by Kafka's classes and its dump-log."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.internal_records import (
    as_dumped,
    described,
    dump_of,
    golden_records,
    internal_segments,
    records_in,
    segment_name,
    topic_of,
)

from raftlog.errors import OptionError
from raftlog_state.errors import (
    InvalidRecordError,
    MetadataParseError,
    UnsupportedVersionError,
)
from raftlog_state.records import MASK, Redactor, UnknownRecord, UnknownTag
from raftlog_state.records.consumer_protocol import parse_protocol
from raftlog_state.records.internal_logs import (
    CONSUMER_OFFSETS,
    GROUP_RECORDS,
    INTERNAL_LOGS,
    REMOTE_LOG_METADATA,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
)
from raftlog_state.records.keyed_serde import KeyedRecord, KeyedSerde
from raftlog_state.records.schema_coordinators import TransactionLogKey, TransactionLogValue
from raftlog_state.records.schema_groups import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from raftlog_state.records.schema_remote import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    SegmentLeaderEpoch,
    TopicIdPartition,
)
from raftlog_state.records.schema_streams import (
    ClientTag,
    Endpoint,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
)

GOLDEN = golden_records()
KEYED = [record for record in GOLDEN if record.topic != REMOTE_LOG_METADATA]
SERDES: dict[str, KeyedSerde] = {
    "__consumer_offsets": GROUP_RECORDS,
    "__transaction_state": TRANSACTION_RECORDS,
    "__share_group_state": SHARE_RECORDS,
}
STATES = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort"),
    *("CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"),
)
COMMIT = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07"


def test_the_golden_records_have_every_type_and_version() -> None:
    seen = set()
    for record in KEYED:
        assert record.key is not None
        if record.value is not None:
            api_key = int.from_bytes(record.key[:2], "big")
            seen.add((record.topic, api_key, int.from_bytes(record.value[:2], "big")))
    expected = {
        (topic, kind.api_key, version)
        for topic, serde in SERDES.items()
        for kind in serde.types
        for version in range(kind.value.schema.latest_version + 1)
    }
    assert seen == expected
    remote = {record.value[1] for record in GOLDEN if record.key is None and record.value}
    assert remote == {kind.schema.api_key for kind in REMOTE_LOG_RECORDS.types}


def test_golden_records_are_printed_as_by_dump_log() -> None:
    for record in GOLDEN:
        assert described(record) == (record.key_text, record.value_text)


def test_golden_records_are_encoded_as_by_kafka() -> None:
    for record in KEYED:
        serde = SERDES[record.topic]
        decoded = serde.decode(record.key, record.value)
        assert serde.encode(decoded) == (record.key, record.value)
        assert serde.decode(*serde.encode(decoded)) == decoded


def test_remote_log_metadata_round_trips_through_bytes_and_json() -> None:
    for record in GOLDEN:
        if record.topic == REMOTE_LOG_METADATA:
            assert record.value is not None
            decoded = REMOTE_LOG_RECORDS.decode(record.value)
            assert REMOTE_LOG_RECORDS.encode(decoded) == record.value
            assert REMOTE_LOG_RECORDS.from_json(REMOTE_LOG_RECORDS.to_json(decoded)) == decoded


@pytest.mark.parametrize("segment", internal_segments("4.3.1"), ids=segment_name)
def test_real_logs_are_printed_as_by_dump_log(segment: Path) -> None:
    log = INTERNAL_LOGS[topic_of(segment)]
    printed = []
    for offset, key, value in records_in(segment):
        shown_key, shown_value = as_dumped(log.text(key, value, Redactor()))
        printed.append((offset, f"key: {shown_key} payload: {shown_value}"))
    assert printed
    assert printed == dump_of(segment)


@pytest.mark.parametrize("segment", internal_segments("3.9.2"), ids=segment_name)
def test_logs_of_an_older_release_are_printed_as_by_its_dump_log(segment: Path) -> None:
    log = INTERNAL_LOGS[topic_of(segment)]
    printed = []
    for offset, key, value in records_in(segment):
        text = log.text(key, value, Redactor())
        if topic_of(segment) == CONSUMER_OFFSETS:
            shown_key, shown_value = as_dumped(text)
        else:
            shown_key, shown_value = in_the_words_of_3_9(text.key, text.value)
        printed.append((offset, f"key: {shown_key} payload: {shown_value}"))
    assert printed
    assert [sorted_partitions(*one) for one in printed] == [
        sorted_partitions(*one) for one in dump_of(segment)
    ]


def sorted_partitions(offset: int, text: str) -> tuple[int, str]:
    """Return a line with the partitions of a transaction sorted: 3.9 prints a hash set."""

    def in_order(match: re.Match[str]) -> str:
        return f"partitions=[{','.join(sorted(match[1].split(',')))}]"

    return offset, re.sub(r"partitions=\[(.*?)\]", in_order, text)


def in_the_words_of_3_9(key: str | None, value: str | None) -> tuple[str, str]:
    """Return a transaction as dump-log 3.9 prints it, its partitions in the order of the log."""
    assert key is not None
    assert value is not None
    data: dict[str, Any] = json.loads(value)
    partitions = ",".join(
        f"{one['topic']}-{number}"
        for one in data["transactionPartitions"] or ()
        for number in one["partitionIds"]
    )
    return (
        f"transaction_metadata::transactionalId={json.loads(key)['transactionalId']}",
        f"producerId:{data['producerId']},producerEpoch:{data['producerEpoch']},"
        f"state={STATES[data['transactionStatus']]},partitions=[{partitions}],"
        f"txnLastUpdateTimestamp={data['transactionLastUpdateTimestampMs']},"
        f"txnTimeoutMs={data['transactionTimeoutMs']}",
    )


# --- Unknown and damaged records ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "name", "key_json", "value_json"),
    [
        (
            b"\x00\x63ab",
            b"\x00\x07cd",
            "UNKNOWN",
            '{"reason":"this api key is not known","payload":"YWI="}',
            '{"reason":"this api key is not known","payload":"Y2Q="}',
        ),
        (
            b"\xff\xff",
            b"c",
            "UNKNOWN",
            '{"reason":"this api key is not known"}',
            '{"reason":"this api key is not known","payload":"Yw=="}',
        ),
        (b"\x00\x63", None, "UNKNOWN", '{"reason":"this api key is not known"}', None),
        (
            COMMIT,
            b"\x00\x05cd",
            "UNKNOWN",
            '{"group":"g","topic":"t","partition":7}',
            '{"reason":"this version is not known","payload":"Y2Q="}',
        ),
        (COMMIT, None, "OFFSET_COMMIT", '{"group":"g","topic":"t","partition":7}', None),
    ],
)
def test_unknown_records_are_kept_as_bytes(
    key: bytes, value: bytes | None, name: str, key_json: str, value_json: str | None
) -> None:
    record = GROUP_RECORDS.decode(key, value)
    assert GROUP_RECORDS.encode(record) == (key, value)
    assert GROUP_RECORDS.type_name(record) == name
    assert (GROUP_RECORDS.key_json(record), GROUP_RECORDS.value_json(record)) == (
        key_json,
        value_json,
    )


def test_an_unknown_remote_record_is_kept_as_bytes() -> None:
    decoded = REMOTE_LOG_RECORDS.decode(b"\x01\x09\x02abc")
    assert isinstance(decoded.record, UnknownRecord)
    assert REMOTE_LOG_RECORDS.encode(decoded) == b"\x01\x09\x02abc"
    assert REMOTE_LOG_RECORDS.type_name(decoded) == "UNKNOWN"


@pytest.mark.parametrize("key", [None, b"", b"\x00"])
def test_a_record_without_a_type_is_damaged(key: bytes | None) -> None:
    with pytest.raises(MetadataParseError, match="a record of the group coordinator"):
        GROUP_RECORDS.decode(key, b"\x00\x00")


def test_records_that_are_cut_or_followed_by_bytes_are_damaged() -> None:
    chance = random.Random(20)
    for record in KEYED:
        serde = SERDES[record.topic]
        assert record.key is not None
        with pytest.raises(MetadataParseError):
            serde.decode(record.key + b"\x00", record.value)
        with pytest.raises(MetadataParseError):
            serde.decode(record.key[: chance.randrange(2, len(record.key))], record.value)
        if record.value is not None:
            with pytest.raises(MetadataParseError):
                serde.decode(record.key, record.value + b"\x00")
            with pytest.raises(MetadataParseError):
                serde.decode(record.key, record.value[: chance.randrange(len(record.value))])


def test_changed_bytes_are_another_record_or_a_parse_error() -> None:
    chance = random.Random(21)
    damaged = 0
    for record in GOLDEN * 8:
        key, value = (changed(data, chance) for data in (record.key, record.value))
        log = INTERNAL_LOGS[record.topic]
        try:
            log.text(key, value, Redactor())
            log.text(key, value, Redactor(full=True))
        except MetadataParseError:
            damaged += 1
    assert damaged > len(GOLDEN)


def changed(data: bytes | None, chance: random.Random) -> bytes | None:
    if not data or chance.random() < 0.3:
        return data
    at = chance.randrange(len(data))
    return data[:at] + chance.choice((b"", b"\x00", b"\x7f", b"\xff", b"\xff\xff")) + data[at + 1 :]


def test_key_and_value_of_different_types_are_not_written() -> None:
    record = KeyedRecord(GroupMetadataKey(group="g"), OffsetCommitValue(), 3)
    with pytest.raises(InvalidRecordError, match="its key is of another type"):
        GROUP_RECORDS.encode(record)


def test_a_field_that_ended_with_a_version_is_refused_in_later_ones() -> None:
    commit = OffsetCommitValue(expire_timestamp=5)
    key = OffsetCommitKey(group="g", topic="t")
    for version in (0, 2, 3, 4):
        for write in (GROUP_RECORDS.encode, GROUP_RECORDS.value_json):
            with pytest.raises(UnsupportedVersionError, match="exists in versions 1 to 1"):
                write(KeyedRecord(key, commit, version))
    assert '"expireTimestamp":5' in str(GROUP_RECORDS.value_json(KeyedRecord(key, commit, 1)))


def test_unknown_tagged_fields_are_kept_where_the_version_has_tags() -> None:
    key = TransactionLogKey(transactional_id="t")
    value = TransactionLogValue(unknown_tags=(UnknownTag(9, b"new"),))
    record = KeyedRecord(key, value, 1)
    assert TRANSACTION_RECORDS.decode(*TRANSACTION_RECORDS.encode(record)) == record
    assert '"unknownTaggedFields":[{"tag":9,' in str(TRANSACTION_RECORDS.value_json(record))
    with pytest.raises(InvalidRecordError, match="the version has no tagged fields"):
        TRANSACTION_RECORDS.encode(KeyedRecord(key, value, 0))


# --- Redaction ------------------------------------------------------------------------------------

FULL = Redactor(full=True)
CONSUMER = b"\x00\x00" + b"\x00\x00\x00\x01\x00\x01t" + b"\x00\x00\x00\x04SECR"


def test_only_full_redaction_changes_records_of_coordinators() -> None:
    for record in KEYED:
        decoded = SERDES[record.topic].decode(record.key, record.value)
        assert Redactor().redact_keyed(decoded) is decoded
        once = FULL.redact_keyed(decoded)
        assert FULL.redact_keyed(once) == once
        SERDES[record.topic].encode(once)


def test_full_redaction_hides_hosts_and_the_metadata_of_commits() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=1)
    commit = KeyedRecord(key, OffsetCommitValue(offset=4, metadata="SECRET"), 3)
    hidden = FULL.redact_keyed(commit)
    assert hidden == KeyedRecord(key, OffsetCommitValue(offset=4, metadata=MASK), 3)
    keyed = Redactor(key=b"0123456789abcdef", full=True).redact_keyed(commit).value
    assert isinstance(keyed, OffsetCommitValue)
    assert keyed.metadata.startswith("hmac:")
    nothing = KeyedRecord(key, OffsetCommitValue(offset=4), 3)
    assert FULL.redact_keyed(nothing) is nothing


@pytest.mark.parametrize("protocol_type", ["consumer", "connect"])
def test_full_redaction_hides_user_data_and_keeps_the_topics_of_consumers(
    protocol_type: str,
) -> None:
    member = MemberMetadata(member_id="m", client_host="/SECRET", subscription=CONSUMER)
    group = GroupMetadataValue(protocol_type=protocol_type, members=(member,))
    hidden = FULL.redact_keyed(KeyedRecord(GroupMetadataKey(group="g"), group, 3))
    assert isinstance(hidden.value, GroupMetadataValue)
    (shown,) = hidden.value.members
    assert (shown.member_id, shown.client_host) == ("m", MASK)
    parsed = parse_protocol("subscription", shown.subscription)
    if protocol_type == "connect":
        assert shown.subscription == MASK.encode()
    else:
        assert parsed is not None
        assert parsed[1].user_data == MASK.encode()
    text = str(GROUP_RECORDS.value_json(hidden))
    assert ('"topics":["t"]' in text) == (protocol_type == "consumer")


def test_full_redaction_hides_what_is_nested_or_unknown() -> None:
    classic = ClassicMemberMetadata(
        supported_protocols=(ClassicProtocol(name="range", metadata=b"SECRET"),),
        unknown_tags=(UnknownTag(7, b"SECRET"),),
    )
    records = [
        KeyedRecord(
            ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
            ConsumerGroupMemberMetadataValue(client_host="SECRET", classic_member_metadata=classic),
            0,
        ),
        KeyedRecord(
            StreamsGroupMemberMetadataKey(group_id="g", member_id="m"),
            StreamsGroupMemberMetadataValue(
                user_endpoint=Endpoint(host="SECRET", port=7),
                client_tags=(ClientTag(key="zone", value="SECRET"),),
                unknown_tags=(UnknownTag(7, b"SECRET"),),
            ),
            0,
        ),
        GROUP_RECORDS.decode(b"\x00\x63SECRET", b"\x00\x00SECRET"),
    ]
    for record in records:
        hidden = FULL.redact_keyed(record)
        shown = b"".join(part or b"" for part in GROUP_RECORDS.encode(hidden))
        assert b"SECRET" not in shown
        assert b"SECRET" in b"".join(part or b"" for part in GROUP_RECORDS.encode(record))


def test_full_redaction_hides_unknown_records_of_remote_storage() -> None:
    log = INTERNAL_LOGS[REMOTE_LOG_METADATA]
    value = b"\x01\x09\x02SECRET"
    assert "payload" in str(log.text(None, value, Redactor()).value)
    assert "payload" not in str(log.text(None, value, FULL).value)


def test_full_redaction_hides_unknown_fields_of_nested_structs_of_remote_storage() -> None:
    log = INTERNAL_LOGS[REMOTE_LOG_METADATA]
    tags = (UnknownTag(7, b"SECRET"),)
    segment_id = RemoteLogSegmentId(
        topic_id_partition=TopicIdPartition(name="orders", unknown_tags=tags), unknown_tags=tags
    )
    value = REMOTE_LOG_RECORDS.encode(
        RemoteLogSegmentMetadataRecord(
            remote_log_segment_id=segment_id,
            segment_leader_epochs=(SegmentLeaderEpoch(unknown_tags=tags),),
            unknown_tags=tags,
        )
    )
    assert value.count(b"SECRET") == 4
    hidden = log.redacted(None, value, FULL)[1] or b""
    assert (hidden.count(b"SECRET"), hidden.count(MASK.encode())) == (0, 4)
    assert str(log.text(None, value, FULL).value).count('"orders"') == 1


def test_redaction_is_not_both_off_and_full() -> None:
    with pytest.raises(OptionError, match="full"):
        Redactor(reveal=True, full=True)


def test_a_decoded_record_needs_no_version_to_be_written() -> None:
    newest = KeyedRecord(OffsetCommitKey(group="g"), OffsetCommitValue(offset=1), None)
    _, value = GROUP_RECORDS.encode(newest)
    assert value is not None
    assert value[:2] == b"\x00\x04"
