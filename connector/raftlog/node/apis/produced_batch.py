"""A batch that a producer sent, turned into an append.

Rules of this file:

1. The order is that of trust: sizes, then the CRC, then the header, then decompression within a
   limit, then records. What is refused is an error of ``raftlog.errors`` with Kafka's code.
2. The header carries the token: a leader epoch of 1 or more requires that epoch, a base offset of 0
   or more beside it that offset for the first record. Below 1 (librdkafka says 0, Java -1) the
   append is unconditional. A batch without records only checks.
3. Records are ``produced_records``'s. Kafka: ``ProduceRequest.validateRecords``, ``LogValidator``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from crc32c import crc32c

from raftlog.client.in_order_gate import InOrderGate
from raftlog.client.requests import AppendRequest
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
    """What the header of a sound batch says."""

    base_offset: int
    leader_epoch: int
    compression: Compression
    producer: ProducerStamp | None
    record_count: int


def read_header(data: bytes, *, byte_count_max: int) -> ProducedHeader:
    """The header of the one batch that ``data`` must be. No record is looked at.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError`` and, for a CRC that does not hold or
    bytes that stop inside the batch, ``CorruptBatchError``.
    """
    _check_frame(data, byte_count_max)
    head = BATCH_HEADER.unpack_from(data)
    base_offset, _, leader_epoch, _, crc, attributes, last_offset_delta = head[:7]
    producer_id, producer_epoch, base_sequence, record_count = head[9:]
    if crc32c(memoryview(data)[CRC_START:]) != crc:
        raise CorruptBatchError(reason="its CRC is not that of its bytes")
    _check_attributes(attributes)
    if record_count < 0 or (record_count > 0 and last_offset_delta != record_count - 1):
        _refuse(f"it claims {record_count} records up to offset delta {last_offset_delta}")
    if record_count == 0 and len(data) != BATCH_HEADER_BYTES:
        _refuse("it claims no records, and holds bytes of some")
    if record_count > PRODUCED_RECORDS_MAX:
        _refuse(f"it claims {record_count} records, and {PRODUCED_RECORDS_MAX} are taken at once")
    producer = None
    if producer_id >= 0:
        if producer_epoch < 0 or base_sequence < 0:
            _refuse(f"producer {producer_id} says epoch {producer_epoch}, sequence {base_sequence}")
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
    """What a producer asks for by this batch, of a log that is configured so.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError`` and, beyond
    ``decompressed_bytes_max``, ``DecompressionLimitError``.
    """
    found = NOTHING
    if header.record_count:
        at_zero = bytes(8) + memoryview(data)[8:]  # its base offset is a token, or means nothing
        found = produced_records(
            at_zero,
            header.record_count,
            config,
            decompressed_bytes_max=decompressed_bytes_max,
        )
    has_epoch = header.leader_epoch >= 1
    if has_epoch and header.base_offset < -1:
        _refuse(f"its base offset is {header.base_offset}")
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
    """Whether this is one whole batch of the present format, and not too large."""
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] != BATCH_MAGIC:
        _refuse(f"only batches of magic {BATCH_MAGIC} are taken, not of {data[MAGIC_POSITION]}")
    if len(data) < BATCH_HEADER_BYTES:
        raise CorruptBatchError(reason=f"{len(data)} bytes hold no header of a batch")
    byte_count = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD_BYTES
    if byte_count < BATCH_HEADER_BYTES or byte_count > len(data):
        raise CorruptBatchError(reason=f"its length is {byte_count}, and {len(data)} bytes came")
    if byte_count < len(data):
        _refuse("a request holds exactly one batch for a partition")
    if byte_count > byte_count_max:
        raise RecordBatchTooLargeError(byte_count=byte_count, byte_count_max=byte_count_max)


def _check_attributes(attributes: int) -> None:
    if attributes & COMPRESSION_BITS > Compression.ZSTD:
        _refuse(f"no codec has the number {attributes & COMPRESSION_BITS}")
    if attributes & CONTROL_BIT:
        _refuse("clients write no control records")
    if attributes & TRANSACTIONAL_BIT:
        _refuse("producers' transactions are not served")
    if attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT):
        _refuse("the times of its records are not their producer's")


def _refuse(reason: str) -> NoReturn:
    raise InvalidAppendError(reason=reason)
