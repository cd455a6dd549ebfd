"""Segments of internal logs beside what kafka-dump-log prints of them."""

from __future__ import annotations

from pathlib import Path

from tests.support.internal_records import as_dumped, printed_by, records_in, topic_of
from tests.support.kafka import run_java

from raftlog_state.records import Redactor
from raftlog_state.records.internal_logs import INTERNAL_LOGS

DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__share_group_state": "--share-group-state-decoder",
}
"""Options of kafka-dump-log by topic."""
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"


def assert_printed_as_by_dump_log(jars: Path, segment: Path) -> int:
    """Compare a segment's records with what kafka-dump-log prints; return how many there are.

    The log may have grown in between.
    """
    topic = topic_of(segment)
    given = []
    for offset, key, value in records_in(segment):
        shown = as_dumped(INTERNAL_LOGS[topic].text(key, value, Redactor()))
        given.append((offset, f"key: {shown[0]} payload: {shown[1]}"))
    text = run_java(jars, DUMP_LOG, DECODERS[topic], "--files", str(segment))
    assert printed_by(text.splitlines())[: len(given)] == given
    return len(given)
