"""Commands that ask a node something: a user's append, and requests by hand."""

from __future__ import annotations

from dataclasses import replace

from raftlog.client.requests import AppendRequest
from raftlog.log.writing.batch_facts import CommitName
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

from .arguments import Words
from .nodes import BY_HAND, ScriptedNode
from .post import Message, Post
from .words import parsed_key, parsed_snapshot


class Stage:
    """The nodes of a scenario, what is under way between them, and what was told."""

    def __init__(self, witness: Witness | None = None) -> None:
        """``witness``: who sees all, and complains. Messages by hand may be lies: then no other."""
        self.lines: list[str] = []
        self._witness = witness
        self._is_quiet = False
        self._nodes: dict[int, ScriptedNode] = {}
        self._post = Post(self._say)

    def node(self, node_id: int) -> ScriptedNode:
        return self._nodes[node_id]

    def take_lines(self) -> list[str]:
        """What was told since the last time."""
        lines, self.lines = self.lines, []
        return lines

    def _say(self, line: str) -> None:
        if not self._is_quiet:
            self.lines.append(line)

    def _node(self, words: Words) -> ScriptedNode:
        return self._nodes[int(words.places[0])]

    def _chosen(self, words: Words) -> list[ScriptedNode]:
        chosen = [self._nodes[int(word)] for word in words.places]
        return chosen or list(self._nodes.values())


class Asking(Stage):
    """What is asked from outside."""

    def do_append(self, words: Words) -> None:
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

    def do_vote(self, words: Words) -> None:
        self._ask(words, self._vote(words, is_pre_vote=False))

    def do_pre_vote(self, words: Words) -> None:
        self._ask(words, self._vote(words, is_pre_vote=True), "PreVote")

    def _vote(self, words: Words, *, is_pre_vote: bool) -> VoteRequest:
        voter = words.text("voter")
        return VoteRequest(
            epoch=words.number("epoch", 0),
            candidate=parsed_key(words.text("from") or ""),
            voter=None if voter is None else parsed_key(voter),
            last_offset=words.number("last_offset", 0),
            last_epoch=words.number("last_epoch", 0),
            is_pre_vote=is_pre_vote,
        )

    def do_begin(self, words: Words) -> None:
        leader_id = words.number("from", 0)
        self._ask(
            words,
            BeginQuorumEpochRequest(
                epoch=words.number("epoch", 0), leader_id=leader_id, voter=None
            ),
        )

    def do_end(self, words: Words) -> None:
        preferred = tuple(ReplicaKey(node_id) for node_id in words.numbers("preferred"))
        self._ask(
            words,
            EndQuorumEpochRequest(
                epoch=words.number("epoch", 0),
                leader_id=words.number("from", 0),
                preferred=preferred,
            ),
        )

    def do_fetch(self, words: Words) -> None:
        self._ask(
            words,
            FetchRequest(
                replica=parsed_key(words.text("from") or ""),
                epoch=words.number("epoch", 0),
                fetch_offset=words.number("offset", 0),
                last_fetched_epoch=words.number("last_epoch", 0),
                max_bytes=words.number("max_bytes", 1 << 20),
                max_wait_ms=words.number("max_wait", 0),
                high_watermark=words.optional("high_watermark"),
            ),
        )

    def do_fetch_snapshot(self, words: Words) -> None:
        self._ask(
            words,
            FetchSnapshotRequest(
                replica=parsed_key(words.text("from") or ""),
                epoch=words.number("epoch", 0),
                snapshot_id=parsed_snapshot(words.text("id") or "0@0"),
                position=words.number("position", 0),
                max_bytes=words.number("max_bytes", 1 << 20),
            ),
        )

    def do_add_voter(self, words: Words) -> None:
        timeout_ms = words.number("timeout", 5_000)
        self._ask(words, AddVoterRequest(voter=self._voter(words), timeout_ms=timeout_ms))

    def do_remove_voter(self, words: Words) -> None:
        self._ask(words, RemoveVoterRequest(voter=self._voter(words).key))

    def do_update_voter(self, words: Words) -> None:
        voter = replace(
            self._voter(words),
            endpoints=(Endpoint("PEERS", "elsewhere", words.number("port", 0)),),
            kraft_version_max=words.number("speaks", 1),
        )
        self._ask(words, UpdateVoterRequest(epoch=words.number("epoch", 0), voter=voter))

    def _voter(self, words: Words) -> Voter:
        """The one that is named, of its own directory or of ``directory=``."""
        node_id = words.number("node", 0)
        known = self._nodes.get(node_id)
        voter = Voter(key=ReplicaKey(node_id)) if known is None else known.voter
        directory_id = words.text("directory")
        if directory_id is None:
            return voter
        return replace(voter, key=ReplicaKey(node_id, directory_id))

    def _ask(self, words: Words, request: Request, kind: str = "") -> None:
        node = self._node(words)
        asker = parsed_key(words.text("from") or "0").node_id
        self._nodes[node.node_id].receive(Message(asker, node.node_id, BY_HAND, 0, kind, request))
