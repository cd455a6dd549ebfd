"""Batches as producers send them, and requests with them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgpack
from crc32c import crc32c
from kio.schema.produce.v13.request import PartitionProduceData

from raftlog.records.batch import Compression, Header, NewRecord
from raftlog.records.header import BATCH_HEADER
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import uuid_or_none
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from .cluster import TIME_MS, TOPIC, TOPIC_ID

UNCONDITIONAL: Final = (0, -1)
"""Base offset and leader epoch that Java's producer writes."""


def batch(
    *values: bytes | NewRecord,
    condition: tuple[int, int] = UNCONDITIONAL,
    compression: Compression = Compression.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    time_ms: int = TIME_MS,
    **more: Any,
) -> bytes:
    """Return one batch. ``condition``: base offset and leader epoch that the writer requires."""
    if not values:
        return with_condition(_empty(), condition)
    records = tuple(
        one if isinstance(one, NewRecord) else NewRecord(None, one, time_ms) for one in values
    )
    new_batch = NewRecordBatch(
        records=records,
        base_timestamp_ms=time_ms,
        compression=compression,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        **more,
    )
    data = encode_batch(new_batch, base_offset=0, leader_epoch=0, byte_count_max=64 * 1024 * 1024)
    return with_condition(data, condition)


def _empty() -> bytes:
    head = bytearray(BATCH_HEADER.pack(0, 49, 0, 2, 0, 0, -1, 0, 0, -1, -1, -1, 0))
    head[17:21] = crc32c(bytes(head[21:])).to_bytes(4, "big")
    return bytes(head)


def with_condition(data: bytes, condition: tuple[int, int]) -> bytes:
    base_offset, leader_epoch = condition
    return struct.pack(">q", base_offset) + data[8:12] + struct.pack(">i", leader_epoch) + data[16:]


def with_attributes(data: bytes, attributes: int) -> bytes:
    """Return the batch with other attributes, and its CRC recomputed."""
    body = attributes.to_bytes(2, "big") + data[23:]
    return data[:17] + crc32c(body).to_bytes(4, "big") + body


def commit_header(application_id: str, query_id: str, version: int) -> Header:
    packed = msgpack.packb([application_id, query_id, version])
    assert isinstance(packed, bytes)
    return Header("raftlog.commit", packed)


def produce(
    data: bytes | None,
    *,
    acks: int = -1,
    timeout_ms: int = 1000,
    topic: str = TOPIC,
    topic_id: str = TOPIC_ID,
    partition: int = 0,
    transactional_id: str | None = None,
) -> Any:
    one = PartitionProduceData(index=_any(partition), records=_any(data))
    return latest_schemas.ProduceRequest(
        transactional_id=_any(transactional_id),
        acks=_any(acks),
        timeout=_any(timedelta(milliseconds=timeout_ms)),
        topic_data=(
            latest_schemas.ProduceTopic(
                topic_id=uuid_or_none(topic_id), name=_any(topic), partition_data=(one,)
            ),
        ),
    )


def _any(value: Any) -> Any:
    """Widen kio's annotated types of numbers and names."""
    return value


def values_of(records: Sequence[Any]) -> list[bytes | None]:
    return [record.value for record in records]
