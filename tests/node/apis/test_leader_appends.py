"""Responses of a leader that has been replaced: none claims what the node does not know."""

from __future__ import annotations

from raftlog.append import AppendRequest, Failed, RequestResult
from raftlog.errors import NotLeaderError
from raftlog.node.pending_appends import PendingAppends

from .cluster import TIME_MS, Cluster, run, settle


def test_an_unconfirmed_check_is_not_acknowledged_when_the_node_stops() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        log = leader.replica.log
        answers: list[RequestResult] = []
        appends = PendingAppends(leader.replica, lambda _request, answer: answers.append(answer))
        check = AppendRequest(
            records=(), required_base_offset=log.end_offset, is_atomic=True, deadline_ms=1e12
        )
        appends.submit([check], now_ms=cluster.now_ms, time_ms=TIME_MS)
        assert answers == []
        appends.abandon("the node stops")
        (answer,) = answers
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, NotLeaderError)

    run(work())


def test_a_replaced_leader_does_not_refuse_a_later_epoch() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        old = cluster.elect()
        old.is_cut_off = True
        epoch = old.replica.core.epoch + 1
        results: list[RequestResult] = []
        old.append(AppendRequest(records=(b"a",), epoch=epoch, deadline_ms=1e12), results.append)
        await settle()
        assert not results
        cluster.pass_time(6_000)
        await settle()
        (answer,) = results
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, NotLeaderError)
        assert answer.error.epoch == answer.error.current_epoch, "its result depends on itself only"

    run(work())
