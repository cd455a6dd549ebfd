"""Batches whose records are compressed in the different forms of a codec's format."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

import pyarrow as pa

from raftlog.limits import BATCH_HEADER_BYTES, MIB
from raftlog.records.batch import Compression, NewRecord, RecordBatch, read_batch
from raftlog.records.builder import finish_batch
from raftlog.records.compression import compress

from .batches import batch
from .cluster import TIME_MS


@dataclass(frozen=True)
class CompressedForm:
    """Batch whose records are compressed in one form of a codec's format.

    ``plain``: the records decompressed. ``is_read_by_kafka``: whether Kafka decompresses them.
    """

    name: str
    codec: Compression
    data: bytes
    plain: bytes
    is_read_by_kafka: bool

    def __str__(self) -> str:
        return self.name


def compressed_forms() -> list[CompressedForm]:
    """Return batches in all forms that ``decompress`` reads."""
    rng = random.Random(5)
    words = [rng.randbytes(9) for _ in range(50)]
    values = [b"".join(rng.choices(words, k=99)) for _ in range(200)]
    large = batch(*[NewRecord(None, value, TIME_MS) for value in values])
    small = batch(NewRecord(None, bytes(900), TIME_MS))
    payload = large[BATCH_HEADER_BYTES:]
    half = len(payload) // 2
    linked = pa.Codec("lz4").compress(payload, asbytes=True)
    checked = pa.Codec("lz4").compress(small[BATCH_HEADER_BYTES:], asbytes=True)
    independent = 0b0010_0000
    assert not linked[4] & independent
    assert checked[4] & independent, "of one block"
    frames = compress(payload[:half], Compression.LZ4) + compress(payload[half:], Compression.LZ4)
    framed = compress(payload, Compression.SNAPPY)
    later = framed[:11] + b"\x09" + framed[12:]
    raw = pa.Codec("snappy").compress(payload, asbytes=True)
    forms = [
        (f"{codec.name.lower()} of raftlog", codec, large, compress(payload, codec), True)
        for codec in Compression
        if codec is not Compression.NONE
    ]
    forms += [
        ("lz4 of one block, with its size", Compression.LZ4, small, checked, True),
        ("lz4 of linked blocks", Compression.LZ4, large, linked, False),
        ("lz4 of two frames", Compression.LZ4, large, frames, False),
        ("snappy without framing", Compression.SNAPPY, large, raw, True),
        ("snappy of a later framing", Compression.SNAPPY, large, later, True),
        ("zlib", Compression.GZIP, large, zlib.compress(payload), False),
    ]
    return [
        CompressedForm(name, codec, _with_payload(data, packed, codec), data[61:], is_read)
        for name, codec, data, packed, is_read in forms
    ]


def _with_payload(data: bytes, payload: bytes, compression: Compression) -> bytes:
    """Return an uncompressed batch with the same records as this compressed payload."""
    found = read_batch(data)
    assert isinstance(found, RecordBatch)
    return finish_batch(
        payload,
        base_offset=0,
        leader_epoch=0,
        byte_count_max=MIB,
        compression=compression,
        flags=0,
        last_offset_delta=found.last_offset,
        base_timestamp_ms=found.base_timestamp_ms,
        max_timestamp_ms=found.max_timestamp_ms,
        producer=(-1, -1, -1),
        record_count=found.record_count,
    )
