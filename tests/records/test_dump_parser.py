"""The parser of kafka-dump-log's output keeps all of it."""

from __future__ import annotations

from tests.support.dumps import parse_dump

LINES = """Log starting offset: 3
baseOffset: 3 lastOffset: 5 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 \
producerEpoch: -1 partitionLeaderEpoch: 0 isTransactional: false isControl: false \
deleteHorizonMs: OptionalLong[1700000000000] position: 0 LogAppendTime: 1700000000009 size: 99 \
magic: 2 compresscodec: lz4 crc: 7 isvalid: true
| offset: 3 LogAppendTime: 1700000000009 keySize: 2 valueSize: 9 sequence: -1 headerKeys: [a,b] \
key: k4 payload: line one
line two
| offset: 5 LogAppendTime: 1700000000009 keySize: -1 valueSize: -1 sequence: -1 headerKeys: []
"""


def test_delete_horizons_headers_and_torn_payloads_are_parsed() -> None:
    (batch,) = parse_dump(LINES.split("\n"))
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (3, 5, 2)
    assert batch.delete_horizon_ms == 1_700_000_000_000
    assert (batch.time_kind, batch.codec, batch.is_valid) == ("LogAppendTime", "lz4", True)
    first, last = batch.records
    assert (first.key, first.payload) == ("k4", "line one\nline two")
    assert first.header_keys == ("a", "b")
    assert (last.key, last.payload, last.value_bytes) == (None, None, -1)
