"""Bugs of backups and restores."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

REMOTE: Final = "connector/raftlog/log/remote"
BACKUP: Final = "tests/log/remote/test_backup.py"
HOSTILE: Final = "tests/log/remote/test_hostile_manifests.py"

OBJECTS: Final = "tests/storage/test_object_stores.py"

READING: Final = "connector/raftlog/log/reading"
SEGMENTS: Final = "tests/log/test_remote_segments.py"

FOLLOWERS: Final = "tests/node/apis/test_follower_fetch.py"

REMOTE_PLANTS: Final = (
    Plant(
        bug="consumers retry a fetch of damaged records forever",
        path="connector/raftlog/node/apis/metadata_cache.py",
        old="            return ErrorCode.corrupt_message\n",
        new="            return ErrorCode.kafka_storage_error\n",
        tests=(
            "tests/node/apis/test_remote_storage.py"
            "::test_a_missing_or_shorter_object_is_damage_that_no_retry_repairs",
        ),
    ),
    Plant(
        bug="an object that an earlier leader has deleted is reported as damage",
        path="connector/raftlog/node/raft_node.py",
        old="        return self._remote_list_epoch == self.replica.core.epoch\n",
        new="        return self._remote_list_epoch >= 0\n",
        tests=(
            "tests/node/apis/test_remote_storage.py"
            "::test_a_missing_object_is_retried_while_an_earlier_leader_may_have_deleted_it",
        ),
    ),
    Plant(
        bug="sealed segments above the last stable offset are copied",
        path=f"{REMOTE}/tiering.py",
        old="one for one in segments.timed_segments() if one.end_offset <= last_stable_offset",
        new="one for one in segments.timed_segments() if last_stable_offset >= 0",
        tests=(
            "tests/node/apis/test_remote_storage.py"
            "::test_nothing_above_the_high_watermark_is_copied",
        ),
    ),
    Plant(
        bug="a node deletes what its leader has deleted of another object store",
        path="connector/raftlog/quorum/following.py",
        old=" or role.is_deleting or role.has_other_remote_store:\n",
        new=" or role.is_deleting:\n",
        tests=(
            "tests/quorum/test_log_start.py",
            "tests/node/apis/test_remote_storage.py"
            "::test_a_node_with_another_store_than_the_leader_deletes_nothing_and_says_so",
        ),
    ),
    Plant(
        bug="a quorum copies records that its nodes have compacted, each by itself",
        path=f"{REMOTE}/tiering.py",
        old="            self._check_not_compacted(copied_end_offset)\n",
        new="            pass\n",
        tests=(
            "tests/log/remote/test_tiered_replicas.py"
            "::test_records_that_replicas_have_compacted_are_not_copied_until_they_are_deleted",
        ),
    ),
    Plant(
        bug="one of two copies of a remote segment is read",
        path=f"{READING}/remote_segments.py",
        old="            if other != name:\n",
        new="            if not other:\n",
        tests=(f"{SEGMENTS}::test_two_copies_of_one_segment_are_refused_by_name",),
    ),
    Plant(
        bug="the topic of remote segments is unknown",
        path=f"{READING}/opening.py",
        old="identify(files, str(partition or UNNAMED_PARTITION), kind)",
        new="identify(files, str(UNNAMED_PARTITION), kind)",
        tests=(f"{SEGMENTS}::test_remote_segments_are_the_log_up_to_the_active_segment",),
    ),
    Plant(
        bug="a backup is visible before its inventory is there",
        path=f"{REMOTE}/backup.py",
        old="""            self._uploaded_bytes += file.byte_count
        self._store.put(entry.object_name(INVENTORY_SUFFIX), [data])
        self._check_is_stored(inventory.segments)
        self._finish(backup)
""",
        new="""            self._uploaded_bytes += file.byte_count
        self._check_is_stored(inventory.segments)
        self._finish(backup)
        self._store.put(entry.object_name(INVENTORY_SUFFIX), [data])
""",
        tests=(f"{BACKUP}::test_a_store_that_fails_at_any_write_leaves_no_incomplete_backup",),
    ),
    Plant(
        bug="a range that was only started is part of a backup",
        path=f"{REMOTE}/manifest.py",
        old="if entry.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:",
        new="if entry.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:",
        tests=(f"{BACKUP}::test_a_store_that_fails_at_any_write_leaves_no_incomplete_backup",),
    ),
    Plant(
        bug="a range of an earlier backup is used again without a look at its last batch",
        path=f"{REMOTE}/backup.py",
        old="return crc32c(header) == one.last_batch_crc32c",
        new="return len(header) == BATCH_HEADER_BYTES",
        tests=(f"{BACKUP}::test_a_segment_that_was_truncated_is_uploaded_again",),
    ),
    Plant(
        bug="a range that is truncated during its upload is part of a backup",
        path=f"{REMOTE}/backup.py",
        old="        if not _matches(new, file):\n",
        new="        if file.byte_count() == 0:\n",
        tests=(
            f"{BACKUP}::test_a_log_that_is_truncated_meanwhile_is_backed_up_as_it_was_at_one_moment",
        ),
    ),
    Plant(
        bug="a segment that retention deletes meanwhile is part of a backup",
        path=f"{REMOTE}/backup.py",
        old="            if self._size_of(base) != size:\n",
        new="            if self._sizes[base] != size:\n",
        tests=(f"{BACKUP}::test_a_segment_that_retention_deletes_meanwhile_is_left_out",),
    ),
    Plant(
        bug="a snapshot that is replaced during a backup is not part of it",
        path=f"{REMOTE}/backup.py",
        old="                elif name in names:\n",
        new="                elif not name:\n",
        tests=(f"{BACKUP}::test_a_snapshot_that_is_replaced_meanwhile_is_in_the_backup",),
    ),
    Plant(
        bug="any one of two backups at the same time is restored",
        path=f"{REMOTE}/segment_metadata.py",
        old="return self.ordinal, last_epoch, entry.last_offset, entry.segment_id",
        new="return self.ordinal, last_epoch, 0, entry.segment_id",
        tests=(
            f"{BACKUP}"
            "::test_of_two_backups_at_the_same_time_the_one_with_the_greater_end_is_restored",
        ),
    ),
    Plant(
        bug="a listing of objects is empty if an object is completed meanwhile",
        path="connector/raftlog/storage/objects.py",
        old="            if entry.endswith(_TEMPORARY_SUFFIX):",
        new="            if not entry:",
        tests=(f"{OBJECTS}::test_an_object_that_is_completed_during_a_listing_hides_no_other",),
    ),
    Plant(
        bug="an object of a backup is not compared with its CRC",
        path=f"{REMOTE}/objects.py",
        old="    elif actual_crc != crc:\n",
        new="    elif actual_crc != crc and not actual_count:\n",
        tests=(f"{HOSTILE}::test_an_inventory_with_false_fields_is_refused",),
    ),
    Plant(
        bug="the inventory of a backup may name any file",
        path=f"{REMOTE}/inventory.py",
        old="if name in SMALL_NAMES or is_indexed or",
        new="if name or name in SMALL_NAMES or is_indexed or",
        tests=(f"{HOSTILE}::test_an_inventory_with_false_fields_is_refused",),
    ),
    Plant(
        bug="ranges of a backup may overlap",
        path=f"{REMOTE}/restore.py",
        old="if one.base_offset != segment.base_offset or not follows:",
        new="if not follows and one.base_offset < 0:",
        tests=(f"{HOSTILE}::test_an_inventory_with_false_fields_is_refused",),
    ),
    Plant(
        bug="a directory restored from a backup has its name before its segments are durable",
        path=f"{REMOTE}/restore.py",
        old="            file.sync()\n        self._byte_count += position\n",
        new="        self._byte_count += position\n",
        tests=(f"{BACKUP}::test_a_crash_of_a_restore_leaves_the_directory_complete_or_absent",),
    ),
    Plant(
        bug="a log that is cut by a restore of a backup keeps the epochs after its end",
        path=f"{REMOTE}/inventory.py",
        old="        fitted = epochs.without_from(end_offset)\n",
        new="        fitted = epochs\n",
        tests=(f"{BACKUP}::test_epochs_after_the_end_of_a_log_that_is_cut_are_not_restored",),
    ),
    Plant(
        bug="the backup of another log is extended",
        path=f"{REMOTE}/backup.py",
        old="        if previous.topic_partition != self._partition:\n",
        new="        if previous.topic_partition == self._partition:\n",
        tests=(f"{BACKUP}::test_a_location_has_the_backups_of_one_log",),
    ),
    Plant(
        bug="a store that cannot be read hides the lag of copies",
        path=f"{REMOTE}/tiering.py",
        old="        if self._is_leader:  # counted again",
        new="        if False:  # counted again",
        tests=(
            "tests/log/remote/test_tiering.py::test_the_lag_of_a_store_that_cannot_be_read_grows",
        ),
    ),
    Plant(
        bug="a disk that is full before the first run of remote storage ends the node",
        path="connector/raftlog/node/raft_node.py",
        old="""cache=self._manifest_cache
            )
        except (CorruptFileError, DiskFullError) as error:
""",
        new="""cache=self._manifest_cache
            )
        except CorruptFileError as error:
""",
        tests=(
            "tests/node/apis/test_remote_storage.py::"
            "test_a_full_disk_refuses_a_run_of_remote_storage_only",
        ),
    ),
    Plant(
        bug="damaged properties end a node at its next run of remote storage",
        path="connector/raftlog/node/raft_node.py",
        old="        except (CorruptFileError, DiskFullError) as error:\n"
        "            self.counts.remote",
        new="        except DiskFullError as error:\n            self.counts.remote",
        tests=(
            "tests/node/apis/test_remote_storage.py::"
            "test_damaged_properties_refuse_a_run_of_remote_storage_only",
        ),
    ),
    Plant(
        bug="a replica reads its list of remote segments for each response of the leader",
        path="connector/raftlog/log/writing/segments.py",
        old="            self._is_chain_known = self.is_exclusive\n",
        new="            self._is_chain_known = False\n",
        tests=(
            "tests/node/apis/test_remote_storage.py::"
            "test_a_follower_does_not_read_its_list_of_remote_segments_for_each_response",
        ),
    ),
    Plant(
        bug="a replica reads a damaged list of remote segments for each response of the leader",
        path="connector/raftlog/log/writing/segments.py",
        old="                self._remote_chain = error\n",
        new="                raise error\n",
        tests=(
            "tests/node/apis/test_tiered_deletion.py::test_a_follower_with_a_damaged_list_of_"
            "remote_segments_deletes_once_it_is_written_again",
        ),
    ),
    Plant(
        bug="a leader sends its local start, so that followers drop their remote segments",
        path="connector/raftlog/quorum/leadership.py",
        old="            log_start_offset=state.log.earliest_offset,\n",
        new="            log_start_offset=state.log.log_start_offset,\n",
        tests=(
            "tests/node/apis/test_tiered_deletion.py::"
            "test_a_node_without_remote_storage_does_not_follow_the_local_start_of_the_leader",
        ),
    ),
    Plant(
        bug="a leader without a list of remote segments sends its local start",
        path="connector/raftlog/log/writing/remote_storage.py",
        old="            return None if local_start and self._config.remote_storage_enable else ",
        new="            return ",
        tests=(
            "tests/node/apis/test_tiered_deletion.py::"
            "test_a_voter_that_does_not_know_its_remote_segments_yet_delays_the_response",
        ),
    ),
    Plant(
        bug="an offset below the start of a follower is OFFSET_OUT_OF_RANGE",
        path="connector/raftlog/node/apis/metadata_cache.py",
        old="        if offset < self.remote.start_offset:\n"
        "            return ErrorCode.not_leader_or_follower\n",
        new="        if offset < self.remote.start_offset:\n"
        "            return ErrorCode.offset_out_of_range\n",
        tests=(
            f"{FOLLOWERS}::"
            "test_a_follower_without_the_list_of_remote_segments_sends_consumers_to_the_leader",
        ),
    ),
    Plant(
        bug="a fetch that is redirected to a follower reads from remote storage first",
        path="connector/raftlog/node/apis/fetch.py",
        old="if one.is_remote and not one.is_final), None)",
        new="if one.is_remote), None)",
        tests=(f"{FOLLOWERS}::test_a_redirected_fetch_does_not_read_remote_storage",),
    ),
    Plant(
        bug="a read from remote storage has no time limit",
        path="connector/raftlog/node/apis/remote_reads.py",
        old="self._raft_node.expire_after(limit_ms, expire)",
        new="self._raft_node.expire_after(limit_ms + 10**9, expire)",
        tests=(
            "tests/node/apis/test_remote_storage.py::"
            "test_a_read_that_a_store_does_not_answer_is_an_error_after_the_time_limit",
        ),
    ),
    Plant(
        bug="a snapshot that is installed during a run of remote storage is followed by no other",
        path="connector/raftlog/node/raft_node.py",
        old="        if self._is_remote_run_outdated:\n",
        new="        if self._is_remote_run_outdated and self._is_over:\n",
        tests=(
            "tests/node/apis/test_remote_storage.py::"
            "test_a_snapshot_that_is_installed_during_a_run_is_followed_by_another_run",
        ),
    ),
    Plant(
        bug="what a compaction of a manifest supersedes is deleted before its readers have ended",
        path=f"{REMOTE}/compaction.py",
        old="        if now_ms - superseded[partition].time_ms >= LISTING_MS_MAX:\n",
        new="        if now_ms >= superseded[partition].time_ms:\n",
        tests=(
            "tests/log/remote/test_manifest_compaction.py::"
            "test_a_manifest_of_many_objects_becomes_one_of_few_with_the_same_entries",
        ),
    ),
    Plant(
        bug="objects of a running backup are pruned",
        path=f"{REMOTE}/pruning.py",
        old="    named |= {one.segment_id for one in entries} -",
        new="    named &= {one.segment_id for one in entries} -",
        tests=("tests/log/remote/test_pruning.py::test_a_store_may_be_pruned_while_a_backup_runs",),
    ),
    Plant(
        bug="a rescue keeps uncommitted records instead of committed ones in remote storage",
        path="connector/raftlog/node/remote_tail.py",
        old="    is_ahead = (epoch, end) > (last_epoch, end_offset)\n",
        new="    is_ahead = end > max(end_offset, 10**9)\n",
        tests=(
            "tests/node/test_rescued_tiered_logs.py::"
            "test_committed_records_that_only_the_store_has_follow_the_survivor",
        ),
    ),
    Plant(
        bug="local segments are deleted that were not copied",
        path="connector/raftlog/log/writing/snapshots.py",
        old="    return 0 if chain is None else chain.copied_end_offset\n",
        new="    return 0 if chain is None else INT64_MAX\n",
        tests=(
            "tests/simulation/test_simulation.py::"
            "test_remote_segments_are_readable_under_random_faults[None-4]",
        ),
    ),
    Plant(
        bug="producers stored locally are those at the end of the remote segment that begins there",
        path="connector/raftlog/log/reading/files.py",
        old="            path = self._local_path(offset, PRODUCER_SNAPSHOT_SUFFIX)\n",
        new="            path = self.segment_path(offset, PRODUCER_SNAPSHOT_SUFFIX)\n",
        tests=(
            "tests/log/remote/test_tiering.py::"
            "test_producers_that_are_left_after_their_local_segments_are_not_those_at_the_remote_ends",
        ),
    ),
    Plant(
        bug="a restored log lacks keys that a compaction has removed after its end",
        path=f"{REMOTE}/restore.py",
        old="                if compacted_offset <= to_offset:\n",
        new="                if compacted_offset >= 0:\n",
        tests=(
            f"{BACKUP}::test_a_compacted_log_is_restored_only_up_to_an_offset_whose_keys_it_has",
        ),
    ),
)
