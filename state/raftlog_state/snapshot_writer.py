"""A checkpoint of a cluster's state, as a file that Kafka's tools read and a node boots from.

Rules of this file:

1. A checkpoint holds all of a state or is not written: records that this release does not know, and
   secrets that were redacted, are refused by name.
2. The name says the state's end offset and leader epoch, as Kafka's do (KIP-630).
3. Secrets are in it in clear: only its owner may read it, as Kafka's own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftlog import EmbeddedLog
from raftlog.client import LogReader, write_new_file
from raftlog.errors import InvalidRecordError, OptionError, UnsupportedVersionError
from raftlog.types import SnapshotId

from .image import ConfigRow, MetadataImage, ScramRow
from .image_reader import ImageReader
from .image_writer import image_records
from .records import MASK, Redactor, encode
from .snapshots import snapshot_bytes

SUFFIX: Final = ".checkpoint"
_HIDDEN: Final = re.compile(re.escape(MASK) + r"|hmac:[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A checkpoint that was written. A node takes it under the name that ``snapshot_id`` gives."""

    path: str
    snapshot_id: SnapshotId
    byte_count: int


def export_snapshot(
    source: str | os.PathLike[str] | LogReader,
    path: str | os.PathLike[str],
    *,
    end_offset: int | None = None,
) -> ExportedSnapshot:
    """Write a checkpoint of the state that a metadata log holds below ``end_offset``.

    Args:
        source: the log, or what ``raftlog.client.open_path`` takes: a directory of ours or of
            Kafka's, several voters' directories, a checkpoint.
        path: a directory that is there, in which the checkpoint gets Kafka's name for it, or a
            file's name that ends in ``.checkpoint``.
        end_offset: exclusive, as in a checkpoint's name; None: all that is committed.

    Raises:
        OffsetOutOfRangeError, DataLossError: the log does not hold that state.
        UnsupportedVersionError: the log holds records that this release does not know.
        FileExistsLogError: there is such a file already.
        And what reading a log raises.
    """
    log = source if isinstance(source, LogReader) else os.fspath(source)
    images = ImageReader(log, Redactor(reveal=True))
    image = images.image_at(images.end_offset() if end_offset is None else end_offset)
    _check_nothing_skipped(images)
    return write_snapshot(image, path)


def snapshot_log(
    log: EmbeddedLog, *, delete_before: bool = False, timeout_ms: int = 30_000
) -> SnapshotId | None:
    """Write a checkpoint of a ``kraft`` log's newest state into the log itself.

    Whoever asks for the state from then on begins there, not at the first record: worth it every
    some thousand records. ``delete_before`` lets the log begin behind it. None if there is one.

    Raises ``UnsupportedVersionError`` as ``export_snapshot`` does, and what
    ``EmbeddedLog.snapshot`` raises.
    """
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
    """Write a checkpoint of ``image``. ``path`` as in ``export_snapshot``.

    Raises ``InvalidRecordError`` if a secret in it is redacted, ``OptionError`` for a directory if
    the image does not know its end, ``FileExistsLogError``, and what ``snapshot_bytes`` raises.
    """
    for record, field, owner in hidden_secrets(image):
        raise InvalidRecordError(
            record=record, version=0, field=field, reason=f"that of {owner} is redacted"
        )
    now_ms = time.time_ns() // 1_000_000 if written_ms is None else written_ms
    data = snapshot_bytes(image, written_ms=now_ms)
    name = os.fspath(path)
    if not name.endswith(SUFFIX):
        if image.snapshot_id.end_offset == 0 < image.snapshot_id.epoch:
            reason = "the checkpoint that was read does not say where it ends: name the new one too"
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
                reason=f"this release does not know it (offset {skipped.first_offset}), so a "
                "checkpoint would lose it",
            )


def hidden_secrets(image: MetadataImage) -> Iterator[tuple[str, str, str]]:
    """What in an image stands for a secret: record, field, and whose it is."""
    for config in image.rows_of(ConfigRow):
        if _HIDDEN.fullmatch(config.value):
            yield "ConfigRecord", "value", f"{config.name!r} of {config.resource_name!r}"
    for credential in image.rows_of(ScramRow):
        if _HIDDEN.fullmatch(credential.salt.decode("utf-8", "replace")):
            yield "UserScramCredentialRecord", "salt", f"user {credential.user!r}"
