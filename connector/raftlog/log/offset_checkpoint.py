"""The files ``log-start-offset-checkpoint`` and ``recovery-point-offset-checkpoint``.

Format (Kafka: ``OffsetCheckpointFile``, ``CheckpointFile``): version 0, the count, and lines
``topic partition offset``. Kafka has one of each per log directory; here each log has its own. All
bytes below the recovery point are synced: ``recovery_point <= synced``.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import CorruptFileError
from raftlog.types import TopicPartition

from .text_files import decoded_text, whole_number

LOG_START_CHECKPOINT_NAME: Final = "log-start-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT_NAME: Final = "recovery-point-offset-checkpoint"


def encode_offset_checkpoint(partition: TopicPartition, offset: int) -> bytes:
    """Encode a checkpoint of one partition."""
    return f"0\n1\n{partition.topic} {partition.partition} {offset}\n".encode("ascii")


def parse_offset_checkpoint(data: bytes, path: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition in a checkpoint. Raises ``CorruptFileError``."""
    lines = decoded_text(data, path).splitlines()
    if not lines:
        return {}
    if whole_number(lines[0], path, "the version") != 0:
        raise CorruptFileError(path=path, reason=f"its version is {lines[0][:20]!r}, not 0")
    count = whole_number(lines[1], path, "the entry count") if len(lines) > 1 else -1
    if count != len(lines) - 2:
        raise CorruptFileError(
            path=path, reason=f"it claims {count} entries and has {max(0, len(lines) - 2)}"
        )
    offsets: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        fields = line.split()
        if len(fields) != 3:
            raise CorruptFileError(
                path=path, reason=f"{line[:40]!r} is not a topic, a partition and an offset"
            )
        partition = TopicPartition(fields[0], whole_number(fields[1], path, "a partition"))
        offset = whole_number(fields[2], path, "an offset")
        if offset < 0 or partition in offsets:
            raise CorruptFileError(path=path, reason=f"{line[:40]!r} is negative or a duplicate")
        offsets[partition] = offset
    return offsets


def parse_single_offset(data: bytes, path: str) -> int:
    """Return the offset in a checkpoint of one log. Raises ``CorruptFileError``.

    The partition in it is ignored: a directory may have been renamed.
    """
    offsets = parse_offset_checkpoint(data, path)
    if len(offsets) != 1:
        raise CorruptFileError(path=path, reason=f"it names {len(offsets)} partitions, not one")
    return next(iter(offsets.values()))
