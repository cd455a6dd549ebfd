"""Commands that send a request to a node: a user's append, and requests by hand."""

from __future__ import annotations

from dataclasses import replace

from raftlog.append import AppendRequest
from raftlog.log.reading.transactions import CommitName
from raftlog.quorum.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    VoteRequest,
)
from raftlog.quorum.voters import Endpoint, Voter
from raftlog.records.builder import ProducerStamp
from raftlog.types import ReplicaKey
from tests.simulation.invariants import Witness

from .arguments import Arguments
from .formatting import parse_replica_key, parse_snapshot_id
from .message_queue import Message, MessageQueue
from .nodes import BY_HAND, ScriptedNode


class ScenarioNodes:
    """Nodes of a scenario, messages in flight, and output."""

    def __init__(self, witness: Witness | None = None) -> None:
        """``witness`` checks the invariants; messages by hand may need one that ignores some."""
        self.lines: list[str] = []
        self._witness = witness
        self._is_quiet = False
        self._nodes: dict[int, ScriptedNode] = {}
        self._post = MessageQueue(self._write_line)

    def node(self, node_id: int) -> ScriptedNode:
        return self._nodes[node_id]

    def take_lines(self) -> list[str]:
        """Return the output since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def _write_line(self, line: str) -> None:
        if not self._is_quiet:
            self.lines.append(line)

    def _node(self, words: Arguments) -> ScriptedNode:
        return self._nodes[int(words.places[0])]

    def _chosen(self, words: Arguments) -> list[ScriptedNode]:
        chosen = [self._nodes[int(word)] for word in words.places]
        return chosen or list(self._nodes.values())


class RequestCommands(ScenarioNodes):
    """Commands that send requests."""

    def do_append(self, words: Arguments) -> None:
        commit, producer = words.text("commit"), words.text("producer")
        stamp = None
        if producer is not None:
            producer_id, producer_epoch, sequence = (int(part) for part in producer.split("/"))
            stamp = ProducerStamp(producer_id, producer_epoch, sequence)
        name = None
        if commit is not None:
            application_id, query_id, version = commit.split("/")
            name = CommitName(application_id, query_id, int(version))
        records = [word.encode() for word in words.places[1:]]
        size = words.optional("size")
        if size is not None:
            records.append(b"." * size)
        request = AppendRequest(
            records=tuple(records),
            epoch=words.optional("epoch"),
            required_end_offset=words.optional("required_end_offset"),
            required_base_offset=words.optional("required_base_offset"),
            commit=name,
            producer=stamp,
            deadline_ms=0,
        )
        self._node(words).append(request)

    def do_vote(self, words: Arguments) -> None:
        self._ask(words, self._vote(words, is_pre_vote=False))

    def do_pre_vote(self, words: Arguments) -> None:
        self._ask(words, self._vote(words, is_pre_vote=True), "PreVote")

    def _vote(self, words: Arguments, *, is_pre_vote: bool) -> VoteRequest:
        voter = words.text("voter")
        return VoteRequest(
            epoch=words.number("epoch", 0),
            candidate=parse_replica_key(words.text("from") or ""),
            voter=None if voter is None else parse_replica_key(voter),
            last_offset=words.number("last_offset", 0),
            last_epoch=words.number("last_epoch", 0),
            is_pre_vote=is_pre_vote,
        )

    def do_begin(self, words: Arguments) -> None:
        leader_id = words.number("from", 0)
        self._ask(
            words,
            BeginQuorumEpochRequest(
                epoch=words.number("epoch", 0), leader_id=leader_id, voter=None
            ),
        )

    def do_end(self, words: Arguments) -> None:
        preferred = tuple(ReplicaKey(node_id) for node_id in words.numbers("preferred"))
        self._ask(
            words,
            EndQuorumEpochRequest(
                epoch=words.number("epoch", 0),
                leader_id=words.number("from", 0),
                preferred_successors=preferred,
            ),
        )

    def do_fetch(self, words: Arguments) -> None:
        self._ask(
            words,
            FetchRequest(
                replica=parse_replica_key(words.text("from") or ""),
                epoch=words.number("epoch", 0),
                fetch_offset=words.number("offset", 0),
                last_fetched_epoch=words.number("last_epoch", 0),
                max_bytes=words.number("max_bytes", 1 << 20),
                max_wait_ms=words.number("max_wait", 0),
                high_watermark=words.optional("high_watermark"),
            ),
        )

    def do_fetch_snapshot(self, words: Arguments) -> None:
        self._ask(
            words,
            FetchSnapshotRequest(
                replica=parse_replica_key(words.text("from") or ""),
                epoch=words.number("epoch", 0),
                snapshot_id=parse_snapshot_id(words.text("id") or "0@0"),
                position=words.number("position", 0),
                max_bytes=words.number("max_bytes", 1 << 20),
            ),
        )

    def do_add_voter(self, words: Arguments) -> None:
        timeout_ms = words.number("timeout", 5_000)
        self._ask(words, AddVoterRequest(voter=self._voter(words), timeout_ms=timeout_ms))

    def do_remove_voter(self, words: Arguments) -> None:
        self._ask(words, RemoveVoterRequest(voter=self._voter(words).key))

    def do_update_voter(self, words: Arguments) -> None:
        voter = replace(
            self._voter(words),
            endpoints=(Endpoint("PEERS", "elsewhere", words.number("port", 0)),),
            kraft_version_max=words.number("speaks", 1),
        )
        self._ask(words, UpdateVoterRequest(epoch=words.number("epoch", 0), voter=voter))

    def _voter(self, words: Arguments) -> Voter:
        """Return the key of a named replica, with its own directory id or ``directory=``."""
        node_id = words.number("node", 0)
        known = self._nodes.get(node_id)
        voter = Voter(key=ReplicaKey(node_id)) if known is None else known.voter
        directory_id = words.text("directory")
        if directory_id is None:
            return voter
        return replace(voter, key=ReplicaKey(node_id, directory_id))

    def _ask(self, words: Arguments, request: Request, kind: str = "") -> None:
        node = self._node(words)
        asker = parse_replica_key(words.text("from") or "0").node_id
        self._nodes[node.node_id].receive(Message(asker, node.node_id, BY_HAND, 0, kind, request))
