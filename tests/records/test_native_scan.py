"""The compiled core scans as Python does: columns, stops, positions, error types and texts."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.test_fuzz import EDITS, Edits, edited
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.batch_strategies import new_batches, resealed
from tests.support.both_implementations import differences, in_both, pure_python
from tests.support.dumps import dumped_logs
from tests.support.sweep_size import is_copy, slow_except

from raftlog import compiled
from raftlog.limits import BATCH_HEADER_BYTES, KIB, MIB
from raftlog.records import scan as scan_module
from raftlog.records.batch import Compression, NewRecord
from raftlog.records.batch_columns import HeaderScan, scan_headers
from raftlog.records.scan import Column, Scan, Stop, scan

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
FILES = dumped_logs(LOGS)
DISABLED = "pure Python was chosen, or there is no cargo"

SCANS: tuple[tuple[Column, tuple[bytes, ...]], ...] = (
    (Column.ALL, ()),
    (Column.ALL_BUT_HEADERS, ()),
    (Column.OFFSET | Column.VALUE, ()),
    (Column.NONE, ()),
    (Column.ALL, (b"\x01\x05", b"a", b"\x01\x02\x00")),
)
"""Columns of a scan, and the first bytes of the values whose rows it has."""

needs_core = pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")


def assert_same(
    data: bytes, start: int | None = None, end: int | None = None, position: int = 0
) -> None:
    """Compare scans with some columns and rows, a walk of headers, and a walk of valid headers."""

    def scanned(columns: Column, value_prefixes: tuple[bytes, ...]) -> Scan:
        return scan(
            data,
            columns=columns,
            path="00.log",
            file_position=position,
            decompressed_bytes_max=MIB,
            start_offset=start,
            end_offset=end,
            value_prefixes=value_prefixes,
        )

    def walked(crcs: bool) -> HeaderScan:
        return scan_headers(
            data,
            path="00.log",
            file_position=position,
            start_offset=start,
            end_offset=end,
            crcs=crcs,
        )

    for columns, prefixes in SCANS:
        assert differences(*in_both(partial(scanned, columns, prefixes))) == []
    for crcs in (False, True):
        assert differences(*in_both(partial(walked, crcs))) == []


def few_batches(path: Path, seed: int) -> bytes:
    """Return up to eight batches of a log, from a random one on."""
    data = path.read_bytes()
    batches = scan_headers(data).batches
    first = random.Random(seed).randrange(max(1, len(batches)))
    last = min(first + 8, len(batches)) - 1
    end = int(batches.position[last]) + int(batches.byte_count[last])
    return data[int(batches.position[first]) : end]


@pytest.mark.skipif(shutil.which("cargo") is None or not compiled.is_native, reason=DISABLED)
def test_the_core_is_of_this_version() -> None:
    assert compiled.core.INTERFACE == compiled.INTERFACE
    assert compiled.describe() == "compiled core"


@needs_core
@pytest.mark.parametrize(
    "path",
    slow_except([path for path in FILES if not is_copy(path)], FILES),
    ids=lambda path: str(path.relative_to(LOGS)),
)
def test_every_real_log_is_scanned_alike(path: Path) -> None:
    data = path.read_bytes()
    assert_same(data, position=7)
    end = int(scan_headers(data).batches.next_offset[-1])
    chance = random.Random(path.name)
    for _ in range(3):
        start, stop = sorted((chance.randrange(-3, end + 5), chance.randrange(-3, end + 5)))
        assert_same(data, start, stop)
    assert_same(data, 2**63, 2**64)


def mutate(seeds: range) -> None:
    logs = [path for path in FILES if not is_copy(path)]
    for seed in seeds:
        chance = random.Random(seed)
        data = bytearray(few_batches(chance.choice(logs), seed))
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randrange(len(data))
            kind = chance.randrange(4)
            if kind == 0:
                data[at : at + 1] = b""
            elif kind == 1:
                data[at:at] = chance.randbytes(chance.choice((1, 2, 5)))
            elif kind == 2:
                data[at] ^= 1 << chance.randrange(8)
            else:
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        changed = bytes(data)
        if chance.randrange(4) and len(changed) > BATCH_HEADER_BYTES:
            batches = scan_headers(changed).batches  # a matching CRC for one batch, or for all
            size = int(batches.byte_count[0]) if len(batches) else len(changed)
            changed = resealed(changed[:size]) + changed[size:]
        start = chance.choice((None, None, chance.randrange(3000)))
        end = chance.choice((None, None, chance.randrange(3000)))
        assert_same(changed, start, end, chance.choice((0, 10**6)))


@needs_core
def test_mutated_logs_are_scanned_alike() -> None:
    mutate(range(250))


@needs_core
@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000_000, 1_340_000, 10_000))
def test_a_million_scans_of_mutated_logs_are_alike(first: int) -> None:
    """Five for each seed, and two walks."""
    mutate(range(first, first + 10_000))


@pytest.mark.slow
@needs_core
@settings(max_examples=60)
@given(st.lists(new_batches(count_max=4), min_size=1, max_size=3), EDITS, st.booleans())
def test_batches_of_every_kind_are_scanned_alike(
    batches: list[NewRecordBatch], edits: Edits, is_resealed: bool
) -> None:
    encoded = [
        encode_batch(new, base_offset=9 * n, leader_epoch=1) for n, new in enumerate(batches)
    ]
    assert_same(b"".join(encoded))
    assert_same(b"".join(encoded), 1, 11)
    changed = edited(encoded[0], edits, 17)
    if is_resealed:
        changed = resealed(changed.ljust(BATCH_HEADER_BYTES, b"\0"))
    assert_same(changed + b"".join(encoded[1:]))


@needs_core
@pytest.mark.parametrize("length", ["7f", "ffffffff0f", "ffffffff1f", "8080808000", "808080808000"])
@pytest.mark.parametrize("time", ["00", "ffffffffffffffffff01", "ffffffffffffffffff03", "8000"])
def test_a_varint_of_too_many_bits_is_damage_in_both(length: str, time: str) -> None:
    """The lengths of the value: null with and without padding, too long, and of 33 bits."""
    fields = bytes.fromhex("00" + time + "0001" + length + "00")
    record = bytes([2 * len(fields)]) + fields
    empty = NewRecordBatch(records=(NewRecord(None, b""),), base_timestamp_ms=5)
    batch = encode_batch(empty, base_offset=3, leader_epoch=1)
    assert_same(resealed(batch[:BATCH_HEADER_BYTES] + record) + batch)


@needs_core
@pytest.mark.parametrize("deltas", [(0, 0), (1, 1), (1, 0), (0, 2)])
def test_equal_offset_deltas_are_damage_in_both(deltas: tuple[int, int]) -> None:
    """The batch's last offset delta is 1."""
    valid = encode_batch(
        NewRecordBatch(records=(NewRecord(b"k", b"v"), NewRecord(None, b"w")), base_timestamp_ms=5),
        base_offset=3,
        leader_epoch=1,
    )
    bodies = (bytes((0, 0, 2 * delta, 1, 2, 0x61, 0)) for delta in deltas)
    records = b"".join(bytes([2 * len(body)]) + body for body in bodies)
    assert_same(valid + resealed(valid[:BATCH_HEADER_BYTES] + records) + valid)


PLAIN = "00 00 {delta} 01 02 61 00"
"""Attributes, times; the delta; a null key, the value ``a``, no headers."""
LATE: dict[str, tuple[tuple[int, ...], str, str]] = {
    "none": ((0, 1, 2, 3, 4), PLAIN, ""),
    "an equal delta": ((0, 1, 2, 2, 4), PLAIN, ""),
    "a lower delta": ((0, 1, 3, 2, 4), PLAIN, ""),
    "a delta beyond the last": ((0, 1, 2, 3, 5), PLAIN, ""),
    "a key": ((0, 1, 2, 3, 4), "00 00 {delta} 02 6b 02 61 00", ""),
    "a null key with padding": ((0, 1, 2, 3, 4), "00 00 {delta} 81 00 02 61 00", ""),
    "a null value": ((0, 1, 2, 3, 4), "00 00 {delta} 01 01 00", ""),
    "a header": ((0, 1, 2, 3, 4), "00 00 {delta} 01 02 61 02 02 68 01", ""),
    "a byte after a record": ((0, 1, 2, 3, 4), "00 00 {delta} 01 02 61 00 00", ""),
    "a value beyond the record": ((0, 1, 2, 3, 4), "00 00 {delta} 01 04 61 00", ""),
    "a byte after all records": ((0, 1, 2, 3, 4), PLAIN, "00"),
}


@needs_core
@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
@pytest.mark.parametrize("at", [2, 4])
def test_what_is_different_from_the_other_records_of_a_batch_is_scanned_alike(
    late: tuple[tuple[int, ...], str, str], at: int
) -> None:
    """Also where a range begins or ends in the batch. Those before it and after it are plain."""
    deltas, other, after = late
    records = (NewRecord(None, b"a"),) * len(deltas)
    plain = [
        encode_batch(
            NewRecordBatch(records=records, base_timestamp_ms=5), base_offset=offset, leader_epoch=1
        )
        for offset in (3, 8, 13)
    ]
    payload = b""
    for ordinal, delta in enumerate(deltas):
        text = (other if ordinal == at else PLAIN).format(delta=f"{2 * delta:02x}")
        body = bytes.fromhex(text)
        payload += bytes([2 * len(body)]) + body
    payload += bytes.fromhex(after)
    different = resealed(plain[1][:BATCH_HEADER_BYTES] + payload)
    for data in (plain[0] + different + plain[2], different + plain[2]):
        for start, end in ((None, None), (9, None), (None, 11), (None, 15), (10, 11)):
            assert_same(data, start, end)


@needs_core
def test_limits_of_one_scan_apply_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [few_batches(path, 3) for path in FILES if not is_copy(path)][:4]
    data = b"".join(batches)
    for limit in (1, 300, 2 * KIB):
        monkeypatch.setattr(scan_module, "SCAN_BYTES_MAX", limit)
        native, python = in_both(lambda: scan(data))
        assert native.stop is Stop.FULL
        assert differences(native, python) == []


@needs_core
def test_a_panic_of_the_core_is_caught_and_the_scan_is_done_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def panicking(*arguments: object) -> None:
        calls.append(len(arguments))
        compiled.core.panic()

    data = few_batches(FILES[0], 1)
    with pure_python():
        expected = scan(data), scan_headers(data), scan_headers(data, crcs=True)
    monkeypatch.setattr(compiled.core, "scan", panicking)
    monkeypatch.setattr(compiled.core, "walk", panicking)
    assert differences(scan(data), expected[0]) == []
    assert differences(scan_headers(data), expected[1]) == []
    assert differences(scan_headers(data, crcs=True), expected[2]) == []
    assert len(calls) == 3


@needs_core
def test_an_exception_during_decompression_is_raised_and_not_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> bytes:
        raise KeyboardInterrupt

    records = (NewRecord(None, b"value"),)
    new = NewRecordBatch(records=records, base_timestamp_ms=0, compression=Compression.ZSTD)
    monkeypatch.setattr(scan_module, "decompress", interrupted)
    monkeypatch.setattr(scan_module, "decompress_onto", lambda *_, **__: pytest.fail("given back"))
    with pytest.raises(KeyboardInterrupt):
        scan(encode_batch(new, base_offset=0, leader_epoch=0))
