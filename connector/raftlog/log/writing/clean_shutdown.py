"""``.kafka_cleanshutdown``: where a log ended when its last writer closed it in order.

Rules of this file:

1. Everything below the marker's end was synced, indexes and producer snapshot too, before the
   marker was written. It goes (and the directory is synced) before the first write after an open.
2. Several processes may have a log open, and one that closes does not end the others. So the
   marker names its end, and it counts only while the log ends exactly there: same segment, same
   file length. Behind a writer that went on it says nothing.
3. Kafka: ``CleanShutdownFileHandler``, a JSON object with ``version`` and ``brokerEpoch``. Kafka
   keeps one above all partitions; ours lies in the log's own directory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

CLEAN_SHUTDOWN_NAME: Final = ".kafka_cleanshutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """The log ends (exclusive) at ``end_offset``, ``byte_count`` bytes into its last segment."""

    end_offset: int
    segment_base_offset: int
    byte_count: int


def encode_clean_shutdown(marker: CleanShutdown) -> bytes:
    """The bytes of the marker."""
    fields = {
        "version": 0,
        "brokerEpoch": -1,
        "endOffset": marker.end_offset,
        "segment": marker.segment_base_offset,
        "position": marker.byte_count,
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def parse_clean_shutdown(data: bytes) -> CleanShutdown | None:
    """What the marker says, or None: then it is as if it were not there."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    match fields:
        case {
            "version": 0,
            "endOffset": int(end_offset),
            "segment": int(segment_base_offset),
            "position": int(byte_count),
        } if 0 <= segment_base_offset <= end_offset and byte_count >= 0:
            return CleanShutdown(
                end_offset=end_offset,
                segment_base_offset=segment_base_offset,
                byte_count=byte_count,
            )
        case _:
            return None
