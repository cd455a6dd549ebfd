"""Bugs of a quorum, each with the tests that must find it.

The rules are those of ``plant``.
"""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

QUORUM: Final = "connector/raftlog/quorum"
NODE: Final = "connector/raftlog/node"
DELETION: Final = "tests/node/apis/test_deletion.py"
LOG_START: Final = "tests/quorum/test_log_start.py"


def transcript(name: str) -> tuple[str, ...]:
    """Return a test of a transcript whose output changes."""
    test = "test_a_transcript_has_the_recorded_output"
    return (f"tests/scenarios/test_scenarios.py::{test}[{name}]",)


def seed(number: int) -> tuple[str, ...]:
    """Return a test that runs the simulator with a seed that violates a guarantee."""
    test = "test_invariants_hold_for_the_seeds_of_the_first_round_that_once_failed"
    return (f"tests/simulation/test_simulation.py::{test}[{number}]",)


QUORUM_PLANTS: Final = (
    Plant(
        bug="a leader that ends waits for a voter that ended after its acknowledgement",
        path="connector/raftlog/quorum/elections.py",
        old="is_needed = state.is_shutting_down or node_id not in role.acknowledged_voters",
        new="is_needed = node_id not in role.acknowledged_voters",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="a leader that ends does not wait for a voter that may be running",
        path="connector/raftlog/quorum/elections.py",
        old="        if isinstance(role, Resigned) and is_refused:\n",
        new="        if isinstance(role, Resigned):\n",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="the state of a replica is not checked after a step",
        path=f"{QUORUM}/core.py",
        old="        state.check_invariants()\n",
        new="",
        tests=("tests/quorum/test_core_invariants.py",),
    ),
    Plant(
        bug="the high watermark of a follower falls to that of its leader",
        path=f"{QUORUM}/following.py",
        old="offset > (state.high_watermark or 0) and offset >= state.log.log_start_offset:\n",
        new="offset >= state.log.log_start_offset:\n",
        tests=("tests/quorum/test_core_invariants.py",),
    ),
    Plant(
        bug="a follower fetches again before its records are durable",
        path=f"{QUORUM}/following.py",
        old="""        if state.log.synced_end_offset < state.log.end_offset:
            return""",
        new="        if False:\n            return",
        tests=seed(32),
    ),
    Plant(
        bug="a follower passes voters in fetched records before they are durable",
        path=f"{QUORUM}/core.py",
        old="        self._leadership.on_appended()\n",
        new="""        self._leadership.on_appended()
        self._following.advance_high_watermark()
""",
        tests=(
            "tests/quorum/test_high_watermark.py"
            "::test_a_follower_passes_what_it_has_fetched_once_it_is_synced",
        ),
    ),
    Plant(
        bug="a vote is granted and not stored",
        path=f"{QUORUM}/state.py",
        old="""            role.election_deadline_ms = self.election_deadline_ms()
        self._persist()
""",
        new="            role.election_deadline_ms = self.election_deadline_ms()\n",
        tests=(
            "tests/quorum/test_elections.py::test_a_vote_is_durable_before_it_is_granted",
            *transcript("appends/a_follower_restarts_without_its_disk"),
        ),
    ),
    Plant(
        bug="a restarted leader leads its epoch again",
        path=f"{QUORUM}/state.py",
        old="            return self._resigned(epoch, ())\n",
        new="            return self._candidate(epoch)\n",
        tests=(
            "tests/quorum/test_elections.py::test_a_restarted_leader_does_not_lead_its_epoch_again",
            *transcript("elections/a_leader_restarts"),
        ),
    ),
    Plant(
        bug="the only voter with the last records waits for a second election",
        path=f"{QUORUM}/elections.py",
        old="            role.votes.forget_rejection(request.candidate.node_id)\n",
        new="            pass\n",
        tests=(
            "tests/quorum/test_elections.py::"
            "test_a_pre_vote_is_requested_again_of_a_voter_that_has_lost_the_leader_since",
            "tests/simulation/test_time_without_leader.py",
        ),
    ),
    Plant(
        bug="a rejection that is older than the pre-vote request of its voter counts",
        path=f"{QUORUM}/roles.py",
        old="            self.outdated.add(node_id)\n",
        new="            pass\n",
        tests=(
            "tests/quorum/test_elections.py::test_a_rejection_that_is_older_than_the_pre_vote_"
            "request_of_its_voter_does_not_count",
        ),
    ),
    Plant(
        bug="votes compare only the lengths of logs",
        path=f"{QUORUM}/elections.py",
        old="    is_up_to_date = candidate_end >= log_end\n",
        new="    is_up_to_date = candidate_end.offset >= log_end.offset\n",
        tests=("tests/quorum/test_votes.py",),
    ),
    Plant(
        bug="votes ignore logs",
        path=f"{QUORUM}/elections.py",
        old="    is_up_to_date = candidate_end >= log_end\n",
        new="    is_up_to_date = True\n",
        tests=("tests/quorum/test_votes.py",),
    ),
    Plant(
        bug="responses to requests of an earlier role are processed",
        path=f"{QUORUM}/request_manager.py",
        old="        self._in_flight.clear()\n",
        new="",
        tests=("tests/quorum/test_request_manager.py",),
    ),
    Plant(
        bug="a record of an older epoch is committed by its replicas",
        path=f"{QUORUM}/leadership.py",
        old="        is_later = offset > role.epoch_start_offset and offset",
        new="        is_later = offset",
        tests=(
            *transcript("appends/records_of_an_old_epoch"),
            "tests/model/test_small_model.py",
        ),
    ),
    Plant(
        bug="a leader whose sync ends after the fetches of its followers does not commit",
        path=f"{NODE}/replica.py",
        old="        if self._retry_at_ms is None and not self.core.awaits_sync:\n",
        new="        if self._retry_at_ms is None and self.core.is_leader:\n",
        tests=("tests/node/test_leader_appends.py",),
    ),
    Plant(
        bug="a leader awaits no sync",
        path=f"{QUORUM}/core.py",
        old="        return not self.is_leader or self._leadership.can_commit\n",
        new="        return not self.is_leader\n",
        tests=("tests/quorum/test_high_watermark.py",),
    ),
    Plant(
        bug="the leader counts itself before it is synced",
        path=f"{QUORUM}/leadership.py",
        old="majority_end_offset(state.own_voter_set, state.log.synced_end_offset)\n",
        new="majority_end_offset(state.own_voter_set, state.log.end_offset)\n",
        tests=(
            "tests/quorum/test_high_watermark.py::test_a_leader_counts_only_its_synced_records",
            *transcript("appends/a_retry_finds_the_first_append"),
        ),
    ),
    Plant(
        bug="a high watermark without records is not sent",
        path=f"{QUORUM}/leadership.py",
        old="        return min(deadline_ms, state.now_ms + state.config.fetch_hw_delay_ms)\n",
        new="        return deadline_ms\n",
        tests=(
            *transcript("replication/the_high_watermark_is_sent_early"),
            *transcript("replication/the_high_watermark_is_sent_with_records"),
        ),
    ),
    Plant(
        bug="a later high watermark delays an earlier one",
        path=f"{QUORUM}/leadership.py",
        old="        return min(deadline_ms, state.now_ms + state.config.fetch_hw_delay_ms)\n",
        new="        return state.now_ms + state.config.fetch_hw_delay_ms\n",
        tests=transcript("replication/the_high_watermark_is_sent_with_records"),
    ),
    Plant(
        bug="half of the voters are a majority",
        path=f"{QUORUM}/voters.py",
        old="        return len(self.voters) // 2 + 1\n",
        new="        return max(len(self.voters) // 2, 1)\n",
        tests=("tests/quorum/test_progress.py",),
    ),
    Plant(
        bug="an append is answered when it is written",
        path=f"{NODE}/pending_appends.py",
        old="            return int(result.value.end_offset)\n",
        new="            return 0\n",
        tests=(
            "tests/node/test_leader_appends.py::"
            "test_a_refusal_due_to_the_logs_content_waits_until_that_is_committed",
            *transcript("appends/a_follower_restarts_without_its_disk"),
        ),
    ),
    Plant(
        bug="a refusal does not wait until the end that it is based on is committed",
        path=f"{NODE}/pending_appends.py",
        old="            return self._replica.log.end_offset\n",
        new="            return 0\n",
        tests=(
            "tests/node/test_leader_appends.py::"
            "test_a_refusal_due_to_the_logs_content_waits_until_that_is_committed",
            *transcript("appends/required_offsets"),
        ),
    ),
    Plant(
        bug="a deposed leader confirms a required offset",
        path=f"{NODE}/pending_appends.py",
        old="if isinstance(result, Failed) else is_empty\n",
        new="if isinstance(result, Failed) else False\n",
        tests=(
            "tests/quorum/test_read_index.py::"
            "test_a_deposed_leader_does_not_confirm_the_end_of_its_log",
            *transcript("appends/required_offsets"),
        ),
    ),
    Plant(
        bug="divergence is determined by the ends of logs only",
        path="connector/raftlog/log/format/epoch_cache.py",
        old="        if end.epoch != epoch or end.offset < offset:\n",
        new="        if end.offset < offset:\n",
        tests=("tests/log/writing/test_truncation.py",),
    ),
    Plant(
        bug="a follower truncates at its high watermark, not at the divergence",
        path="connector/raftlog/log/writing/quorum_log.py",
        old="        self.truncate_to(self._epoch_validation.truncation_offset(diverging))\n",
        new="        self.truncate_to(self.high_watermark)\n",
        tests=(
            "tests/log/writing/test_truncation.py::test_diverging_logs_converge",
            *transcript("replication/a_truncation_below_the_high_watermark"),
        ),
    ),
    Plant(
        bug="a follower accepts batches that do not start at the end of its log",
        path="connector/raftlog/log/writing/quorum_log.py",
        old="            if batch.base_offset != expected:\n                raise LogGapError(",
        new="            if batch.base_offset > expected:\n                raise LogGapError(",
        tests=(
            "tests/log/writing/test_quorum_log.py::test_a_follower_refuses_batches_that_do_not",
            *transcript("replication/batches_of_a_later_epoch"),
        ),
    ),
    Plant(
        bug="a voter set is kept when its record is truncated",
        path=f"{QUORUM}/following.py",
        old="        state.voters.truncate_new_entries(state.log.end_offset)\n",
        new="",
        tests=("tests/simulation/test_membership.py::test_an_uncommitted_voter_set_is_reverted",),
    ),
    Plant(
        bug="a change of voters begins before the previous one is committed",
        path=f"{QUORUM}/membership.py",
        old="        elif role.voter_change is not None or state.is_voter_set_uncommitted:\n",
        new="        elif False:\n",
        tests=(
            "tests/simulation/test_membership.py::test_a_change_waits_until_the_previous_one_is_committed",
        ),
    ),
    Plant(
        bug="a log older than a snapshot keeps its records before it",
        path="connector/raftlog/log/writing/quorum_log.py",
        old="        if newest <= own or self._has_lost_records_after(newest):\n",
        new="        if True:\n",
        tests=(
            "tests/log/writing/test_quorum_log.py::test_a_log_starts_again_at_a_later_snapshot",
            *transcript("snapshots/a_follower_below_the_log_start"),
        ),
    ),
    Plant(
        bug="retention loses the voter set",
        path=f"{NODE}/replica.py",
        old="(now_ms=time_ms, voters_at=self._voters_at)",
        new="(now_ms=time_ms)",
        tests=(
            "tests/simulation/test_membership.py::test_voters_are_known_after_retention_deleted_their_records",
        ),
    ),
    Plant(
        bug="whether a damaged voter is the only one depends on the configuration",
        path=f"{NODE}/replica.py",
        old="        voters = _voter_history(log, voters, kraft_version).latest\n",
        new="        _voter_history(log, voters, kraft_version)\n",
        tests=(
            "tests/simulation/test_membership.py::test_a_configured_only_voter_with_a_damaged_log_uses_the_voters_of_its_log",
            "tests/simulation/test_membership.py::test_the_only_remaining_voter_does_not_start_on_a_damaged_log",
        ),
    ),
    Plant(
        bug="kraft.version is raised although a voter does not support it",
        path="connector/raftlog/quorum/membership.py",
        old="            and voter.kraft_version_min <= version <= voter.kraft_version_max\n",
        new="",
        tests=("tests/scenarios/test_scenarios.py",),
    ),
    Plant(
        bug="an epoch without disk space for its first batch is the log's latest",
        path="connector/raftlog/log/writing/replicated_log.py",
        old="            self._segments.revert_epoch(epochs)\n",
        new="",
        tests=(
            "tests/log/writing/test_quorum_log.py::test_a_replica_without_space_for_a_later_epoch_accepts_records_of_an_earlier_one",
        ),
    ),
    Plant(
        bug="an epoch without disk space stays in the epoch checkpoint",
        path="connector/raftlog/log/writing/segments.py",
        old="        return self._is_epoch_reverted or epoch >",
        new="        return epoch >",
        tests=(
            "tests/log/writing/test_quorum_log.py::test_a_replica_without_space_for_a_later_epoch_accepts_records_of_an_earlier_one",
        ),
    ),
    Plant(
        bug="a message is sent although its state could not be written",
        path=f"{NODE}/replica.py",
        old="                    self._stall(error, now_ms)\n                    return\n",
        new="                    assert error\n",
        tests=(
            "tests/quorum/test_stall_on_full_disk.py::test_requests_received_meanwhile_wait",
            *transcript("full_disks/a_vote_that_cannot_be_written"),
        ),
    ),
    Plant(
        bug="a state machine is notified of leadership before it has all committed records",
        path=f"{NODE}/raft_client.py",
        old="            if self.next_offset <= leader.epoch_start_offset:\n",
        new="            if False:\n",
        tests=("tests/node/listeners/test_listener_contract.py",),
    ),
    Plant(
        bug="a state machine receives uncommitted records",
        path=f"{NODE}/raft_client.py",
        old="log, committed = self._replica.log, self._replica.core.high_watermark or 0\n",
        new="log, committed = self._replica.log, self._replica.log.end_offset\n",
        tests=("tests/node/listeners/test_listener_contract.py",),
    ),
    Plant(
        bug="a state machine below the log start continues at the log start",
        path=f"{NODE}/raft_client.py",
        old="        if (is_overtaken or self.next_offset == 0) and log.snapshots:\n",
        new="""        if is_overtaken:
            self.next_offset = log.log_start_offset
        if False:
""",
        tests=("tests/node/listeners/test_replica_listeners.py",),
    ),
    Plant(
        bug="an append of a state machine ignores its required offset",
        path=f"{NODE}/raft_client.py",
        old="            required_base_offset=required_base_offset,\n            is_atomic=True,\n",
        new="            is_atomic=True,\n",
        tests=("tests/node/listeners/test_listener_contract.py",),
    ),
    Plant(
        bug="an observer does not fetch again from a leader that timed out",
        path=f"{QUORUM}/following.py",
        old="            targets.append((role.leader_id, role.leader_endpoints))\n",
        new="            pass\n",
        tests=(
            "tests/simulation/test_membership.py::test_an_observer_finds_a_leader_that_is_no_voter_in_its_own_log",
        ),
    ),
    Plant(
        bug="a snapshot below the log start decides what a follower is sent",
        path="connector/raftlog/log/format/epoch_cache.py",
        old="(one for one in self.snapshots if one.end_offset >= start), None)",
        new="(one for one in self.snapshots), None)",
        tests=("tests/log/writing/test_truncation.py",),
    ),
    Plant(
        bug="a node that ends within a step executes the rest of its outputs",
        path=f"{NODE}/raft_node.py",
        old="            if self._is_over:\n                return\n            may_deliver",
        new="            may_deliver",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="a node does not wake for the deadlines of its appends",
        path=f"{NODE}/raft_node.py",
        old="            self._purgatory.deadlines,\n",
        new="",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="a queue of deadlines keeps the lowest one after its last item was removed",
        path=f"{NODE}/purgatory.py",
        old="                self.lowest = self._find_lowest()\n",
        new="                pass\n",
        tests=("tests/node/test_purgatory.py",),
    ),
    Plant(
        bug="a delayed fetch does not wake the node at its deadline",
        path=f"{NODE}/raft_node.py",
        old="fetches.add(fetch, self.now_ms() + timeout_ms)\n        self._set_timer()\n",
        new="fetches.add(fetch, self.now_ms() + timeout_ms)\n",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="after a bug in the end of a request the node has no timer",
        path=f"{NODE}/raft_node.py",
        old="        finally:  # even after a bug in the end of a request\n",
        new="        except KeyError:\n            raise\n        else:\n",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="what a listener changes does not reach the listeners before it",
        path=f"{NODE}/raft_node.py",
        old="            self._is_delivery_left |= is_left\n",
        new="            self._is_delivery_left = is_left\n",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="a node whose log cannot be cleaned is not cleaned again",
        path=f"{NODE}/raft_node.py",
        old="                self._clean_later()\n                self.clean()\n",
        new="                self._clean_at_ms = None\n"
        "                if self.clean():\n                    self._clean_later()\n",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="a driver sets a timer for each deadline",
        path=f"{NODE}/driver.py",
        old=" or (self._timer is not None and self._timer_ms <= deadline_ms):\n",
        new=":\n",
        tests=("tests/node/test_driver.py",),
    ),
    Plant(
        bug="appends that are not submitted have no outcome when the node ends",
        path=f"{NODE}/raft_node.py",
        old="        self._purgatory.close(lambda: self._unknown(reason))\n",
        new="",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="listeners are called after the node has failed in the call of one",
        path=f"{NODE}/raft_node.py",
        old="        self.listeners.close()\n",
        new="",
        tests=("tests/node/test_raft_node.py",),
    ),
    Plant(
        bug="a leader without disk space keeps its role although another voter may have space",
        path=f"{NODE}/raft_node.py",
        old="        self.step(Resign(core.epoch))\n",
        new="",
        tests=transcript("full_disks/a_leader_without_space_resigns"),
    ),
    Plant(
        bug="leaders whose disks are full resign one after the other without end",
        path=f"{NODE}/raft_node.py",
        old="now_ms - last_ms < DISK_FULL_RESIGN_INTERVAL_MS\n",
        new="False\n",
        tests=transcript("full_disks/a_leader_without_space_resigns"),
    ),
    Plant(
        bug="a leader whose epoch could not start appends in it",
        path=f"{NODE}/replica.py",
        old="        if self.is_stalled_on_disk_full:\n            reason",
        new="        if False:\n            reason",
        tests=("tests/quorum/test_stall_on_full_disk.py",),
    ),
    Plant(
        bug="a prospective follows the lost leader named by others",
        path=f"{QUORUM}/state.py",
        old="role.leader_id == leader_id and not from_leader:\n",
        new="False:\n",
        tests=(
            "tests/quorum/test_elections.py::"
            "test_a_voter_that_still_names_the_lost_leader_does_not_restore_it",
            *transcript("elections/a_crashed_leader_is_replaced"),
        ),
    ),
    Plant(
        bug="a leader whose removal is not committed does not campaign",
        path=f"{QUORUM}/state.py",
        old="        is_eligible = self.is_voter or self.is_leaving\n",
        new="        is_eligible = self.is_voter\n",
        tests=(
            "tests/quorum/test_elections.py::test_a_voter_whose_removal_is_not_committed_campaigns",
            *transcript("voters/a_leaving_leader_is_needed"),
        ),
    ),
    Plant(
        bug="a removed voter counts its own vote",
        path=f"{QUORUM}/state.py",
        old="granted={self.node_id} if self.is_voter else set()",
        new="granted={self.node_id}",
        tests=(
            "tests/quorum/test_elections.py::"
            "test_a_replica_that_is_no_voter_does_not_count_its_own_vote",
            *transcript("voters/a_leaving_leader_is_needed"),
        ),
    ),
    Plant(
        bug="a node with damage before the part that recovery scans never starts",
        path=f"{NODE}/replica.py",
        old="                damage, end_offset = error, log.valid_end_offset()\n",
        new="                raise error\n",
        tests=(
            "tests/simulation/test_membership.py::test_a_node_repairs_damage_far_before_the_part_that_recovery_scans",
        ),
    ),
    Plant(
        bug="DeleteRecords is answered before all voters have deleted",
        path=f"{NODE}/apis/deletion.py",
        old=" or cache.core.has_log_start(start)\n",
        new=" or cache.core.is_leader\n",
        tests=(
            f"{DELETION}::test_a_voter_that_is_away_delays_the_response_and_deletes_when_it_is_back",
        ),
    ),
    Plant(
        bug="a client without the right of an administrator deletes records",
        path=f"{NODE}/apis/deletion.py",
        old="may(Operation.DELETE, ",
        new="may(Operation.READ, ",
        tests=(f"{DELETION}::test_errors_delete_nothing",),
    ),
    Plant(
        bug="a log with a state machine follows the log start of its leader",
        path=f"{NODE}/replica.py",
        old="        if self.deletion_refusal() is None:\n",
        new="        if self.log.config.values is ValueKind.BYTES:\n",
        tests=(f"{DELETION}::test_a_log_with_a_state_machine_is_refused_and_follows_no_leader",),
    ),
    Plant(
        bug="a follower deletes records that are not committed",
        path=f"{QUORUM}/following.py",
        old="committed = min(self._state.high_watermark or 0, log.synced_end_offset)\n",
        new="committed = log.synced_end_offset\n",
        tests=(f"{LOG_START}::test_a_follower_deletes_only_what_is_committed",),
    ),
    Plant(
        bug="a follower reports its old log start after it has deleted",
        path=f"{QUORUM}/following.py",
        old="            role.is_deleting = True\n",
        new="",
        tests=(f"{LOG_START}::test_a_follower_deletes_what_the_leader_has_deleted_and_reports_it",),
    ),
    Plant(
        bug="a deletion that a crash has interrupted is never completed",
        path="connector/raftlog/log/writing/replicated_log.py",
        old="            for snapshot_id in self._segments.snapshots[-1:]:\n",
        new="            for snapshot_id in self._segments.snapshots[:0]:\n",
        tests=("tests/log/writing/test_quorum_log.py::test_an_interrupted_deletion_is_completed",),
    ),
)
