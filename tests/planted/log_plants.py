"""Bugs of a single log, each with the tests that must find it.

Those of a quorum are in ``quorum_plants``. The rules are in ``plant``.
"""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

GROUPS: Final = "tests/append/test_group_writes.py"
KEYS: Final = "tests/log/writing/test_key_offsets.py"
WRITING: Final = "connector/raftlog/log/writing"
CLIENT: Final = "connector/raftlog/client"
INVARIANTS: Final = "tests/log/writing/test_log_invariants.py"


LOG_PLANTS: Final = (
    # --- conditions on keys -------------------------------------------------------------------
    Plant(
        bug="keys are compared without the tombstones that a compaction has dropped",
        path=f"{WRITING}/segments.py",
        old="max(start_offset, min(self.directory.compacted_offset(), end_offset))",
        new="start_offset",
        tests=(f"{KEYS}::test_tombstones_that_a_compaction_has_dropped_are_not_overlooked",),
    ),
    Plant(
        bug="a new leader compares keys with batches that another one may have compacted",
        path=f"{WRITING}/quorum_log.py",
        old="epochs[-1].start_offset if epochs else 0,",
        new="0,",
        tests=(f"{KEYS}::test_a_new_leader_refuses_what_was_read_before_its_epoch_once",),
    ),
    Plant(
        bug="keys are compared with truncated records",
        path=f"{WRITING}/segments.py",
        old="        self._key_offsets = None\n        self.log_start_offset = recovered",
        new="        self.log_start_offset = recovered",
        tests=(f"{KEYS}::test_truncated_records_change_no_key",),
    ),
    Plant(
        bug="a key that was evicted counts as unchanged",
        path=f"{WRITING}/key_offsets.py",
        old="        self.start_offset = max(self._offsets.pop(oldest)[0] + 1, self.start_offset)",
        new="        self._offsets.pop(oldest)",
        tests=(f"{KEYS}::test_a_random_history_accepts_unchanged_keys_only",),
    ),
    Plant(
        bug="a condition is compared without the earlier appends of its group",
        path="connector/raftlog/append.py",
        old="self.write()  # the earlier appends of the group, which may change the keys",
        new="pass",
        tests=(f"{KEYS}::test_appends_of_one_group_are_compared_with_those_before_them",),
    ),
    Plant(
        bug="a key is refused by records that are not committed",
        path="connector/raftlog/node/pending_appends.py",
        old="    KeyChangedError,\n    StaleCommitError,",
        new="    StaleCommitError,",
        tests=("tests/node/apis/test_unchanged_keys.py",),
    ),
    # --- acknowledgements ---------------------------------------------------------------------
    Plant(
        bug="an append is answered before its sync",
        path="connector/raftlog/client/embedded/writer.py",
        old="""            if log.end_offset != log.synced_end_offset:
                log.flush()
""",
        new="",
        tests=(
            "tests/client/embedded/test_group_commit.py::test_acknowledged_appends_survive_any_power_loss",
        ),
    ),
    Plant(
        bug="an end is published before it is synced",
        path=f"{WRITING}/replicated_log.py",
        old="""        try:
            pending.run()
        except LogError as error:
            self.fail_sync(pending, error)
            raise
        self.complete_sync(pending)
""",
        new="""        self.complete_sync(pending)
        try:
            pending.run()
        except LogError as error:
            self._fail(error)
            raise
""",
        tests=("tests/log/crash/test_crash_points.py::test_a_sample_of_crash_points",),
    ),
    Plant(
        bug="a failed sync counts as a sync",
        path=f"{WRITING}/replicated_log.py",
        old="""            self.fail_sync(pending, error)
            raise
""",
        new="""            pending.segment.end_sync()
            pending.segment.begin_sync()
            assert error
""",
        tests=(
            "tests/client/embedded/test_group_commit.py::test_a_failed_sync_makes_its_group_unknown_and_closes_the_log",
        ),
    ),
    Plant(
        bug="a reader sees unpublished batches",
        path="connector/raftlog/log/reading/directory_log.py",
        old="storage.boot_id())\n        if published is None:\n",
        new="storage.boot_id())\n        if published is None or published.epoch:\n",
        tests=("tests/client/embedded/test_readers_of_embedded_logs.py",),
    ),
    # --- rights to append ---------------------------------------------------------------------
    Plant(
        bug="the required offset is checked before the group, apart from the assignment of offsets",
        path="connector/raftlog/append.py",
        old="            required_base_offset=request.required_base_offset,\n",
        new="""            required_base_offset=(
                request.required_base_offset
                if request.required_base_offset != self._log.end_offset
                else None
            ),
""",
        tests=(
            "tests/client/embedded/test_group_commit.py::test_of_conflicting_appends_in_one_group_the_first_wins",
        ),
    ),
    Plant(
        bug="the required offset is checked before the name of the commit",
        path="connector/raftlog/append.py",
        old="        if duplicate is not None:\n",
        new="        if duplicate is not None and not request.has_required_offset:\n",
        tests=(
            "tests/client/embedded/test_handle.py::test_a_repeated_commit_is_recognised_before_its_required_offset_is_checked",
        ),
    ),
    Plant(
        bug="the epoch of an append is not checked",
        path="connector/raftlog/append.py",
        old="        epoch = current if request.epoch is None else request.epoch\n",
        new="        epoch = current\n",
        tests=(
            "tests/client/embedded/test_handle.py::test_a_claim_fences_appends_with_an_older_epoch",
        ),
    ),
    Plant(
        bug="the lock of writers is not shared by processes",
        path="connector/raftlog/client/embedded/writer.py",
        old="self._lock_path = storage.join(directory, LOCK_NAME)",
        new='self._lock_path = storage.join(directory, f"{LOCK_NAME}{id(self)}")',
        tests=(
            "tests/client/embedded/test_handle.py::test_an_append_that_times_out_on_the_lock_changes_nothing",
        ),
    ),
    Plant(
        bug="a writer does not read the appends of others",
        path="connector/raftlog/client/embedded/writer.py",
        old="            self._log.refresh(now_ms=now_ms)\n        except",
        new="            self._log._check_open()\n        except",
        tests=(
            "tests/client/embedded/test_group_commit.py::test_two_writers_see_each_others_appends",
        ),
    ),
    Plant(
        bug="a writer does not detect that the log was created again elsewhere",
        path=f"{WRITING}/single_voter_log.py",
        old="            and published.log_start_offset <= self.log_start_offset\n",
        new="",
        tests=("tests/log/writing/test_shared_directory.py",),
    ),
    Plant(
        bug="an older version of a commit is appended again",
        path=f"{WRITING}/producer_state.py",
        old="        if name.version < self.name.version:\n",
        new="        if name.version < 0:\n",
        tests=("tests/client/embedded/test_handle.py::test_older_and_foreign_commits_are_refused",),
    ),
    Plant(
        bug="a producer of an older epoch is not fenced",
        path=f"{WRITING}/producer_state.py",
        old="        if producer_epoch < self.producer_epoch:\n",
        new="        if producer_epoch < 0:\n",
        tests=("tests/log/producer_state/test_idempotent_producers.py",),
    ),
    Plant(
        bug="the metadata of an appended batch lacks its commit",
        path="connector/raftlog/append.py",
        old="encoded_metadata(one, values, commit=name, markers=markers)",
        new="encoded_metadata(one, values, markers=markers)",
        tests=("tests/append/test_append_batch.py",),
    ),
    Plant(
        bug="the metadata of an appended batch has the markers of other batches",
        path="connector/raftlog/log/reading/transactions.py",
        old="one in markers if batch.base_offset <= one.offset <= batch.last_offset)",
        new="one in markers)",
        tests=("tests/append/test_append_batch.py",),
    ),
    Plant(
        bug="a user's own transaction names no commit until the log is read again",
        path="connector/raftlog/log/reading/transactions.py",
        old="""    if values is ValueKind.KRAFT:
        commit = _commit_of_transaction(batch, own)
""",
        new="",
        tests=("tests/append/test_append_batch.py",),
    ),
    Plant(
        bug="the appends of one producer in a group are not checked against each other",
        path="connector/raftlog/append.py",
        old="            self._pending.add_producer_batch(\n",
        new="            self._log.producer_state.begin_pending().add_producer_batch(\n",
        tests=(GROUPS,),
    ),
    Plant(
        bug="the commits of one application id in a group are not checked against each other",
        path="connector/raftlog/append.py",
        old="            self._pending.add_commit(",
        new="            self._log.producer_state.begin_pending().add_commit(",
        tests=(GROUPS,),
    ),
    Plant(
        bug="a repeat of an append without disk space is acknowledged",
        path="connector/raftlog/append.py",
        old="    if result.last_offset < end_offset:\n",
        new="    if result.was_duplicate or result.last_offset < end_offset:\n",
        tests=(GROUPS,),
    ),
    Plant(
        bug="an append is refused because of one without disk space",
        path="connector/raftlog/append.py",
        old="depends_on_unwritten_records = isinstance(error, _ABOUT_IDENTITIES) or (",
        new="depends_on_unwritten_records = (",
        tests=(GROUPS,),
    ),
    Plant(
        bug="a full disk leaves index entries of batches that were not written",
        path=f"{WRITING}/active_segment.py",
        old="            self._indexer.restore(self._mark)\n",
        new="",
        tests=("tests/log/writing/test_full_disk.py", "tests/log/writing/test_replicated_log.py"),
    ),
    Plant(
        bug="batches of two segments are one write",
        path=f"{WRITING}/replicated_log.py",
        old="                    self._write(batches[start:index], epochs)\n",
        new="                    pass\n",
        tests=(GROUPS,),
    ),
    Plant(
        bug="an atomic append is split over batches",
        path="connector/raftlog/append.py",
        old="        if request.is_atomic or request.needs_own_batch:\n",
        new="        if request.needs_own_batch:\n",
        tests=(
            "tests/client/embedded/test_handle.py::test_an_atomic_append_is_one_batch_or_refused",
        ),
    ),
    Plant(
        bug="a duplicate sequence is appended again",
        path=f"{WRITING}/producer_state.py",
        old="        if producer_id < 0:\n",
        new="        if producer_id:\n",
        tests=("tests/client/embedded/test_handle.py::test_producer_sequences_are_checked",),
    ),
    Plant(
        bug="a gap in a producer's sequences is accepted",
        path=f"{WRITING}/producer_state.py",
        old="        if base_sequence == expected:\n",
        new="        if base_sequence >= expected:\n",
        tests=("tests/log/producer_state/test_idempotent_producers.py",),
    ),
    Plant(
        bug="only a producer's last batch survives a restart",
        path=f"{WRITING}/producer_state.py",
        old="tuple(entry.batches[:-1] for entry in self.producers)",
        new="tuple(entry.batches[:0] for entry in self.producers)",
        tests=("tests/log/producer_state/test_producer_snapshots.py",),
    ),
    Plant(
        bug="the last stable offset ignores open transactions",
        path=f"{WRITING}/producer_state.py",
        old="        return self._transactions.last_stable_offset(high_watermark)\n",
        new="        return high_watermark\n",
        tests=("tests/log/producer_state/test_open_transactions.py",),
    ),
    Plant(
        bug="a later epoch leaves an open transaction open",
        path=f"{WRITING}/replicated_log.py",
        old="if self._producer_state.open_transaction is not None:\n",
        new="if self._producer_state.open_transaction is not None and self.is_read_only:\n",
        tests=("tests/client/embedded/test_handle.py::test_a_claim_aborts_an_open_transaction",),
    ),
    Plant(
        bug="a follower appends a batch that does not continue its log",
        path=f"{WRITING}/quorum_log.py",
        old="""            if batch.base_offset != expected:
                raise LogGapError(""",
        new="""            if batch.base_offset > expected:
                raise LogGapError(""",
        tests=(
            "tests/log/recovery/test_kafka_3919.py::test_a_batch_that_overlaps_the_end_is_refused_on_append",
        ),
    ),
    Plant(
        bug="committed records are truncated",
        path=f"{WRITING}/quorum_log.py",
        old="        if offset < self.high_watermark:\n",
        new="        if offset < self.log_start_offset:\n",
        tests=("tests/log/writing/test_truncation.py::test_committed_records_are_not_truncated",),
    ),
    # --- order of syncs -----------------------------------------------------------------------
    Plant(
        bug="the recovery point is above the synced end: a segment is not synced when it is sealed",
        path=f"{WRITING}/active_segment.py",
        old="        self._truncate_indexes()\n"
        "        for file in (self.file, self._offset_index, ",
        new="        self._truncate_indexes()\n        for file in (self._offset_index, ",
        tests=(
            "tests/log/writing/test_replicated_log.py::test_the_recovery_point_is_never_above_the_synced_end",
        ),
    ),
    Plant(
        bug="a directory is not synced after a rename",
        path=f"{WRITING}/atomic_files.py",
        old="    storage.sync_directory(storage.split(path)[0])\n",
        new="",
        tests=("tests/storage/test_atomic_files.py",),
    ),
    Plant(
        bug="the parent of a new log's directory is not synced",
        path=f"{WRITING}/replicated_log.py",
        old="        storage.sync_directory(storage.split(directory)[0])  #",
        new="        #",
        tests=("tests/log/crash/test_crash_points.py::test_a_sample_of_crash_points",),
    ),
    Plant(
        bug="a small file is renamed before it is synced",
        path=f"{WRITING}/atomic_files.py",
        old="                position += len(chunk)\n            file.sync()\n",
        new="                position += len(chunk)\n",
        tests=("tests/storage/test_atomic_files.py",),
    ),
    Plant(
        bug="the checksums of small files are not written",
        path=f"{WRITING}/atomic_files.py",
        old="    if checksums != before:\n",
        new="    if not before:\n",
        tests=("tests/storage/test_atomic_files.py",),
    ),
    Plant(
        bug="a snapshot is renamed before it is synced",
        path=f"{WRITING}/snapshots.py",
        old="        if self._synced_byte_count != self.byte_count:\n            self.sync()\n",
        new="",
        tests=("tests/log/writing/test_snapshot_files.py",),
    ),
    Plant(
        bug="an epoch has batches before it is durable",
        path=f"{WRITING}/segments.py",
        old="""            self.directory.write_epochs(epochs)
            self.epochs = epochs
            self._is_epoch_reverted = False
""",
        new="""            self.epochs = epochs
            self._is_epoch_reverted = False
""",
        tests=(
            "tests/log/writing/test_replicated_log.py::test_appended_records_are_read_after_a_clean_shutdown",
            "tests/log/writing/test_shared_directory.py",
        ),
    ),
    Plant(
        bug="segments are deleted before the log's start is durable",
        path=f"{WRITING}/segments.py",
        old="            self.directory.write_log_start(offset)\n",
        new="",
        tests=("tests/log/writing/test_snapshot_files.py",),
    ),
    Plant(
        bug="segments above a new end are deleted in any order",
        path=f"{WRITING}/segments.py",
        old="            self.directory.sync()  # one by one: a crash must leave no gap\n",
        new="",
        tests=(
            "tests/log/writing/test_truncation.py::test_an_interrupted_truncation_leaves_a_log_that_can_be_truncated_again",
        ),
    ),
    Plant(
        bug="a log is truncated while its recovery point stays above the new end",
        path=f"{WRITING}/segments.py",
        old="        if self.recovery_point > end_offset:\n",
        new="        if self.recovery_point < end_offset:\n",
        tests=("tests/log/writing/test_truncation.py",),
    ),
    # --- recovery -----------------------------------------------------------------------------
    Plant(
        bug="a tail is truncated below the recovery point",
        path="connector/raftlog/log/recovery/load_log.py",
        old="        if end >= durable and not self._is_contradicted:\n",
        new="        if not self._is_contradicted:\n",
        tests=(
            "tests/log/recovery/test_recovery.py::test_damage_below_the_recovery_point_makes_a_log_read_only",
        ),
    ),
    Plant(
        bug="recovery evicts a producer whose later batches it has left out",
        path="connector/raftlog/log/recovery/load_log.py",
        old="    if not len(rows) or known_count + len(starts) > PRODUCERS_MAX:\n",
        new="    if not len(rows):\n",
        tests=("tests/log/recovery/test_replayed_producers.py",),
    ),
    Plant(
        bug="recovery forgets the commit of the application id whose last use is the oldest",
        path="connector/raftlog/log/recovery/load_log.py",
        old="    while len(known) < COMMITS_MAX and (at",
        new="    while len(known) < COMMITS_MAX - 1 and (at",
        tests=("tests/log/recovery/test_replayed_producers.py",),
    ),
    Plant(
        bug="half a batch is kept",
        path="connector/raftlog/log/recovery/load_log.py",
        old="        if not stop.byte_count:\n",
        new="        if not stop.byte_count or stop.kind is ScanEnd.TORN:\n",
        tests=(
            "tests/log/recovery/test_recovery.py::test_a_torn_tail_is_backed_up_truncated_and_reported",
        ),
    ),
    Plant(
        bug="a tail is truncated without a backup",
        path=f"{WRITING}/atomic_files.py",
        old="    saved_as = back_up(storage, path, position)\n    with",
        new="    saved_as = None\n    with",
        tests=(
            "tests/log/recovery/test_recovery.py::test_a_torn_tail_is_backed_up_truncated_and_reported",
        ),
    ),
    Plant(
        bug="the backup of a tail is not durable before the tail is truncated",
        path=f"{WRITING}/atomic_files.py",
        old="                position += len(chunk)\n            file.sync()\n",
        new="                position += len(chunk)\n",
        tests=(
            "tests/log/recovery/test_recovery.py::test_a_torn_tail_is_backed_up_truncated_and_reported",
        ),
    ),
    Plant(
        bug="a truncation whose sync failed counts as durable",
        path="connector/raftlog/log/recovery/load_log.py",
        old="                    file.truncate(segment.metadata.byte_count)\n",
        new="",
        tests=("tests/log/writing/test_quorum_log.py",),
    ),
    Plant(
        bug="an epoch without batches hides that of the snapshot before it",
        path="connector/raftlog/log/recovery/load_log.py",
        old="        if is_all_deleted and [",
        new="        if False and [",
        tests=("tests/log/writing/test_quorum_log.py",),
    ),
    Plant(
        bug="unsynced batches of a dead writer are kept by the next one",
        path="connector/raftlog/log/recovery/load_log.py",
        old="        return ScanRules(epochs=self._checkpoints.epochs, end_offset=limit)\n",
        new="        return ScanRules(epochs=self._checkpoints.epochs)\n",
        tests=(
            "tests/log/recovery/test_recovery.py::test_unsynced_batches_of_a_dead_writer_of_this_boot_are_truncated",
        ),
    ),
    Plant(
        bug="a published end of an earlier boot is used",
        path="connector/raftlog/log/format/directory.py",
        old="return published if published.boot_id == boot_id else None",
        new="return published",
        tests=(
            "tests/client/embedded/test_published.py::test_a_line_is_valid_only_for_the_boot_that_wrote_it",
        ),
    ),
    Plant(
        bug="an index is used unchecked by the next writer",
        path=f"{WRITING}/active_segment.py",
        old="            if not segment.is_entry_valid(self.file, delta, position):\n",
        new="            if not segment:\n",
        tests=(
            "tests/log/writing/test_replicated_log.py::test_an_index_with_a_wrong_last_entry_is_rebuilt",
        ),
    ),
    Plant(
        bug="an index is used unchecked by readers",
        path="connector/raftlog/log/reading/files.py",
        old="batch is not None and batch.last_offset == int(index.last_offsets[ordinal])\n",
        new="batch is not None\n",
        tests=(
            "tests/log/crash/test_bit_flips.py::test_a_wrong_entry_of_an_offset_index_never_hides_a_batch",
        ),
    ),
    Plant(
        bug="a clean shutdown file is used although the log does not match it",
        path="connector/raftlog/log/recovery/recover.py",
        old="""        segment = Segment.of_file(storage, directory, clean.segment_base_offset)
        if segment.byte_count != clean.byte_count:
            return False
""",
        new="""        base = clean.segment_base_offset
        segment = Segment(storage, directory, base, clean.byte_count)
""",
        tests=(
            "tests/log/recovery/test_recovery.py::test_a_clean_shutdown_file_of_an_earlier_end_is_ignored",
        ),
    ),
    Plant(
        bug="a producer snapshot above the truncated end is used",
        path="connector/raftlog/log/recovery/recover.py",
        old="    return (source for source in found if source[0] <= offset_max)\n",
        new="    return iter(found)\n",
        tests=(
            "tests/log/recovery/test_recovery.py::test_a_producer_snapshot_above_the_truncated_end_is_ignored",
        ),
    ),
    # --- invariants ---------------------------------------------------------------------------
    Plant(
        bug="a roll keeps the synced position of the segment before it",
        path=f"{WRITING}/replicated_log.py",
        old="        self._sync.roll()\n",
        new="",
        tests=(INVARIANTS,),
    ),
    Plant(
        bug="batches of another process are missing in the producer state",
        path=f"{WRITING}/single_voter_log.py",
        old="""        self._producer_state.apply(metadata)
        self._segments.epochs""",
        new="        self._segments.epochs",
        tests=(f"{INVARIANTS}::test_a_log_that_follows_another_process_is_checked",),
    ),
    Plant(
        bug="the synced position advances without its offset",
        path=f"{WRITING}/active_segment.py",
        old="            self.end_offset, self.position = end_offset, position\n",
        new="            self.position = position\n",
        tests=(INVARIANTS,),
    ),
    Plant(
        bug="a log with a violated invariant stays open",
        path=f"{WRITING}/replicated_log.py",
        old="""            self._release("an invariant of the log is violated")
""",
        new="",
        tests=(INVARIANTS,),
    ),
    Plant(
        bug="a log is not checked after an append that did not fit",
        path=f"{WRITING}/replicated_log.py",
        old="        elif self._closed is None:\n            self._check_invariants()\n",
        new="",
        tests=(f"{INVARIANTS}::test_an_append_that_did_not_fit_is_followed_by_a_check",),
    ),
    Plant(
        bug="the segments of a log are not checked after a change",
        path=f"{WRITING}/replicated_log.py",
        old="            segments.check_invariants(end)\n",
        new="",
        tests=(INVARIANTS,),
    ),
)
