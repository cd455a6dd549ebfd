"""A client of three nodes follows the leaders as nodes are killed and restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

import raftlog
from raftlog import ConnectedLog
from raftlog.append import AppendResult
from raftlog.errors import (
    AppendUnknownError,
    NotLeaderError,
    QuorumUnavailableError,
    RaftlogError,
    UnexpectedEndOffsetError,
)

SLOW_OR_NIGHTLY = pytest.mark.parametrize(
    "kills", [pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.nightly)]
)


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path_factory.mktemp("quorum")) as nodes:
        yield nodes


@pytest.fixture
def log(quorum: QuorumProcesses) -> Iterator[ConnectedLog]:
    with raftlog.connect(quorum.bootstrap) as opened:
        yield opened


def leader_of(quorum: QuorumProcesses, log: ConnectedLog) -> NodeProcess:
    return quorum.node(log.leader_id)


Append = Callable[[int, bytes], AppendResult | None]


class Writers:
    """Threads that append until they are stopped: plain, conditional and named appends."""

    def __init__(self, log: ConnectedLog) -> None:
        self.log = log
        self.acknowledged: list[tuple[int, bytes]] = []
        self.errors: list[BaseException] = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(append, number))
            for number, append in enumerate(
                (self._plain, self._plain, self._plain, self._conditional, self._named)
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def appends_continue(self) -> None:
        """Wait until another append is acknowledged."""
        count = len(self.acknowledged)
        eventually(lambda: len(self.acknowledged) > count + 20, "appends continue")

    def _write(self, append: Append, number: int) -> None:
        turn = 0
        while not self._is_over.is_set():
            value = b"%d %d" % (number, turn)
            try:
                result = append(turn, value)
            except RaftlogError as error:
                self.errors.append(error)
                return
            if result is not None:
                self.acknowledged.append((result.base_offset, value))
            turn += 1

    def _plain(self, turn: int, value: bytes) -> AppendResult:
        return self.log.append(value)

    def _conditional(self, turn: int, value: bytes) -> AppendResult | None:
        try:
            return self.log.append(value, required_base_offset=self.log.end_offset)
        except UnexpectedEndOffsetError:
            return None

    def _named(self, turn: int, value: bytes) -> AppendResult:
        return self.log.append(value, commit=(f"app of {id(self)}", "query", turn))


@pytest.mark.slow
def test_every_append_is_written_once_when_leaders_die_under_load(
    quorum: QuorumProcesses, log: ConnectedLog
) -> None:
    start = log.end_offset
    writers = Writers(log)
    writers.start()
    try:
        writers.appends_continue()
        for end, begin in (("kill", "start"), ("pause", "resume"), ("stop", "start")):
            node = leader_of(quorum, log)
            getattr(node, end)()
            writers.appends_continue()
            getattr(node, begin)()
            writers.appends_continue()
    finally:
        writers.stop()
    assert writers.errors == []
    found = {record.offset: record.value for record in log.read(start)}
    assert all(found.get(offset) == value for offset, value in writers.acknowledged)
    assert sorted(found.values(), key=repr) == sorted(
        (value for _, value in writers.acknowledged), key=repr
    ), "nothing else, and nothing twice"
    epochs = {record.offset: None for record in log.read(start)}
    assert len(epochs) == len(found)


@SLOW_OR_NIGHTLY
def test_pipelined_appends_keep_their_order_when_leaders_are_killed(
    quorum: QuorumProcesses, log: ConnectedLog, kills: int
) -> None:
    start = log.end_offset
    futures: list[Future[AppendResult]] = []

    def append_some() -> None:
        for number in range(len(futures), len(futures) + 300):
            value = b"%d" % number
            match number % 10:
                case 3:
                    name = (f"pipelined over {kills} kills", "query", number)
                    futures.append(log.append_async(value, commit=name, timeout_ms=60_000))
                case 7:
                    stamp = (76 + kills, 0, number // 10)
                    futures.append(log.append_async(value, producer=stamp, timeout_ms=60_000))
                case _:
                    futures.append(log.append_async(value, atomic=True, timeout_ms=60_000))

    append_some()
    for _ in range(kills):
        node = leader_of(quorum, log)
        append_some()
        futures[-200].result(60)  # others are in flight
        node.kill()
        append_some()
        futures[-1].result(60)
        node.start()
    offsets = [future.result(60).base_offset for future in futures]
    assert offsets == sorted(set(offsets))
    values = [record.value for record in log.read(start)]
    assert values == [b"%d" % number for number in range(len(futures))]


@pytest.mark.slow
def test_an_epoch_is_refused_after_the_next_election(
    quorum: QuorumProcesses, log: ConnectedLog
) -> None:
    first = log.append(b"x")
    epoch = first.epoch
    node = leader_of(quorum, log)
    node.kill()
    later = log.append(b"y")
    assert later.epoch > epoch
    with pytest.raises(NotLeaderError) as caught:
        log.append(b"z", epoch=epoch)
    assert (caught.value.epoch, caught.value.current_epoch) == (epoch, later.epoch)
    node.start()
    table = log.read(first.base_offset).to_arrow()
    assert {epoch, later.epoch} <= set(table["leader_epoch"].to_pylist())
    reader = log.reader()
    assert reader.epochs.epoch_at(later.base_offset) == later.epoch
    assert reader.epochs.epoch_at(first.base_offset) == epoch


@pytest.mark.slow
def test_without_a_majority_no_append_is_acknowledged(
    quorum: QuorumProcesses, log: ConnectedLog
) -> None:
    end = log.append(b"before").end_offset
    down = quorum.nodes[:2]
    for node in down:
        node.kill()
    unsure = log.append_async(b"during", timeout_ms=60_000)
    with pytest.raises((QuorumUnavailableError, AppendUnknownError)):
        log.append(b"too late", timeout_ms=1500)
    for node in down:
        node.start()
    assert unsure.result(60).base_offset >= end
    values = [record.value for record in log.read(end)]
    assert values.count(b"during") == 1
    assert values.count(b"too late") <= 1


@pytest.mark.slow
def test_one_bootstrap_address_finds_the_other_nodes(quorum: QuorumProcesses) -> None:
    for node in quorum.nodes:
        with raftlog.connect(node.address) as log:
            offset = log.append(b"x").base_offset
            assert log.read(offset).to_arrow()["value"][0].as_py() == b"x"
            assert log.cluster_id == quorum.cluster_id
