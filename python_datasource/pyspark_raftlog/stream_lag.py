"""How many offsets a streaming query lags behind the newest record of its logs.

Spark's progress of a query has, for each source, the end of the last batch and the end that the log
had when the batch was planned, both as JSON. Sources of other kinds are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .offsets import SOURCES_VERSION, VERSION


@dataclass(frozen=True, slots=True)
class StreamLag:
    """Offsets that were committed and not read when a batch was planned.

    ``logs`` has them by cluster id; the key is None for a log without one.
    """

    offsets: int
    logs: Mapping[str | None, int] = field(default_factory=dict)


def lag(query_or_progress: Any) -> StreamLag | None:
    """Return the lag of a query's last progress, or of a progress; None without any of raftlog.

    Args:
        query_or_progress: a ``StreamingQuery``; or its ``lastProgress``, also of a listener's
            ``QueryProgressEvent``, also as a dictionary.
    """
    progress = getattr(query_or_progress, "lastProgress", query_or_progress)
    if progress is None:
        return None
    logs: dict[str | None, int] = {}
    for source in _field(progress, "sources") or ():
        read = dict(_ends(_field(source, "endOffset")))
        for cluster_id, end in _ends(_field(source, "latestOffset")):
            if cluster_id in read:
                unread = max(0, end - read[cluster_id])
                logs[cluster_id] = logs.get(cluster_id, 0) + unread
    return StreamLag(sum(logs.values()), logs) if logs else None


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _ends(offset: object) -> Iterator[tuple[str | None, int]]:
    """Yield cluster id and end of each log of an offset of this source; nothing for others."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return
    match offset:
        case {"v": version, "offset": int() as end, "cluster": str() | None as cluster_id} if (
            version == VERSION
        ):
            yield cluster_id, end
        case {"v": version, "logs": dict() as logs} if version == SOURCES_VERSION:
            for part in logs.values():
                yield from _ends(part)
