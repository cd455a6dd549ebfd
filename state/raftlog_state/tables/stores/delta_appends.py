"""Appends to a Delta table in a local directory, committed without listing its log.

delta-rs lists ``_delta_log`` before and after each commit. With 10,000 entries, this takes as long
as the rest of an append. Rules of this file:

1. A version is committed by a hard link to its entry, which fails if the entry exists. Delta's
   writers of local paths use the same protocol.
2. An append reads no rows. It conflicts only with commits of its transactions and with commits of
   other metadata. Other commits only take its version number.
3. Appends are supported only for tables as ``schema`` declares them: of their features, only checks
   concern an append.
4. The structs in a Parquet file have only the fields that its rows have, a quarter of all columns.
   The other fields are read as null.
5. A file that no commit has, for example after a crash, is deleted by ``vacuum``.
6. An entry is durable before it gets its name. The files that it adds, and all earlier commits, are
   durable before it is written. A power loss therefore leaves no entry that is empty or that adds
   an empty file. A commit is durable when it returns. delta-rs syncs nothing; ``staged_rewrites``
   commits what it writes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from raftlog_state.errors import TablesError
from raftlog_state.tables.progress import SOFTWARE
from raftlog_state.tables.schema import CHECK_PREFIX, StoredTable
from raftlog_state.tables.staging import sync, sync_descriptor

from .protocol import (
    STAGED_AGE_MAX_S,
    Rows,
    RowSlices,
    Transaction,
    in_schema,
    schema_of_rows,
)

Action: TypeAlias = dict[str, dict[str, Any]]
"""A line of an entry of Delta's log."""

_WRITER_VERSION: Final = 3
"""First Delta writer version with checks; a table of version 7 lists its features instead."""
_WRITER_FEATURES: Final = frozenset({"appendOnly", "invariants", "checkConstraints"})
_STAGED_PREFIX: Final = "_commit_"
_STAGED_SUFFIX: Final = ".json.tmp"
_DIGITS: Final = 20
"""Of the version at the begin of the names of entries and checkpoints."""
_LAST_CHECKPOINT: Final = "_last_checkpoint"
_CHECKPOINT: Final = re.compile(
    r"(?P<version>[0-9]{20})\.checkpoint"
    r"(\.[0-9]{10}\.(?P<parts>[0-9]{10})|\.[0-9a-f-]{36})?\.(parquet|json)"
)
"""Name of a checkpoint, or of one of its parts."""
_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of a file system without hard links. EPERM is also raised for files of another user."""


def is_plain(
    table: StoredTable, protocol: Any, metadata: Any, schema_json: str, declared: Any
) -> bool:
    """Return whether a commit has to respect nothing but the checks of ``table``.

    ``protocol``, ``metadata`` and ``schema_json`` are delta-rs's for the stored table, which may
    have more columns; ``declared`` is the schema of ``table`` in Delta's JSON, decoded.
    """
    stored = json.loads(schema_json)
    features = protocol.writer_features
    checks = {
        name.removeprefix(CHECK_PREFIX): check
        for name, check in metadata.configuration.items()
        if name.startswith(CHECK_PREFIX)
    }
    return (
        (protocol.min_writer_version <= _WRITER_VERSION or features is not None)
        and _WRITER_FEATURES.issuperset(features or ())
        and tuple(metadata.partition_columns) == table.partitioned_by
        and checks == {name: check.sql for name, check in table.checks.items()}
        and not any(map(_is_restricted, _fields(stored)))
        and _contains(stored, declared)
    )


def _contains(kind: Any, declared: Any) -> bool:
    """Return whether a type in Delta's JSON has the fields of a declared one, in any order."""
    if not isinstance(declared, dict) or not isinstance(kind, dict):
        return bool(kind == declared)
    if kind["type"] != declared["type"]:
        return False
    fields = {field["name"]: field["type"] for field in kind.get("fields", ())}
    parts = (name for name in ("elementType", "keyType", "valueType") if name in declared)
    return all(
        field["name"] in fields and _contains(fields[field["name"]], field["type"])
        for field in declared.get("fields", ())
    ) and all(_contains(kind[part], declared[part]) for part in parts)


def _fields(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of a type in Delta's JSON, nested ones too."""
    if isinstance(kind, dict):
        for field in kind.get("fields", ()):
            yield field
            yield from _fields(field["type"])
        for name in ("elementType", "keyType", "valueType"):
            yield from _fields(kind.get(name))


def _is_restricted(field: dict[str, Any]) -> bool:
    return not field["nullable"] or any(name.startswith("delta.") for name in field["metadata"])


def entry(log: Path, version: int) -> Path:
    """Return the entry of a version in Delta's log."""
    return log / f"{version:0{_DIGITS}}.json"


def newest_entry(log: Path, since: int = -1) -> int | None:
    """Return the newest version in Delta's log; None without a log, or without its entry.

    ``since`` is a version that was the newest one before: only the names after it are looked up.
    All names are listed if it is unknown (-1), or if it does not exist because the table is another
    one or because entries up to it were deleted.
    """
    if since < 0 or not entry(log, since).is_file():
        try:
            names = os.listdir(log)
        except FileNotFoundError:
            return None
        versions = [name[:_DIGITS] for name in names if len(name) > _DIGITS]
        since = max((int(one) for one in versions if one.isdecimal()), default=-1)
        if since < 0 or not entry(log, since).is_file():
            return None
    while entry(log, since + 1).is_file():
        since += 1
    return since


def newest_checkpoint(log: Path) -> int:
    """Return the version of the newest checkpoint; -1 without one.

    ``_last_checkpoint`` names it, but only as a hint: all names are listed if this file does not
    exist or is damaged, or if the checkpoint that it names was deleted.
    """
    hinted = _hinted_checkpoint(log)
    if hinted is not None and (log / f"{hinted:0{_DIGITS}}.checkpoint.parquet").is_file():
        return hinted
    known = _checkpoints(log)
    return hinted if hinted in known else max(known, default=-1)


def names_lost_checkpoint(log: Path) -> bool:
    """Return whether ``_last_checkpoint`` names a checkpoint that does not exist.

    False if Delta's log cannot be listed: errors of the engine are examined with this.
    """
    hinted = _hinted_checkpoint(log)
    try:
        return hinted is not None and hinted not in _checkpoints(log)
    except OSError:
        return False


def _hinted_checkpoint(log: Path) -> int | None:
    try:
        return int(json.loads((log / _LAST_CHECKPOINT).read_bytes())["version"])
    except (OSError, OverflowError, ValueError, TypeError, KeyError):
        return None


def _checkpoints(log: Path) -> set[int]:
    """Return the versions of the checkpoints that have all their parts."""
    names = os.listdir(log) if log.is_dir() else []
    found = [match for match in map(_CHECKPOINT.fullmatch, names) if match is not None]
    counts = Counter((int(match["version"]), int(match["parts"] or 0)) for match in found)
    return {version for (version, parts), count in counts.items() if count >= parts}


def commit(log: Path, version: int, actions: Sequence[Action], inode: int | None = None) -> bool:
    """Create the entry of a version with its actions; return False if the version exists.

    ``inode`` is that of Delta's log. If there is another one, it is another table's log, and the
    result is False, too: the entry would leave a gap after that log's last entry.

    Raises ``TablesError`` if the file system has no hard links.
    """
    staged = f"{_STAGED_PREFIX}{uuid.uuid4().hex}{_STAGED_SUFFIX}"
    directory = os.open(log, os.O_RDONLY)
    try:
        if inode not in (None, os.fstat(directory).st_ino):
            return False
        try:
            _write_synced(staged, actions, directory)
            name = entry(log, version).name
            with linked_names(log.parent):
                os.link(staged, name, src_dir_fd=directory, dst_dir_fd=directory)
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(staged, dir_fd=directory)
        sync_descriptor(directory)
    finally:
        os.close(directory)
    return True


def _write_synced(name: str, actions: Sequence[Action], directory: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(
        name, "x", opener=lambda path, _: os.open(path, flags, 0o666, dir_fd=directory)
    ) as file:
        file.writelines(f"{json.dumps(action)}\n" for action in actions)
        file.flush()
        sync_descriptor(file.fileno())


@contextmanager
def linked_names(table: Path) -> Iterator[None]:
    """Raise ``TablesError`` if a hard link in the block is not supported or not allowed."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise TablesError(
            place=str(table),
            reason=f"a commit needs a hard link, which fails here: {error.strerror}",
            remedy="use a file system with hard links, as the owner of the table's files: Linux "
            "refuses links of those of other users; or use Spark for this place",
        ) from None


def find_torn(log: Path) -> Path | None:
    """Return the newest entry if it is not JSON, as after a power loss during a commit of delta-rs.

    Such a commit has not returned, and none follows it. To all engines, an empty entry is a version
    without changes. None if the entry cannot be read: errors of the engine are examined with this.
    """
    with suppress(OSError):
        newest = max(log.glob("[0-9]*.json"), default=None)
        if newest is None or not newest.is_file():
            return None
        try:
            list(map(json.loads, newest.read_bytes().splitlines()))
        except ValueError:
            return newest
    return None


def read_actions(log: Path, version: int) -> list[Action]:
    """Return the actions of a version. Raises ``ValueError`` if its entry is not JSON."""
    return [*map(json.loads, entry(log, version).read_bytes().splitlines())]


def added_files(actions: Sequence[Action]) -> list[Path]:
    """Return the files that a commit adds, relative to the table: rows, and its change data."""
    added = (action.get("add") or action.get("cdc") for action in actions)
    return [Path(unquote(one["path"])) for one in added if one]


def directories_of(files: Sequence[Path]) -> set[Path]:
    """Return the directories of files, relative to the table, which is one of them."""
    return {Path(), *(parent for file in files for parent in file.parents)}


def sync_entries(log: Path, versions: range) -> None:
    """Make commits of delta-rs durable, as it syncs nothing; deleted entries are ignored."""
    for version in versions:
        with suppress(FileNotFoundError):
            files = added_files(read_actions(log, version))
            for path in (*files, *directories_of(files), entry(log, version)):
                with suppress(FileNotFoundError):  # a later version has removed it
                    sync(log.parent / path)
    sync(log)


def sync_checkpoint(log: Path, version: int) -> None:
    """Make a checkpoint of delta-rs durable, because entries before it may be deleted."""
    for path in (*log.glob(f"{version:020}.checkpoint*"), log / "_last_checkpoint", log):
        with suppress(FileNotFoundError):
            sync(path)


def sync_tree(directory: Path) -> None:
    """Make all files of a directory durable, and their names."""
    for parent, _, names in os.walk(directory):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def delete_staged(log: Path) -> None:
    """Delete staged entries of processes that were killed a day ago or earlier."""
    oldest_s = time.time() - STAGED_AGE_MAX_S
    for path in log.glob(f"{_STAGED_PREFIX}*{_STAGED_SUFFIX}"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest_s:
                path.unlink()


def append_actions(
    directory: Path, table: StoredTable, rows: Rows | None, transactions: Sequence[Transaction]
) -> list[Action]:
    """Write the files of an append; return its actions. ``rows``: None if there are no files.

    Raises ``TablesError`` if a row violates a check of the table.
    """
    now_ms = time.time_ns() // 1_000_000
    information = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "engineInfo": SOFTWARE,
    }
    actions: list[Action] = [{"commitInfo": information}]
    for one in transactions:
        stored = {"appId": one.app_id, "version": one.version, "lastUpdated": now_ms}
        actions.append({"txn": stored})
    if isinstance(rows, RowSlices):
        if rows.files:
            actions += [_linked(directory, table, file) for file in rows.files]
            slices = iter(() if rows.rest is None else (rows.rest,))
        else:
            slices = rows.slices()
        actions += _written(directory, table, slices, table.schema)
    elif rows is not None:
        actions += _written(directory, table, iter([rows]), schema_of_rows(table, rows))
    if rows is not None:
        sync(directory)
    return actions


def _linked(directory: Path, table: StoredTable, file: str) -> Action:
    """Return the action that adds a file, which is linked rather than copied if possible."""
    added = directory / _new_name()
    try:
        os.link(file, added)
    except OSError:  # on another file system, or one without links
        shutil.copyfile(file, added)
    os.utime(added)  # a vacuum before the commit would delete old files
    sync(added)
    return _add(added, table, pq.read_metadata(added))


def _written(
    directory: Path, table: StoredTable, slices: Iterator[pa.Table], schema: pa.Schema
) -> list[Action]:
    """Write rows to a file; return the action that adds it, or none without rows."""
    file = directory / _new_name()
    collected: list[pq.FileMetaData] = []
    writer = None
    try:
        for rows in slices:
            if rows.num_rows == 0:
                continue
            _check(directory, table, rows)
            if writer is None:
                writer = pq.ParquetWriter(file, schema, metadata_collector=collected)
            writer.write_table(in_schema(rows, schema))
    finally:
        if writer is not None:
            writer.close()
    if collected:
        sync(file)
    return [_add(file, table, metadata) for metadata in collected]


def _new_name() -> str:
    return f"part-{uuid.uuid4().hex}.parquet"


def _check(directory: Path, table: StoredTable, rows: pa.Table) -> None:
    for name, check in table.checks.items():
        if not check.holds(rows):
            raise TablesError(
                place=str(directory),
                reason=f"rows violate check {name} of table {table.name}: {check.sql}",
                remedy="report this: the log has records that the tables cannot contain",
            )


def _add(file: Path, table: StoredTable, metadata: pq.FileMetaData) -> Action:
    """Return the action that adds a file; its statistics are those for file skipping.

    ``metadata.schema`` is not used, because pyarrow keeps it in a reference cycle with the
    metadata: 130 KB per file would stay in memory until a full garbage collection, thousands of
    appends later.
    """
    least: dict[str, int | str] = {}
    greatest: dict[str, int | str] = {}
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    for at in range(metadata.num_columns if groups else 0):
        column = groups[0].column(at).path_in_schema
        if column in table.skipping:
            parts = [group.column(at) for group in groups]
            known = [part.statistics for part in parts if part.statistics is not None]
            if len(known) == len(parts) and all(found.has_min_max for found in known):
                with suppress(OverflowError):  # a time that Python does not represent
                    bounds = min(found.min for found in known), max(found.max for found in known)
                    least[column], greatest[column] = map(_statistic, bounds)
    status = file.stat()
    statistics = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest}
    added = {
        "path": file.name,
        "partitionValues": {},
        "size": status.st_size,
        "modificationTime": int(status.st_mtime * 1_000),
        "dataChange": True,
        "stats": json.dumps(statistics),
    }
    return {"add": added}


def _statistic(value: Any) -> int | str:
    """Return a value in Delta's statistics. A time becomes text with a year of four digits."""
    if isinstance(value, datetime):
        return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    found: int | str = value
    return found
