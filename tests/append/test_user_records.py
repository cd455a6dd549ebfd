"""Forms in which users pass records, and the records that each format of values refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack
import pytest

from raftlog.append import USER_HEADERS_MAX, new_records
from raftlog.errors import InvalidAppendError
from raftlog.log.reading.transactions import (
    CommitName,
    Marker,
    ValueKind,
    commit_transaction_name,
    marker_value,
)
from raftlog.records import Header, NewRecord, Record

BYTES, MSGPACK, KRAFT = ValueKind.BYTES, ValueKind.MSGPACK, ValueKind.KRAFT
NO_OP = b"\x01\x14\x00\x00"


@dataclass
class Consumed:
    """Record as Kafka's consumers return it."""

    value: Any
    key: Any = None
    headers: Any = field(default_factory=list)


def new_header(key: Any, value: Any, raw_key: Any = None) -> Header:
    """Return a header whose fields may have the wrong types."""
    return Header(key, value, raw_key)


class ConsumedTuple(NamedTuple):
    """Record as a consumer that has named tuples returns it."""

    offset: int
    value: Any
    key: Any = None


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (b"v", None, b"v"),
        (b"", None, b""),
        (bytearray(b"v"), None, b"v"),
        (ConsumedTuple(7, b"v", b"k"), b"k", b"v"),
        (ConsumedTuple(7, b"v"), None, b"v"),
        (memoryview(b"v"), None, b"v"),
        ((b"k", b"v"), b"k", b"v"),
        ((None, b"v"), None, b"v"),
        ((b"k", None), b"k", None),
        (Consumed(b"v", b"k"), b"k", b"v"),
        (NewRecord(b"k", b"v"), b"k", b"v"),
        (Record(7, 1234, b"k", b"v"), b"k", b"v"),
    ],
)
def test_a_record_has_many_forms(given: Any, key: bytes | None, value: bytes | None) -> None:
    (normalized,) = new_records([given], BYTES)
    assert normalized == (value if key is None else NewRecord(key, value, *own_timestamp(given)))
    if not isinstance(given, tuple):
        assert new_records(given, BYTES) == (normalized,), "a single record stands for a list of it"


def own_timestamp(given: Any) -> tuple[Any, ...]:
    """Return the timestamp of the record itself."""
    return (getattr(given, "timestamp_ms", None),)


def test_a_record_that_was_read_can_be_appended_with_its_timestamp_and_headers() -> None:
    record = Record(7, 1234, b"k", b"v", (Header("h", None), Header("h", b"2")))
    assert new_records([record], BYTES) == (NewRecord(b"k", b"v", 1234, record.headers),)


def test_a_stored_header_name_is_appended_as_it_is() -> None:
    headers = (Header("\ufffd", b"1", b"\xff"),)
    (normalized,) = new_records([Consumed(b"v", headers=headers)], BYTES)
    assert normalized == NewRecord(None, b"v", headers=headers)


@pytest.mark.parametrize(
    "headers",
    [[("h", b"1")], {"h": b"1"}, (Header("h", b"1"),), [new_header("h", bytearray(b"1"))]],
)
def test_headers_have_many_forms(headers: Any) -> None:
    normalized = new_records([Consumed(b"v", headers=headers)], BYTES)
    assert normalized == (NewRecord(None, b"v", headers=(Header("h", b"1"),)),)


@pytest.mark.parametrize("time_ms", [None, 0, 2**63 - 1])
def test_a_record_that_needs_no_conversion_is_appended_as_it_is(time_ms: int | None) -> None:
    record = NewRecord(b"k", b"v", time_ms)
    (found,) = new_records([record], BYTES)
    assert found is record


@pytest.mark.parametrize("time_ms", [-1, 2**63, 1.0, "1"])
@pytest.mark.parametrize("headers", [(), (Header("h", b"1"),)])
def test_the_timestamp_of_a_record_is_validated(time_ms: Any, headers: tuple[Header, ...]) -> None:
    with pytest.raises(InvalidAppendError, match="index 1 is invalid: its timestamp_ms must"):
        new_records([(b"k", b"v"), NewRecord(b"k", b"v", time_ms, headers)], BYTES)


def test_any_iterable_of_records_is_accepted() -> None:
    assert len(new_records((b"%d" % n for n in range(3)), BYTES)) == 3
    assert new_records([], BYTES) == ()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("text", "must be a list, not str"),
        (7, "must be a list, not int"),
        (["text"], "the record at index 0 is invalid: its value is str"),
        ([b"v", 7], "the record at index 1 is invalid"),
        ([("k", b"v")], "its key is str, not bytes; encode it"),
        ([(b"k", b"v", b"x")], "its value is tuple"),
        ([Consumed(b"v", headers=[("raftlog.commit", b"")])], "'raftlog.'"),
        ([Consumed(b"v", headers=[(7, b"")])], "name must be valid Unicode"),
        ([Consumed(b"v", headers=[("\udcff", b"")])], "name must be valid Unicode"),
        ([Consumed(b"v", headers=[("h", "text")])], "header's value is str"),
        ([Consumed(b"v", headers=["h"])], "must be a (name, value) pair"),
        ([Consumed(b"v", headers=[new_header("h", "text")])], "header's value is str"),
        ([Consumed(b"v", headers=7)], "its headers must be a list of pairs, not int"),
        ([Consumed(b"v", headers=[Header("\ufffd", b"", b"raftlog.commit")])], "'raftlog.'"),
        ([Consumed(b"v", headers=[new_header("h", b"", 7)])], "header's raw_key is int"),
        ([Consumed(b"v", headers=[new_header("h", b"", "raw")])], "header's raw_key is str"),
        ([NewRecord(None, b"v", timestamp_ms=-1)], "timestamp_ms"),
    ],
)
def test_invalid_records_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(InvalidAppendError) as caught:
        new_records(given, BYTES)
    assert reason in str(caught.value)


def test_a_refusal_never_shows_the_records_content() -> None:
    with pytest.raises(InvalidAppendError) as caught:
        new_records([("secret", "secret")], BYTES)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [[1, 0, {"a": 1}], ("order", 2, []), (0, 0, None)])
def test_a_msgpack_log_accepts_type_version_and_fields(value: Any) -> None:
    (normalized,) = new_records([value], MSGPACK)
    assert isinstance(normalized, bytes)
    assert msgpack.unpackb(normalized) == list(value)
    assert new_records([normalized], MSGPACK) == (normalized,), "or the same records encoded"
    assert new_records([(b"k", value)], MSGPACK) == (NewRecord(b"k", normalized),)


@pytest.mark.parametrize(
    "value",
    [
        [1, 0],
        [1, 0, {}, {}],
        {"type": 1},
        [-1, 0, {}],
        ["", 0, {}],
        [True, 0, {}],
        [1, "0", {}],
        [1, 0, object()],
        [1, 0, 2**70],
        b"\xc1",
        b"\x93\x01\x00",
        msgpack.packb([1, 0]),
        None,
        7,
    ],
)
def test_a_msgpack_log_refuses_other_values(value: Any) -> None:
    with pytest.raises(InvalidAppendError):
        new_records([value], MSGPACK)


def test_a_kraft_log_accepts_framed_values() -> None:
    assert new_records([NO_OP], KRAFT) == (NO_OP,)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x01",
        b"\x01\x14",
        b"\x02\x14\x00",
        (b"k", NO_OP),
        (None, None),
        NewRecord(None, NO_OP, timestamp_ms=5),
        Consumed(NO_OP, headers=[("h", b"")]),
    ],
)
def test_a_kraft_log_refuses_values_that_kraft_cannot_read(record: Any) -> None:
    with pytest.raises(InvalidAppendError):
        new_records([record], KRAFT)


def test_users_cannot_write_transactions_that_name_commits() -> None:
    name = CommitName("app", "query", 3)
    begin = marker_value(Marker.BEGIN, commit_transaction_name(name))
    with pytest.raises(InvalidAppendError, match=r"index 1 .* pass commit=\.\.\. instead"):
        new_records([NO_OP, begin], KRAFT)
    for text in ("bootstrap records", "[1, 2, 3]", None):
        assert new_records([marker_value(Marker.BEGIN, text)], KRAFT)


def test_a_record_has_at_most_as_many_headers_as_readers_decode() -> None:
    most = [("h", None)] * USER_HEADERS_MAX
    (normalized,) = new_records([Consumed(b"v", headers=most)], BYTES)
    assert isinstance(normalized, NewRecord)
    assert len(normalized.headers) == USER_HEADERS_MAX
    with pytest.raises(InvalidAppendError, match=f"more than {USER_HEADERS_MAX} headers"):
        new_records([Consumed(b"v", headers=[*most, ("h", None)])], BYTES)


@pytest.mark.parametrize("key", [b"\x90", b"\x80"], ids=["array", "map"])
def test_a_map_with_an_invalid_key_is_refused(key: bytes) -> None:
    value = b"\x93\x01\x01\x81" + key + b"\x01"
    with pytest.raises(InvalidAppendError, match=r"index 1 .*key that is an array or a map"):
        new_records([b"\x93\x01\x01\x80", value], MSGPACK)
