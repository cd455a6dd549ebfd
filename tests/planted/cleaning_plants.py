"""Bugs of compaction, each with the tests that must find it. The rules are in ``plant``."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

CLEANING: Final = "connector/raftlog/log/cleaning"
RECORDS: Final = "tests/log/cleaning/test_retained_records.py"
COMPACTION: Final = "tests/log/cleaning/test_compaction.py"

REPLICAS: Final = "tests/log/cleaning/test_compacted_replicas.py"
GROUPS: Final = "tests/log/cleaning/test_segment_groups.py"
NODES: Final = "tests/node/test_compacting_nodes.py"

CLEANING_PLANTS: Final = (
    Plant(
        bug="a follower inside an empty batch of its leader gets nothing",
        path="connector/raftlog/log/segment.py",
        old="                return self._rest_of_empty(",
        new='                return b"" and self._rest_of_empty(',
        tests=(NODES, REPLICAS),
    ),
    Plant(
        bug="what a later, uncommitted batch supersedes is not retained",
        path=f"{CLEANING}/compaction.py",
        old="first, end_offset = segments[0].base_offset, segments[-1].end_offset\n",
        new="first, end_offset = segments[0].base_offset, 2**62\n",
        tests=(
            f"{REPLICAS}::test_the_state_of_producers_and_groups_survives_a_truncation_and_a_scan"
            "_of_the_log",
        ),
    ),
    Plant(
        bug="a node replaces all compacted segments in one turn",
        path="connector/raftlog/node/raft_node.py",
        old="            if next(steps, _END) is not _END:\n                return\n",
        new="            for _ in steps:\n                pass\n",
        tests=(f"{NODES}::test_a_node_compacts_at_intervals_one_segment_in_each_turn",),
    ),
    Plant(
        bug="a compaction does not store which states may lack keys before it removes records",
        path=f"{CLEANING}/compaction.py",
        old="directory.raise_compacted_offset(self.end_offset, offset_max=sealed_end_offset)",
        new="pass",
        tests=(
            f"{COMPACTION}::test_after_a_crash_at_any_operation_states_from_the_compacted_offset_on"
            "_are_complete",
        ),
    ),
    Plant(
        bug="a follower does not store that it has fetched what its leader had compacted",
        path="connector/raftlog/log/writing/quorum_log.py",
        old="        if found and compacted_offset > self.end_offset:\n",
        new="        if False:\n",
        tests=(
            f"{NODES}::test_a_past_state_is_refused_or_right_on_every_replica",
            f"{NODES}::test_a_follower_stores_what_its_leader_has_compacted_before_it_appends",
        ),
    ),
    Plant(
        bug="a response does not have how far the log of its records was compacted",
        path="connector/raftlog/node/replica.py",
        old="compacted_offset=log.compacted_offset",
        new="compacted_offset=0",
        tests=(f"{NODES}::test_a_past_state_is_refused_or_right_on_every_replica",),
    ),
    Plant(
        bug="a follower that has missed a removed tombstone continues where its log ends",
        path="connector/raftlog/quorum/following.py",
        old="        if is_below and log.misses_tombstones(missed_offset):\n",
        new="        if is_below and log.misses_tombstones(0):\n",
        tests=(NODES, "tests/quorum/test_log_start.py"),
    ),
    Plant(
        bug="a leader removes tombstones while a replica fetches what was compacted",
        path="connector/raftlog/node/raft_node.py",
        old="keeps_tombstones=self.keeps_tombstones",
        new="keeps_tombstones=False",
        tests=(
            f"{NODES}::test_a_leader_retains_tombstones_while_a_replica_fetches_what_was_compacted",
        ),
    ),
    Plant(
        bug="removed records are still in the tail cache",
        path="connector/raftlog/log/writing/quorum_log.py",
        old="replace_compacted(compaction):\n            self._tail_cache.clear()\n",
        new="replace_compacted(compaction):\n",
        tests=(f"{REPLICAS}::test_followers_get_no_removed_record_from_the_tail_cache",),
    ),
    Plant(
        bug="a compaction does not store up to where it has removed tombstones",
        path=f"{CLEANING}/compaction.py",
        old="self._directory.raise_tombstone_start(group.tombstone_start_offset)",
        new="pass",
        tests=(
            f"{NODES}::test_a_deleted_key_does_not_return_from_a_follower_that_has_missed_its"
            "_tombstone",
        ),
    ),
    Plant(
        bug="the start of tombstones is stored before the values that they delete are replaced",
        path=f"{CLEANING}/compaction.py",
        old="raise_tombstone_start(group.tombstone_start_offset)",
        new="raise_tombstone_start(self._tombstone_start_offset)",
        tests=(
            f"{REPLICAS}::test_a_log_that_is_fetched_while_segments_are_replaced_has_no_deleted_key",
        ),
    ),
    Plant(
        bug="a log that is fetched again does not have up to where its leader removed tombstones",
        path="connector/raftlog/log/writing/quorum_log.py",
        old="self._directory.write_tombstone_start(tombstone_start_offset)",
        new="pass",
        tests=(
            f"{NODES}::test_a_deleted_key_does_not_return_from_a_follower_that_has_missed_its"
            "_tombstone",
        ),
    ),
    Plant(
        bug="a replica that has deleted its log votes before it has fetched it again",
        path="connector/raftlog/log/writing/quorum_log.py",
        old='            self._directory.leave_election(f"{error.reason}\\n")\n',
        new="",
        tests=(f"{NODES}::test_a_crash_while_a_log_is_deleted_to_be_fetched_again_revives_no_key",),
    ),
    Plant(
        bug="a record of an aborted transaction supersedes those before it",
        path=f"{CLEANING}/retained_records.py",
        old="        if not batch.is_control and not self.is_aborted(batch):\n",
        new="        if not batch.is_control:\n",
        tests=(
            "tests/log/cleaning/test_cleaned_transactions.py"
            "::test_records_of_aborted_transactions_are_dropped_and_supersede_nothing",
        ),
    ),
    Plant(
        bug="a damaged compacted-offset-checkpoint is lowered by the next compaction",
        path="connector/raftlog/log/writing/segments.py",
        old="            known, offset = -1, offset_max\n",
        new="            known = -1\n",
        tests=(f"{COMPACTION}::test_a_damaged_compacted_offset_is_not_lowered",),
    ),
    Plant(
        bug="a damaged compacted-offset-checkpoint of a replica is never repaired",
        path="connector/raftlog/log/writing/quorum_log.py",
        old="self._directory.raise_compacted_offset(0, offset_max=self.end_offset)",
        new="pass",
        tests=(
            "tests/log/cleaning/test_compacted_replicas.py"
            "::test_a_damaged_compacted_offset_is_the_end_of_the_log_when_it_was_opened",
        ),
    ),
    Plant(
        bug="compacted segments replace the old ones newest first",
        path=f"{CLEANING}/compaction.py",
        old="        for group in compacted:\n            if self._is_closed",
        new="        for group in reversed(compacted):\n            if self._is_closed",
        tests=(
            f"{COMPACTION}::test_a_crash_at_any_operation_leaves_every_last_value_and_revives_no_deleted_key",
        ),
    ),
    Plant(
        bug="the indexes of a compacted segment may be durable before it",
        path=f"{CLEANING}/compaction.py",
        old="""            storage.rename(path + CLEANED_SUFFIX, path)
            directory.sync()
""",
        new="""            storage.rename(path + CLEANED_SUFFIX, path)
""",
        tests=(f"{REPLICAS}::test_a_crash_at_any_step_between_appends_leaves_every_last_value",),
    ),
    Plant(
        bug="segments are deleted before the one that replaces them is durable",
        path=f"{CLEANING}/compaction.py",
        old="""            try:
                directory.sync()
                complete_swap(""",
        new="""            try:
                complete_swap(""",
        tests=(GROUPS,),
    ),
    Plant(
        bug="a compacted segment gets its name before those that it replaces are deleted durably",
        path="connector/raftlog/log/recovery/recover.py",
        old="""    storage.sync_directory(directory)
    path = storage.join(directory, offset_name(base_offset, LOG_SUFFIX))
""",
        new="""    path = storage.join(directory, offset_name(base_offset, LOG_SUFFIX))
""",
        tests=(GROUPS,),
    ),
    Plant(
        bug="other writers keep their list of segments after some have become one",
        path=f"{CLEANING}/compaction.py",
        old="            directory.renew_published()\n",
        new="",
        tests=(
            f"{GROUPS}::test_another_writer_lists_the_segments_again_after_some_have_become_one",
        ),
    ),
    Plant(
        bug="a reader takes a segment that replaces several ones for an overlap",
        path="connector/raftlog/log/reading/files.py",
        old="following != self.next_offset and self._unmatched != (self.next_offset, following):\n",
        new="following != self.next_offset and self._files.is_remote(self.segment):\n",
        tests=(
            f"{GROUPS}::test_readers_read_every_last_value_at_any_operation_while_segments_become_one",
        ),
    ),
    Plant(
        bug="a compaction checkpoints its end after a group that it has not replaced",
        path=f"{CLEANING}/compaction.py",
        old="                return  # changed by a call between two steps\n",
        new="                continue\n",
        tests=(
            f"{GROUPS}::test_nothing_is_replaced_from_a_group_on_whose_first_segments_were_deleted",
        ),
    ),
    Plant(
        bug="a producer snapshot inside an empty batch is followed by the batch after that",
        path="connector/raftlog/log/writing/producer_state.py",
        old="is_joined = not metadata.record_count and",
        new="is_joined = not self._end_offset and",
        tests=(GROUPS,),
    ),
    Plant(
        bug="a voter starts its log at an empty batch, before the start of its leader",
        path="connector/raftlog/log/writing/replicated_log.py",
        old="        if start < offset:\n",
        new="        if start < 0:\n",
        tests=(f"{NODES}::test_records_are_deleted_below_an_offset_inside_an_empty_batch",),
    ),
    Plant(
        bug="a node ends if its disk is full while it replaces compacted segments",
        path="connector/raftlog/node/raft_node.py",
        old="        except DiskFullError as error:  # each earlier step is complete\n"
        "            self._runner.notify(CleaningRefused(error))\n",
        new="",
        tests=(
            f"{NODES}::test_a_disk_that_is_full_while_segments_are_replaced_ends_the_compaction_only",
        ),
    ),
    Plant(
        bug="the empty batch of compacted commits is data that a consumer has to read",
        path="connector/raftlog/log/writing/producer_state.py",
        old="        elif metadata.record_count:",
        new="        elif metadata.record_count >= 0:",
        tests=(REPLICAS,),
    ),
    Plant(
        bug="a compacted segment is renamed before it is synced",
        path=f"{CLEANING}/compaction.py",
        old="""                return
            file.sync()
""",
        new="""                return
""",
        tests=(
            f"{COMPACTION}::test_a_crash_at_any_operation_leaves_every_last_value_and_revives_no_deleted_key",
        ),
    ),
    Plant(
        bug="records above the last stable offset are compacted",
        path=f"{CLEANING}/compaction.py",
        old="if segment.end_offset > last_stable_offset:",
        new="if segment.base_offset > last_stable_offset:",
        tests=(f"{COMPACTION}::test_lags_and_the_last_stable_offset_limit_what_is_compacted",),
    ),
    Plant(
        bug="two compactions of one log run at a time",
        path=f"{CLEANING}/compaction.py",
        old="    if lock is None:\n        return None\n",
        new="    lock = lock or directory.storage.try_lock(directory.file('x'))\n    assert lock\n",
        tests=(f"{COMPACTION}::test_appends_and_deletions_during_a_compaction",),
    ),
    Plant(
        bug="an expired tombstone after the mapped range is dropped",
        path=f"{CLEANING}/retained_records.py",
        old="        if offset >= self.offsets.end_offset:\n            return True\n",
        new="",
        tests=(f"{RECORDS}::test_an_expired_tombstone_after_the_mapped_range_is_retained",),
    ),
    Plant(
        bug="a tombstone after the mapped range gets a delete horizon",
        path=f"{CLEANING}/retained_records.py",
        old="is_mapped = batch.last_offset < self.offsets.end_offset",
        new="is_mapped = batch.base_offset < self.offsets.end_offset",
        tests=(f"{RECORDS}::test_a_tombstone_after_the_mapped_range_gets_no_delete_horizon",),
    ),
    Plant(
        bug="a tombstone is dropped by the compaction that gives it a delete horizon",
        path=f"{CLEANING}/retained_records.py",
        old="horizon_ms is None or self.rules.expired_ms < horizon_ms",
        new="horizon_ms is not None",
        tests=(f"{RECORDS}::test_a_tombstone_gets_a_delete_horizon_and_is_dropped_after_it",),
    ),
    Plant(
        bug="the last batch of a producer is dropped with its records",
        path=f"{CLEANING}/retained_records.py",
        old="if batch.last_offset in self.rules.last_producer_batches:",
        new="if batch.base_offset in self.rules.last_producer_batches:",
        tests=(f"{RECORDS}::test_the_last_batch_of_a_producer_keeps_its_header",),
    ),
    Plant(
        bug="the record that names the last commit is dropped",
        path=f"{CLEANING}/retained_records.py",
        old="if ordinal == 0 and batch.last_offset in self.rules.last_commits:",
        new="if ordinal == 0 and batch.base_offset in self.rules.last_commits:",
        tests=(f"{RECORDS}::test_the_record_that_names_the_last_commit_is_retained",),
    ),
    Plant(
        bug="a superseded record that names the last commit keeps its value",
        path=f"{CLEANING}/retained_records.py",
        old="value = stored.value if stored.key is None else None",
        new="value = stored.value",
        tests=(
            f"{RECORDS}::test_a_superseded_record_that_names_the_last_commit_loses_its_value",
            f"{COMPACTION}::test_a_deleted_key_stays_deleted_if_its_last_value_named_a_commit",
        ),
    ),
    Plant(
        bug="a closed compaction replaces segments",
        path=f"{CLEANING}/compaction.py",
        old="        if self._is_closed or not segments.config",
        new="        if not segments.config",
        tests=(
            f"{COMPACTION}::test_a_closed_compaction_does_not_replace_segments_by_files_of_a_later_one",
        ),
    ),
    Plant(
        bug="a repair leaves the cleaner's offset above the new end",
        path="connector/raftlog/log/recovery/repair.py",
        old="if cleaner_offset is not None and cleaner_offset > end_offset:",
        new="if cleaner_offset is not None and cleaner_offset < end_offset:",
        tests=(
            f"{COMPACTION}::test_offsets_that_were_truncated_and_appended_again_are_compacted_again",
        ),
    ),
    Plant(
        bug="segments are replaced after a repair has removed what superseded their records",
        path=f"{CLEANING}/compaction.py",
        old="        if not is_first or not segments.has_sealed(planned):\n",
        new="        if not is_first:\n",
        tests=(
            f"{COMPACTION}::test_nothing_is_replaced_after_another_process_has_truncated_the_log",
        ),
    ),
    Plant(
        bug="retention counts the bytes that another process has compacted",
        path="connector/raftlog/log/writing/segments.py",
        old="one, byte_count=segment.byte_count, max_timestamp_ms=time_ms",
        new="one, max_timestamp_ms=time_ms",
        tests=(
            f"{COMPACTION}::test_retention_by_size_uses_the_sizes_after_the_compaction_of_another_writer",
        ),
    ),
    Plant(
        bug="an empty batch covers two leader epochs",
        path=f"{CLEANING}/retained_records.py",
        old="            batch.leader_epoch == self.leader_epoch\n            and",
        new="            batch.leader_epoch >= self.leader_epoch\n            and",
        tests=(f"{RECORDS}::test_an_empty_batch_does_not_cross_an_epoch",),
    ),
    Plant(
        bug="a cursor continues at its position in a segment that was replaced",
        path="connector/raftlog/log/reading/files.py",
        old="            self._position = None  # compaction has replaced the segment\n",
        new="            pass\n",
        tests=(f"{COMPACTION}::test_a_cursor_continues_after_its_segment_was_replaced",),
    ),
    Plant(
        bug="a cursor continues at its position in a replaced segment if a batch ends there",
        path="connector/raftlog/log/reading/files.py",
        old="            and header.last_offset + 1 == self.next_offset\n",
        new="",
        tests=(
            f"{COMPACTION}::test_a_cursor_reads_every_batch_after_a_replacement_with_batches_of_equal_size",
        ),
    ),
    Plant(
        bug="a writer reads a compacted segment with the size that it had before",
        path="connector/raftlog/log/writing/segments.py",
        old="        if self.config.cleanup_policy.compacts:\n",
        new="        if self.config.cleanup_policy.compacts and not segment.byte_count:\n",
        tests=(f"{COMPACTION}::test_another_writer_of_the_log_continues_after_a_compaction",),
    ),
    Plant(
        bug="a record without a key is appended to a compacted log",
        path="connector/raftlog/append.py",
        old="        if isinstance(record, bytes) or record.key is None:\n",
        new="        if isinstance(record, bytes) and not record:\n",
        tests=(
            "tests/client/embedded/test_compacted_logs.py::test_a_record_without_a_key_is_refused",
        ),
    ),
)
