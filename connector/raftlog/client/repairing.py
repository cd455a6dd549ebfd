"""Give up the end of a damaged log so that it can be written again: the door that loses records.

Rules of this file:

1. Only on somebody's word, under the lock of the writers, and all of it saved aside.
"""

from __future__ import annotations

import os
from typing import Final

from raftlog.errors import LogReadOnlyError
from raftlog.log.names import RAFTLOG_PROPERTIES_NAME
from raftlog.log.writing.repair import Repaired, cut_log_at
from raftlog.storage.local_writing import WritableLocalStorage
from raftlog.storage.protocol import WritableStorage

from .arguments import whole_number
from .creating import read_properties
from .group import Clock
from .turns import Turns

LOCK_WAIT_MS: Final = 30_000
"""How long a repair waits for the writers of the log to stop."""


def repair_log(
    path: str | os.PathLike[str],
    *,
    cut_at: int,
    storage: WritableStorage | None = None,
    clock: Clock | None = None,
) -> Repaired:
    """Cut the log in ``path`` before the batch that holds offset ``cut_at``, or at its end.

    What is cut is saved beside the log and named in the answer. Raises ``LogNotFoundError``,
    ``LogReadOnlyError`` for a directory that is not a log of ours, ``LogLockedError`` if a writer
    holds the log for longer than ``LOCK_WAIT_MS``, ``OptionError`` for an offset that the log does
    not hold soundly.
    """
    directory = os.fspath(path)
    files = WritableLocalStorage() if storage is None else storage
    clock = Clock() if clock is None else clock
    cut_at = whole_number(cut_at, "cut-at")
    files.is_directory(directory)  # raises if nothing is there
    properties = read_properties(files, directory)
    if properties is None:
        raise LogReadOnlyError(
            path=directory,
            reason=f"it has no {RAFTLOG_PROPERTIES_NAME}, so it is Kafka's and not ours to write",
            remedy="let its node recover it",
        )
    turns = Turns(files, directory, pause=clock.pause)
    with turns.take_within(LOCK_WAIT_MS, clock.now_ms):
        return cut_log_at(
            files, directory, offset=cut_at, config=properties.config, now_ms=clock.wall_ms()
        )
