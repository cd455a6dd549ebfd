"""Lag of a streaming query: what each log contains after the query's last batch.

A query's progress contains, for each source, the end of the last batch and the latest end of the
log that the source has reported, both as JSON. Python data sources cannot add to a progress's
``metrics``, because the JVM class of their streams reports none (Spark 4.1 to 4.3).
``latestOffset`` contains them instead, as ``unread``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from raftlog.client import RangeSize
from raftlog.errors import DataLossError

from .offsets import SOURCES_VERSION, SourcesOffset, StreamOffset

_LOGGER: Final = logging.getLogger("pyspark_raftlog")
_BEHIND: Final = "raftlog_stream_offsets_behind_latest"
_BYTES: Final = "raftlog_stream_bytes_behind_latest"
_BATCHES: Final = "raftlog_stream_batches_behind_latest"
_CAUGHT_UP: Final = "raftlog_stream_caught_up_timestamp_seconds"
_NOTHING: Final[Mapping[str, int]] = {"bytes": 0, "batches": 0, "ms": 0}
_HEAD: Final = {
    _BEHIND: "Committed offsets of a log that the stream has not read.",
    _BYTES: "Bytes of the record batches after the last one that the stream has read.",
    _BATCHES: "Number of these record batches.",
    _CAUGHT_UP: "Time at which the stream had last read all of them.",
}


@dataclass(frozen=True, slots=True)
class StreamLag:
    """Records that a query had not read after its last batch, when its progress was reported.

    ``offsets_behind_latest`` counts committed offsets. ``logs`` contains the same number for each
    log, by cluster id or, in a pattern of partitions, by the partition's name; the key is None for
    a log without a cluster id. ``bytes_behind_latest`` and ``batches_behind_latest`` are the size
    and the number of the record batches, and ``seconds_behind_latest`` is the age of the oldest
    record by the driver's clock. Each of them is None where it is unknown: bytes and batches of
    nodes that are read with ``bootstrap.servers``, batches of more than 16 MiB in one log, and all
    three for a log of ``sources`` that was not part of the batch.
    """

    offsets_behind_latest: int
    logs: Mapping[str | None, int] = field(default_factory=dict)
    bytes_behind_latest: int | None = None
    batches_behind_latest: int | None = None
    seconds_behind_latest: float | None = None


def lag(query_or_progress: Any) -> StreamLag | None:
    """Return the lag in a query's last progress, or in a progress; None without source ``raftlog``.

    Args:
        query_or_progress: a ``StreamingQuery``, its ``lastProgress``, or the progress of a
            listener's ``QueryProgressEvent``; a progress can also be a dictionary.
    """
    progress = getattr(query_or_progress, "lastProgress", query_or_progress)
    if progress is None:
        return None
    logs: dict[str | None, int] = {}
    unread: list[Mapping[str, int]] = []
    for source in _field(progress, "sources") or ():
        read = _ends(_field(source, "endOffset"))
        for log_id, (latest, measured) in _ends(_field(source, "latestOffset")).items():
            if log_id in read:
                count = max(0, latest - read[log_id][0])
                logs[log_id] = logs.get(log_id, 0) + count
                unread.append(measured if count else _NOTHING)
    if not logs:
        return None
    size = RangeSize.of_parts(
        RangeSize(
            byte_count=one.get("bytes"), batch_count=one.get("batches"), first_timestamp_ms=None
        )
        for one in unread
    )
    age_ms = None if any("ms" not in one for one in unread) else max(one["ms"] for one in unread)
    return StreamLag(
        sum(logs.values()),
        logs,
        bytes_behind_latest=size.byte_count,
        batches_behind_latest=size.batch_count,
        seconds_behind_latest=None if age_ms is None else age_ms / 1_000,
    )


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _ends(offset: object) -> Mapping[str | None, tuple[int, Mapping[str, int]]]:
    """Return the end in each log of an offset, and ``unread``; nothing for another source."""
    try:
        written = json.loads(offset) if isinstance(offset, str) else offset
        if isinstance(written, dict) and written.get("v") == SOURCES_VERSION:
            found = SourcesOffset.from_json(written, {}, path="").logs
            logs = written["logs"]
            return {log_id: (end.offset, _unread(logs[log_id])) for log_id, end in found.items()}
        end = StreamOffset.from_json(written, path="")
    except (ValueError, DataLossError):
        return {}
    return {end.cluster_id: (end.offset, _unread(written))}


def _unread(written: Any) -> Mapping[str, int]:
    found = written.get("unread")
    return found if isinstance(found, dict) else {}


# --- a file for Prometheus ------------------------------------------------------------------------


@dataclass(slots=True)
class _Query:
    name: str
    lag: StreamLag
    caught_up_s: float | None = None


class LagListener(StreamingQueryListener):
    """Listener that writes the lag of all queries that read ``format("raftlog")`` to a file, for
    Prometheus' textfile collector.

    ``spark.streams.addListener(LagListener("/var/lib/node_exporter/raftlog.prom"))``. The file is
    replaced as a whole at each progress. It contains:

    - ``raftlog_stream_offsets_behind_latest``: the lag in offsets, with the labels ``query`` (its
      name, or its id if it has none) and ``log``
    - ``raftlog_stream_bytes_behind_latest`` and ``raftlog_stream_batches_behind_latest``: the lag
      of all logs of a query, if known
    - ``raftlog_stream_caught_up_timestamp_seconds``: the lag in seconds is
      ``time() - raftlog_stream_caught_up_timestamp_seconds``

    Queries that have ended are omitted. A log of ``sources`` that is unavailable counts as it was
    last read: its lag does not grow, and the source logs a warning. If the file cannot be written,
    a warning is logged to the logger ``pyspark_raftlog``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._queries: dict[str, _Query] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing: only the first progress shows whether the query reads a log."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Write the lag of a query after a batch."""
        progress = event.progress
        found = lag(progress)
        if found is None:
            return
        query = self._queries.setdefault(
            str(progress.id), _Query(progress.name or progress.id, found)
        )
        query.lag = found
        if not found.offsets_behind_latest:
            query.caught_up_s = _seconds(progress.timestamp)
        self._write()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Write that a query has read everything: Spark reports this every ten seconds."""
        query = self._queries.get(str(event.id))
        if query is not None:
            query.lag = StreamLag(0, dict.fromkeys(query.lag.logs, 0), 0, 0, 0.0)
            query.caught_up_s = _seconds(event.timestamp)
            self._write()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Remove a query from the file."""
        if self._queries.pop(str(event.id), None) is not None:
            self._write()

    def _write(self) -> None:
        part = f"{self._path}.part"
        try:
            with open(part, "w", encoding="utf-8") as file:
                file.write(self._text())
            os.replace(part, self._path)
        except OSError as error:
            _LOGGER.warning("%s cannot be written: %s", self._path, error.strerror)

    def _text(self) -> str:
        samples: dict[str, list[str]] = {name: [] for name in _HEAD}
        for query in self._queries.values():
            label = f'query="{_escaped(query.name)}"'
            for log, count in query.lag.logs.items():
                samples[_BEHIND].append(f'{{{label},log="{_escaped(log or "")}"}} {count}')
            for name, total in (
                (_BYTES, query.lag.bytes_behind_latest),
                (_BATCHES, query.lag.batches_behind_latest),
            ):
                if total is not None:
                    samples[name].append(f"{{{label}}} {total}")
            if query.caught_up_s is not None:
                samples[_CAUGHT_UP].append(f"{{{label}}} {query.caught_up_s:.3f}")
        lines = []
        for name, text in _HEAD.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f"{name}{sample}" for sample in samples[name]]
        return "\n".join(lines) + "\n"


def _escaped(text: object) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _seconds(timestamp: str) -> float:
    """Return a time of a progress, ISO 8601 in UTC, in seconds since 1970."""
    time = datetime.fromisoformat(timestamp)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
