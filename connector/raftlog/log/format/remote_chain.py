"""``remote-log-segments``: the log's segments that are in an object store.

The store's manifest decides which remote segments exist. The log's writer copies the part of the
manifest that concerns this log to this file, so that readers do not need the manifest. The file is
replaced before local segments that it lists are deleted, and before objects that it no longer lists
are deleted. The first line is a CRC-32C of the rest, which is JSON.

    log start                     local log start        end of the log
    |  remote   |  remote   |  remote and local  |  local  |  active  |
                                                 copied end

Kafka: ``RemoteLogMetadataCache``; ``UnifiedLog.localLogStartOffset``,
``highestOffsetInRemoteStorage``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from crc32c import crc32c

from raftlog.errors import CorruptFileError, LogNotFoundError
from raftlog.limits import INT64_MAX, MIB, SEGMENT_BYTES_MAX
from raftlog.storage.protocol import Storage

from .directory import LOG_SUFFIX, REMOTE_SEGMENTS_NAME, offset_name

HEAD_BYTES: Final = 9
"""The CRC in hexadecimal digits and a newline. They change if the content does."""
CHAIN_BYTES_MAX: Final = 128 * MIB
"""A segment takes up to 100 bytes here, and a manifest has up to a million segments."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """Segment in an object store. ``end_offset`` is exclusive."""

    first_offset: int
    end_offset: int
    segment_id: str
    byte_count: int
    max_timestamp_ms: int

    def object_name(self, directory: str, suffix: str = LOG_SUFFIX) -> str:
        """Return the name of its object that has this suffix."""
        return f"{directory}/{offset_name(self.first_offset, '')}-{self.segment_id}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteChain:
    """Contiguous remote segments of a log, oldest first.

    - ``uri``: the object store.
    - ``directory``: the directory of the partition's objects in the store.
    - ``log_start_offset``: the log has no records below it, even if the store has.
    - ``copied_end_offset``: everything below it was copied, and may be deleted locally.
    """

    uri: str
    directory: str
    log_start_offset: int = 0
    copied_end_offset: int = 0
    segments: tuple[RemoteSegment, ...] = ()

    def reaches(self, local_start_offset: int) -> bool:
        """Return whether the remote segments extend at least to the start of the local files."""
        return bool(self.segments) and self.segments[-1].end_offset >= local_start_offset

    def start_at(self, local_start_offset: int) -> int | None:
        """Return the first offset of a log whose local files start at ``local_start_offset``.

        The result is None if the log starts with its local files, because the remote segments do
        not reach these, or do not start before them.
        """
        if not self.reaches(local_start_offset):
            return None
        start = max(self.segments[0].first_offset, self.log_start_offset)
        return start if start < local_start_offset else None

    def start_with(self, local_start_offset: int) -> int:
        """Return the log's first offset, remote or local; the local files start at the argument."""
        start = self.start_at(local_start_offset)
        return max(local_start_offset if start is None else start, self.log_start_offset)

    def starting_at(self, offset: int) -> RemoteChain:
        """Return the chain of a log that starts at ``offset``, or later if it already does."""
        start = max(offset, self.log_start_offset)
        return RemoteChain(
            uri=self.uri,
            directory=self.directory,
            log_start_offset=start,
            copied_end_offset=self.copied_end_offset,
            segments=tuple(one for one in self.segments if one.end_offset > start),
        )


def encode_remote_chain(chain: RemoteChain) -> bytes:
    """Return the content of the file."""
    fields = {
        "version": 1,
        "uri": chain.uri,
        "directory": chain.directory,
        "logStartOffset": chain.log_start_offset,
        "copiedEndOffset": chain.copied_end_offset,
        "segments": [
            [one.first_offset, one.end_offset, one.segment_id, one.byte_count, one.max_timestamp_ms]
            for one in chain.segments
        ],
    }
    data = json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
    return b"%08x\n" % crc32c(data) + data


def parse_remote_chain(data: bytes, path: str) -> RemoteChain:
    """Parse and validate the file. Raises ``CorruptFileError``."""
    head, body = data[:HEAD_BYTES], data[HEAD_BYTES:]
    if head != b"%08x\n" % crc32c(body):
        raise CorruptFileError(path=path, reason="its CRC does not match its content")
    try:
        return _parse(json.loads(body))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"it is not a list of remote segments: {error}"
        raise CorruptFileError(path=path, reason=reason) from None


def read_remote_chain(storage: Storage, directory: str) -> RemoteChain | None:
    """Return a log's remote segments; None if it has never had any.

    Raises ``CorruptFileError``.
    """
    path = storage.join(directory, REMOTE_SEGMENTS_NAME)
    try:
        with storage.open_file(path) as file:
            return parse_remote_chain(file.read_at(0, CHAIN_BYTES_MAX), path)
    except LogNotFoundError:
        return None


def _parse(fields: Mapping[str, Any]) -> RemoteChain:
    if fields["version"] != 1:
        raise ValueError(f"its version is {str(fields['version'])[:20]}, not 1")
    segments = tuple(
        RemoteSegment(
            first_offset=_number(first),
            end_offset=_number(end),
            segment_id=_identified(segment_id),
            byte_count=_number(byte_count, at_most=SEGMENT_BYTES_MAX),
            max_timestamp_ms=_number(time_ms, at_least=-1),
        )
        for first, end, segment_id, byte_count, time_ms in fields["segments"]
    )
    if any(one.first_offset >= one.end_offset for one in segments):
        raise ValueError("a segment has no offsets")
    if any(one.end_offset != following.first_offset for one, following in pairwise(segments)):
        raise ValueError("its segments are not contiguous")
    return RemoteChain(
        uri=_text(fields["uri"]),
        directory=_text(fields["directory"]),
        log_start_offset=_number(fields["logStartOffset"]),
        copied_end_offset=_number(fields["copiedEndOffset"]),
        segments=segments,
    )


def _number(value: object, *, at_least: int = 0, at_most: int = INT64_MAX) -> int:
    if type(value) is not int or not at_least <= value <= at_most:
        raise ValueError(f"{str(value)[:20]} is not a number of its field")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text is missing")
    return value


def _identified(value: object) -> str:
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise ValueError("a segment has no id")
    return value
