"""Settings of an embedded log: reading and changing them.

Settings have Kafka's names and are text, as in ``raftlog.properties``. The topic id and the kind of
values never change. Changes are written under the lock of the writers, each of which reads the file
again before its next group: no restart is needed.

A ``raftlog.properties`` that was edited by hand fails its checksum and is refused as damaged. Only
``configure`` accepts it, if it is valid and of this log, and writes it with a new checksum.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from raftlog.errors import CorruptFileError, OptionError
from raftlog.limits import SMALL_FILE_BYTES_MAX
from raftlog.log.format.directory import (
    PARTITION_METADATA_NAME,
    RAFTLOG_PROPERTIES_NAME,
    encode_properties,
    parse_partition_metadata,
    parse_properties,
)
from raftlog.log.writing.log_directory import read_checked, replace_checked
from raftlog.log.writing.properties import encode_log_properties, parse_log_properties
from raftlog.storage.local import WritableLocalStorage
from raftlog.storage.protocol import WritableStorage

from .arguments import without_scheme
from .clock import Clock
from .create import embedded_properties
from .group_committer import LOCK_WAIT_MS, FairLock

_FIXED: Final = ("version", "topic.id", "values")


def read_settings(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings of the embedded log in ``path``.

    Raises ``LogNotFoundError``, ``NotALogError`` and ``CorruptFileError``.
    """
    return _settings(WritableLocalStorage(), without_scheme(os.fspath(path)))


def configure(
    path: str | os.PathLike[str],
    changes: Mapping[str, str],
    *,
    storage: WritableStorage | None = None,
    clock: Clock | None = None,
) -> dict[str, str]:
    """Change settings of the embedded log in ``path``, and return all of its settings.

    Running writers use the new settings from their next group of appends on. If an argument is
    refused, nothing is changed.

    Args:
        path: the directory of the log.
        changes: values by setting, both as in ``raftlog.properties``, such as
            ``{"retention.ms": "604800000"}``; ``"-1"`` is no limit.
        storage: the file system; None: the local one.
        clock: the time source; None: the system's.

    Raises:
        OptionError: a setting is unknown, cannot change, or cannot have this value.
        LogNotFoundError, NotALogError: ``path`` does not exist, or is not an embedded log.
        LogLockedError: a writer held the log's lock for 30 s (``LOCK_WAIT_MS``).
        LogAccessError: the files cannot be read or written.
        CorruptFileError: ``raftlog.properties`` is invalid, or of another log.
    """
    directory = without_scheme(os.fspath(path))
    files = WritableLocalStorage() if storage is None else storage
    is_edited = False
    try:
        _settings(files, directory)  # no lock file is written to what is not an embedded log
    except CorruptFileError:
        if not changes:
            raise
        is_edited = True
    clock = Clock() if clock is None else clock
    fair_lock = FairLock(files, directory, pause=clock.pause)
    with fair_lock.acquire_within(LOCK_WAIT_MS, clock.now_ms):
        settings = (
            _settings_as_edited(files, directory) if is_edited else _settings(files, directory)
        )
        for name in changes:
            if name in _FIXED:
                raise OptionError(option=name, reason="it is fixed when the log is created")
            if name not in settings:
                known = ", ".join(one for one in settings if one not in _FIXED)
                raise OptionError(option=name, reason=f"no such setting; known settings: {known}")
        changed = settings | dict(changes)
        data = encode_properties(changed.items())
        try:
            parse_log_properties(data, directory)
        except CorruptFileError as error:
            wrong = next((name for name in changes if error.reason.startswith(f"{name}: ")), None)
            reason = error.reason.removeprefix(f"{wrong}: ")
            raise OptionError(option=wrong or ", ".join(changes), reason=reason) from None
        if changed != settings or is_edited:
            replace_checked(files, directory, {RAFTLOG_PROPERTIES_NAME: data})
        return changed


def _settings(files: WritableStorage, directory: str) -> dict[str, str]:
    properties = embedded_properties(files, directory)
    return dict(parse_properties(encode_log_properties(properties), directory))


def _settings_as_edited(files: WritableStorage, directory: str) -> dict[str, str]:
    """Return the settings in a file whose checksum does not match."""
    path = files.join(directory, RAFTLOG_PROPERTIES_NAME)
    with files.open_file(path) as file:
        properties = parse_log_properties(file.read_at(0, SMALL_FILE_BYTES_MAX), path)
    metadata_path = files.join(directory, PARTITION_METADATA_NAME)
    metadata = read_checked(files, metadata_path)
    if (
        metadata is None
        or properties.topic_id != parse_partition_metadata(metadata, metadata_path).topic_id
    ):
        raise CorruptFileError(path=path, reason=f"its topic.id is not that of {metadata_path}")
    return dict(parse_properties(encode_log_properties(properties), directory))
