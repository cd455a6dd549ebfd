"""A cluster's metadata as Delta tables: every record, every change, every state.

``open_cluster`` is the entry point. Requires pyspark and delta-spark.
"""

from __future__ import annotations

from .cluster import ClusterStatus, ClusterTables, open_cluster
from .verify import Difference, VerifyReport
from .view import ClusterView

__all__ = [
    "ClusterStatus",
    "ClusterTables",
    "ClusterView",
    "Difference",
    "VerifyReport",
    "open_cluster",
]
