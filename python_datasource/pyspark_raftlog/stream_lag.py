"""Lag of a streaming query: the number of offsets from its last batch to the latest of each log.

Spark's progress of a query has, for each source, the end of the last batch and the latest end of
the log that the source has reported, both as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raftlog.errors import DataLossError

from .offsets import SOURCES_VERSION, SourcesOffset, StreamOffset


@dataclass(frozen=True, slots=True)
class StreamLag:
    """Committed offsets after the end of the last batch, when its progress was reported.

    ``logs`` has them by cluster id, or of a pattern of partitions by the partition's name; the key
    is None for a log without a cluster id.
    """

    offsets_behind_latest: int
    logs: Mapping[str | None, int] = field(default_factory=dict)


def lag(query_or_progress: Any) -> StreamLag | None:
    """Return the lag by a query's last progress, or by a progress; None without source ``raftlog``.

    Args:
        query_or_progress: a ``StreamingQuery``; or its ``lastProgress``, also of a listener's
            ``QueryProgressEvent``, also as a dictionary.
    """
    progress = getattr(query_or_progress, "lastProgress", query_or_progress)
    if progress is None:
        return None
    logs: dict[str | None, int] = {}
    for source in _field(progress, "sources") or ():
        read = _ends(_field(source, "endOffset"))
        for log_id, latest in _ends(_field(source, "latestOffset")).items():
            if log_id in read:
                logs[log_id] = logs.get(log_id, 0) + max(0, latest - read[log_id])
    return StreamLag(sum(logs.values()), logs) if logs else None


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _ends(offset: object) -> Mapping[str | None, int]:
    """Return the end in each log of an offset; of that of another source, nothing."""
    try:
        written = json.loads(offset) if isinstance(offset, str) else offset
        if isinstance(written, dict) and written.get("v") == SOURCES_VERSION:
            found = SourcesOffset.from_json(written, {}, path="").logs
            return {log_id: end.offset for log_id, end in found.items()}
        end = StreamOffset.from_json(written, path="")
    except (ValueError, DataLossError):
        return {}
    return {end.cluster_id: end.offset}
