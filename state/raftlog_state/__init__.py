"""What the records of a KRaft metadata log mean: records, loader, tables, command line.

Two doors are here: ``apply_changes`` makes changes of a cluster's metadata in a log of one's own,
``export_snapshot`` writes a checkpoint that Apache Kafka boots from (``snapshot_log`` one into the
log itself). What they need is imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .changes import AppliedChanges, apply_changes
    from .snapshot_writer import ExportedSnapshot, export_snapshot, snapshot_log, write_snapshot

__all__ = [
    "AppliedChanges",
    "ExportedSnapshot",
    "apply_changes",
    "export_snapshot",
    "snapshot_log",
    "write_snapshot",
]

_HOMES = {
    "AppliedChanges": "raftlog_state.changes",
    "apply_changes": "raftlog_state.changes",
    "ExportedSnapshot": "raftlog_state.snapshot_writer",
    "export_snapshot": "raftlog_state.snapshot_writer",
    "snapshot_log": "raftlog_state.snapshot_writer",
    "write_snapshot": "raftlog_state.snapshot_writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(_HOMES[name]), name)
    return found
