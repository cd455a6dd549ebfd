"""Replay: what each metadata record does to the state, one function a record type.

``replay(record, delta, at)`` writes into a delta over an immutable image; the modules beside this
one hold its implementations. Transaction markers have none: brackets are the loader's business.
"""

from __future__ import annotations

from . import acls, cluster, topics
from .dispatch import replay
from .position import Position

__all__ = ["Position", "acls", "cluster", "replay", "topics"]
