"""Bugs in a replica's checks of the requests, responses and files of its quorum."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant
from tests.planted.quorum_plants import QUORUM, transcript

WIRE: Final = "connector/raftlog/wire"

QUORUM_KEY_PLANTS: Final = (
    Plant(
        bug="a voter that was formatted again confirms a deposed leader",
        path=f"{QUORUM}/elections.py",
        old="        if error is ErrorCode.NONE and not self._is_addressed(request.voter):\n",
        new="""        voter = request.voter
        is_for_another = voter is not None and voter.node_id != state.node_id
        if error is ErrorCode.NONE and is_for_another:
""",
        tests=(
            "tests/quorum/test_voter_keys.py::"
            "test_a_voter_confirms_a_leader_only_under_its_own_directory_id",
            *transcript("voters/a_formatted_voter_confirms_no_leader"),
        ),
    ),
    Plant(
        bug="a voter is identified by its node id only",
        path=f"{QUORUM}/elections.py",
        old="        return voter is None or voter.matches(self._state.key)\n",
        new="        return voter is None or voter.node_id == self._state.node_id\n",
        tests=(
            "tests/quorum/test_voter_keys.py::test_a_vote_is_granted_only_under_the_replicas_own_directory_id",
            *transcript("voters/a_formatted_voter_confirms_no_leader"),
        ),
    ),
    Plant(
        bug="a replica without a directory id matches any voter of its node id",
        path="connector/raftlog/types.py",
        old="""        return self.node_id == replica.node_id and self.directory_id in (
            ZERO_UUID,
            replica.directory_id,
        )
""",
        new="""        return self.node_id == replica.node_id and (
            self.directory_id in (ZERO_UUID, replica.directory_id)
            or replica.directory_id == ZERO_UUID
        )
""",
        tests=("tests/quorum/test_votes.py",),
    ),
    Plant(
        bug="a stored vote without a directory id keeps matching any directory",
        path=f"{QUORUM}/state.py",
        old="        self.voted_key = candidate\n",
        new="        self.voted_key = self.voted_key or candidate\n",
        tests=(
            "tests/quorum/test_voter_keys.py::"
            "test_a_stored_vote_without_a_directory_id_gets_the_first_candidates",
            *transcript("voters/a_missing_directory_id_is_no_voter"),
        ),
    ),
    Plant(
        bug="a damaged replica finds out by old voters whether another has its records",
        path="connector/raftlog/node/replica.py",
        old="election.leader_id not in (None, node_id):\n",
        new="election.leader_id is None:\n",
        tests=(
            "tests/quorum/test_damaged_voters.py::"
            "test_a_former_only_voter_starts_with_a_damaged_log",
        ),
    ),
    Plant(
        bug="a damaged voter refuses its vote without a reason",
        path=f"{QUORUM}/elections.py",
        old="                error = ErrorCode.KAFKA_STORAGE_ERROR\n",
        new="                pass\n",
        tests=("tests/quorum/test_damaged_voters.py",),
    ),
    Plant(
        bug="a recovered node votes again in an epoch in which it may have voted",
        path="connector/raftlog/node/recovery.py",
        old="min(log.last_fetched_epoch + EPOCH_STEP_MAX // 2, EPOCH_MAX)",
        new="log.last_fetched_epoch",
        tests=("tests/state/cli/test_cli_node_recover.py",),
    ),
    Plant(
        bug="a node is recovered without the operator's confirmation",
        path="connector/raftlog/node/recovery.py",
        old="        if allows_data_loss and not found.votes:\n",
        new="        if not found.votes:\n",
        tests=("tests/state/cli/test_cli_node_recover.py",),
    ),
    Plant(
        bug="a check reports a node that does not vote as undamaged",
        path="state/raftlog_state/check/files.py",
        old="        (join(directory, OUT_OF_ELECTION_NAME), _out_of_election),\n",
        new="",
        tests=("tests/state/cli/test_cli_node_recover.py",),
    ),
    Plant(
        bug="a truncating follower keeps no backup of whole segments",
        path="connector/raftlog/log/writing/segments.py",
        old="offset_name(base, LOG_SUFFIX)), 0)\n",
        new="offset_name(base, LOG_SUFFIX)), 1 << 40)\n",
        tests=("tests/log/writing/test_truncation.py",),
    ),
    Plant(
        bug="a response is written to a broken connection",
        path="connector/raftlog/node/connection.py",
        old="            if transport.is_closing():  # perhaps since the previous write\n",
        new="            if start == 0 and transport.is_closing():\n",
        tests=("tests/node/test_connection_resources.py",),
    ),
    Plant(
        bug="asyncio's log lines have another form than the node's",
        path="connector/raftlog/node/log_lines.py",
        old="    propagates, logger.propagate = logger.propagate, False\n",
        new="    propagates = logger.propagate\n",
        tests=("tests/node/test_log_lines.py",),
    ),
    Plant(
        bug="followers of a silent leader time out together",
        path=f"{QUORUM}/state.py",
        old=" + self._jitter_ms(self.config.fetch_jitter_ms)\n",
        new="\n",
        tests=("tests/simulation/test_time_without_leader.py",),
    ),
    Plant(
        bug="the epoch of a request is unbounded",
        path=f"{QUORUM}/state.py",
        old="            limit = min(limit, self._proven_epoch + EPOCH_STEP_MAX)\n",
        new="            pass\n",
        tests=(
            "tests/quorum/test_credible_epochs.py::"
            "test_a_request_raises_the_epoch_by_a_bounded_step",
            *transcript("elections/implausible_epochs"),
        ),
    ),
    Plant(
        bug="the epoch of a response is unbounded",
        path=f"{QUORUM}/core.py",
        old="        is_credible = state.is_credible(epoch, is_response=True)\n",
        new="        is_credible = epoch <= 2**31 - 1\n",
        tests=(
            "tests/quorum/test_credible_epochs.py::"
            "test_a_response_raises_the_epoch_to_any_unreserved_one",
            *transcript("elections/implausible_epochs"),
        ),
    ),
    Plant(
        bug="epochs without a leader raise the bound of requests",
        path=f"{QUORUM}/state.py",
        old="        limit = EPOCH_RESERVED_FROM - 1\n",
        new="        limit = EPOCH_RESERVED_FROM - 1\n        self.prove_epoch(self.epoch)\n",
        tests=(
            "tests/quorum/test_credible_epochs.py::"
            "test_an_epoch_without_a_leader_does_not_raise_the_bound_of_requests",
            *transcript("elections/implausible_epochs"),
        ),
    ),
    Plant(
        bug="a replica that is no voter deposes a leader",
        path=f"{QUORUM}/elections.py",
        old="        return not is_known and self._state.has_active_leader\n",
        new="        return False\n",
        tests=(
            "tests/quorum/test_credible_epochs.py::"
            "test_an_unknown_replica_does_not_raise_the_epoch_while_there_is_a_leader",
            *transcript("elections/implausible_epochs"),
        ),
    ),
    Plant(
        bug="an unknown replica never gets a vote",
        path=f"{QUORUM}/elections.py",
        old="        return not is_known and self._state.has_active_leader\n",
        new="        return not is_known\n",
        tests=(
            "tests/quorum/test_credible_epochs.py::"
            "test_an_unknown_replica_gets_a_vote_after_the_fetch_timeout",
            *transcript("elections/implausible_epochs"),
        ),
    ),
    Plant(
        bug="a candidate uses an epoch that no batch can have",
        path=f"{QUORUM}/state.py",
        old="        return min(self.epoch + 1, EPOCH_MAX)\n",
        new="        return self.epoch + 1\n",
        tests=("tests/quorum/test_epochs.py",),
    ),
    Plant(
        bug="a reserved epoch is accepted from quorum-state",
        path="connector/raftlog/log/format/directory.py",
        old="    if not 0 <= epoch <= EPOCH_MAX:\n",
        new="    if epoch < 0:\n",
        tests=("tests/quorum/test_epochs.py",),
    ),
    Plant(
        bug="a voter without a directory id is added",
        path=f"{WIRE}/raft_codec.py",
        old=" if key.directory_id == ZERO_UUID else None\n",
        new=" if key.directory_id is None else None\n",
        tests=("tests/wire/test_quorum_requests.py",),
    ),
    Plant(
        bug="a voter with an unreachable address is added",
        path=f"{WIRE}/raft_codec.py",
        old="    if problem is None and all(one.name !=",
        new="    if problem is None and not voter.endpoints and all(one.name !=",
        tests=("tests/wire/test_quorum_requests.py",),
    ),
    Plant(
        bug="a request to a voter is sent without its directory id to a node of an old version",
        path=f"{WIRE}/raft_codec.py",
        old='        must_keep={".voter_directory_id": _OTHER_VOTER},\n',
        new="",
        tests=("tests/wire/test_quorum_requests.py",),
    ),
    Plant(
        bug="any text is accepted as the host of a voter",
        path=f"{QUORUM}/voters.py",
        old="        if not is_host(endpoint.host):\n",
        new="        if not endpoint.host:\n",
        tests=("tests/wire/test_quorum_requests.py",),
    ),
    Plant(
        bug="a peer's request changes the leader's endpoints",
        path=f"{QUORUM}/membership.py",
        old="        elif voter.key == state.key:",
        new="        elif False:",
        tests=(
            "tests/quorum/test_voter_keys.py::"
            "test_a_leader_does_not_change_its_own_listeners_on_a_request",
            *transcript("requests/invalid_voter_sets"),
        ),
    ),
    Plant(
        bug="a voter set with a duplicate id is appended, and stops the node",
        path="connector/raftlog/records/control.py",
        old="        if not ids or min(ids) < 0 or len(set(ids)) < len(ids):\n",
        new="        if not ids or min(ids) < 0:\n",
        tests=(
            *transcript("requests/invalid_voter_sets"),
            "tests/records/test_control.py",
        ),
    ),
    Plant(
        bug="a high watermark below the log start offset is accepted",
        path=f"{QUORUM}/following.py",
        old=" and offset >= state.log.log_start_offset:\n",
        new=":\n",
        tests=(
            "tests/quorum/test_high_watermark.py::"
            "test_a_high_watermark_below_the_log_start_offset_is_ignored",
            *transcript("requests/invalid_voter_sets"),
        ),
    ),
)
