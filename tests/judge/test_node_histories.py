"""Histories of three real processes, with leaders killed and paused, are linearizable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from raftlog.node.formatting import random_id
from tests.judge import kafka_classes
from tests.judge.history import Outcome
from tests.judge.kafka_classes import Poll, Send
from tests.judge.linearizability import anomalies
from tests.judge.recording import Recorder, final_log
from tests.support.quorum_checks import leader_of
from tests.support.quorum_processes import QuorumProcesses, eventually
from tests.support.report_lines import REPORT_LINE

TOPIC = "raftlog"
LONG = pytest.param(12, id="long", marks=pytest.mark.nightly)
PATIENCE_S = 30.0
PAUSED_CALLS = 60
"""Number of calls before a paused leader is resumed."""


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path) as processes:
        yield processes


def disturb_leader(
    quorum: QuorumProcesses, number: int, calls_continue: Callable[[], object]
) -> None:
    """Kill or pause the leader until the others have elected another one."""
    leader = eventually(lambda: leader_of(quorum), "a leader")
    if number % 2 == 0:
        leader.kill()
        calls_continue()
        leader.start()
    else:
        leader.pause()
        calls_continue()
        leader.resume()
    calls_continue()


@pytest.mark.parametrize("rounds", [pytest.param(2, id="short", marks=pytest.mark.slow), LONG])
def test_histories_of_clients_are_linearizable(
    quorum: QuorumProcesses, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    with Recorder(quorum.bootstrap) as recorder:

        def calls_continue() -> None:
            def acknowledged() -> int:
                return recorder.counts().get("Append ok", 0)

            before = acknowledged()
            eventually(lambda: acknowledged() > before + PAUSED_CALLS, "appends are acknowledged")

        for number in range(rounds):
            calls_continue()
            disturb_leader(quorum, number, calls_continue)
    recorder.check_clients()
    assert anomalies(recorder.history, final_log(quorum.bootstrap)) == []
    counts = recorder.counts()
    assert counts["Append refused"] > 0
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    record_property(REPORT_LINE, f"judged linearizable over {rounds} lost leaders: {words}")


def offset_and_value(message: Message) -> tuple[int, bytes]:
    offset, value = message.offset(), message.value()
    assert offset is not None
    assert value is not None
    return offset, value


class StockClients:
    """librdkafka's producer and consumer, polled alternately by one thread."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        common = {"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 2_000}
        self._producer = Producer(
            {**common, "enable.idempotence": True, "linger.ms": 1, "request.timeout.ms": 2_000}
        )
        self._consumer = Consumer({**common, "group.id": random_id(), "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self._is_first = True
        self._count = 0

    @property
    def acknowledged_count(self) -> int:
        return len(self.sends)

    def turn(self) -> None:
        """Send a few values and poll once."""
        for _ in range(5):
            self._count += 1
            value = b"%d" % self._count
            self._producer.produce(TOPIC, value=value, on_delivery=self._delivered)
        self._producer.poll(0.01)
        self.poll()

    def poll(self) -> None:
        messages = self._consumer.consume(500, 0.01)
        records = tuple(offset_and_value(one) for one in messages if one.error() is None)
        self.polls.append(Poll(1, records, self._is_first))
        self._is_first = False

    def finish(self) -> None:
        """Wait for all acknowledgements, and poll the acknowledged records."""
        assert self._producer.flush(PATIENCE_S) == 0
        last = max((send.offset or 0) for send in self.sends)
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            self.poll()
            if any(offset >= last for offset, _ in self.polls[-1].records):
                break
        self._consumer.close()

    def _delivered(self, error: Any, message: Any) -> None:
        outcome = Outcome.OK if error is None else Outcome.UNKNOWN
        offset = message.offset() if error is None else None
        self.sends.append(Send(1, message.value(), outcome, offset))


@pytest.mark.parametrize("rounds", [pytest.param(1, id="killed", marks=pytest.mark.slow), LONG])
def test_stock_clients_observe_none_of_jepsens_anomalies(
    quorum: QuorumProcesses, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    clients = StockClients(quorum.bootstrap)

    def calls_continue() -> None:
        before = clients.acknowledged_count
        until_s = time.monotonic() + PATIENCE_S
        while clients.acknowledged_count < before + PAUSED_CALLS:
            assert time.monotonic() < until_s, "nothing is acknowledged"
            clients.turn()

    for number in range(rounds):
        calls_continue()
        disturb_leader(quorum, number, calls_continue)
    clients.finish()
    assert kafka_classes.anomalies(clients.sends, clients.polls) == {}
    polled = sum(len(poll.records) for poll in clients.polls)
    record_property(
        REPORT_LINE,
        f"librdkafka over {rounds} lost leaders: {len(clients.sends)} sent, {polled} polled",
    )
