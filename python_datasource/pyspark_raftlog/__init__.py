"""The Spark data source ``raftlog``. Spark finds it by this module's name, unregistered.

Rules of this file: it stays light and cannot fail, since Spark imports every ``pyspark_*`` module
when it looks for a name, and one that fails hides all others.
"""

from __future__ import annotations

from .source import RaftlogDataSource

DefaultSource = RaftlogDataSource

__all__ = ["DefaultSource", "RaftlogDataSource"]
