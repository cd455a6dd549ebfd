"""Any bytes decode to a value or raise ``MalformedMessageError``, in bounded time and memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.vote.v2.request import VoteRequest
from tests.support.hostile_bytes import Target, is_accepted, mutations, targets
from tests.support.wire_messages import message_kinds
from tests.support.wire_vectors import message_vector

from raftlog.limits import MIB, WIRE_ELEMENTS_MAX
from raftlog.wire import decode, latest_schemas
from raftlog.wire.errors import MalformedMessageError
from raftlog.wire.schema import FieldPlan, StructPlan, message_plan

TARGETS = targets(seed=1)
LENGTHS = {True: (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f"), False: (b"\x7f\xff\xff\xff",)}
"""Maximal lengths: of flexible versions, of others (where a string's is its first half)."""


def attack(one: Target, rng: random.Random, count: int) -> int:
    """Return how many of this number of mutations are accepted."""
    changed = mutations(one.valid, rng)
    return sum(is_accepted(one.decoder, next(changed)) for _ in range(count))


def test_mutated_messages_are_decoded_or_refused() -> None:
    rng = random.Random(20)
    taken = sum(attack(one, rng, 20_000 // len(TARGETS) + 1) for one in TARGETS)
    assert 0 < taken < 20_000


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_many_mutated_messages_are_decoded_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for one in targets(seed):
        attack(one, rng, 300)


@given(st.sampled_from(TARGETS), st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused(one: Target, data: bytes) -> None:
    is_accepted(one.decoder, data)


def test_no_prefix_of_a_message_is_accepted() -> None:
    for one in TARGETS:
        length = len(one.valid)
        ends = {*range(min(length, 40)), *range(max(length - 40, 0), length)}
        assert not [end for end in ends if is_accepted(one.decoder, one.valid[:end])], one.name


def arrays_of(plan: StructPlan, path: tuple[FieldPlan, ...] = ()) -> list[tuple[FieldPlan, ...]]:
    """Return the path of every array, string and tagged field of a message."""
    found = []
    for field in (*plan.fields, *plan.tagged):
        here = (*path, field)
        if field.is_array or field.kind in ("string", "bytes", "records"):
            found.append(here)
        if field.struct is not None:
            found += arrays_of(field.struct, here)
    return found


def up_to(plan: StructPlan, path: tuple[FieldPlan, ...], length: bytes) -> bytes:
    """Return a message of zeros up to a field, with this length at its position."""
    wanted = path[0]
    out = b""
    for field in plan.fields:
        if field is wanted:
            return out + _inside(field, path, length, plan.is_flexible)
        out += _zero(field, plan.is_flexible)
    tag = wanted.tag or 0
    inner = _inside(wanted, path, length, plan.is_flexible)
    return out + bytes((1, tag, min(len(inner) + 20, 127))) + inner


def _inside(
    field: FieldPlan, path: tuple[FieldPlan, ...], length: bytes, is_flexible: bool
) -> bytes:
    if len(path) == 1:
        return length
    assert field.struct is not None
    start = b""
    if field.is_array:
        start = b"\x02" if is_flexible else b"\x00\x00\x00\x01"
    elif field.is_nullable:
        start = b"\x01"
    return start + up_to(field.struct, path[1:], length)


def _zero(field: FieldPlan, is_flexible: bool) -> bytes:
    if field.is_array or field.kind in ("bytes", "records"):
        return b"\x01" if is_flexible else bytes(4)
    if field.kind == "string":
        return b"\x01" if is_flexible else bytes(2)
    if field.struct is not None:
        tags = b"\x00" if is_flexible else b""
        marker = b"\x01" if field.is_nullable else b""
        return marker + b"".join(_zero(one, is_flexible) for one in field.struct.fields) + tags
    return bytes(field.byte_count_min)


def test_no_excessive_length_is_accepted_anywhere() -> None:
    places = 0
    for _, kind, version in message_kinds():
        plan = message_plan(kind, version)
        for path in arrays_of(plan):
            for length in LENGTHS[plan.is_flexible]:
                data = up_to(plan, path, length)
                with pytest.raises(MalformedMessageError) as caught:
                    decode(kind, version, data + bytes(50))
                assert caught.value.position <= len(data), (kind, version, path)
                places += 1
    assert places > 1_000


def measured(kind: type[Any], version: int, data: bytes) -> tuple[int, str]:
    """Return the peak memory of a decoder, and its result."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError) as caught:
            decode(kind, version, data)
        return tracemalloc.get_traced_memory()[1], caught.value.reason
    finally:
        tracemalloc.stop()


def test_many_small_elements_are_refused_before_they_are_created() -> None:
    element = b"\x01\x01\x00"  # a topic without name, partitions and tags
    head = struct.pack(">iiibii", 1, 1, 1, 0, 0, 0)
    count = 10 * MIB // len(element)
    data = bytes((*head[0:4], *head)) + _varint(count + 1) + element * count
    peak, reason = measured(latest_schemas.FetchRequest, 12, data)
    assert f"{WIRE_ELEMENTS_MAX} more are allowed" in reason
    assert peak < MIB


def test_the_maximum_of_elements_uses_little_memory() -> None:
    topic = b"\x00\x01a" + struct.pack(">i", 0)
    head = struct.pack(">iiiib", -1, 1, 1, 1, 0)
    data = head + struct.pack(">i", WIRE_ELEMENTS_MAX) + topic * WIRE_ELEMENTS_MAX + b"\xff"
    peak, reason = measured(latest_schemas.FetchRequest, 4, data)
    assert "after the message" in reason
    assert peak < 4 * MIB


def test_elements_of_all_arrays_are_counted_together() -> None:
    partitions = struct.pack(">i", 2000) + bytes(2000 * 16)
    topic = b"\x00\x01a" + partitions
    data = struct.pack(">iiiib", -1, 1, 1, 1, 0) + struct.pack(">i", 3) + topic * 3
    with pytest.raises(MalformedMessageError, match="more are allowed"):
        decode(latest_schemas.FetchRequest, 4, data)
    assert len(decode(latest_schemas.FetchRequest, 4, data, elements_max=7000).topics) == 3


@pytest.mark.parametrize(
    "tags",
    [
        b"\xff\xff\xff\xff\x0f",  # an excessive number of tags
        b"\x01\x37\xff\xff\xff\xff\x0f",  # a tag of an excessive size
        b"\x01\xff\xff\xff\xff\xff\x01\x00",  # a tag of more than five bytes
        b"\x01\x37\x05ab",  # a tag that ends after the message
        b"\x02\x37\x00\x37\x00",  # a duplicate tag
        b"\x02\x37\x00\x36\x00",  # descending tags
    ],
)
def test_invalid_tags_are_refused(tags: bytes) -> None:
    valid = message_vector("ApiVersions", 4)
    with pytest.raises(MalformedMessageError):
        decode(ApiVersionsRequest, 4, valid[:-1] + tags)


def test_unknown_tags_are_skipped_and_counted() -> None:
    valid = message_vector("ApiVersions", 4)[:-1]
    many = b"".join(_varint(tag) + b"\x00" for tag in range(1000))
    request = decode(ApiVersionsRequest, 4, valid + _varint(1000) + many)
    assert request.client_software_name == "py"
    too_many = b"".join(_varint(tag) + b"\x00" for tag in range(5000))
    with pytest.raises(MalformedMessageError, match="more are allowed"):
        decode(ApiVersionsRequest, 4, valid + _varint(5000) + too_many)


@pytest.mark.parametrize("byte_count", [3, 5, 60])
def test_a_tagged_field_must_have_its_declared_length(byte_count: int) -> None:
    valid = message_vector("Fetch", 17)
    start = valid.index(b"\x04\x04abc")
    assert start == len(valid) - 5
    changed = valid[:start] + bytes((byte_count,)) + b"\x04abcxyz"
    with pytest.raises(MalformedMessageError):
        decode(latest_schemas.FetchRequest, 17, changed)


@pytest.mark.parametrize("text", [b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\xc0\x80a"])
def test_text_that_is_not_utf_8_is_refused(text: bytes) -> None:
    valid = message_vector("Fetch", 17)
    with pytest.raises(MalformedMessageError, match="not UTF-8"):
        decode(latest_schemas.FetchRequest, 17, valid.replace(b"\x04\x04abc", b"\x04\x04" + text))


def test_an_error_has_the_position_and_never_the_content() -> None:
    secret = b"hunter2hunter2"
    with pytest.raises(MalformedMessageError) as caught:
        decode(VoteRequest, 2, b"\x0f" + secret + b"\x00\x00\x00")
    error = caught.value
    assert (error.api, error.version) == ("VoteRequest", 2)
    assert "voter_id takes 4 bytes, but 3 remain" in str(error)
    assert "hunter" not in repr(error)
    assert error.__cause__ is None


def test_trailing_bytes_of_a_message_are_an_error() -> None:
    with pytest.raises(MalformedMessageError, match="1 bytes remain after the message"):
        decode(VoteRequest, 2, message_vector("Vote", 2) + b"\x00")


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))
