"""Commits that delta-rs writes and raftlog commits: merges, compactions, deletes and others.

delta-rs commits files that are not on disk yet, so a power loss could leave an entry that removes
files and adds empty ones. Rules of this file:

1. delta-rs works on a copy of the table, which consists of links to its files and to its log's
   entries from the newest checkpoint on. What delta-rs commits to the copy is then committed to the
   table.
2. New files, their names and all earlier commits are durable before the entry that adds the files
   gets its name.
3. These commits since the copy conflict:

   - a commit that changes metadata, or removes a file that this commit removes
   - with a merge: a commit that adds rows to a partition to which the merge adds some
   - with a delete: a commit that adds rows which it may have to delete, by the statistics of their
     files
   - every commit, in a table with features that may need more, and with an append to a table that
     another engine has altered

4. ``vacuum`` deletes a copy that a crash left, a day later.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from raftlog_state.tables.staging import sync

from .delta_appends import (
    Action,
    added_files,
    commit,
    directories_of,
    entry,
    linked_names,
    read_actions,
    sync_entries,
)
from .protocol import STAGED_AGE_MAX_S, AnyOf, Condition, Where

Conflict: TypeAlias = Callable[[Sequence[Action], Sequence[Action]], bool]
"""Function that returns whether a commit, the first, conflicts with one since its copy."""

_LOG: Final = "_delta_log"
_SIDECARS: Final = "_sidecars"
_DELETION_VECTORS: Final = "deletion_vector_*.bin"
_WRITER_VERSION_MAX: Final = 4
"""Delta's last writer version with only these features; a table of version 7 lists its own."""
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "deletionVectors",
    }
)
"""Features of tables whose commits conflict only by their files and rows."""


def copy_log(directory: Path, copy: Path, checkpoint_version: int) -> None:
    """Create a copy of a table without its files.

    ``checkpoint_version`` is the newest checkpoint's, -1 without one.
    """
    source, target = directory / _LOG, copy / _LOG
    target.mkdir(parents=True)
    with linked_names(directory):
        for path in source.glob(f"{checkpoint_version:020}.checkpoint*"):
            os.link(path, target / path.name)
        if (source / _SIDECARS).is_dir():  # of a checkpoint of version 2
            (target / _SIDECARS).mkdir()
            for path in (source / _SIDECARS).iterdir():
                os.link(path, target / _SIDECARS / path.name)
        version = max(0, checkpoint_version)
        if not entry(source, version).exists():  # the checkpoint's entry may be deleted
            version += 1
        while entry(source, version).exists():
            os.link(entry(source, version), entry(target, version))
            version += 1


def link_files(directory: Path, copy: Path, paths: Iterable[str], *, with_vectors: bool) -> None:
    """Link files of a table into a copy, by their paths in Delta's log.

    ``with_vectors``: also link all deletion vectors, which the table may have.
    """
    found = directory.rglob(_DELETION_VECTORS) if with_vectors else ()
    vectors = (str(path.relative_to(directory)) for path in found)
    with linked_names(directory):
        for path in (*map(unquote, paths), *vectors):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(directory / path, copy / path)


def publish(
    directory: Path, copy: Path, version: int, inode: int, conflicts: Conflict
) -> int | None:
    """Commit to a table what was committed to its copy after ``version``; return the version.

    Without such a commit, return ``version``. None: another commit conflicts. ``inode`` is the
    inode of the table's log.
    """
    log = directory / _LOG
    try:
        actions = read_actions(copy / _LOG, version + 1)
    except FileNotFoundError:
        return version
    files = added_files(actions)
    _link_added(directory, copy, files)
    version += 1
    while not commit(log, version, actions, inode):
        try:
            theirs = read_actions(log, version)
        except (OSError, ValueError):  # another table has replaced it, or its entry is deleted
            return None
        if theirs != actions and conflicts(actions, theirs):
            for path in files:  # otherwise a commit that conflicts each time would fill the disk
                (directory / path).unlink(missing_ok=True)
            return None
        sync_entries(log, range(version, version + 1))
        if theirs == actions:  # a network file system may report that its link exists
            return version
        version += 1
    return version


def delete_old_copies(copies: Iterable[Path]) -> None:
    """Delete copies of processes that were killed a day ago or earlier."""
    oldest_s = time.time() - STAGED_AGE_MAX_S
    for copy in copies:
        with suppress(FileNotFoundError):
            if copy.stat().st_mtime < oldest_s:
                shutil.rmtree(copy, ignore_errors=True)


def _link_added(directory: Path, copy: Path, files: Sequence[Path]) -> None:
    """Link new files of a copy into the table, where they are durable."""
    for path in files:
        sync(copy / path)
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(copy / path, directory / path)
    for path in directories_of(files):
        sync(directory / path)


def conflicts_are_known(protocol: Any) -> bool:
    """Return whether a table's protocol has no feature that may cause other conflicts."""
    features = protocol.writer_features
    if features is None:
        return bool(protocol.min_writer_version <= _WRITER_VERSION_MAX)
    return _FEATURES.issuperset(features)


def any_conflicts(ours: Sequence[Action], theirs: Sequence[Action]) -> bool:
    """Return True: any other commit conflicts."""
    return True


def rewrite_conflicts(ours: Sequence[Action], theirs: Sequence[Action]) -> bool:
    """Return whether a merge or a compaction conflicts with another commit."""
    partitions = [one["partitionValues"] for one in _with_other_rows(ours)]
    return _are_of_same_files(ours, theirs) or any(
        one["partitionValues"] in partitions for one in _with_other_rows(theirs)
    )


def delete_conflicts(where: Where, any_of: AnyOf) -> Conflict:
    """Return the function for a delete of the rows for which conditions hold."""

    def conflicts(ours: Sequence[Action], theirs: Sequence[Action]) -> bool:
        return _are_of_same_files(ours, theirs) or any(
            _may_hold(where, any_of, one.get("stats")) for one in _with_other_rows(theirs)
        )

    return conflicts


def _are_of_same_files(ours: Sequence[Action], theirs: Sequence[Action]) -> bool:
    """Return whether both commits remove a file, or the other one changes all files."""
    if any(True for name in ("metaData", "protocol") for _ in _all(name, theirs)):
        return True
    removed = {one["path"] for one in _all("remove", ours)}
    return any(one["path"] in removed for one in _all("remove", theirs))


def _may_hold(where: Where, any_of: AnyOf, statistics: str | None) -> bool:
    """Return whether conditions may hold for a row of a file with these statistics."""
    known = json.loads(statistics or "{}")
    least, greatest = known.get("minValues", {}), known.get("maxValues", {})

    def may_hold(condition: Condition) -> bool:
        name, sign, value = condition
        return _may_compare(least.get(name), greatest.get(name), sign, value)

    return any(all(map(may_hold, (*where, *each))) for each in any_of or ((),))


def _may_compare(low: Any, high: Any, sign: str, value: Any) -> bool:
    """Return whether a comparison may hold for a value between two others; None: unknown."""
    if not type(low) is type(high) is type(value):
        return True
    match sign:
        case "=":
            return bool(low <= value <= high)
        case "<" | "<=":
            return bool(low < value or (low == value and sign == "<="))
        case ">" | ">=":
            return bool(high > value or (high == value and sign == ">="))
    return not low == value == high


def _with_other_rows(actions: Sequence[Action]) -> Iterator[dict[str, Any]]:
    return (one for one in _all("add", actions) if one["dataChange"])


def _all(name: str, actions: Sequence[Action]) -> Iterator[dict[str, Any]]:
    return (action[name] for action in actions if name in action)
