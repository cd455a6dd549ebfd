"""Check before an initial voter is formatted that its quorum does not have records yet.

The operator gives the directory ids of initial voters, so a voter whose disk was lost could be
formatted with its old id. It would then vote without the records that it had acknowledged, and
these could be lost. So the other initial voters are asked first:

1. A pre-vote for an empty log, in the asked voter's epoch, changes nothing on that voter. Only a
   voter that has no records and follows no leader grants it.
2. If there is a leader, its log is fetched from the start, and must contain nothing but the records
   of elections: the first majority that is formatted elects a leader, which has not acknowledged
   any append so far.

Voters that accept no connection are skipped: before the first one is started, none accepts any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Final, TypeVar

from raftlog import __version__
from raftlog.errors import CorruptBatchError
from raftlog.limits import MIB
from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, ResponseReceived, SendFailed
from raftlog.quorum.messages import (
    ErrorCode,
    FetchRequest,
    FetchResponse,
    Request,
    VoteRequest,
    VoteResponse,
)
from raftlog.quorum.voters import Voter, VoterSet
from raftlog.records.batch import iter_batches
from raftlog.wire import LogIdentity

from .addresses import CONTROLLER_NAME, address_text
from .config import NodeConfig
from .errors import QuorumHasRecordsError
from .formatting import topic_id_of
from .network_channel import NetworkChannel
from .settings import ReloadableSettings
from .survivor import contact_voters

T = TypeVar("T")
_RESPONSE_TIMEOUT_S: Final = 10.0
_TRIES: Final = 5
"""Attempts of one request, since a voter's epoch increases while there is no leader."""


def check_is_first_format(config: NodeConfig, voters: VoterSet, cluster_id: str) -> None:
    """Raise ``QuorumHasRecordsError`` if another initial voter has records, or may have some.

    ``voters`` includes this node. Raises ``ConfigError`` if the TLS files are unusable.
    """
    own = voters.find(config.node_id)
    assert own is not None, "checked by format_directory"
    others = {voter.key.node_id: voter for voter in voters if voter is not own}
    addresses = {
        node_id: (voter.endpoints[0].host, voter.endpoints[0].port)
        for node_id, voter in others.items()
    }
    contacts = contact_voters(addresses)
    reached = [others[one.node_id] for one in contacts if one.problem is None]
    if reached:
        asyncio.run(_Inquiry(config, own, cluster_id).check(reached))


class _Inquiry:
    """Requests to the other initial voters from a node that has no directory yet."""

    def __init__(self, config: NodeConfig, own: Voter, cluster_id: str) -> None:
        self._own = own
        self._correlation_ids = count()
        self._in_flight: dict[int, asyncio.Future[Event]] = {}
        self._failures: dict[int, str] = {}
        """Reason for the last failure, by node id."""
        self._channel = NetworkChannel(
            LogIdentity(
                topic=config.topic,
                topic_id=topic_id_of(cluster_id, config.topic),
                cluster_id=cluster_id,
                listener_name=CONTROLLER_NAME,
            ),
            client_id=f"raftlog-{config.node_id}",
            software_version=__version__,
            handle=self._handle,
            log_event=self._failures.__setitem__,
            tls=ReloadableSettings(config).for_peer,
            frame_bytes_max=config.limits.frame_bytes_max,
        )

    async def check(self, voters: Sequence[Voter]) -> None:
        """Ask all voters at the same time. Raises ``QuorumHasRecordsError``."""
        try:
            leader_ids = await asyncio.gather(*map(self._check_voter, voters))
        finally:
            await self._channel.close()
        asked = {voter.key.node_id for voter in voters}
        for voter, leader_id in zip(voters, leader_ids, strict=True):
            if leader_id is not None and leader_id not in asked:
                is_own = leader_id == self._own.key.node_id
                name = "this node" if is_own else f"node {leader_id}, which cannot be asked"
                raise self._error(voter, f"follows {name}")

    async def _check_voter(self, voter: Voter) -> int | None:
        """Return the leader that a voter follows; if it is the leader itself, check its log.

        Raises ``QuorumHasRecordsError``.
        """
        epoch = 0
        for _ in range(_TRIES):
            vote = await self._ask(voter, self._pre_vote(epoch), VoteResponse)
            epoch = vote.leader_and_epoch.epoch
            if vote.error is ErrorCode.FENCED_LEADER_EPOCH:
                continue
            leader_id = vote.leader_and_epoch.leader_id
            if leader_id == voter.key.node_id:
                fetched = await self._ask(voter, self._fetch(epoch), FetchResponse)
                if fetched.error is not ErrorCode.NONE:
                    continue  # it has just resigned
                self._check_records(voter, fetched)
                return leader_id
            if leader_id is not None or vote.is_granted:
                return leader_id
            raise self._error(voter, "has records, or a damaged log")
        raise self._error(voter, "is in an election; try again")

    def _pre_vote(self, epoch: int) -> VoteRequest:
        return VoteRequest(
            epoch=epoch,
            candidate=self._own.key,
            voter=None,
            last_offset=0,
            last_epoch=0,
            is_pre_vote=True,
        )

    def _fetch(self, epoch: int) -> FetchRequest:
        return FetchRequest(
            replica=self._own.key,
            epoch=epoch,
            fetch_offset=0,
            last_fetched_epoch=0,
            max_bytes=MIB,
            max_wait_ms=0,
        )

    def _check_records(self, voter: Voter, fetched: FetchResponse) -> None:
        """Raise ``QuorumHasRecordsError`` unless the log has only records of elections."""
        if fetched.snapshot_id is not None or fetched.diverging is not None:
            raise self._error(voter, "leads a quorum whose log does not begin at offset 0")
        end_offset = 0
        try:
            for batch in iter_batches(fetched.records):
                if not batch.is_control:
                    reason = f"leads a quorum that has records from offset {batch.base_offset} on"
                    raise self._error(voter, reason)
                end_offset = batch.next_offset
        except CorruptBatchError as error:
            raise self._error(voter, f"leads a quorum, but: {error}") from None
        if end_offset < (fetched.high_watermark or 0):
            reason = f"leads a quorum with records up to offset {fetched.high_watermark}"
            raise self._error(voter, reason)

    async def _ask(self, voter: Voter, request: Request, kind: type[T]) -> T:
        """Return a voter's response. Raises ``QuorumHasRecordsError`` if there is no response."""
        node_id, correlation_id = voter.key.node_id, next(self._correlation_ids)
        found: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._in_flight[correlation_id] = found
        self._channel.send(
            Send(
                correlation_id=correlation_id,
                node_id=node_id,
                endpoints=voter.endpoints,
                request=request,
            )
        )
        try:
            async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
                event = await found
        except TimeoutError:
            raise self._error(voter, "does not answer") from None
        finally:
            del self._in_flight[correlation_id]
        if isinstance(event, ResponseReceived) and isinstance(event.response, kind):
            return event.response
        raise self._error(voter, f"cannot be asked: {self._failures.get(node_id, 'no response')}")

    def _handle(self, event: Event) -> None:
        assert isinstance(event, ResponseReceived | SendFailed), "events of the channel"
        found = self._in_flight.get(event.correlation_id)
        if found is not None and not found.done():
            found.set_result(event)

    def _error(self, voter: Voter, reason: str) -> QuorumHasRecordsError:
        at = voter.endpoints[0]
        name = f"{voter.key.node_id} at {address_text(at.host, at.port)}"
        return QuorumHasRecordsError(node_id=self._own.key.node_id, voter=name, reason=reason)
