"""Snapshots of cluster state that Kafka's tools read and a Kafka node starts from (KIP-630).

A snapshot is complete or not written: records that this release does not support and redacted
secrets are errors. Its secrets are in clear text, so the file is readable by its owner only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftlog import EmbeddedLog
from raftlog.client import LogReader, write_new_file
from raftlog.errors import OptionError
from raftlog.types import SnapshotId
from raftlog_state.errors import InvalidRecordError, UnsupportedVersionError

from .image import ConfigRow, MetadataImage, ScramRow
from .image.image_writer import image_records
from .loader.image_reader import ImageReader
from .records import Redactor, encode, is_redacted
from .snapshots import snapshot_bytes

SUFFIX: Final = ".checkpoint"


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """Snapshot file that was written. A node requires the name in ``snapshot_id``."""

    path: str
    snapshot_id: SnapshotId
    byte_count: int


def export_snapshot(
    source: str | os.PathLike[str] | LogReader,
    path: str | os.PathLike[str],
    *,
    end_offset: int | None = None,
) -> ExportedSnapshot:
    """Write a snapshot of a metadata log's state at ``end_offset``.

    Args:
        source: the log, or an argument of ``raftlog.client.open_path``: a log directory of raftlog
            or of Kafka, the directories of several voters, or a snapshot.
        path: an existing directory, in which the file is created with the name that Kafka would
            use, or a file name that ends in ``.checkpoint``.
        end_offset: exclusive, as in a snapshot's name; None: the committed end.

    Raises:
        OffsetOutOfRangeError, DataLossError: the state cannot be rebuilt from the log.
        UnsupportedVersionError: the log contains records that this release does not support.
        FileExistsLogError: the file exists.
        Also the errors of reading a log.
    """
    log = source if isinstance(source, LogReader) else os.fspath(source)
    images = ImageReader(log, Redactor(reveal=True))
    image = images.image_at(images.end_offset() if end_offset is None else end_offset)
    _check_nothing_skipped(images)
    return write_snapshot(image, path)


def snapshot_log(
    log: EmbeddedLog, *, delete_before: bool = False, timeout_ms: int = 30_000
) -> SnapshotId | None:
    """Write a snapshot of a ``kraft`` log's newest state into the log; return its id.

    Later reads of the state start from the snapshot instead of the first record, so take one every
    few thousand records. ``delete_before`` deletes the records before the snapshot. Returns None if
    the log already contains this snapshot.

    Raises ``UnsupportedVersionError`` like ``export_snapshot``, and the errors of
    ``EmbeddedLog.snapshot``; ``OptionError`` if ``log`` was not returned by ``raftlog.open``.
    """
    if not isinstance(log, EmbeddedLog):
        reason = f"must be a log from raftlog.open, not {type(log).__name__}"
        raise OptionError(option="log", reason=reason)
    images = ImageReader(log.path, Redactor(reveal=True))
    image = images.image_at(images.end_offset())
    _check_nothing_skipped(images)
    values = [encode(record) for record in image_records(image)]
    return log.snapshot(
        values,
        end_offset=image.snapshot_id.end_offset,
        delete_before=delete_before,
        timeout_ms=timeout_ms,
    )


def write_snapshot(
    image: MetadataImage, path: str | os.PathLike[str], *, written_ms: int | None = None
) -> ExportedSnapshot:
    """Write a snapshot of ``image``; ``path`` as in ``export_snapshot``.

    Raises:
        InvalidRecordError: a secret in the image is redacted.
        OptionError: ``path`` is a directory, and the end offset of the image is unknown.
        FileExistsLogError: the file exists.
        Also the errors of ``snapshot_bytes``.
    """
    for record, field, owner in hidden_secrets(image):
        raise InvalidRecordError(
            record=record, version=0, field=field, reason=f"the value of {owner} is redacted"
        )
    now_ms = time.time_ns() // 1_000_000 if written_ms is None else written_ms
    data = snapshot_bytes(image, written_ms=now_ms)
    name = os.fspath(path)
    if not name.endswith(SUFFIX):
        if image.snapshot_id.end_offset == 0 < image.snapshot_id.epoch:
            reason = "the end offset of the source is unknown: give a file name, not a directory"
            raise OptionError(option="path", reason=reason)
        name = os.path.join(name, f"{image.snapshot_id}{SUFFIX}")
    target = write_new_file(name, data)
    return ExportedSnapshot(target, image.snapshot_id, len(data))


def _check_nothing_skipped(images: ImageReader) -> None:
    for skipped in images.skipped:
        if not skipped.is_control:
            raise UnsupportedVersionError(
                record=f"record type {skipped.type_id}",
                version=skipped.version,
                reason=f"this release does not support it (offset {skipped.first_offset}), so a "
                "snapshot would lose it; use a newer release",
            )


def hidden_secrets(image: MetadataImage) -> Iterator[tuple[str, str, str]]:
    """Yield (record type, field, owner) of every redacted secret in an image."""
    for config in image.rows_of(ConfigRow):
        if is_redacted(config.value):
            yield "ConfigRecord", "value", f"{config.name!r} of {config.resource_name!r}"
    for credential in image.rows_of(ScramRow):
        if is_redacted(credential.salt.decode("utf-8", "replace")):
            yield "UserScramCredentialRecord", "salt", f"user {credential.user!r}"
