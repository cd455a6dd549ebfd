"""Random records of Kafka's internal logs, written and printed by Kafka's classes in this run."""

from __future__ import annotations

import re

import pytest
from tests.support.internal_records import described, parse_records
from tests.support.jars import KAFKA_NEWEST, KAFKA_VERSION
from tests.support.kafka import HOME, kafka_jars, run_java

from raftlog_state.records.internal_logs import (
    GROUP_RECORDS,
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


@pytest.mark.parametrize("release", [KAFKA_VERSION, KAFKA_NEWEST])
def test_records_of_kafkas_classes_are_read_and_written_as_by_kafka(release: str) -> None:
    program = HOME / "tests" / "kafka" / "InternalRecords.java"
    printed = run_java(kafka_jars(release), str(program), "2026", "60")
    records = list(parse_records(printed.splitlines()))
    assert len(records) > 2_000
    for record in records:
        assert described(record) == (record.key_text, numbered(record.value_text))
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
