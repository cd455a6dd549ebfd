"""raftlog: a KRaft replicated log as records, columns and files. Knows neither Spark nor tables."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
