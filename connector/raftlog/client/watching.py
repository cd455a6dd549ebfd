"""Detection of changes of a log's directory by the status of its files, without reading them.

A directory's modification time changes when a file is created, renamed or deleted in it; a log
grows and shrinks in its newest segment, and an embedded log's end is published in a file of its
own. All other files are replaced by renaming. Modification times have the resolution of the
kernel's clock: a recent one proves nothing, because a later change could have the same time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from raftlog.log.format.directory import LOG_SUFFIX, PUBLISHED_NAME

FileStatus: TypeAlias = tuple[int, int, int, int]
"""Device, inode, size and modification time of a file: another one after any change of it."""
Stamp: TypeAlias = tuple[FileStatus, ...]
"""Status of the directory and of files in it."""

RECENT_NS: Final = 100_000_000
"""Age below which a modification time may belong to two states of a file."""
RECENT_COARSE_NS: Final = 2_000_000_000
"""The same for file systems that store seconds or milliseconds."""
_MS: Final = 1_000_000


class DirectoryWatch:
    """Status of the files of one log's directory. ``now_ns``: the clock of the file system."""

    def __init__(self, directory: str, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._directory = directory
        self._now_ns = now_ns
        self._listed: FileStatus | None = None
        self._watched: tuple[str, ...] = ()

    def stamp(self) -> Stamp | None:
        """Return a value that differs after any change of the log.

        None if the files cannot be read or were changed recently, so that the log must be read.
        """
        try:
            listed = file_status(self._directory)
            if listed != self._listed:
                self._listed, self._watched = None, self._find_watched()
            stamp = (listed, *(file_status(path) for path in self._watched))
        except OSError:
            return None
        changed_ns = max(status[3] for status in stamp)
        if changed_ns > self._now_ns() - (RECENT_NS if changed_ns % _MS else RECENT_COARSE_NS):
            return None
        self._listed = listed
        return stamp

    def _find_watched(self) -> tuple[str, ...]:
        names = os.listdir(self._directory)
        segments = [name for name in names if name.endswith(LOG_SUFFIX)]
        watched = [max(segments)] if segments else []
        if PUBLISHED_NAME in names:
            watched.append(PUBLISHED_NAME)
        return tuple(os.path.join(self._directory, name) for name in watched)


def file_status(path: str) -> FileStatus:
    """Return the status of a file. Raises ``OSError``."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
