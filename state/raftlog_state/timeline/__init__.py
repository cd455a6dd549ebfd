"""Collections that keep their contents at registered epochs, and can revert to them.

Source: Kafka ``org.apache.kafka.timeline``.
"""

from .collections import TimelineDict, TimelineSet, TimelineValue
from .registry import Snapshot, SnapshotRegistry

__all__ = ["Snapshot", "SnapshotRegistry", "TimelineDict", "TimelineSet", "TimelineValue"]
