"""Each class of Jepsen's Kafka anomalies is found in a history that has it, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.judge.history import Outcome
from tests.judge.kafka_classes import Poll, Send, anomalies

OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN
SENDS = [
    Send(1, b"a", OK, 1),
    Send(1, b"b", OK, 2),
    Send(2, b"c", UNKNOWN),
    Send(2, b"d", REFUSED),
    Send(1, b"e", OK, 5),
]
POLLS = [
    Poll(1, ((1, b"a"), (2, b"b")), is_first=True),
    Poll(2, ((2, b"b"),), is_first=True),
    Poll(1, ((4, b"c"), (5, b"e"))),
    Poll(2, ()),
]


def test_a_correct_history_has_no_anomaly() -> None:
    assert anomalies(SENDS, POLLS) == {}


@pytest.mark.parametrize(
    ("expected", "sends", "polls"),
    [
        (
            "inconsistent-offsets",
            [*SENDS, Send(3, b"x", OK, 9), Send(4, b"y", UNKNOWN)],
            [*POLLS, Poll(3, ((9, b"x"),), True), Poll(4, ((9, b"y"),), True)],
        ),
        ("duplicate", SENDS, [*POLLS, Poll(1, ((6, b"c"),))]),
        ("aborted-read", SENDS, [*POLLS, Poll(1, ((6, b"d"),))]),
        ("lost-write", [*SENDS, Send(3, b"x", OK, 3)], [Poll(1, ((5, b"e"),), True)]),
        ("unseen", [*SENDS, Send(3, b"x", OK, 9)], POLLS),
        ("nonmonotonic-poll", SENDS, [*POLLS, Poll(1, ((5, b"e"),))]),
        ("poll-skip", SENDS, [*POLLS, Poll(2, ((5, b"e"),))]),
        ("nonmonotonic-send", [*SENDS, replace(SENDS[2], producer=1, outcome=OK, offset=4)], POLLS),
        ("phantom", SENDS, [*POLLS, Poll(1, ((6, b"z"),))]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_anomaly_is_found(expected: str, sends: list[Send], polls: list[Poll]) -> None:
    assert expected in anomalies(sends, polls)
