"""Validation of a produced batch, and its conversion to an append request.

1. The order of validation is: sizes, CRC, header, decompression within a limit, records. A rejected
   batch raises an error of ``raftlog.errors`` with Kafka's error code.
2. The header carries the condition of the append: a leader epoch of 1 or more requires that epoch,
   together with a base offset of 0 or more also that offset for the first record. Below epoch 1
   (librdkafka sends 0, Java -1) the append is unconditional. A batch without records only checks
   the condition.
3. ``produced_records`` validates the records.

Kafka: ``ProduceRequest.validateRecords``, ``LogValidator``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from crc32c import crc32c

from raftlog.append.requests import AppendRequest, InOrderGate
from raftlog.errors import (
    CorruptBatchError,
    InvalidAppendError,
    RecordBatchTooLargeError,
)
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    PRODUCED_RECORDS_MAX,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.records.builder import ProducerStamp
from raftlog.records.compression import Compression
from raftlog.records.header import (
    BATCH_HEADER,
    BATCH_MAGIC,
    COMPRESSION_BITS,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

from .produced_records import NOTHING, produced_records


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedHeader:
    """Fields of the header of a valid batch."""

    base_offset: int
    leader_epoch: int
    compression: Compression
    producer: ProducerStamp | None
    record_count: int


def read_header(data: bytes, *, byte_count_max: int) -> ProducedHeader:
    """Validate everything but the records of ``data``, which must be one batch; return its header.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError`` and, for a wrong CRC or incomplete
    batch, ``CorruptBatchError``.
    """
    _check_frame(data, byte_count_max)
    head = BATCH_HEADER.unpack_from(data)
    base_offset, _, leader_epoch, _, crc, attributes, last_offset_delta = head[:7]
    producer_id, producer_epoch, base_sequence, record_count = head[9:]
    if crc32c(memoryview(data)[CRC_START:]) != crc:
        raise CorruptBatchError(reason="the CRC does not match the data")
    _check_attributes(attributes)
    if record_count < 0 or (record_count > 0 and last_offset_delta != record_count - 1):
        _refuse(
            f"the batch header has record count {record_count} and last offset delta "
            f"{last_offset_delta}, which contradict each other"
        )
    if record_count == 0 and len(data) != BATCH_HEADER_BYTES:
        _refuse("the batch header has record count 0, but bytes follow the header")
    if record_count > PRODUCED_RECORDS_MAX:
        _refuse(f"the batch has {record_count} records, and the maximum is {PRODUCED_RECORDS_MAX}")
    producer = None
    if producer_id >= 0:
        if producer_epoch < 0 or base_sequence < 0:
            _refuse(
                f"producer id {producer_id} comes with the invalid epoch {producer_epoch} or "
                f"sequence {base_sequence}"
            )
        producer = ProducerStamp(producer_id, producer_epoch, base_sequence)
    return ProducedHeader(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        compression=Compression(attributes & COMPRESSION_BITS),
        producer=producer,
        record_count=record_count,
    )


def append_request(
    data: bytes,
    header: ProducedHeader,
    config: LogConfig,
    *,
    deadline_ms: float,
    gate: InOrderGate,
    decompressed_bytes_max: int | None = None,
) -> AppendRequest:
    """Return the append request of a batch with a validated header.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError`` and, if the records exceed
    ``decompressed_bytes_max``, ``DecompressionLimitError``.
    """
    found = NOTHING
    if header.record_count:
        at_zero = bytes(8) + memoryview(data)[8:]  # the base offset is a condition, or unused
        found = produced_records(
            at_zero,
            header.record_count,
            config,
            decompressed_bytes_max=decompressed_bytes_max,
        )
    has_epoch = header.leader_epoch >= 1
    if has_epoch and header.base_offset < -1:
        _refuse(f"the batch has the invalid base offset {header.base_offset}")
    request = AppendRequest(
        records=found.records,
        epoch=header.leader_epoch if has_epoch else None,
        required_base_offset=header.base_offset if has_epoch and header.base_offset >= 0 else None,
        is_atomic=True,
        commit=found.commit,
        take_over_from=found.take_over_from,
        producer=header.producer,
        deadline_ms=deadline_ms,
        gate=gate,
    )
    request.check()
    return request


def _check_frame(data: bytes, byte_count_max: int) -> None:
    """Raise unless this is exactly one complete batch of magic 2, within the size limit."""
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] != BATCH_MAGIC:
        _refuse(f"the batch has magic {data[MAGIC_POSITION]}, but only {BATCH_MAGIC} is supported")
    if len(data) < BATCH_HEADER_BYTES:
        raise CorruptBatchError(reason=f"{len(data)} bytes are less than a batch header")
    byte_count = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD_BYTES
    if byte_count < BATCH_HEADER_BYTES or byte_count > len(data):
        raise CorruptBatchError(
            reason=f"its length is {byte_count}, but {len(data)} bytes were received"
        )
    if byte_count < len(data):
        _refuse("a request has exactly one record batch per partition")
    if byte_count > byte_count_max:
        raise RecordBatchTooLargeError(byte_count=byte_count, byte_count_max=byte_count_max)


def _check_attributes(attributes: int) -> None:
    if attributes & COMPRESSION_BITS > Compression.ZSTD:
        _refuse(f"compression codec {attributes & COMPRESSION_BITS} is not supported")
    if attributes & CONTROL_BIT:
        _refuse("clients may not write control records")
    if attributes & TRANSACTIONAL_BIT:
        _refuse("transactions are not supported")
    if attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT):
        _refuse("the batch has a delete horizon, or a timestamp type other than CreateTime")


def _refuse(reason: str) -> NoReturn:
    raise InvalidAppendError(reason=reason)
