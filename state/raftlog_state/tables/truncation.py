"""Truncation of all tables to an earlier publication.

Invariants:

1. The manifest row is written first, with the table versions of the earlier state, which readers
   see from then on. Then each table is restored to its version. After a crash in between, the next
   writer completes the restores, because that row is still the newest.
2. RESTORE does not remove ``txnAppId`` versions from Delta's log, so the incarnation increases: the
   same offsets can be written again with new names.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog_state.errors import TablesError

from .manifest import Manifest
from .parallel import for_each
from .schema import CHANGES, COMMITS, LOG
from .store import DeltaStore


def finish_truncation(
    store: DeltaStore, manifest: Manifest, after_step: Callable[[str], None]
) -> None:
    """Restore the tables that the newest manifest row, a truncation, has not restored yet."""

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
    # A writer of the new incarnation has appended. Typed tables have no metadata: restore again.
    written = newest.written or {}
    return name in (LOG, CHANGES) and written.get("incarnation", -1) >= manifest.incarnation


def nothing_to_go_back_to(store: DeltaStore, offset: int, oldest: int | None) -> TablesError:
    """Return the error for an offset below the first publication."""
    known = "nothing was published" if oldest is None else f"they begin at offset {oldest}"
    return TablesError(
        place=store.place,
        reason=f"no publication at or below offset {offset}: {known}",
        remedy="create new tables at another location from the current log",
    )
