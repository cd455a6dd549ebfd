"""Appends of one sender keep their order when only the first one does not fit on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import raftlog
from tests.support.node_metrics import metrics_at
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually, free_ports

pytestmark = pytest.mark.slow
ROOM_BYTES = 200_000
VALUES = [b"l" * 600_000, *(b"%d" % number for number in range(20))]
PATIENCE_S = 60


class SmallNode:
    """Only voter of its quorum, with a small limit of file size until ``make_room``."""

    def __init__(self, node: NodeProcess, metrics_port: int) -> None:
        self.address = node.address
        self._node = node
        self._metrics_port = metrics_port
        node.limit_files(ROOM_BYTES)

    def wait_for_appends(self, count: int) -> None:
        """Wait for this number of append requests."""
        eventually(lambda: self._asked() >= count, f"{count} appends, repetitions among them")

    def _asked(self) -> float:
        return metrics_at(self._metrics_port).get(("raftlog_requests_total", "produce"), 0)

    def free_space(self) -> None:
        self._node.limit_files(None)

    def values(self) -> list[bytes | None]:
        with raftlog.connect(self.address) as log:
            return [record.value for record in log.read(0)]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallNode]:
    (port,) = free_ports(1)
    extra = f'[metrics]\naddress = "127.0.0.1:{port}"\n'
    with QuorumProcesses(tmp_path, node_count=1, extra=extra) as quorum:
        yield SmallNode(quorum.nodes[0], port)


def test_appends_of_one_handle_keep_their_order(small: SmallNode) -> None:
    with raftlog.connect(small.address) as log:
        # Named appends are sent while the large one is in flight: they wait for no producer id.
        appends = [
            log.append_async([value], commit=("job", "query", number))
            for number, value in enumerate(VALUES)
        ]
        small.wait_for_appends(len(VALUES))
        assert not any(append.done() for append in appends)
        small.free_space()
        offsets = [append.result(PATIENCE_S).base_offset for append in appends]
    assert offsets == sorted(set(offsets))
    assert small.values() == VALUES


def test_batches_of_librdkafkas_idempotent_producer_keep_their_order(small: SmallNode) -> None:
    answers: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": small.address,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
    )
    for value in VALUES:
        producer.produce("raftlog", value, on_delivery=lambda error, _: answers.append(error))
    small.wait_for_appends(len(VALUES))
    producer.poll(0)
    assert answers == [], "nothing is delivered, and nothing has failed"
    small.free_space()
    assert producer.flush(PATIENCE_S) == 0
    assert answers == [None] * len(VALUES)
    assert small.values() == VALUES
