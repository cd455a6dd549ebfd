"""Kafka's own classes give the same answers: partition changes, names, configs, credentials."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.state.controller.kafka_decisions import (
    Answered,
    Question,
    ask_kafka,
    questions,
    raftlog_change,
    read_recording,
)
from tests.support.cluster_changes import pending
from tests.support.controller_context import write
from tests.support.jars import KAFKA_NEWEST
from tests.support.kafka import kafka_jars

from raftlog_state.controller import SetScram
from raftlog_state.controller.config_values import invalid_value_reason, unknown_config_reason
from raftlog_state.controller.topics import invalid_topic_name_reason
from raftlog_state.image import FeatureRow, MetadataImage
from raftlog_state.records import UserScramCredentialRecord

LEVEL = 30


def config_answer(question: Question) -> str:
    kind, name = question["resource_type"], question["name"]
    reason = unknown_config_reason(kind, name, LEVEL) or invalid_value_reason(
        kind, name, question["value"]
    )
    return "taken" if reason is None else "refused"


def scram_answer(question: Question) -> str:
    level = FeatureRow(name="metadata.version", level=LEVEL)
    image = MetadataImage.from_rows([level], offset=0, leader_epoch=1)
    state = pending(image, seed=0)
    change = SetScram(
        user="a",
        mechanism=question["mechanism"],
        password=question["password"],
        salt=bytes.fromhex(question["salt"]),
        iterations=question["iterations"],
    )
    write(change, state)
    record = state.records[0].record
    assert isinstance(record, UserScramCredentialRecord)
    return f"{record.stored_key.hex()} {record.server_key.hex()}"


def raftlog_answer(question: Question) -> str:
    match question["kind"]:
        case "partition":
            return raftlog_change(question)
        case "config":
            return config_answer(question)
        case "topic":
            return "taken" if invalid_topic_name_reason(question["name"]) is None else "refused"
        case _:
            return scram_answer(question)


def assert_same_answers(answered: list[Answered]) -> None:
    others = [
        (one.question, one.answer, raftlog_answer(one.question))
        for one in answered
        if raftlog_answer(one.question) != one.answer
    ]
    assert others == []


def test_answers_equal_kafkas_recorded_ones() -> None:
    book = read_recording()
    assert_same_answers(book)
    kinds = Counter(one.question["kind"] for one in book)
    assert kinds["partition"] == 3_000
    changed = sum(one.answer != "none" for one in book if one.question["kind"] == "partition")
    assert 2_000 < changed < 3_000


@pytest.mark.kafka
@pytest.mark.parametrize("seed", [1, 2])
def test_kafka_gives_the_same_answers_to_new_questions(seed: int) -> None:
    assert_same_answers(ask_kafka(kafka_jars(KAFKA_NEWEST), questions(seed, 20_000)))
