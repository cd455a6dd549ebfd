"""Responses of a leader that has been replaced: none claims what the node does not know."""

from __future__ import annotations

from raftlog.append import AppendRequest, Failed, RequestResult
from raftlog.errors import NotLeaderError

from .cluster import Cluster, run, settle


def test_an_unconfirmed_check_is_not_acknowledged_when_the_node_stops() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        log = leader.replica.log
        answers: list[RequestResult] = []
        leader.is_cut_off = True
        check = AppendRequest(
            records=(), required_base_offset=log.end_offset, is_atomic=True, deadline_ms=1e12
        )
        leader.raft_node.append(check, answers.append)
        assert answers == []
        leader.raft_node.end("the node stops")
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
        request = AppendRequest(records=(b"a",), epoch=epoch, deadline_ms=1e12)
        old.raft_node.append(request, results.append)
        await settle()
        assert not results
        cluster.pass_time(6_000)
        await settle()
        (answer,) = results
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, NotLeaderError)
        assert answer.error.epoch == answer.error.current_epoch, "its result depends on itself only"

    run(work())
