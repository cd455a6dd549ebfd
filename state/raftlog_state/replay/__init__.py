"""Replay of metadata records into a ``MetadataDelta``: one function for each record type.

``replay(record, delta, at)`` dispatches to the implementations in the modules of this package.
Transaction markers have none: ``MetadataLoader`` handles them.
"""

from __future__ import annotations

from . import acls, cluster, topics
from .dispatch import replay
from .position import Position

__all__ = ["Position", "acls", "cluster", "replay", "topics"]
