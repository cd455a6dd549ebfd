"""``.kafka_cleanshutdown``: the end of the log when its last writer closed it.

Everything below that end was synced before the file is written, indexes and producer snapshot too.
The file is deleted, and the directory synced, before the first write after an open.

Several processes may have one log open, and one that closes it does not stop the others. So the
file holds the end offset, the last segment and its size, and counts only while they match the log.

Kafka: ``CleanShutdownFileHandler``, a JSON object with ``version`` and ``brokerEpoch``. Kafka has
one file per log directory; raftlog has one per partition.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

CLEAN_SHUTDOWN_NAME: Final = ".kafka_cleanshutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShutdown:
    """The log's end: ``end_offset`` (exclusive), ``byte_count`` bytes into its last segment."""

    end_offset: int
    segment_base_offset: int
    byte_count: int


def encode_clean_shutdown(marker: CleanShutdown) -> bytes:
    """Return the content of ``.kafka_cleanshutdown``."""
    fields = {
        "version": 0,
        "brokerEpoch": -1,
        "endOffset": marker.end_offset,
        "segment": marker.segment_base_offset,
        "position": marker.byte_count,
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def parse_clean_shutdown(data: bytes) -> CleanShutdown | None:
    """Parse the file. Returns None if it does not parse: then the shutdown was not clean."""
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
