"""The producer against a real log: lost and late requests, leader changes, full disks, deadlines.

A request or a response is lost with its connection; then the node may still read what is in transit
there, after requests of the next connection. The leader is the log of a node without the quorum.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

import pytest
from tests.support.appending import DIRECTORY, NOW_MS, TOPIC_ID, batches_of, disk_with_parent

from raftlog.append import AppendBatch, AppendRequest, AppendResult, Done, InOrderGate
from raftlog.client.remote.producer import IN_FLIGHT_MAX, Producer
from raftlog.client.remote.producer_batches import LogSettings, ProducerBatch
from raftlog.errors import (
    AppendUnknownError,
    DiskFullError,
    LogError,
    QuorumUnavailableError,
    RaftlogError,
)
from raftlog.log.reading.transactions import CommitName, ValueKind
from raftlog.log.writing import producer_state
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.node.apis.produced_batch import append_request, read_header
from raftlog.records.builder import ProducerStamp
from raftlog.records.compression import Compression
from raftlog.records.record import NewRecord
from raftlog.wire.produce_codec import produce_error_code, produce_error_message

SETTINGS: Final = LogSettings(ValueKind.BYTES, 1024, Compression.NONE)
PATH: Final = "h1:1"
FUTURE_MS: Final = NOW_MS + 7_200_000
"""Timestamp that no leader accepts: it refuses all appends that share the batch."""
FULL: Final = DiskFullError(path="log", reason="no space left")
UNKNOWN: Final = AppendUnknownError(path="log", reason="another node became the leader")

KINDS: Final = (
    *["plain"] * 6,
    *("conditional", "contradictory", "epoch", "named", "taken", "stamped", "check"),
    *("future", "large"),
)


def unavailable() -> RaftlogError:
    return QuorumUnavailableError(path=PATH, waited_ms=0, reason="no leader")


class LeaderLog:
    """Log of a leader, and the order in which it appends and refuses."""

    def __init__(self) -> None:
        config = LogConfig(values=ValueKind.BYTES, batch_bytes_max=SETTINGS.batch_bytes_max)
        self._disk = disk_with_parent()
        self._log = SingleVoterLog.create(
            self._disk, DIRECTORY, config=config, topic_id=TOPIC_ID, now_ms=NOW_MS
        )
        self.producer_id_count = 0

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    def elect(self) -> None:
        self._log.claim(now_ms=NOW_MS)

    def append(self, data: bytes) -> AppendResult | RaftlogError:
        """Append a batch as a node does."""
        try:
            header = read_header(data, byte_count_max=SETTINGS.batch_bytes_max)
            request = append_request(
                data, header, self._log.config, deadline_ms=0, gate=InOrderGate()
            )
        except LogError as error:
            return error
        return self.append_request(request)

    def append_request(self, request: AppendRequest) -> AppendResult | RaftlogError:
        group = AppendBatch(self._log, NOW_MS)
        result = group.process(request)
        group.write()
        if isinstance(result, Done):
            assert isinstance(result.value, AppendResult)
            return result.value
        return result.error

    def values(self) -> list[tuple[int, bytes]]:
        """Return all values with their offsets."""
        self._log.flush()
        return [
            (record.offset, record.value or b"")
            for batch in batches_of(self._disk)
            if not batch.is_control
            for record in batch.records()
        ]


@dataclass
class Connection:
    """Requests in transit on one connection, with the bytes that were sent."""

    requests: deque[tuple[ProducerBatch, bytes]] = field(default_factory=deque)


class Run:
    """Producer and leader with a network between them, driven by the numbers of a seed."""

    def __init__(self, seed: int, *, first_epoch: int = 0, first_sequence: int = 0) -> None:
        """Every producer id begins with this epoch and sequence, which a leader accepts."""
        self.rng: Final = Random(seed)
        self.leader: Final = LeaderLog()
        self.producer: Final = Producer(PATH, SETTINGS)
        self.requests: Final[list[AppendRequest]] = []
        self.values: Final[dict[AppendRequest, tuple[bytes, ...]]] = {}
        self.now_ms = 0
        self.counts: Final[dict[str, int]] = {}
        self._connection = Connection()
        self._late: Final[list[Connection]] = []
        self._version = 0
        self._sequence = 0
        self._first_epoch, self._first_sequence = first_epoch, first_sequence

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- users ------------------------------------------------------------------------------------

    def append(self, kind: str, **conditions: Any) -> AppendRequest:
        rng, number = self.rng, len(self.requests)
        record_count = rng.choice((1, 1, 2, 3))
        padding = rng.choice((0, 0, 0, 300))
        values = tuple(b"%d:%d:" % (number, at) + bytes(padding) for at in range(record_count))
        if kind == "conditional":
            conditions["required_base_offset"] = self.leader.end_offset + rng.choice((0, 0, 3))
        elif kind == "epoch":
            conditions["epoch"] = max(self.leader.epoch - rng.choice((0, 0, 1)), 1)
        elif kind in ("named", "taken"):
            self._version += 1
            conditions["commit"] = CommitName("app", "query", self._version)
        elif kind == "stamped":
            conditions["producer"] = ProducerStamp(5, 0, self._sequence)
            self._sequence += record_count
        elif kind == "check":
            values, conditions["required_base_offset"] = (), self.leader.end_offset
        elif kind == "contradictory":
            conditions["required_base_offset"] = self.leader.end_offset
            conditions["required_end_offset"] = self.leader.end_offset + record_count
        elif kind == "large":
            values = tuple(b"%d:%d:" % (number, at) + bytes(400) for at in range(5))
        deadline_ms = self.now_ms + rng.choice((20, 100, 1000))
        timestamp_ms = FUTURE_MS if kind == "future" else None
        records = tuple(NewRecord(None, value, timestamp_ms) for value in values)
        request = AppendRequest(records=records, deadline_ms=deadline_ms, **conditions)
        self.requests.append(request)
        self.values[request] = values
        if kind == "taken":  # by another process that ran the same query
            other = AppendRequest(records=(b"other",), commit=request.commit, deadline_ms=0)
            self.leader.append_request(other)
        self.producer.add([request])
        return request

    # --- network ----------------------------------------------------------------------------------

    def send(self) -> None:
        """Send all batches that may be sent."""
        producer, leader = self.producer, self.leader
        while True:
            if producer.needs_producer_id(leader.epoch):
                leader.producer_id_count += 1
                producer.set_producer_id(1000 + leader.producer_id_count, self._first_epoch)
                producer._next_sequence = self._first_sequence
            batch = producer.next_batch(leader.epoch, NOW_MS)
            if batch is None:
                return
            self._connection.requests.append((batch, batch.data_for(leader.epoch)))
            assert len(self._connection.requests) == producer.in_flight_count <= IN_FLIGHT_MAX

    def deliver(self) -> None:
        """Deliver the first request and its response."""
        if not self._connection.requests:
            return
        batch, data = self._connection.requests.popleft()
        fault = self.rng.random()
        if fault < 0.05:
            self.respond(batch, FULL)
        elif fault < 0.1:
            if self.rng.random() < 0.5:
                self.leader.append(data)
            self.respond(batch, UNKNOWN)
        else:
            self.respond(batch, self.leader.append(data))

    def deliver_without_fault(self) -> ProducerBatch:
        """Deliver the first request and its response; return the batch."""
        batch, data = self._connection.requests.popleft()
        self.respond(batch, self.leader.append(data))
        return batch

    def respond(self, batch: ProducerBatch, response: AppendResult | RaftlogError) -> None:
        if isinstance(response, AppendResult):
            was_duplicate = response.was_duplicate and batch.is_named
            first, last, epoch = response.base_offset, response.last_offset, response.epoch
            self.producer.complete(batch, AppendResult(first, last, epoch, was_duplicate))
            return
        self.count(type(response).__name__)
        code, text = produce_error_code(response), produce_error_message(response)
        self.producer.handle_error(batch, code, text)

    def lose_connection(self) -> None:
        """Lose all responses in flight; some requests are read, some later, some never."""
        lost, self._connection = self._connection, Connection()
        batches = [batch for batch, _ in lost.requests]
        for _ in range(self.rng.randint(0, len(batches))):
            self.leader.append(lost.requests.popleft()[1])
        for _ in range(self.rng.choice((0, 0, self.rng.randint(0, len(lost.requests))))):
            lost.requests.pop()
        if lost.requests:
            self._late.append(lost)
        self.rng.shuffle(batches)
        for batch in batches:
            self.count("lost response")
            self.producer.handle_lost(batch, "connection lost")

    def deliver_late(self) -> None:
        """Let the node read a request of a connection that is lost."""
        if self._late:
            late = self.rng.choice(self._late)
            self.leader.append(late.requests.popleft()[1])
            self.count("late request")
            if not late.requests:
                self._late.remove(late)

    def expire(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.producer.expire(self.now_ms, NOW_MS, unavailable)

    def step(self) -> None:
        match self.rng.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5:
                self.append(self.rng.choice(KINDS))
            case 6 | 7 | 8 | 9:
                self.send()
            case 10 | 11 | 12 | 13 | 14 | 15:
                self.deliver()
            case 16:
                self.lose_connection()
            case 17:
                self.deliver_late()
            case 18:
                self.expire(self.rng.choice((1, 10, 50)))
            case _:
                if self.rng.random() < 0.2:
                    self.lose_connection()
                    self.leader.elect()

    def finish(self) -> None:
        """Deliver everything without faults until each append has a result."""
        while not self.producer.is_idle:
            self.send()
            if self._connection.requests:
                self.deliver_without_fault()
            else:
                assert self.producer.is_idle, "it waits for a response, but none is outstanding"
        while self._late:
            self.deliver_late()

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing is written twice, a refusal is final, and those that succeeded are in order."""
        at = {}
        for offset, value in self.leader.values():
            if value != b"other":
                assert value not in at, f"{value[:8]!r} is written twice"
                at[value] = offset
        done: list[AppendResult] = []
        for request in self.requests:
            error, values = request.future.exception(0), self.values[request]
            if error is None:
                result = request.future.result(0)
                if result.was_duplicate and not any(value in at for value in values):
                    continue  # by another process
                offsets = [at[value] for value in values]
                assert result.end_offset == (offsets[-1] + 1 if offsets else result.base_offset)
                assert not offsets or result.base_offset == offsets[0]
                assert offsets == sorted(offsets)
                if offsets:
                    done.append(result)
            elif not isinstance(error, AppendUnknownError):
                assert not any(value in at for value in values), f"written, but {error}"
        for earlier, later in pairwise(done):
            assert earlier.end_offset <= later.base_offset, "out of order"
        self.counts["done"] = len(done)


@pytest.mark.parametrize(
    "seeds",
    [
        range(50),
        *(
            pytest.param(range(first, first + 50), marks=pytest.mark.nightly)
            for first in (50, 100, 150)
        ),
    ],
)
def test_appends_are_written_once_in_order_and_a_refusal_is_final(seeds: range) -> None:
    counts: dict[str, int] = {}
    for seed in seeds:
        run = Run(seed)
        for _ in range(250):
            run.step()
        run.finish()
        run.check()
        for what, count in run.counts.items():
            counts[what] = counts.get(what, 0) + count
    assert counts["done"] > 500
    for what in (
        "InvalidTimestampError",
        "OutOfOrderSequenceError",
        "UnexpectedEndOffsetError",
        "late request",
    ):
        assert counts[what] > 10, counts


@pytest.mark.parametrize(
    ("first_epoch", "first_sequence"), [(2**15 - 3, 0), (0, 2**31 - 7)], ids=["epochs", "sequences"]
)
def test_appends_are_written_once_in_order_when_numbers_are_used_up(
    first_epoch: int, first_sequence: int
) -> None:
    id_count = 0
    for seed in range(40):
        run = Run(seed, first_epoch=first_epoch, first_sequence=first_sequence)
        for _ in range(250):
            run.step()
        run.finish()
        run.check()
        id_count += run.leader.producer_id_count
    assert (id_count > 80) is (first_epoch > 0), "an id has no epoch after the last"


def test_appends_sent_separately_are_not_written_after_later_ones_if_their_producer_was_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 1)
    run = Run(2)
    run.append("plain")
    run.send()
    run.deliver_without_fault()
    shared = [run.append("plain"), run.append("future")]
    run.send()
    later = run.append("plain")
    run.send()
    assert run.deliver_without_fault().requests == tuple(shared)
    other = AppendRequest(records=(b"other",), producer=ProducerStamp(5, 0, 0), deadline_ms=0)
    assert isinstance(run.leader.append_request(other), AppendResult)
    assert run.deliver_without_fault().requests == (later,)
    assert not later.future.exception(0), "the log accepts any sequence of an evicted producer"
    last = run.append("plain")
    run.finish()
    run.check()
    assert not last.future.exception(0)
    for request in shared:
        assert isinstance(request.future.exception(0), AppendUnknownError)
