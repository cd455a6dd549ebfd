"""The function for ``foreachBatch``, in classic Spark and over Spark Connect.

A Connect server runs the function in a separate Python process, which gets a pickled copy. A writer
has locks and a session and cannot be pickled, so the copy contains how to open one. The process
opens the writer with the micro-batch's session, and keeps it for the next ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from .stores.spark import is_connect

WriteBatch: TypeAlias = Callable[[DataFrame, int], None]


W = TypeVar("W")


class Sink(Protocol):
    """Writer of the micro-batches of one run."""

    def write(self, rows: pa.Table) -> Any:
        """Write the rows of a micro-batch."""
        ...


_SINKS: Final[dict[str, Sink]] = {}
"""Sinks of this process, by query: a Connect server has a process for each."""


def batch_function(
    spark: SparkSession,
    writer: W,
    sink_of: Callable[[W], Sink],
    open_writer: Callable[[SparkSession], W],
) -> WriteBatch:
    """Return the function for ``foreachBatch``. It uses ``writer`` or, over Connect, another.

    ``sink_of`` and ``open_writer`` can be pickled.
    """
    if is_connect(spark):
        return _RemoteSink(sink_of, open_writer)
    sink = sink_of(writer)

    def write(rows: DataFrame, _batch_id: int) -> None:
        sink.write(rows.toArrow())

    return write


@dataclass(frozen=True, slots=True)
class _RemoteSink(Generic[W]):
    """Function that opens a writer and its sink at its first call."""

    sink_of: Callable[[W], Sink]
    open_writer: Callable[[SparkSession], W]
    query: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        sink = _SINKS.get(self.query)
        if sink is None:
            sink = _SINKS[self.query] = self.sink_of(self.open_writer(rows.sparkSession))
        sink.write(rows.toArrow())
