"""The way back: what was written beyond an offset is taken out of every table.

Rules of this file:

1. The manifest row comes first, with the versions that hold the older state: from then on readers
   see that state. Then every table is restored to its version; a crash between is finished by the
   next writer, for the row is still the newest.
2. RESTORE does not make Delta forget names of writes, so the incarnation rises: the same offsets
   can be written again under new names.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import TablesError

from .manifest import Manifest
from .parallel import for_each
from .schema import CHANGES, COMMITS, LOG
from .store import DeltaStore


def finish_truncation(
    store: DeltaStore, manifest: Manifest, after_step: Callable[[str], None]
) -> None:
    """Restore the tables that the newest manifest row, a truncation's, has not brought back yet."""

    def restore(name: str) -> None:
        version = manifest.table_versions[name]
        if not _is_done(store, name, version, manifest):
            store.restore(name, version)
            after_step(f"restore {name}")

    for_each(restore, sorted(set(manifest.table_versions) - {COMMITS}))


def _is_done(store: DeltaStore, name: str, version: int, manifest: Manifest) -> bool:
    newest = store.newest_change(name)
    if newest.version <= version or newest.restored_version == version:
        return True
    # a writer of the new incarnation has gone on; typed tables say nothing and are made again
    written = newest.written or {}
    return name in (LOG, CHANGES) and written.get("incarnation", -1) >= manifest.incarnation


def nothing_to_go_back_to(store: DeltaStore, offset: int, oldest: int | None) -> TablesError:
    """The error of a truncation below everything that was ever published."""
    known = "nothing was published" if oldest is None else f"they begin at offset {oldest}"
    return TablesError(
        place=store.place,
        reason=f"they were never at an offset up to {offset}: {known}",
        remedy="make new tables at another place from the log as it is now",
    )
