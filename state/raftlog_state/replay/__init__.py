"""Replay of metadata records into a ``ReplayState``: one function for each record type.

``replay(record, state, at)`` dispatches to the implementations in this package's modules, and
``replay_in_steps`` to those with steps. Transaction markers have none: ``MetadataLoader`` and the
controller handle them.

``row_versions`` computes, by columns, the row versions of topics, partitions and configs that a
range of records writes, and ``distinct_values`` gathers them into Arrow arrays. They require numpy
and pyarrow, so the code that needs them imports them.
"""

from __future__ import annotations

from . import acls, cluster, topics
from .dispatch import Position, ReplayState, replay, replay_in_steps

__all__ = ["Position", "ReplayState", "acls", "cluster", "replay", "replay_in_steps", "topics"]
