"""raftlog's messages round trip through Kafka's generated classes; the API tables agree."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.kafka import kafka_jars, run_java
from tests.support.quorum_messages import IDENTITY, partition_responses, requests, voter_changes
from tests.support.wire_messages import message_kinds, random_message

from raftlog.wire import (
    APIS,
    CONTROLLER_APIS,
    QUORUM_APIS,
    ApiKey,
    Listener,
    RequestHeader,
    encode,
    encode_request,
    encode_request_header,
    encode_response,
    request_api_key,
)
from raftlog.wire.errors import UnsupportedFieldError
from raftlog.wire.frame import request_header_version, response_header_version
from raftlog.wire.schema import FieldPlan, StructPlan, message_plan

pytestmark = pytest.mark.kafka

PROGRAM = str(Path(__file__).parent / "Messages.java")
EACH = 25
BROKERS_ANSWER = (ApiKey.DESCRIBE_CLIENT_QUOTAS,)
"""Requests that Kafka's brokers answer, and a controller of raftlog, which has no brokers."""
ZERO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True)
class Line:
    """Message, and Kafka's result for it."""

    name: str
    words: str
    data: bytes
    message: Any = None
    plan: StructPlan | None = None


def generic_lines() -> Iterator[Line]:
    rng = random.Random(6)
    for api, kind, version in message_kinds():
        side = "request" if kind.__name__.endswith("Request") else "response"
        for _ in range(EACH):
            message = random_message(kind, version, rng)
            yield Line(
                name=f"{kind.__name__} {version}",
                words=f"{api.key:d} {version} {side}",
                data=encode(message, version),
                message=message,
                plan=message_plan(kind, version),
            )


def header_lines() -> Iterator[Line]:
    for api in (*APIS.values(), *CONTROLLER_APIS.values()):
        for version in range(api.versions.first, api.versions.last + 1):
            for client_id in (None, "", "zoë"):
                header = RequestHeader(
                    api_key=api.key, api_version=version, correlation_id=-7, client_id=client_id
                )
                words = f"{api.key:d} {version} header"
                yield Line(f"{api.key.name} header", words, encode_request_header(header))


def quorum_lines() -> list[Line]:
    """Return the messages of replicas in every version on the voters' listener."""
    lines: list[Line] = []

    @settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
    @given(requests, st.data())
    def ask(request: Any, data: st.DataObject) -> None:
        key = request_api_key(request)
        version = data.draw(st.sampled_from(served_versions(key)))
        try:
            body = encode_request(request, version, IDENTITY)
        except UnsupportedFieldError:
            return
        lines.append(Line(f"{request}", f"{key:d} {version} request", body))

    @settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(QUORUM_APIS)), st.data())
    def answer(key: ApiKey, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(served_versions(key)))
        kind = voter_changes if key >= ApiKey.ADD_RAFT_VOTER else partition_responses
        response = data.draw(kind)
        if key < ApiKey.ADD_RAFT_VOTER and _answers(response) != key.name:
            return
        body = b"".join(encode_response(key, version, response, IDENTITY))
        lines.append(Line(f"{response}", f"{key:d} {version} response", body))

    ask()
    answer()
    return lines


def served_versions(key: ApiKey) -> list[int]:
    served = APIS[key].on(Listener.VOTERS)
    assert served is not None
    return list(range(served.first, served.last + 1))


def _answers(response: Any) -> str:
    name = type(response).__name__.removesuffix("Response")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return [*generic_lines(), *header_lines(), *quorum_lines()]


@pytest.fixture(scope="module")
def kafkas_output(lines: list[Line], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines that Kafka prints of its table and of all messages."""
    file = tmp_path_factory.mktemp("wire") / "messages"
    file.write_text("".join(f"{line.words} {line.data.hex()}\n" for line in lines))
    return run_java(kafka_jars(), PROGRAM, str(file)).splitlines()


def test_kafka_round_trips_every_message(lines: list[Line], kafkas_output: list[str]) -> None:
    answers = [one for one in kafkas_output if one.startswith(("message", "failed"))]
    assert len(answers) == len(lines) > 5_000
    wrong = [
        (line.name, line.words, answer[:300])
        for line, answer in zip(lines, answers, strict=True)
        if not answer.startswith(f"message {line.data.hex()} ")
    ]
    assert not wrong


def test_kafka_decodes_the_encoded_content(lines: list[Line], kafkas_output: list[str]) -> None:
    answers = [one for one in kafkas_output if one.startswith("message")]
    compared = 0
    for line, answer in zip(lines, answers, strict=True):
        if line.plan is not None:
            found = json.loads(answer.split(" ", 2)[2])
            assert found == content(line.message, line.plan, found), line.name
            compared += 1
    assert compared > 5_000


def test_the_table_agrees_with_kafka(kafkas_output: list[str]) -> None:
    kafka = {
        int(words[1]): words[2:] for words in map(str.split, kafkas_output) if words[0] == "api"
    }
    for api in (*APIS.values(), *CONTROLLER_APIS.values()):
        oldest, latest, listeners = kafka[api.key]
        assert (api.versions.first, api.versions.last) == (int(oldest), int(latest)), api.key.name
        assert api.clients is None or "BROKER" in listeners.split(",")
        is_for_controllers = "CONTROLLER" in listeners.split(",")
        assert api.voters is None or is_for_controllers or api.key in BROKERS_ANSWER


def test_headers_are_those_of_kafka(kafkas_output: list[str]) -> None:
    for words in map(str.split, kafkas_output):
        if words[0] != "headers" or int(words[1]) not in APIS:
            continue
        key, version, asked, answered = map(int, words[1:])
        if version <= APIS[key].versions.last:
            assert request_header_version(key, version) == asked
            assert response_header_version(key, version) == answered


def content(message: Any, plan: StructPlan, found: dict[str, Any]) -> dict[str, Any]:
    """Return a message as Kafka's JSON, in which fields with defaults may be missing."""
    out: dict[str, Any] = {}
    for field in (*plan.fields, *plan.tagged):
        key = json_key(field, found)
        value = getattr(message, field.name)
        if key is None:
            assert field.tag is not None
            continue
        if field.kind == "records":
            out[key] = None if value is None else len(value)
        elif field.is_array:
            inner = found[key] or []
            out[key] = (
                None
                if value is None
                else [json_value(field, one, at) for one, at in zip(value, inner, strict=True)]
            )
        else:
            out[key] = json_value(field, value, found[key])
    return out


def json_key(field: FieldPlan, found: dict[str, Any]) -> str | None:
    """Return Kafka's name of one of kio's fields."""
    head, *words = field.name.split("_")
    name = head + "".join(word.capitalize() for word in words)
    for suffix in ("", "Ms", "SizeInBytes"):
        if name + suffix in found:
            return name + suffix
    return None


def json_value(field: FieldPlan, value: Any, found: Any) -> Any:
    if field.struct is not None:
        return None if value is None else content(value, field.struct, found)
    match field.kind:
        case "uuid":
            data = bytes(16) if value is None else value.bytes
            return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
        case "bytes":
            return None if value is None else base64.b64encode(value).decode()
        case "timedelta_i32" | "timedelta_i64":
            return value // timedelta(milliseconds=1)
        case "datetime_i64":
            return -1 if value is None else round(value.timestamp() * 1000)
        case _:
            return value
