"""The file ``published``: synced end of an embedded log, shared by its writers with readers.

Format: one line of fixed length with boot id, end offset (exclusive), base offset of the active
segment, position after the last synced batch in it, leader epoch, log start offset, and the CRC-32C
of these.

Invariants:

1. A writer overwrites the line in place after each sync, and never syncs it: the line is valid in
   the boot that it names only, since after a boot the file may have bytes of any age.
2. A replica of a quorum keeps the same line in the file ``synced``, for the next start of that
   replica. Readers ignore it, since synced records may be uncommitted.
3. A line with a wrong CRC was read during a write: it is read again, at most ``_READS_MAX`` times,
   and then treated as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from raftlog.errors import LogNotFoundError
from raftlog.storage.protocol import Storage

PUBLISHED_NAME: Final = "published"
SYNCED_NAME: Final = "synced"

_MAGIC: Final = "raftlog-published-1"
_FIELD_COUNT: Final = 7
_BYTES_MAX: Final = 512
_READS_MAX: Final = 1000
"""Reads of the line; a write of it takes about a microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Synced end of an embedded log: all records below ``end_offset`` are synced and may be read.

    ``file_position`` is the position after the last such batch, in the segment with base offset
    ``segment_base_offset``; ``epoch`` is the latest leader epoch. Records below
    ``log_start_offset`` are deleted.
    """

    boot_id: str
    end_offset: int
    segment_base_offset: int
    file_position: int
    epoch: int
    log_start_offset: int = 0


def encode_published(published: Published) -> bytes:
    """Encode the line. ``boot_id`` is text without spaces."""
    assert len(published.boot_id.split()) == 1, "a boot id is one word"
    text = (
        f"{_MAGIC} {published.boot_id} {published.end_offset:020d} "
        f"{published.segment_base_offset:020d} {published.file_position:020d} "
        f"{published.epoch:010d} {published.log_start_offset:020d}"
    ).encode("ascii")
    return text + f" {crc32c(text):08x}\n".encode("ascii")


def parse_published(data: bytes) -> Published | None:
    """Parse the line; None if it is incomplete or its CRC is wrong. Bytes after it are ignored."""
    line, newline, _ = data.partition(b"\n")
    text, _, crc = line.rpartition(b" ")
    if not newline or crc != f"{crc32c(text):08x}".encode("ascii"):
        return None
    fields = text.decode("ascii", "replace").split(" ")
    if len(fields) != _FIELD_COUNT or fields[0] != _MAGIC:
        return None
    if not all(word.isascii() and word.isdigit() for word in fields[2:]):
        return None
    end_offset, segment_base_offset, file_position, epoch, start_offset = map(int, fields[2:])
    return Published(
        boot_id=fields[1],
        end_offset=end_offset,
        segment_base_offset=segment_base_offset,
        file_position=file_position,
        epoch=epoch,
        log_start_offset=start_offset,
    )


def read_published(
    storage: Storage, directory: str, boot_id: str, name: str = PUBLISHED_NAME
) -> Published | None:
    """Return the line that the log's writers have written since the last boot, else None.

    Raises ``LogAccessError``.
    """
    try:
        with storage.open_file(storage.join(directory, name)) as file:
            for _ in range(_READS_MAX):
                published = parse_published(file.read_at(0, _BYTES_MAX))
                if published is not None:
                    return published if published.boot_id == boot_id else None
    except LogNotFoundError:
        return None
    return None
