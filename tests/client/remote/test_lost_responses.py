"""A lost response: the append is retried as the same append and is in the log once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.dropping_proxy import DroppingProxy
from tests.support.quorum_processes import NodeProcess, free_ports

import raftlog
from raftlog import ConnectedLog
from raftlog.append import AppendResult
from raftlog.errors import AppendUnknownError, UnexpectedEndOffsetError
from raftlog.node.formatting import random_id
from raftlog.wire import ApiKey

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DroppingProxy]:
    """Proxy of a node that advertises the proxy's address as its own."""
    port, node_port = free_ports(2)
    extra = f'advertised = "127.0.0.1:{port}"\n'
    node = NodeProcess(tmp_path_factory.mktemp("quorum") / "node", 1, node_port, extra=extra)
    node.format(random_id(), initial_voters=f"1@127.0.0.1:{port}:{node.directory_id}")
    node.start()
    with DroppingProxy(port, node_port) as running:
        yield running
    node.kill()


@pytest.fixture
def log(proxy: DroppingProxy) -> Iterator[ConnectedLog]:
    with raftlog.connect(proxy.address) as opened:
        yield opened


def lose(proxy: DroppingProxy, count: int = 1) -> None:
    proxy.lost_count = 0
    proxy.drop_responses(ApiKey.PRODUCE, count)


def values_from(log: ConnectedLog, offset: int) -> list[bytes | None]:
    return [record.value for record in log.read(offset)]


@pytest.mark.parametrize("count", [1, 3])
def test_a_plain_append_is_written_once(
    proxy: DroppingProxy, log: ConnectedLog, count: int
) -> None:
    end = log.end_offset
    lose(proxy, count)
    result = log.append([b"a", b"b"])
    assert (result.base_offset, result.last_offset, result.was_duplicate) == (end, end + 1, False)
    assert proxy.lost_count == count
    assert values_from(log, end) == [b"a", b"b"]
    assert log.append(b"c").base_offset == end + 2


def test_an_append_with_a_required_offset_returns_its_own_offsets(
    proxy: DroppingProxy, log: ConnectedLog
) -> None:
    end = log.end_offset
    lose(proxy)
    assert log.append(b"won", required_base_offset=end).base_offset == end
    lose(proxy)
    with pytest.raises(UnexpectedEndOffsetError) as caught:
        log.append(b"lost", required_base_offset=end)
    assert caught.value.log_end_offset == end + 1
    assert proxy.lost_count == 1
    lose(proxy)
    checked = log.append([], required_base_offset=end + 1)
    assert (checked.base_offset, checked.end_offset) == (end + 1, end + 1)
    assert values_from(log, end) == [b"won"]


def test_a_named_append_is_written_once(proxy: DroppingProxy, log: ConnectedLog) -> None:
    end = log.end_offset
    lose(proxy, 2)
    result = log.append(b"named", commit=("lost answers", "query", 1))
    assert result.base_offset == end
    lose(proxy)
    by_producer = log.append(b"stamped", producer=(2**40, 0, 0))
    assert (by_producer.base_offset, by_producer.last_offset) == (end + 1, end + 1)
    assert values_from(log, end) == [b"named", b"stamped"]


def test_an_epoch_is_required_of_the_retry_too(proxy: DroppingProxy, log: ConnectedLog) -> None:
    epoch = log.append(b"x").epoch
    end = log.end_offset
    lose(proxy)
    assert log.append(b"y", epoch=epoch) == AppendResult(end, end, epoch)
    assert values_from(log, end) == [b"y"]


def test_many_appends_keep_their_order_and_are_written_once(
    proxy: DroppingProxy, log: ConnectedLog
) -> None:
    end = log.end_offset
    futures = []
    lose(proxy, 4)
    for number in range(2000):
        futures.append(log.append_async(b"%d" % number, atomic=number % 7 == 0))
        if number % 500 == 250:
            futures[-1].result(30)
    offsets = [future.result(30).base_offset for future in futures]
    assert offsets == list(range(end, end + 2000))
    assert proxy.lost_count == 4
    assert values_from(log, end) == [b"%d" % number for number in range(2000)]


def test_an_append_of_several_batches_is_written_once(
    proxy: DroppingProxy, log: ConnectedLog
) -> None:
    end = log.end_offset
    large = [bytes([number]) * 2**20 for number in range(20)]
    lose(proxy, 2)
    result = log.append(large, timeout_ms=60_000)
    assert (result.base_offset, result.last_offset) == (end, end + 19)
    assert values_from(log, end) == large


def test_an_append_that_stays_unknown_until_its_deadline_is_reported_as_unknown(
    proxy: DroppingProxy, log: ConnectedLog
) -> None:
    end = log.end_offset
    lose(proxy, 1000)
    with pytest.raises(AppendUnknownError):
        log.append(b"who knows", timeout_ms=400)
    proxy.drop_responses(ApiKey.PRODUCE, 0)
    after = log.append(b"after")
    assert after.base_offset == end + 1, "it was appended once"
    assert values_from(log, end) == [b"who knows", b"after"]


def test_reads_and_queries_are_retried(proxy: DroppingProxy, log: ConnectedLog) -> None:
    end = log.append(b"x", commit=("asked again", "query", 3)).end_offset
    for api_key in (ApiKey.LIST_OFFSETS, ApiKey.FETCH, ApiKey.OFFSET_FETCH, ApiKey.METADATA):
        proxy.drop_responses(api_key)
    last = log.last_commit("asked again")
    assert last is not None
    assert last.last_offset == end - 1
    assert values_from(log, end - 1) == [b"x"]
    proxy.drop_responses(ApiKey.INIT_PRODUCER_ID)
    proxy.drop_responses(ApiKey.DESCRIBE_CONFIGS)
    with raftlog.connect(proxy.address) as another:
        assert another.append(b"y").base_offset == end
