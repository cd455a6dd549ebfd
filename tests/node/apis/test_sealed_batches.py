"""A produced batch is appended with its bytes: only base offset and leader epoch are changed."""

from __future__ import annotations

import random
import struct
from functools import partial
from typing import Any, Final

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from raftlog import compiled
from raftlog.append import InOrderGate
from raftlog.errors import CorruptBatchError, LogError
from raftlog.limits import MIB
from raftlog.log.reading.transactions import CommitName, ValueKind, commit_header
from raftlog.log.writing.properties import LogConfig
from raftlog.node.apis.produced_batch import (
    append_request,
    plain_request,
    produced_records,
    read_header,
)
from raftlog.records.batch import Compression, Header, NewRecord, RecordBatch, read_batch
from raftlog.records.compression import compress
from raftlog.records.encoding import SealedBatch, summarize_records
from raftlog.wire import ApiKey, latest_schemas
from tests.support.both_implementations import in_each, pure_python

from .batches import batch, produce
from .cluster import TIME_MS, Cluster, run
from .compressed_forms import CompressedForm, compressed_forms

STAMPED: Final = 16
"""Bytes before the magic: base offset, length, leader epoch."""
ATTRIBUTES: Final = 21
"""Position of the attributes, which have two bytes."""
RECORDS: Final = tuple(
    NewRecord(
        None if at % 3 else b"k%d" % at,
        None if at % 5 == 4 else bytes([at]) * (at % 90),
        TIME_MS + at * 17 - 40,
        (Header("h", b"x"), Header("n", None)) if at % 7 == 1 else (),
    )
    for at in range(100)
)


def with_crc(data: bytes | bytearray) -> bytes:
    """Return the batch with the CRC of its bytes."""
    return bytes(data[:17]) + crc32c(bytes(data[21:])).to_bytes(4, "big") + bytes(data[21:])


def stored_after(data: bytes, config: LogConfig) -> bytes:
    """Return the bytes in the log of a batch that was produced to it."""
    stored: list[bytes] = []

    async def work() -> None:
        leader = Cluster(config=config).elect()
        log = leader.replica.log
        start = log.end_offset
        response = await leader.ask_client(
            ApiKey.PRODUCE, 13, produce(data), latest_schemas.ProduceResponse
        )
        found: Any = response.responses[0].partition_responses[0]
        assert found.error_code is ErrorCode.none, found.error_message
        stored.append(log.read_bytes(start, MIB))
        base_offset, _, epoch = struct.unpack_from(">qii", stored[0])
        assert (base_offset, epoch) == (start, log.epoch)

    run(work())
    return stored[0]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_of_the_logs_codec_is_stored_with_its_bytes(
    compression: Compression, count: int
) -> None:
    config = LogConfig(compression=compression)
    for more in ({}, {"producer": (77, 3, 5)}, {"condition": (3, 1)}, {"condition": (-1, 1)}):
        sent = batch(*RECORDS[:count], compression=compression, **more)
        stored = stored_after(sent, config)
        assert stored[STAMPED:] == sent[STAMPED:]
        assert stored[8:12] == sent[8:12]
        with pure_python():
            assert stored_after(sent, config) == stored
        assert isinstance(read_batch(stored), RecordBatch)


def test_values_of_a_msgpack_log_are_checked_and_stored_with_their_bytes() -> None:
    config = LogConfig(values=ValueKind.MSGPACK)
    for count in (1, 100):
        sent = batch(*[NewRecord(b"k", b"\x93\x01\x02\xa1x", TIME_MS)] * count)
        assert stored_after(sent, config)[STAMPED:] == sent[STAMPED:]


@pytest.mark.parametrize("count", [1, 100])
def test_a_batch_of_another_codec_gets_the_logs(count: int) -> None:
    for sent, logs in ((Compression.ZSTD, Compression.NONE), (Compression.NONE, Compression.LZ4)):
        data = batch(*[NewRecord(None, bytes(50), TIME_MS)] * count, compression=sent)
        found = read_batch(stored_after(data, LogConfig(compression=logs)))
        assert isinstance(found, RecordBatch)
        assert found.compression is logs
        assert [record.value for record in found.records()] == [bytes(50)] * count


@pytest.mark.parametrize("form", compressed_forms(), ids=str)
def test_a_compressed_batch_is_stored_with_its_bytes_only_if_kafka_reads_it(
    form: CompressedForm,
) -> None:
    """``tests/kafka`` asks Kafka."""
    stored = stored_after(form.data, LogConfig(compression=form.codec))
    if form.is_read_by_kafka:
        assert stored[STAMPED:] == form.data[STAMPED:]
        return
    found = read_batch(stored)
    assert isinstance(found, RecordBatch)
    assert found.payload == compress(form.plain, form.codec)


@pytest.mark.parametrize("count", [1, 100])
def test_a_maximum_timestamp_that_is_not_that_of_the_records_is_corrected(count: int) -> None:
    sent = bytearray(batch(*RECORDS[:count]))
    latest_ms = max(one.timestamp_ms or 0 for one in RECORDS[:count])
    struct.pack_into(">q", sent, 35, latest_ms + 3_000_000_000)
    found = read_batch(stored_after(with_crc(sent), LogConfig()))
    assert isinstance(found, RecordBatch)
    assert found.max_timestamp_ms == latest_ms


def test_bytes_like_an_internal_header_in_a_value_change_nothing() -> None:
    sent = batch(NewRecord(b"raftlog.", b"raftlog.commit", TIME_MS, (Header("h", b"raftlog."),)))
    (record,) = read_records(stored_after(sent, LogConfig()))
    assert (record.key, record.value) == (b"raftlog.", b"raftlog.commit")


def read_records(data: bytes) -> list[Any]:
    found = read_batch(data)
    assert isinstance(found, RecordBatch)
    return list(found.records())


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_no_damage_under_the_crc_is_appended(compression: Compression) -> None:
    valid = batch(*RECORDS[:3], compression=compression)
    config = LogConfig(compression=compression)
    for position in range(STAMPED + 1, len(valid)):
        damaged = bytearray(valid)
        damaged[position] ^= 1 << position % 8
        call = partial(outcome, bytes(damaged), config)
        assert set(in_each(call)) == {CorruptBatchError.__name__}, position


def outcome(data: bytes, config: LogConfig) -> str:
    """Return the error of a batch; else whether it keeps its bytes, and its records."""
    try:
        header = read_header(data, byte_count_max=MIB)
        found = produced_records(data, header, config, decompressed_bytes_max=MIB)
    except LogError as error:
        return type(error).__name__
    is_sealed = isinstance(found.records, SealedBatch)
    return f"{is_sealed} {found.commit} {list(found.records)}"


def agree(data: bytes, compression: Compression) -> str:
    """Return the outcome of a batch: of both implementations, where the core is built."""
    outcomes = in_each(lambda: outcome(data, LogConfig(compression=compression)))
    assert len(set(outcomes)) == 1
    summaries = in_each(lambda: summarize_records(data, b"raftlog.", decompressed_bytes_max=MIB))
    assert summaries[0] == summaries[-1]
    return outcomes[0]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_both_implementations_keep_and_refuse_the_same_batches(seed: int) -> None:
    rng = random.Random(seed)
    kept = 0
    for _ in range(250):
        count = rng.choice((1, 2, 5, 63, 64, 70))
        compression = rng.choice((Compression.NONE, Compression.NONE, Compression.GZIP))
        records = [
            NewRecord(
                rng.choice((None, b"key")),
                rng.choice((None, b"", rng.randbytes(9), b"raftlog.x")),
                rng.choice((TIME_MS, TIME_MS + 9, rng.choice((TIME_MS, -1, -2, 2**63 - 1)))),
                rng.choice(((), (), (Header("h", b""), Header("é", None)))),
            )
            for _ in range(count)
        ]
        valid = batch(
            *records, compression=compression, time_ms=rng.choice((TIME_MS, TIME_MS, 0, -1))
        )
        data = bytearray(valid)
        if rng.random() < 0.6:
            data[rng.randrange(23, len(data))] ^= 1 << rng.randrange(8)
        kept += agree(with_crc(data), compression).startswith("True")
    assert 20 < kept < 230


GATE: Final = InOrderGate()
REQUEST_FIELDS: Final = (
    "epoch",
    "required_end_offset",
    "required_base_offset",
    "unchanged",
    "is_atomic",
    "commit",
    "take_over_from",
    "producer",
    "deadline_ms",
)


def requested(data: bytes, config: LogConfig, *, is_plain: bool) -> str | None:
    """Return the request of a batch, or its error: by the core, None if it has not read it, or as
    Python reads the header first."""
    try:
        if is_plain:
            found = plain_request(data, config, deadline_ms=7, gate=GATE)
        else:
            header = read_header(data, byte_count_max=config.batch_bytes_max)
            found = append_request(data, header, config, deadline_ms=7, gate=GATE)
    except LogError as error:
        return str(error)
    if found is None:
        return None
    fields = [str(getattr(found, name)) for name in REQUEST_FIELDS]
    assert found.gate is GATE
    if not isinstance(found.records, SealedBatch):
        return f"decoded {fields}"
    stamped = found.records.stamped(base_offset=3, leader_epoch=4)
    records = len(found.records), found.records.max_timestamp_ms, found.records.is_named
    return f"{fields} {records} {stamped.hex()}"


@pytest.mark.parametrize("seed", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 2))])
def test_a_batch_that_the_core_has_read_gives_the_request_that_python_reads(seed: int) -> None:
    rng = random.Random(seed)
    plain_count = 0
    headers = (
        *((),) * 6,
        (Header("h", b""), Header("n", None)),
        (commit_header(CommitName("app", "q", 3)),),
        (commit_header(CommitName("app", "q", 3)), Header("h", b"x")),
        (Header("h", b"x"), commit_header(CommitName("app", "q", 3))),
        (Header("raftlog.commit", b"\x93"),),
        (Header("raftlog.commit", None),),
        (Header("raftlog.other", b"x"),),
        (Header("raftlog.other", commit_header(CommitName("app", "q", 3)).value),),
    )
    for at in range(600):
        count = rng.choice((1, 1, 1, 2, 5))
        time_ms = rng.choice((TIME_MS, TIME_MS, 0, -1))
        records = [
            NewRecord(
                rng.choice((None, b"key")),
                rng.choice((None, b"", rng.randbytes(9), bytes(990), b"raftlog.x")),
                time_ms + rng.choice((0, 0, 9, -1)),
                rng.choice(headers) if not ordinal else (),
            )
            for ordinal in range(count)
        ]
        data = batch(
            *records,
            time_ms=time_ms,
            condition=rng.choice(((0, -1), (0, 0), (-1, -1), (7, 2), (-1, 2), (-2, 2), (2**62, 1))),
            producer=rng.choice(((-1, -1, -1), (5, 0, 0), (5, 1, 9), (5, -1, 0), (5, 0, -1))),
            compression=rng.choice((Compression.NONE, Compression.NONE, Compression.GZIP)),
        )
        if rng.random() < 0.4:
            changed = bytearray(data)
            changed[rng.randrange(8, len(data))] ^= 1 << rng.randrange(8)
            data = with_crc(changed) if rng.random() < 0.8 else bytes(changed)
        config = LogConfig(batch_bytes_max=rng.choice((MIB, MIB, 1024)))
        plain = requested(data, config, is_plain=True)
        assert plain in (None, requested(data, config, is_plain=False)), at
        plain_count += plain is not None
    assert 40 * compiled.is_native <= plain_count < 400
    for other in (
        LogConfig(compression=Compression.LZ4),
        LogConfig(values=ValueKind.MSGPACK),
        LogConfig(values=ValueKind.KRAFT),
    ):
        assert requested(batch(*RECORDS[:2]), other, is_plain=True) is None
    valid = batch(*RECORDS)
    assert (requested(valid, LogConfig(), is_plain=True) is not None) is compiled.is_native
    for cut in range(len(valid)):
        assert requested(valid[:cut], LogConfig(), is_plain=True) is None


def test_a_batch_of_any_attribute_is_read_by_python() -> None:
    valid = batch(*RECORDS[:2])
    assert (requested(valid, LogConfig(), is_plain=True) is not None) is compiled.is_native
    for bit in range(16):
        changed = bytearray(valid)
        changed[ATTRIBUTES + 1 - bit // 8] ^= 1 << bit % 8
        assert requested(with_crc(changed), LogConfig(), is_plain=True) is None, bit


def test_a_sealed_batch_is_a_sequence_of_its_records() -> None:
    sealed = SealedBatch(batch(*RECORDS), len(RECORDS), 0)
    assert list(sealed) == list(RECORDS)
    assert (sealed[0], sealed[98:]) == (RECORDS[0], RECORDS[98:])
