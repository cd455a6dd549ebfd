"""Bytes <-> record batches. Pure: no file, no clock, no randomness.

What this package exports is light: one batch at a time, as objects. ``raftlog.records.scan`` and
``raftlog.records.walk`` give columns, and import numpy and pyarrow.
"""

from __future__ import annotations

from .batch import (
    Compression,
    Header,
    NewRecord,
    NewRecordBatch,
    Record,
    RecordBatch,
    TimestampType,
    TornTail,
    encode_batch,
    iter_batches,
    read_batch,
)
from .control import ControlRecord, ControlType, decode_control, encode_control

__all__ = [
    "Compression",
    "ControlRecord",
    "ControlType",
    "Header",
    "NewRecord",
    "NewRecordBatch",
    "Record",
    "RecordBatch",
    "TimestampType",
    "TornTail",
    "decode_control",
    "encode_batch",
    "encode_control",
    "iter_batches",
    "read_batch",
]
