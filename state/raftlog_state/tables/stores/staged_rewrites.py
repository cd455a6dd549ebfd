"""Merges and compactions by delta-rs, committed by raftlog.

delta-rs commits files that are not on disk yet: a loss of power could leave an entry that removes
files and adds empty ones. Rules of this file:

1. delta-rs works on a copy of the table: links of its files, and of the entries of its log from the
   newest checkpoint on. What it commits to the copy is then committed to the table.
2. New files are durable, and so are their names and all earlier commits, before the entry that adds
   them has its name.
3. Of the commits since the copy, one conflicts that changes metadata, removes a file that this
   commit removes, or adds other rows to a partition to which this commit adds other rows.
4. A copy that a crash leaves is deleted by ``vacuum`` a day later.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from raftlog_state.tables.staging import sync

from .delta_appends import (
    STAGED_AGE_MAX_S,
    Action,
    commit,
    entry,
    linked_names,
    read_actions,
    sync_entries,
)

_LOG: Final = "_delta_log"


def copy_log(directory: Path, copy: Path, checkpoint_version: int) -> None:
    """Create a copy of a table without its files; the checkpoint is the newest, -1 without one."""
    source, target = directory / _LOG, copy / _LOG
    target.mkdir(parents=True)
    with linked_names(directory):
        for path in source.glob(f"{checkpoint_version:020}.checkpoint*"):
            os.link(path, target / path.name)
        version = max(0, checkpoint_version)
        if not entry(source, version).exists():  # that of the checkpoint may be deleted
            version += 1
        while entry(source, version).exists():
            os.link(entry(source, version), entry(target, version))
            version += 1


def link_files(directory: Path, copy: Path, paths: Iterable[str]) -> None:
    """Link files of a table into a copy, by their paths in Delta's log."""
    with linked_names(directory):
        for path in map(unquote, paths):
            (copy / path).parent.mkdir(exist_ok=True)
            os.link(directory / path, copy / path)


def publish(directory: Path, copy: Path, version: int, inode: int) -> int | None:
    """Commit to a table what was committed to its copy after ``version``; return the version.

    Without such a commit it is ``version``. None: there is another commit that conflicts.
    ``inode`` is that of the table's log.
    """
    log = directory / _LOG
    try:
        actions = read_actions(copy / _LOG, version + 1)
    except FileNotFoundError:
        return version
    _link_added(directory, copy, actions)
    version += 1
    while not commit(log, version, actions, inode):
        try:
            theirs = read_actions(log, version)
        except (OSError, ValueError):  # another table has replaced it, or its entry is deleted
            return None
        if _is_conflict(actions, theirs):
            return None
        sync_entries(log, range(version, version + 1))
        version += 1
    return version


def delete_old_copies(copies: Iterable[Path]) -> None:
    """Delete copies of processes that were killed a day ago or earlier."""
    oldest_s = time.time() - STAGED_AGE_MAX_S
    for copy in copies:
        with suppress(FileNotFoundError):
            if copy.stat().st_mtime < oldest_s:
                shutil.rmtree(copy, ignore_errors=True)


def _link_added(directory: Path, copy: Path, actions: Sequence[Action]) -> None:
    """Link new files of a copy into the table, where they are durable."""
    parents = {directory}
    for path in (unquote(added["path"]) for added in _all("add", actions)):
        sync(copy / path)
        parent = (directory / path).parent
        parent.mkdir(exist_ok=True)
        os.link(copy / path, directory / path)
        parents.add(parent)
    for parent in parents:
        sync(parent)


def _is_conflict(ours: Sequence[Action], theirs: Sequence[Action]) -> bool:
    if any(True for name in ("metaData", "protocol") for _ in _all(name, theirs)):
        return True
    removed = {one["path"] for one in _all("remove", ours)}
    if any(one["path"] in removed for one in _all("remove", theirs)):
        return True
    partitions = [one["partitionValues"] for one in _with_other_rows(ours)]
    return any(one["partitionValues"] in partitions for one in _with_other_rows(theirs))


def _with_other_rows(actions: Sequence[Action]) -> Iterator[dict[str, Any]]:
    return (one for one in _all("add", actions) if one["dataChange"])


def _all(name: str, actions: Sequence[Action]) -> Iterator[dict[str, Any]]:
    return (action[name] for action in actions if name in action)
