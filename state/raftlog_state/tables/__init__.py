"""Metadata of clusters as Delta tables: every record, every change, every state.

``open_cluster`` is the entry point with Spark; ``open_group`` writes many clusters in one streaming
query; ``list_clusters`` lists the clusters in tables. They require pyspark and delta-spark.
``open_tables`` reads the same tables as Arrow, without Spark or Java, and ``TablesPublisher``
writes them in the process of a node. These require deltalake. Submodules are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import ClusterTables, list_clusters, open_cluster
    from .cluster_group import ClusterGroup, open_group
    from .invariants import Violation
    from .reader import ArrowTables, ArrowView, open_tables
    from .selection import ClusterStatus
    from .tables_publisher import TablesPublisher
    from .verify import Difference, VerifyReport
    from .view import ClusterView

__all__ = [
    "ArrowTables",
    "ArrowView",
    "ClusterGroup",
    "ClusterStatus",
    "ClusterTables",
    "ClusterView",
    "Difference",
    "TablesPublisher",
    "VerifyReport",
    "Violation",
    "list_clusters",
    "open_cluster",
    "open_group",
    "open_tables",
]

_MODULES = {
    "ArrowTables": "reader",
    "ArrowView": "reader",
    "ClusterGroup": "cluster_group",
    "ClusterStatus": "selection",
    "ClusterTables": "cluster",
    "ClusterView": "view",
    "Difference": "verify",
    "TablesPublisher": "tables_publisher",
    "VerifyReport": "verify",
    "Violation": "invariants",
    "list_clusters": "cluster",
    "open_cluster": "cluster",
    "open_group": "cluster_group",
    "open_tables": "reader",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # so that help() and completion have the names


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = exported = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return exported
