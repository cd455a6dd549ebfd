"""Metadata of clusters as Delta tables: every record, every change, every state.

``open_cluster`` is the entry point, ``list_clusters`` returns the clusters of tables. Both
require pyspark and delta-spark; the writer and the stores of other engines do not. Submodules are
imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import ClusterStatus, ClusterTables, list_clusters, open_cluster
    from .invariants import Violation
    from .verify import Difference, VerifyReport
    from .view import ClusterView

__all__ = [
    "ClusterStatus",
    "ClusterTables",
    "ClusterView",
    "Difference",
    "VerifyReport",
    "Violation",
    "list_clusters",
    "open_cluster",
]

_MODULES = {
    "ClusterStatus": "cluster",
    "ClusterTables": "cluster",
    "ClusterView": "view",
    "Difference": "verify",
    "VerifyReport": "verify",
    "Violation": "invariants",
    "list_clusters": "cluster",
    "open_cluster": "cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = exported = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return exported
