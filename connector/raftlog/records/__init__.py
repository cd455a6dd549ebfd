"""Encoding and decoding of Kafka record batches (magic 2), without I/O, clock or randomness.

The package itself exports functions for one batch at a time, as objects. ``raftlog.records.scan``
and ``raftlog.records.batch_columns`` decode many batches to columns, and import numpy and pyarrow.
"""

from __future__ import annotations

from .batch import (
    Compression,
    Header,
    NewRecord,
    Record,
    RecordBatch,
    TimestampType,
    TornTail,
    iter_batches,
    read_batch,
)
from .builder import BatchAccumulator, BatchBuilder, ProducerStamp, build_batch
from .control import ControlRecord, ControlType, decode_control, encode_control
from .encoding import RecordToAppend

__all__ = [
    "BatchAccumulator",
    "BatchBuilder",
    "Compression",
    "ControlRecord",
    "ControlType",
    "Header",
    "NewRecord",
    "ProducerStamp",
    "Record",
    "RecordBatch",
    "RecordToAppend",
    "TimestampType",
    "TornTail",
    "build_batch",
    "decode_control",
    "encode_control",
    "iter_batches",
    "read_batch",
]
