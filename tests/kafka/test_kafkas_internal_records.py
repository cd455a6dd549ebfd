"""Random records of Kafka's internal logs, written and printed by Kafka's classes in this run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.support.internal_records import KafkaRecord, as_formatted, described, parse_records
from tests.support.jars import KAFKA_NEWEST, KAFKA_VERSION
from tests.support.kafka import HOME, kafka_jars, run_java

from raftlog_state.records import Redactor
from raftlog_state.records.internal_logs import (
    GROUP_RECORDS,
    INTERNAL_LOGS,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
)

pytestmark = pytest.mark.kafka
STATUSES = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort"),
    *("CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"),
)


def numbered(text: str | None) -> str | None:
    """Return a value with the number of a transaction's status, of which 4.4 prints the name."""

    def number(match: re.Match[str]) -> str:
        return f"{match[1]}{STATUSES.index(match[2]) if match[2] in STATUSES else match[2]}"

    return text and re.sub(r'("transactionStatus":)"([A-Za-z]+|-?[0-9]+)"', number, text)


def assert_formatted(record: KafkaRecord) -> str:
    """Compare a record with what a formatter of the console consumer printed; return its type.

    kafka-dump-log decodes subscriptions and assignments of classic groups, which formatters print
    as base64.
    """
    text = INTERNAL_LOGS[record.topic].text(record.key, record.value, Redactor())
    by_formatter = numbered(record.formatted)
    assert by_formatter is not None
    ours, expected = as_formatted(text), json.loads(by_formatter)
    decoded = json.loads(ours)
    for member, of_kafka in zip(*(_members(one) for one in (decoded, expected)), strict=True):
        for name in ("subscription", "assignment"):
            if isinstance(member[name], dict):
                member[name] = of_kafka[name]
    assert decoded == expected
    if decoded == json.loads(ours):
        assert ours == by_formatter
    return text.type_name


def _members(record: dict[str, Any]) -> list[dict[str, Any]]:
    data = (record["value"] or {}).get("data")
    return data.get("members", []) if data else []


@pytest.mark.parametrize("release", [KAFKA_VERSION, KAFKA_NEWEST])
def test_records_of_kafkas_classes_are_read_and_written_as_by_kafka(release: str) -> None:
    program = HOME / "tests" / "kafka" / "InternalRecords.java"
    printed = run_java(kafka_jars(release), str(program), "2026", "60")
    records = list(parse_records(printed.splitlines()))
    assert len(records) > 2_000
    formatted = set()
    for record in records:
        assert described(record) == (record.key_text, numbered(record.value_text))
        if record.formatted:
            formatted.add(assert_formatted(record))
        if record.key is None:
            assert record.value is not None
            decoded = REMOTE_LOG_RECORDS.decode(record.value)
            assert REMOTE_LOG_RECORDS.encode(decoded) == record.value
            continue
        serde = {
            "__consumer_offsets": GROUP_RECORDS,
            "__transaction_state": TRANSACTION_RECORDS,
            "__share_group_state": SHARE_RECORDS,
        }[record.topic]
        assert serde.encode(serde.decode(record.key, record.value)) == (record.key, record.value)
    assert formatted == {
        *("LEGACY_OFFSET_COMMIT", "OFFSET_COMMIT", "GROUP_METADATA"),
        *("TRANSACTION_LOG", "SHARE_SNAPSHOT", "SHARE_UPDATE"),
    }
