"""``published``: how far an embedded log is synced, told by its writers to everybody else.

Rules of this file:

1. One line of text, of one length as long as the machine runs: boot id, end offset (exclusive),
   base offset of the active segment, position behind the last synced batch in it, leader epoch, log
   start offset, and the CRC-32C of all that. A writer writes it anew in place after each sync and
   never syncs it.
2. It counts only while the machine runs on since it was written: a boot id of before says nothing,
   since the file's own bytes may be of any age then.
3. A replica of a quorum keeps the same line under another name, ``synced``: it tells the next
   opening of the log what was durable. Readers leave it alone, since synced is not committed.
4. What does not parse, or whose CRC does not hold, was caught while it was being written: it is
   read again, and after a few times it is as if it were not there.
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
"""A writer needs a microsecond for the line: nobody meets it so often in the middle of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Everything below ``end_offset`` is synced and may be read.

    ``file_position`` is that behind the last such batch, in the segment that begins with
    ``segment_base_offset``; ``epoch`` is the log's newest leader epoch. Below ``log_start_offset``
    the log is forgotten.
    """

    boot_id: str
    end_offset: int
    segment_base_offset: int
    file_position: int
    epoch: int
    log_start_offset: int = 0


def encode_published(published: Published) -> bytes:
    """The line. ``boot_id`` is text without spaces."""
    assert len(published.boot_id.split()) == 1, "a boot id is one word"
    text = (
        f"{_MAGIC} {published.boot_id} {published.end_offset:020d} "
        f"{published.segment_base_offset:020d} {published.file_position:020d} "
        f"{published.epoch:010d} {published.log_start_offset:020d}"
    ).encode("ascii")
    return text + f" {crc32c(text):08x}\n".encode("ascii")


def parse_published(data: bytes) -> Published | None:
    """What the line says, or None if it is no whole line. What follows the line is left alone."""
    line, newline, _ = data.partition(b"\n")
    text, _, crc = line.rpartition(b" ")
    if not newline or crc != f"{crc32c(text):08x}".encode("ascii"):
        return None
    words = text.decode("ascii", "replace").split(" ")
    if len(words) != _FIELD_COUNT or words[0] != _MAGIC:
        return None
    if not all(word.isascii() and word.isdigit() for word in words[2:]):
        return None
    end_offset, segment_base_offset, file_position, epoch, start_offset = map(int, words[2:])
    return Published(
        boot_id=words[1],
        end_offset=end_offset,
        segment_base_offset=segment_base_offset,
        file_position=file_position,
        epoch=epoch,
        log_start_offset=start_offset,
    )


def read_published(
    storage: Storage, directory: str, boot_id: str, name: str = PUBLISHED_NAME
) -> Published | None:
    """What the writers of the log in ``directory`` have published since the machine started.

    None if nobody has since then. Raises ``LogAccessError``.
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
