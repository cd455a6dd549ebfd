"""Requests to a running Kafka controller: its responses, and that both refuse the same."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka import running_node

from raftlog.quorum.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    VoterChangeResponse,
    VoteRequest,
)
from raftlog.quorum.voters import Endpoint, Voter
from raftlog.records import iter_batches
from raftlog.types import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID, ReplicaKey, SnapshotId
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    LogIdentity,
    NodeApiVersions,
    RequestError,
    RequestHeader,
    VersionRange,
    common_version,
    decode_request,
    decode_response,
    decode_response_header,
    decode_versions_response,
    encode_request,
    encode_request_header,
    encode_versions_request,
    frame,
    request_api_key,
)

pytestmark = pytest.mark.kafka

SNAPSHOTS = "metadata.log.max.record.bytes.between.snapshots=2000"
FETCHES_MAX = 100
STRANGER = ReplicaKey(77, "AQIDBAUGBwgREhMUFRYXGA")


class Connection:
    """Connection to Kafka with one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._splitter = FrameDecoder(16 * 1024 * 1024, f"127.0.0.1:{port}")
        self._asked = 0

    def ask(self, key: int, version: int, body: bytes) -> tuple[bytes, int]:
        """Send a request; return the response frame, and the position of its body."""
        self._asked += 1
        header = RequestHeader(
            api_key=key, api_version=version, correlation_id=self._asked, client_id="raftlog"
        )
        header_version = 2 if version > 4 and key == ApiKey.API_VERSIONS else None
        self._socket.sendall(frame(encode_request_header(header, header_version), body))
        frames: list[bytes] = []
        while not frames:
            data = self._socket.recv(65_536)
            assert data, "Kafka closed the connection"
            frames = self._splitter.feed(data)
        (answer,) = frames
        correlation_id, start = decode_response_header(answer, key, version)
        assert correlation_id == self._asked
        return answer, start

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Controller:
    """Active controller of Kafka: its connection, and its identity."""

    connection: Connection
    identity: LogIdentity
    key: ReplicaKey
    port: int
    epoch: int = 0

    def versions(self) -> NodeApiVersions:
        body = encode_versions_request(4, software="raftlog", software_version="1")
        answer, start = self.connection.ask(ApiKey.API_VERSIONS, 4, body)
        return decode_versions_response(4, answer, start=start)

    def ask(
        self, request: Request, identity: LogIdentity | None = None, version: int | None = None
    ) -> Any:
        key = request_api_key(request)
        if version is None:
            version = common_version(key, self.versions().versions)
        body = encode_request(request, version, identity or self.identity)
        answer, start = self.connection.ask(key, version, body)
        return decode_response(key, version, answer, self.identity, start=start)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    directory = tmp_path_factory.mktemp("controller")
    with running_node(directory, SNAPSHOTS) as node:
        config = properties(directory / "server.properties")
        port = int(config["controller.quorum.bootstrap.servers"].rsplit(":", 1)[1])
        meta = properties(node.log_dir / "meta.properties")
        identity = LogIdentity(
            topic=CLUSTER_METADATA_TOPIC,
            topic_id=CLUSTER_METADATA_TOPIC_ID,
            cluster_id=meta["cluster.id"],
        )
        key = ReplicaKey(int(meta["node.id"]), meta["directory.id"])
        found = Controller(Connection(port), identity, key, port)
        response = found.ask(FETCH)
        yield replace(found, epoch=response.leader_and_epoch.epoch)
        found.connection.close()


def properties(path: Path) -> dict[str, str]:
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


FETCH = FetchRequest(
    replica=STRANGER,
    epoch=0,
    fetch_offset=0,
    last_fetched_epoch=0,
    max_bytes=1024 * 1024,
    max_wait_ms=500,
)
SNAPSHOT = FetchSnapshotRequest(
    replica=STRANGER,
    epoch=0,
    snapshot_id=SnapshotId(epoch=1, end_offset=9),
    position=0,
    max_bytes=1000,
)
VOTE = VoteRequest(
    epoch=1, candidate=STRANGER, voter=None, last_offset=0, last_epoch=0, is_pre_vote=True
)
BEGIN = BeginQuorumEpochRequest(epoch=0, leader_id=77, voter=None)
END = EndQuorumEpochRequest(epoch=0, leader_id=77, preferred_successors=())
VOTER = Voter(key=STRANGER, endpoints=(Endpoint("CONTROLLER", "127.0.0.1", 1),))


def test_kafkas_api_versions_are_read(controller: Controller) -> None:
    offered = controller.versions()
    assert (offered.error, offered.kraft_versions) == (0, VersionRange(0, 1))
    assert offered.kraft_version == 1
    for key, version in ((ApiKey.FETCH, 18), (ApiKey.VOTE, 2), (ApiKey.ADD_RAFT_VOTER, 1)):
        assert common_version(key, offered.versions) == version


def test_a_request_in_a_future_version_is_answered_in_version_zero(controller: Controller) -> None:
    answer, start = controller.connection.ask(ApiKey.API_VERSIONS, 99, b"\x01\x01\x00")
    offered = decode_versions_response(99, answer, start=start)
    assert offered.is_version_unsupported
    assert common_version(ApiKey.API_VERSIONS, offered.versions) == 4


@pytest.mark.parametrize("version", [17, 18])
def test_a_request_with_an_old_epoch_is_answered_with_the_leader(
    controller: Controller, version: int
) -> None:
    response = controller.ask(FETCH, version=version)
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert response.leader_and_epoch.leader_id == controller.key.node_id
    assert [one.port for one in response.leader_and_epoch.leader_endpoints] == [controller.port]
    assert response.high_watermark is None


@pytest.mark.parametrize("version", range(13, 19))
def test_a_fetch_returns_records(controller: Controller, version: int) -> None:
    request = replace(FETCH, epoch=controller.epoch, fetch_offset=1, last_fetched_epoch=1)
    response = controller.ask(request, version=version)
    assert isinstance(response, FetchResponse)
    assert response.error is ErrorCode.NONE
    assert response.high_watermark is not None
    assert response.log_start_offset == 0
    batches = list(iter_batches(response.records))
    assert batches[0].base_offset <= 1 <= batches[0].last_offset


def test_a_snapshot_is_fetched_in_chunks(controller: Controller) -> None:
    snapshot_id = None
    for _ in range(FETCHES_MAX):  # Kafka writes one once its log has grown
        response = controller.ask(replace(FETCH, epoch=controller.epoch))
        if snapshot_id := response.snapshot_id:
            break
        waiting = replace(
            FETCH,
            epoch=controller.epoch,
            fetch_offset=list(iter_batches(response.records))[-1].last_offset + 1,
            last_fetched_epoch=1,
            high_watermark=response.high_watermark,
        )
        controller.ask(waiting)
    assert snapshot_id is not None
    data = b""
    while not data or len(data) < response.byte_count:
        response = controller.ask(
            replace(SNAPSHOT, epoch=controller.epoch, snapshot_id=snapshot_id, position=len(data))
        )
        assert response.error is ErrorCode.NONE
        assert (response.position, response.snapshot_id) == (len(data), snapshot_id)
        data += response.data
    assert len(data) == response.byte_count
    batches = list(iter_batches(data))
    assert batches[0].is_control
    assert batches[-1].is_control


def test_the_divergence_of_logs_is_returned(controller: Controller) -> None:
    beyond = replace(
        FETCH,
        epoch=controller.epoch,
        fetch_offset=10**9,
        last_fetched_epoch=controller.epoch,
    )
    response = controller.ask(beyond)
    assert response.error is ErrorCode.NONE
    assert response.diverging is not None
    assert response.diverging.epoch == controller.epoch
    assert 0 < response.diverging.offset < 10**9


@pytest.mark.parametrize("epoch_ahead", [0, 1])
def test_kafka_cannot_encode_the_error_of_a_failed_fetch_of_a_snapshot(
    controller: Controller, epoch_ahead: int
) -> None:
    """The response to a failed one has no records, and cannot be written: the error is unknown
    (4.3.1: a NullPointerException in ``FetchSnapshotResponseData``).
    """
    response = controller.ask(replace(SNAPSHOT, epoch=controller.epoch + epoch_ahead))
    assert isinstance(response, RequestError)
    assert (response.error, response.is_top_level) == (-1, True)


@pytest.mark.parametrize("request_", [VOTE, BEGIN, END], ids=lambda one: type(one).__name__)
def test_an_old_epoch_is_fenced(
    controller: Controller,
    request_: VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest,
) -> None:
    response = controller.ask(replace(request_, epoch=controller.epoch - 1))
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert response.leader_and_epoch.epoch == controller.epoch
    assert [one.port for one in response.leader_and_epoch.leader_endpoints] == [controller.port]


def test_changes_of_voters_are_refused_with_their_reasons(controller: Controller) -> None:
    same = replace(VOTER, key=replace(STRANGER, node_id=controller.key.node_id))
    added = controller.ask(AddVoterRequest(voter=same, timeout_ms=1000))
    assert isinstance(added, VoterChangeResponse)
    assert added.error is ErrorCode.DUPLICATE_VOTER
    assert added.reason
    removed = controller.ask(RemoveVoterRequest(voter=STRANGER))
    assert removed.error is ErrorCode.VOTER_NOT_FOUND
    updated = controller.ask(UpdateVoterRequest(epoch=0, voter=VOTER))
    assert updated.error is ErrorCode.FENCED_LEADER_EPOCH
    assert updated.leader_and_epoch.leader_id == controller.key.node_id
    assert [one.port for one in updated.leader_and_epoch.leader_endpoints] == [controller.port]


SENSELESS: list[tuple[str, Request]] = [
    ("a vote below offset 0", replace(VOTE, last_offset=-1)),
    ("a vote below epoch 0", replace(VOTE, last_epoch=-1)),
    ("a fetch below offset 0", replace(FETCH, fetch_offset=-1)),
    ("a fetch below epoch 0", replace(FETCH, last_fetched_epoch=-1)),
    ("a fetch that waits less than nothing", replace(FETCH, max_wait_ms=-1)),
    ("a candidate below id 0", replace(VOTE, candidate=ReplicaKey(-1))),
    ("a leader below id 0", replace(BEGIN, leader_id=-1)),
    ("a former leader below id 0", replace(END, leader_id=-1)),
    ("a voter below id 0", AddVoterRequest(voter=replace(VOTER, key=ReplicaKey(-1)), timeout_ms=1)),
    ("a voter without endpoints", AddVoterRequest(voter=Voter(key=STRANGER), timeout_ms=1)),
    ("nobody to remove", RemoveVoterRequest(voter=ReplicaKey(-1))),
]


@pytest.mark.parametrize(("words", "request_"), SENSELESS, ids=lambda one: str(one)[:30])
def test_raftlog_refuses_the_same_requests_as_kafka(
    controller: Controller, words: str, request_: Request
) -> None:
    response = controller.ask(with_epoch(request_, controller.epoch))
    assert refused_by_raftlog(controller, request_, controller.identity) == level(response), words


@pytest.mark.parametrize("what", ["cluster_id", "topic", "partition"])
@pytest.mark.parametrize("request_", [VOTE, BEGIN, END, FETCH], ids=lambda one: type(one).__name__)
def test_requests_for_other_logs_are_refused_as_by_kafka(
    controller: Controller, request_: Request, what: str
) -> None:
    key = request_api_key(request_)
    version = common_version(key, controller.versions().versions)
    elsewhere = controller.identity
    if what == "cluster_id":
        elsewhere = replace(elsewhere, cluster_id="AQIDBAUGBwgREhMUFRYXGA")
    elif what == "topic":
        elsewhere = replace(elsewhere, topic="other", topic_id="AQIDBAUGBwgREhMUFRYXGA")
    body = encode_request(with_epoch(request_, controller.epoch), version, elsewhere)
    if what == "partition":
        body = another_partition(body, request_, controller.identity)
    ours = decode_request(key, version, body, controller.identity)
    assert isinstance(ours, RequestError)
    answer, start = controller.connection.ask(key, version, body)
    response = decode_response(key, version, answer, controller.identity, start=start)
    assert (ours.error, ours.is_top_level) == level(response)


def test_a_snapshot_request_of_another_cluster_is_refused_as_by_kafka(
    controller: Controller,
) -> None:
    elsewhere = replace(controller.identity, cluster_id="AQIDBAUGBwgREhMUFRYXGA")
    response = controller.ask(SNAPSHOT, elsewhere)
    assert level(response) == (104, True)


def another_partition(body: bytes, request: Request, identity: LogIdentity) -> bytes:
    """Return the same bytes for partition 9."""
    if isinstance(request, FetchRequest):
        mark = bytes(15) + b"\x01\x02"  # the topic's id, one partition
    else:
        mark = identity.topic.encode() + b"\x02"
    at = body.index(mark) + len(mark)
    assert body[at : at + 4] == bytes(4)
    return body[:at] + b"\x00\x00\x00\x09" + body[at + 4 :]


def with_epoch(request: Any, epoch: int) -> Any:
    return replace(request, epoch=epoch) if hasattr(request, "epoch") else request


def refused_by_raftlog(
    controller: Controller, request: Request, identity: LogIdentity
) -> tuple[int, bool]:
    key = request_api_key(request)
    version = common_version(key, controller.versions().versions)
    body = encode_request(with_epoch(request, controller.epoch), version, identity)
    refusal = decode_request(key, version, body, identity)
    assert isinstance(refusal, RequestError)
    return refusal.error, refusal.is_top_level


def level(response: Any) -> tuple[int, bool]:
    """Return the error of a response, and whether it is of the whole request."""
    if isinstance(response, RequestError):
        return response.error, response.is_top_level
    return int(response.error), isinstance(response, VoterChangeResponse)
