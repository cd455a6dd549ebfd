"""The compiled core builds the same batches as Python, and the same errors are raised."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.both_implementations import in_both, vars_of

import raftlog.records.builder as builder_module
from raftlog import compiled
from raftlog.errors import RaftlogError
from raftlog.limits import MIB
from raftlog.records.batch import Compression, Header, NewRecord
from raftlog.records.builder import (
    NO_PRODUCER,
    BatchBuilder,
    EncodedBatch,
    ProducerStamp,
    build_batch,
    finish_batch,
)
from raftlog.records.encoding import (
    NATIVE_TYPES,
    RecordsToEncode,
    RecordToAppend,
    encode_records,
)
from raftlog.records.scan import Column, scan

pytestmark = pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")

LENGTHS = st.sampled_from([0, 1, 57, 58, 59, 60, 63, 64, 65, 8183, 8185, 8186, 8191, 8192, 8200])
VALUES = st.lists(st.binary(max_size=3) | LENGTHS.map(lambda n: b"v" * n), max_size=8)
DELTAS = st.sampled_from([0, 1, 60, 63, 64, 8190, 8191, 8192, 2**20 - 3, 2**27, 2**30])
STAMPS = st.builds(
    ProducerStamp,
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.booleans(),
)


def outcome(call: Callable[[], object]) -> tuple[object, ...]:
    """Return the result, or the type, text and facts of the error."""
    try:
        return (call(),)
    except (RaftlogError, struct.error, UnicodeError) as error:
        return type(error), str(error), vars_of(error)


def built(
    parts: list[list[RecordToAppend]],
    codec: Compression = Compression.NONE,
    stamp: ProducerStamp = NO_PRODUCER,
    time_ms: int = 1_700_000_000_000,
    byte_count_max: int = MIB,
    place: tuple[int, int] = (7, 3),
) -> bytes:
    builder = BatchBuilder(
        base_timestamp_ms=time_ms,
        compression=codec,
        producer=stamp,
        byte_count_max=byte_count_max,
    )
    for records in parts:
        builder.append(records)
    return builder.build(*place).data


BYTES = st.binary(max_size=3) | LENGTHS.map(lambda n: b"b" * n)
KEYS_OF_HEADERS = st.text(max_size=3) | LENGTHS.map(lambda n: "\u00e9" * n) | st.just("\ud800")
HEADERS = st.builds(
    Header, KEYS_OF_HEADERS, st.none() | BYTES, st.sampled_from([None, None, b"\xff"])
)
TIMES = st.none() | st.integers(-1, 2**63 - 1) | st.sampled_from([-(2**63), 2**63, 2**70, True])
RECORDS = BYTES | st.builds(
    NewRecord, st.none() | BYTES, st.none() | BYTES, TIMES, st.lists(HEADERS, max_size=3).map(tuple)
)
RECORDS_OF_LOGS = BYTES | st.builds(
    NewRecord,
    st.none() | BYTES,
    st.none() | BYTES,
    st.none() | st.integers(0, 2**62),
    st.lists(st.builds(Header, st.text(max_size=3), st.none() | BYTES), max_size=2).map(tuple),
)
"""As validated for an append."""
BASES = st.integers(0, 2**62) | st.sampled_from([-1, -(2**63), 2**63 - 1, 2**63, 2**64])


def encoded_by_core(
    records: Sequence[object],
    first_delta: int,
    byte_count_max: int,
    header_count_max: int = MIB,
) -> bytes | None:
    found = compiled.core.encode_records(
        records, NATIVE_TYPES, first_delta, 5, byte_count_max, header_count_max
    )
    return None if found is None else found[0]


@given(VALUES, DELTAS, st.sampled_from([list, tuple]))
def test_values_are_encoded_alike(
    values: list[bytes], first_delta: int, kind: Callable[[list[bytes]], Sequence[bytes]]
) -> None:
    native, python = in_both(lambda: encode_records(kind(values), first_delta, 5))
    assert native == python
    assert encoded_by_core(kind(values), first_delta, len(python)) == python
    if python:
        assert encoded_by_core(kind(values), first_delta, len(python) - 1) is None


@given(
    st.lists(RECORDS, max_size=6), DELTAS, BASES, st.sampled_from([list, tuple]), st.integers(0, 9)
)
def test_records_with_keys_timestamps_and_headers_are_encoded_alike(
    records: list[RecordToAppend],
    first_delta: int,
    base_ms: int,
    kind: Callable[[list[RecordToAppend]], Sequence[RecordToAppend]],
    header_count_max: int,
) -> None:
    given_records = kind(records)
    native, python = in_both(
        lambda: outcome(lambda: encode_records(given_records, first_delta, base_ms))
    )
    assert native == python
    found = compiled.core.encode_records(
        given_records, NATIVE_TYPES, first_delta, base_ms, MIB, header_count_max
    )
    to_encode = RecordsToEncode(records)
    if found is not None:
        facts = to_encode.max_timestamp_ms(base_ms), to_encode.header_count()
        assert (found[0], *facts) == (python[0], *found[1:])
        assert found[2] <= header_count_max
        size = len(found[0])
        limited = (given_records, NATIVE_TYPES, first_delta, base_ms)
        assert compiled.core.encode_records(*limited, size, found[2]) == found
        assert not size or compiled.core.encode_records(*limited, size - 1, MIB) is None
    elif to_encode.header_count() <= header_count_max:
        assert any(map(is_given_back, records)) or not is_int64(base_ms)


def is_int64(number: int) -> bool:
    return -(2**63) <= number < 2**63


def is_given_back(record: RecordToAppend) -> bool:
    """Return whether the core leaves a record to Python, which encodes or refuses it."""
    if isinstance(record, bytes):
        return False
    is_strange = record.timestamp_ms is True or not is_int64(record.timestamp_ms or 0)
    return is_strange or any("\ud800" in header.key for header in record.headers)


def test_records_of_other_types_are_given_back() -> None:
    class Bytes(bytes):
        pass

    any_record: Any = NewRecord
    any_header: Any = Header
    given_back: list[Any] = [None, "v", Bytes(b"v"), 5, object(), Header("h", b"v")]
    given_back += [any_record(*fields) for fields in ((Bytes(b"k"), b"v"), (b"k", "v"))]
    given_back += [any_record(b"k", b"v", time_ms) for time_ms in (1.0, "1", 2**63)]
    headers: list[Any] = [any_header(b"h", b""), any_header("h", ""), ("h", b"")]
    headers += [any_header("h", bytearray()), any_header("h", b"", "h")]
    given_back += [any_record(b"k", b"v", 1, (Header("h", b""), one)) for one in headers]
    given_back += [any_record(b"k", b"v", 1, [Header("h", b"")])]
    for record in given_back:
        assert encoded_by_core([b"a", record], 0, MIB) is None
        limits = (0, 5, MIB, MIB)
        assert compiled.core.fitting_record_count([record], 0, NATIVE_TYPES, *limits) is None
    not_a_sequence: Any = {b"a": 1}
    assert encoded_by_core(not_a_sequence, 0, MIB) is None
    records: list[RecordToAppend] = [NewRecord(b"k", b"v", 3), Bytes(b"w"), NewRecord(None, None)]
    native, python = in_both(lambda: encode_records(records, 2, 5))
    assert native == python


@given(
    st.lists(RECORDS, max_size=6),
    st.integers(0, 3),
    BASES,
    st.integers(70, 400),
    st.sampled_from([list, tuple]),
)
def test_as_many_records_fit_into_a_batch(
    records: list[RecordToAppend],
    start: int,
    base_ms: int,
    byte_count_max: int,
    kind: Callable[[list[RecordToAppend]], Sequence[RecordToAppend]],
) -> None:
    def fitting() -> int:
        builder = BatchBuilder(base_timestamp_ms=base_ms, byte_count_max=byte_count_max)
        builder.append([NewRecord(b"k", None, None, (Header("h", None),))] * (start % 2))
        return builder.fitting_record_count(kind(records), start)

    native, python = in_both(lambda: outcome(fitting))
    assert native == python


def test_headers_beyond_those_of_a_batch_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "HEADERS_PER_BATCH_MAX", 3)
    record = NewRecord(b"k", b"v", None, (Header("h", None), Header("i", b"")))
    cases: list[list[RecordToAppend]] = [[record], [record, b"v", record]]
    for records in cases:
        assert_built_alike(records)

        def fitting(records: list[RecordToAppend] = records) -> int:
            return BatchBuilder(base_timestamp_ms=5).fitting_record_count(records, 0)

        native, python = in_both(fitting)
        assert native == python == min(2, len(records))


def assert_built_alike(records: list[RecordToAppend]) -> None:
    native, python = in_both(partial(outcome, partial(in_one_step, records)))
    assert native == python
    native, python = in_both(partial(outcome, partial(built, [records])))
    assert native == python


@given(
    st.lists(VALUES.filter(bool), min_size=1, max_size=3),
    st.sampled_from(Compression),
    STAMPS,
    st.integers(0, 2**62),
    st.tuples(st.integers(0, 2**62), st.integers(-1, 2**31 - 1)),
)
def test_batches_are_built_alike_and_hold_the_values(
    parts: list[list[RecordToAppend]],
    codec: Compression,
    stamp: ProducerStamp,
    time_ms: int,
    place: tuple[int, int],
) -> None:
    native, python = in_both(lambda: built(parts, codec, stamp, time_ms, place=place))
    assert native == python
    found = scan(native, columns=Column.ALL_BUT_HEADERS)
    assert found.error is None
    assert found.records.value is not None
    assert found.records.value.to_pylist() == [value for values in parts for value in values]


def in_one_step(
    records: Sequence[RecordToAppend],
    codec: Compression = Compression.NONE,
    stamp: ProducerStamp = NO_PRODUCER,
    place: tuple[int, int] = (7, 3),
    byte_count_max: int = MIB,
    is_control: bool = False,
) -> EncodedBatch:
    return build_batch(
        records,
        base_offset=place[0],
        leader_epoch=place[1],
        base_timestamp_ms=1_700_000_000_000,
        byte_count_max=byte_count_max,
        compression=codec,
        producer=stamp,
        is_control=is_control,
    )


@given(
    VALUES | st.lists(RECORDS_OF_LOGS, max_size=4),
    st.sampled_from([Compression.NONE, Compression.LZ4]),
    STAMPS,
    st.tuples(st.integers(0, 2**62), st.integers(-1, 2**31 - 1)),
    st.booleans(),
    st.sampled_from([list, tuple]),
)
def test_a_batch_is_built_in_one_step_as_by_a_builder(
    records: list[RecordToAppend],
    codec: Compression,
    stamp: ProducerStamp,
    place: tuple[int, int],
    is_control: bool,
    kind: Callable[[list[RecordToAppend]], Sequence[RecordToAppend]],
) -> None:
    records = records or [b""]
    native, python = in_both(
        lambda: in_one_step(kind(records), codec, stamp, place, is_control=is_control)
    )
    assert native == python
    builder = BatchBuilder(
        base_timestamp_ms=1_700_000_000_000,
        compression=codec,
        producer=stamp,
        is_control=is_control,
    )
    builder.append(records)
    assert native == builder.build(*place)


@given(VALUES.filter(bool))
def test_a_batch_in_one_step_has_at_most_the_bytes_of_its_limit(values: list[bytes]) -> None:
    size = len(in_one_step(values).data)
    arguments = (0, 7, 3, 0, 5, -1, -1, -1)
    found = compiled.core.build_batch(values, NATIVE_TYPES, size, *arguments)
    assert found is not None
    assert len(found[0]) == size
    assert compiled.core.build_batch(values, NATIVE_TYPES, size - 1, *arguments) is None
    for limit in (size - 1, size):
        build = partial(in_one_step, values, byte_count_max=limit)
        native, python = in_both(partial(outcome, build))
        assert native == python


@pytest.mark.parametrize("place", [(2**63, 1), (0, 2**31), (5, 2**70)])
def test_a_number_that_does_not_fit_has_the_same_error_in_one_step(place: tuple[int, int]) -> None:
    native, python = in_both(lambda: outcome(lambda: in_one_step([b"v"], place=place).data))
    assert native == python
    assert native[0] is struct.error


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_that_is_too_large_has_the_same_error(seed: int) -> None:
    chance = random.Random(seed)
    values: list[RecordToAppend] = [
        chance.randbytes(chance.randrange(400)) for _ in range(chance.randrange(1, 40))
    ]
    size = len(built([values]))
    for limit in (size - 1, size, size + 1):
        for codec in (Compression.NONE, Compression.ZSTD):
            build = partial(built, [values], codec, byte_count_max=limit)
            native, python = in_both(partial(outcome, build))
            assert native == python


@pytest.mark.parametrize(
    "place", [(2**63, 1), (-(2**63) - 1, 1), (0, 2**31), (0, -(2**31) - 1), (5, 2**70)]
)
def test_a_number_that_does_not_fit_has_the_same_error(place: tuple[int, int]) -> None:
    native, python = in_both(lambda: outcome(lambda: built([[b"v"]], place=place)))
    assert native == python
    assert native[0] is struct.error


def test_a_payload_that_is_no_bytes_is_accepted_as_in_python() -> None:
    def sealed() -> bytes:
        return finish_batch(
            bytearray(b"\x0e\0\0\0\1\1\0\0"),  # type: ignore[arg-type]
            base_offset=1,
            leader_epoch=2,
            byte_count_max=MIB,
            compression=Compression.NONE,
            flags=0,
            last_offset_delta=0,
            base_timestamp_ms=3,
            max_timestamp_ms=4,
            producer=(-1, -1, -1),
            record_count=1,
        )

    native, python = in_both(sealed)
    assert native == python


def test_a_panic_of_the_core_is_caught_and_python_builds_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = built([[b"a", b"bc"]])

    def panicking(*_: object) -> None:
        compiled.core.panic()

    monkeypatch.setattr(compiled.core, "encode_records", panicking)
    monkeypatch.setattr(compiled.core, "seal_batch", panicking)
    monkeypatch.setattr(compiled.core, "build_batch", panicking)
    assert built([[b"a", b"bc"]]) == expected
    assert in_one_step([b"a", b"bc"]).data == expected
