"""Requests and responses <-> kio's classes, in every served version."""

from __future__ import annotations

import ast
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.vote.v2.request import VoteRequest
from kio.schema.vote.v2.response import VoteResponse
from kio.static.primitive import i16, i32, i32Timedelta
from tests.support.wire_messages import message_kinds, random_message
from tests.support.wire_vectors import Vector, message_vector, message_vectors

import raftlog.wire
from raftlog.wire import latest_schemas
from raftlog.wire.codec import decode, decode_fields, encode
from raftlog.wire.errors import UnsupportedFieldError
from raftlog.wire.schema import StructPlan, message_plan

KINDS = [(kind, version) for _, kind, version in message_kinds()]


@pytest.mark.parametrize("vector", message_vectors(), ids=lambda one: f"{one.name} {one.version}")
def test_kafkas_messages_round_trip(vector: Vector) -> None:
    message = decode(vector.kind, vector.version, vector.data)
    assert encode(message, vector.version) == vector.data


def test_the_content_of_kafkas_messages_is_decoded() -> None:
    fetch = decode(latest_schemas.FetchRequest, 18, message_vector("Fetch", 18))
    (topic,) = fetch.topics
    (partition,) = topic.partitions
    assert (fetch.cluster_id, fetch.max_wait) == ("abc", timedelta(milliseconds=500))
    assert (partition.fetch_offset, partition.high_watermark) == (100, 90)
    vote = decode(VoteRequest, 2, message_vector("Vote", 2)).topics[0].partitions[0]
    assert (vote.replica_epoch, vote.last_offset, vote.pre_vote) == (6, 100, True)
    asked = decode(ApiVersionsRequest, 4, message_vector("ApiVersions", 4))
    assert (asked.client_software_name, asked.client_software_version) == ("py", "1")


def lost_fields(plan: StructPlan, prefix: str = "") -> tuple[str, ...]:
    """Return the fields of this version that its class lacks, as ``topics.partitions.name``."""
    lost: list[str] = []
    for field in (*plan.fields, *plan.tagged):
        if not field.is_kept:
            lost.append(prefix + field.name)
        elif field.struct is not None:
            lost += lost_fields(field.struct, f"{prefix}{field.name}.")
    return tuple(lost)


def test_a_class_has_every_field_of_every_version() -> None:
    lost = {
        (kind.__name__, version): fields
        for kind, version in KINDS
        if (fields := lost_fields(message_plan(kind, version)))
    }
    assert not lost


@given(st.sampled_from(KINDS), st.integers(0, 2**64))
def test_every_message_round_trips(message: tuple[type[Any], int], seed: int) -> None:
    kind, version = message
    value = random_message(kind, version, random.Random(seed))
    data = encode(value, version)
    again = decode(kind, version, data)
    assert again == value
    assert encode(again, version) == data
    assert decode(kind, version, b"head" + data, start=4) == value
    fields = decode_fields(kind, version, b"head" + data, start=4)
    assert encode(fields, version, kind) == data


def test_fields_missing_in_an_old_version_have_defaults() -> None:
    request = decode(VoteRequest, 0, encode(decode(VoteRequest, 2, _vote()), 0))
    assert request.voter_id == -1
    partition = request.topics[0].partitions[0]
    assert partition.pre_vote is False
    assert partition.replica_directory_id is None


def test_an_unassigned_error_code_is_an_unknown_error() -> None:
    data = b"\x27\x0f\x01\x00"
    assert decode(VoteResponse, 2, data).error_code is ErrorCode.unknown_server_error


def test_a_name_required_by_an_old_version_must_be_set() -> None:
    request = decode(latest_schemas.FetchRequest, 18, message_vector("Fetch", 18))
    narrow: type[Any] = type(request).__mro__[1]
    assert narrow.__name__ == "FetchRequest"
    old = decode(narrow, 18, message_vector("Fetch", 18))
    with pytest.raises(UnsupportedFieldError, match="topic: the message class lacks it"):
        encode(old, 12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("acks", 40_000),
        ("transactional_id", "x" * 40_000),
        ("transactional_id", "\ud800"),
        ("topic_data", None),
    ],
)
def test_an_invalid_value_of_a_field_is_reported(field: str, value: Any) -> None:
    facts: dict[str, Any] = {
        "acks": i16(1),
        "timeout": i32Timedelta.parse(timedelta(milliseconds=1)),
        "topic_data": (),
    }
    request = latest_schemas.ProduceRequest(**(facts | {field: value}))
    with pytest.raises(UnsupportedFieldError) as caught:
        encode(request, 9)
    assert caught.value.field == field
    assert caught.value.api == "ProduceRequest"


def test_null_and_empty_are_distinguished() -> None:
    for topics in (None, ()):
        request = latest_schemas.MetadataRequest(
            topics=topics, include_topic_authorized_operations=False
        )
        for version in (1, 9, 13):
            assert (
                decode(latest_schemas.MetadataRequest, version, encode(request, version)).topics
                == topics
            )


def test_kios_reader_and_records_are_never_imported() -> None:
    sources = list(Path(raftlog.wire.__file__).parent.glob("*.py"))
    imported = {
        name
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (name := node.module or "").startswith("kio")
    }
    assert "kio.schema.vote.v2" in imported
    assert all(name == "kio" or name.startswith(("kio.schema", "kio.static")) for name in imported)


def _vote() -> bytes:
    request = decode(VoteRequest, 2, message_vector("Vote", 2))
    assert request.voter_id == i32(2)
    return message_vector("Vote", 2)
