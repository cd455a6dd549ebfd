"""Batches that a client sends, and those it never sends, recorded by a scripted leader."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from kio.schema.describe_configs.v4 import response as configs
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.metadata.v13 import response as metadata
from kio.schema.produce.v13 import response as produced
from kio.schema.types import ProducerId
from tests.support.clock import StoppedClock
from tests.support.scripted_node import ScriptedNode

import raftlog
from raftlog import ConnectedLog
from raftlog.client.remote import metadata as client_metadata
from raftlog.client.remote import sender
from raftlog.client.remote.producer_batches import IMPOSSIBLE_OFFSET
from raftlog.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    InvalidAppendError,
    LogClosedError,
    NodeRefusedError,
    NotLeaderError,
    OutOfOrderSequenceError,
    QuorumUnavailableError,
    RaftlogError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.wire import ApiKey, decode, latest_schemas
from raftlog.wire.log_identity import duration, int8, int16, int32, int64, name, node, uuid_or_none
from raftlog.wire.produce_codec import produce_error_code, produce_error_message

TOPIC_ID: Final = "wP1XW_XDTjOcp3STS81TJA"
PATIENCE_S: Final = 30.0


@dataclass(frozen=True)
class Sent:
    """Received batch: its required offset, its epoch and the values of its records."""

    base_offset: int
    epoch: int
    values: tuple[bytes | None, ...]


@dataclass(frozen=True)
class Appended:
    base_offset: int


@dataclass(frozen=True)
class Refused:
    error: RaftlogError


@dataclass(frozen=True)
class Code:
    """Kafka error code without a message."""

    number: int


HANG_UP: Final = None


@dataclass(frozen=True)
class Resigned:
    """Response after which no node leads until the test sets ``leads``."""

    answer: Code | None


Answer = Appended | Refused | Code | Resigned | None


class LoneLeader:
    """Node that is the only leader. ``epochs``: the epoch of each response, the last one repeated;
    ``answers``: the responses to batches, in order.
    """

    def __init__(self, answers: Iterable[Answer], *, epochs: Iterable[int] = (3,)) -> None:
        self.sent: list[Sent] = []
        self.may_give_ids = threading.Event()
        self.may_give_ids.set()
        self.was_asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.leads = True
        self.when_asked_in_vain: Callable[[], object] = lambda: None
        self._answers = iter(answers)
        self._epochs = list(epochs)
        self.node = ScriptedNode(
            {
                ApiKey.METADATA: self._metadata,
                ApiKey.DESCRIBE_CONFIGS: self._configs,
                ApiKey.INIT_PRODUCER_ID: self._producer_id,
                ApiKey.PRODUCE: self._produce,
            }
        )

    def _metadata(self, version: int, body: bytes) -> object:
        if not self.leads:
            self.when_asked_in_vain()
        epoch = self._epochs.pop(0) if len(self._epochs) > 1 else self._epochs[0]
        partition = metadata.MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=int32(0),
            leader_id=node(1 if self.leads else -1),
            leader_epoch=int32(epoch),
        )
        topic = metadata.MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=name("orders"),
            topic_id=uuid_or_none(TOPIC_ID),
            partitions=(partition,),
        )
        me = metadata.MetadataResponseBroker(
            node_id=node(1), host="127.0.0.1", port=int32(self.node.port), rack=None
        )
        return latest_schemas.MetadataResponse(
            throttle_time=duration(0),
            brokers=(me,),
            cluster_id="cluster",
            topics=(topic,),
            error_code=ErrorCode.none,
        )

    def _configs(self, version: int, body: bytes) -> object:
        found = tuple(
            configs.DescribeConfigsResourceResult(
                name=key,
                value=value,
                read_only=True,
                is_sensitive=False,
                synonyms=(),
                documentation=None,
            )
            for key, value in (("raftlog.values", "bytes"), ("max.message.bytes", "1024"))
        )
        result = configs.DescribeConfigsResult(
            error_code=ErrorCode.none,
            error_message=None,
            resource_type=int8(2),
            resource_name="orders",
            configs=found,
        )
        return configs.DescribeConfigsResponse(throttle_time=duration(0), results=(result,))

    def _producer_id(self, version: int, body: bytes) -> object:
        assert self.may_give_ids.wait(PATIENCE_S)
        return InitProducerIdResponse(
            throttle_time=duration(0),
            error_code=ErrorCode.none,
            producer_id=ProducerId(77),
            producer_epoch=int16(0),
        )

    def _produce(self, version: int, body: bytes) -> object:
        request: Any = decode(latest_schemas.ProduceRequest, version, body)
        data = bytes(request.topic_data[0].partition_data[0].records)
        batch = read_batch(bytes(8) + data[8:])  # the base offset is the required offset
        assert isinstance(batch, RecordBatch)
        values = tuple(record.value for record in batch.records())
        base_offset = int.from_bytes(data[:8], "big", signed=True)
        self.was_asked.set()
        assert self.may_answer.wait(2 * PATIENCE_S)
        self.sent.append(Sent(base_offset, batch.leader_epoch, values))
        next_answer = next(self._answers)
        if isinstance(next_answer, Resigned):
            self.leads = False
            next_answer = next_answer.answer
        return None if next_answer is None else _produced(next_answer)


def _produced(next_answer: Appended | Refused | Code) -> object:
    base_offset, code, text = -1, 0, None
    match next_answer:
        case Appended():
            base_offset = next_answer.base_offset
        case Refused(error):
            code, text = produce_error_code(error), produce_error_message(error)
        case Code(number):
            code = number
    partition = produced.PartitionProduceResponse(
        index=int32(0),
        error_code=ErrorCode(code),
        base_offset=int64(base_offset),
        record_errors=(),
        error_message=text,
    )
    topic = latest_schemas.ProducedTopic(
        topic_id=uuid_or_none(TOPIC_ID), name=name("orders"), partition_responses=(partition,)
    )
    return latest_schemas.ProduceResponse(responses=(topic,))


def append_together(
    leader: LoneLeader, append: Callable[[bytes], Any], *values: bytes
) -> list[BaseException | None]:
    """Append values so that one batch has them all; return the errors of their callers."""
    leader.may_give_ids.clear()
    futures = [append(value) for value in values]
    leader.may_give_ids.set()
    return [future.exception(PATIENCE_S) for future in futures]


# --- an append of several batches -----------------------------------------------------------------

POLICY_VIOLATION: Final = 44
LARGE: Final = tuple(bytes([number]) * 400 for number in range(6))
"""Three batches of two records."""


def test_no_batch_of_an_append_is_sent_after_a_refused_one() -> None:
    leader = LoneLeader([Code(POLICY_VIOLATION), Appended(10)])
    with leader.node as peer, raftlog.connect(peer.address, timeout_ms=5000) as log:
        with pytest.raises(NodeRefusedError):
            log.append(LARGE)
        # The connection is ordered: an earlier batch would have been received before this one.
        assert log.append(b"after").base_offset == 10
    assert [one.values for one in leader.sent] == [LARGE[:2], (b"after",)]


def test_the_written_part_of_an_append_is_reported_if_one_of_its_batches_is_refused() -> None:
    gap = OutOfOrderSequenceError(producer_id=77, producer_epoch=0, sequence=4, expected_sequence=2)
    leader = LoneLeader([Appended(10), Code(POLICY_VIOLATION), Refused(gap), Appended(12)])
    with leader.node as peer, raftlog.connect(peer.address, timeout_ms=5000) as log:
        with pytest.raises(AppendUnknownError, match="below offset 12 were appended"):
            log.append(LARGE)
        assert log.append(b"after").base_offset == 12
    assert [one.values for one in leader.sent] == [LARGE[:2], LARGE[2:4], LARGE[4:], (b"after",)]


# --- appends in a shared batch --------------------------------------------------------------------

REFUSALS: Final = (
    InvalidAppendError(reason="no"),
    RecordBatchTooLargeError(byte_count=9, byte_count_max=8),
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: type(one).__name__)
def test_appends_of_a_refused_shared_batch_are_sent_separately(refusal: RaftlogError) -> None:
    leader = LoneLeader([Refused(refusal), Refused(refusal), Appended(10)])
    with leader.node as peer, raftlog.connect(peer.address, timeout_ms=5000) as log:
        errors = append_together(leader, log.append_async, b"a", b"b")
    assert [type(error) for error in errors] == [type(refusal), type(None)]
    assert [one.values for one in leader.sent] == [(b"a", b"b"), (b"a",), (b"b",)]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: type(one).__name__)
def test_appends_of_a_shared_batch_that_may_be_written_are_never_separated(
    refusal: RaftlogError,
) -> None:
    leader = LoneLeader([HANG_UP, Refused(refusal), Appended(10)])
    with leader.node as peer, raftlog.connect(peer.address, timeout_ms=5000) as log:
        errors = append_together(leader, log.append_async, b"a", b"b")
        assert log.append(b"after").base_offset == 10
    assert [type(error) for error in errors] == [AppendUnknownError] * 2
    assert [one.values for one in leader.sent] == [(b"a", b"b")] * 2 + [(b"after",)]


# --- deadlines ------------------------------------------------------------------------------------

NOT_LEADER: Final = 6


@pytest.mark.parametrize(
    ("lost", "error", "sent_again"),
    [
        (Resigned(Code(NOT_LEADER)), QuorumUnavailableError, (b"b",)),
        (Resigned(HANG_UP), AppendUnknownError, (b"a", b"b")),
    ],
    ids=["not-appended", "may-be-appended"],
)
def test_an_append_refused_at_its_deadline_is_not_written_later_with_its_batch(
    lost: Resigned, error: type[RaftlogError], sent_again: tuple[bytes, ...]
) -> None:
    leader = LoneLeader([lost, Appended(10), Appended(20)])
    time = StoppedClock(0)
    clock = Clock(now_ms=time.now_ms)
    with leader.node as peer, raftlog.connect(peer.address, clock=clock, timeout_ms=5000) as log:
        leader.when_asked_in_vain = lambda: time.sleep_ms(max(1000 - time.at_ms, 0))
        leader.may_give_ids.clear()
        late = log.append_async(b"a", timeout_ms=1000)
        patient = log.append_async(b"b", timeout_ms=60_000)
        leader.may_give_ids.set()
        refused = late.exception(PATIENCE_S)
        leader.leads = True
        assert patient.result(PATIENCE_S).last_offset == 10 + len(sent_again) - 1
        assert log.append(b"after", timeout_ms=60_000).base_offset == 20
    assert isinstance(refused, error)
    assert [one.values for one in leader.sent] == [(b"a", b"b"), sent_again, (b"after",)]


def test_an_append_without_records_is_never_uncertain() -> None:
    leader = LoneLeader([Resigned(HANG_UP), Appended(10)])
    time = StoppedClock(0)
    clock = Clock(now_ms=time.now_ms)
    with leader.node as peer, raftlog.connect(peer.address, clock=clock, timeout_ms=5000) as log:
        leader.when_asked_in_vain = lambda: time.sleep_ms(max(1000 - time.at_ms, 0))
        asking = log.append_async([], required_base_offset=10, timeout_ms=1000)
        refused = asking.exception(PATIENCE_S)
        leader.leads = True
        assert log.append(b"after", timeout_ms=60_000).base_offset == 10
    assert isinstance(refused, QuorumUnavailableError)


def test_an_append_without_records_is_not_uncertain_when_the_leader_stops_responding() -> None:
    leader = LoneLeader([Appended(10)])
    leader.may_answer.clear()
    time = StoppedClock(0)
    clock = Clock(now_ms=time.now_ms)
    with leader.node as peer, raftlog.connect(peer.address, clock=clock, timeout_ms=5000) as log:
        asking = log.append_async([], required_base_offset=10, timeout_ms=1000)
        assert leader.was_asked.wait(PATIENCE_S)
        time.sleep_ms(1000)
        assert isinstance(asking.exception(PATIENCE_S), QuorumUnavailableError)
        leader.may_answer.set()


# --- a bug of the sender --------------------------------------------------------------------------


def test_appends_fail_if_the_deadlines_are_no_longer_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender.Sender, "_expire", lambda _: 1 // 0)
    leader = LoneLeader([])
    leader.may_give_ids.clear()
    with leader.node as peer, raftlog.connect(peer.address) as log:
        error = log.append_async(b"x").exception(PATIENCE_S)
        assert "the sender failed: ZeroDivisionError" in str(error)
        with pytest.raises(LogClosedError, match="the sender failed"):
            log.append(b"later")
        leader.may_give_ids.set()


# --- close ----------------------------------------------------------------------------------------


def closes(log: ConnectedLog, help_it: Callable[[], object]) -> bool:
    """Return whether ``close`` ends without ``help_it``."""
    closing = threading.Thread(target=log.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    ended = not closing.is_alive()
    help_it()
    closing.join(PATIENCE_S)
    return ended


def test_closing_ends_once_every_append_has_a_result_though_no_node_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "SEARCH_S", 10_000)
    leader = LoneLeader([Resigned(HANG_UP), Appended(10)])
    time = StoppedClock(0)
    clock = Clock(now_ms=time.now_ms)
    with leader.node as peer:
        log = raftlog.connect(peer.address, clock=clock, timeout_ms=5000)
        leader.when_asked_in_vain = lambda: time.sleep_ms(max(1000 - time.at_ms, 0))
        lost = log.append_async(b"a", timeout_ms=1000)
        assert isinstance(lost.exception(PATIENCE_S), AppendUnknownError)
        waits = log.append_async(b"b", timeout_ms=1)
        time.sleep_ms(1)
        assert closes(log, help_it=lambda: setattr(leader, "leads", True))
        assert isinstance(waits.exception(0), QuorumUnavailableError)
    assert len(leader.sent) == 1


def test_closing_does_not_wait_for_a_leader_that_stopped_responding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "RESPONSE_TIMEOUT_S", 10_000)
    monkeypatch.setattr(client_metadata, "ASK_TIMEOUT_S", 10_000)
    leader = LoneLeader([Appended(10)])
    leader.may_answer.clear()
    time = StoppedClock(0)
    clock = Clock(now_ms=time.now_ms)
    with leader.node as peer:
        log = raftlog.connect(peer.address, clock=clock, timeout_ms=5000)
        lost = log.append_async(b"a", timeout_ms=1000)
        assert leader.was_asked.wait(PATIENCE_S)
        time.sleep_ms(1000)
        assert closes(log, help_it=leader.may_answer.set)
        assert isinstance(lost.exception(0), AppendUnknownError)


@pytest.mark.slow
def test_a_process_exits_though_its_quorum_is_unreachable() -> None:
    leader = LoneLeader([Resigned(HANG_UP)])
    with leader.node as peer:
        program = (
            "import raftlog\n"
            f"log = raftlog.connect({peer.address!r}, timeout_ms=5000)\n"
            "print(type(log.append_async(b'a', timeout_ms=300).exception()).__name__)\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program],
            timeout=PATIENCE_S,
            capture_output=True,
            text=True,
            check=True,
        )
    assert (ended.stdout, ended.stderr) == ("AppendUnknownError\n", "")


# --- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", [-1, 0])
def test_a_conditional_append_waits_until_the_leader_epoch_is_known(unknown: int) -> None:
    leader = LoneLeader([Appended(7)], epochs=(unknown, unknown, 3))
    with leader.node as peer, raftlog.connect(peer.address, timeout_ms=5000) as log:
        assert log.append(b"a", required_base_offset=7).base_offset == 7
    assert leader.sent == [Sent(7, 3, (b"a",))]


@pytest.mark.parametrize("unknown", [-1, 0])
def test_an_append_with_an_impossible_offset_is_sent_only_with_an_epoch(unknown: int) -> None:
    """The query whether a lost append was written would otherwise be an append itself."""
    over = NotLeaderError(epoch=3, current_epoch=5)
    never = UnexpectedEndOffsetError(
        required_base_offset=IMPOSSIBLE_OFFSET, record_count=1, log_end_offset=9
    )
    leader = LoneLeader([HANG_UP, Refused(over), Refused(never)], epochs=(3, 5, unknown, 6))
    with (
        leader.node as peer,
        raftlog.connect(peer.address, timeout_ms=5000) as log,
        pytest.raises(NotLeaderError) as caught,
    ):
        log.append(b"a", epoch=3)
    assert (caught.value.epoch, caught.value.current_epoch) == (3, 5)
    assert leader.sent == [
        Sent(-1, 3, (b"a",)),
        Sent(-1, 3, (b"a",)),
        Sent(IMPOSSIBLE_OFFSET, 6, (b"a",)),
    ]
