"""State of a cluster from its KRaft metadata log: records, loader, tables, command line.

``read_changes`` returns the history of a topic, a broker or another entity, ``read_state`` the
state at an offset or a time as Arrow tables, and ``read_report`` charts of what happened.
``apply_changes`` appends changes of a cluster's metadata to an embedded log or a quorum's log.
``export_snapshot`` writes a snapshot from which an Apache Kafka node can start; ``snapshot_log``
writes one into the log. ``write_batch_file`` writes records to a segment or snapshot that Kafka's
tools can read. These names are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch_file import BatchFile, write_batch_file
    from .changes import AppliedChanges, apply_changes
    from .log_changes import LoggedChange, read_changes
    from .log_report import read_report
    from .log_state import LogState, read_state
    from .report.page import Report
    from .snapshot_writer import ExportedSnapshot, export_snapshot, snapshot_log, write_snapshot

__all__ = [
    "AppliedChanges",
    "BatchFile",
    "ExportedSnapshot",
    "LogState",
    "LoggedChange",
    "Report",
    "apply_changes",
    "export_snapshot",
    "read_changes",
    "read_report",
    "read_state",
    "snapshot_log",
    "write_batch_file",
    "write_snapshot",
]

_MODULES = {
    "BatchFile": "raftlog_state.batch_file",
    "write_batch_file": "raftlog_state.batch_file",
    "AppliedChanges": "raftlog_state.changes",
    "apply_changes": "raftlog_state.changes",
    "LoggedChange": "raftlog_state.log_changes",
    "read_changes": "raftlog_state.log_changes",
    "LogState": "raftlog_state.log_state",
    "read_state": "raftlog_state.log_state",
    "Report": "raftlog_state.report.page",
    "read_report": "raftlog_state.log_report",
    "ExportedSnapshot": "raftlog_state.snapshot_writer",
    "export_snapshot": "raftlog_state.snapshot_writer",
    "snapshot_log": "raftlog_state.snapshot_writer",
    "write_snapshot": "raftlog_state.snapshot_writer",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # so that help() and completion have the names


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(_MODULES[name]), name)
    return found
