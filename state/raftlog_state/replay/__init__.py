"""Replay of metadata records into a ``ReplayState``: one function for each record type.

``replay(record, state, at)`` dispatches to the implementations in the modules of this package, and
``replay_in_steps`` to those with steps.
Transaction markers have none: ``MetadataLoader`` and the controller handle them. ``row_versions``
has the versions of rows of topics, their partitions and configs that a range of records writes, by
columns, and ``distinct_values`` gathers them to Arrow; those that need them import them, with numpy
and pyarrow.
"""

from __future__ import annotations

from . import acls, cluster, topics
from .dispatch import replay, replay_in_steps
from .position import Position
from .state import ReplayState

__all__ = ["Position", "ReplayState", "acls", "cluster", "replay", "replay_in_steps", "topics"]
