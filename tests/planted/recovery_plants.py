"""Bugs in writing, recovery and retention of a log's files, and the tests that must find them."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

WRITING: Final = "connector/raftlog/log/writing"
LOG: Final = "connector/raftlog/log"

RECOVERY_PLANTS: Final = (
    Plant(
        bug="a process appends at the end that it knew before a repair",
        path="connector/raftlog/log/writing/single_voter_log.py",
        old="        if was_repaired or published is None",
        new="        if published is None",
        tests=(
            "tests/log/writing/test_shared_directory.py"
            "::test_a_repair_and_appends_up_to_the_old_end_offset_are_known",
        ),
    ),
    # --- snapshots --------------------------------------------------------------------------------
    Plant(
        bug="the lock of snapshots is released immediately",
        path=f"{WRITING}/snapshots.py",
        old="        self._lock = lock\n",
        new="        self._lock = lock\n        lock.release()\n",
        tests=(
            "tests/log/writing/test_snapshot_lock.py"
            "::test_retention_waits_while_a_snapshot_is_fetched_and_then_installed",
        ),
    ),
    Plant(
        bug="a snapshot writer whose close fails keeps the lock",
        path=f"{WRITING}/snapshots.py",
        old="        finally:\n            self._lock.release()\n",
        new="        except LogError:\n            raise\n        self._lock.release()\n",
        tests=(
            "tests/log/writing/test_snapshot_lock.py"
            "::test_a_writer_whose_close_fails_releases_the_lock_for_the_next_one",
        ),
    ),
    Plant(
        bug="recovery deletes the partial files of a live writer",
        path=f"{WRITING}/segments.py",
        old="""            if lock is not None:
                with lock:
                    self.unlink_suffix(suffix)
""",
        new="""            self.unlink_suffix(suffix)
            if lock is not None:
                lock.release()
""",
        tests=(
            "tests/log/writing/test_snapshot_lock.py"
            "::test_a_truncation_does_not_affect_the_snapshot_being_written",
            "tests/log/cleaning/test_compaction.py"
            "::test_segments_are_replaced_after_a_repair_has_truncated_later_ones",
        ),
    ),
    Plant(
        bug="an abandoned fetch of a snapshot holds the lock forever",
        path="connector/raftlog/node/replica.py",
        old="        if not isinstance(role, Follower) or role.snapshot is None:\n",
        new="        if isinstance(role, Follower) and role.snapshot is None:\n",
        tests=(
            "tests/log/writing/test_snapshot_lock.py"
            "::test_a_replica_that_stopped_fetching_yields_to_its_own_snapshot",
        ),
    ),
    # --- the active segment -----------------------------------------------------------------------
    Plant(
        bug="a roll that is refused leaves a file of the next segment open",
        path=f"{WRITING}/active_segment.py",
        old="                files.append(opened.enter_context(open_or_create(storage, path)))\n",
        new="                files.append(open_or_create(storage, path))\n",
        tests=(
            "tests/log/writing/test_full_disk.py::test_a_roll_without_disk_space_leaves_no_file_open",
        ),
    ),
    Plant(
        bug="a seal without disk space counts unwritten time entries as written",
        path=f"{WRITING}/active_segment.py",
        old="""            self._indexer.restore(mark)
            self._truncate_indexes()
            raise
        self._truncate_indexes()
""",
        new="""            raise
        self._truncate_indexes()
""",
        tests=(
            "tests/log/writing/test_full_disk.py"
            "::test_a_seal_without_disk_space_leaves_whole_time_entries_and_is_completed_later",
        ),
    ),
    # --- epochs -----------------------------------------------------------------------------------
    Plant(
        bug="every assignment of an epoch scans all epochs",
        path="connector/raftlog/log/format/epoch_cache.py",
        old="""            while entries and not (
                entries[-1].epoch < epoch and entries[-1].start_offset < start_offset
            ):
                entries.pop()
""",
        new="""            entries = [
                one
                for one in entries
                if one.epoch < epoch and one.start_offset < start_offset
            ]
""",
        tests=(
            "tests/log/test_epoch_cache.py"
            "::test_assigning_an_epoch_takes_a_few_comparisons_however_many_there_are",
        ),
    ),
    # --- the search after a torn tail -------------------------------------------------------------
    Plant(
        bug="every candidate after a torn tail is read completely",
        path="connector/raftlog/log/reading/chunks.py",
        old="""    valid: list[int] = candidates["start"][crcs == candidates["crc"]].tolist()
""",
        new="""    valid: list[int] = candidates["start"][crcs == crcs].tolist()
""",
        tests=("tests/log/test_find_valid_batch.py::test_the_cost_is_linear_in_false_headers",),
    ),
    Plant(
        bug="a batch in the payload of a torn one is taken for the next batch",
        path="connector/raftlog/log/reading/chunks.py",
        old="        allowed: Bools = starts >= self._claimed_end\n",
        new="        allowed: Bools = starts >= 0\n",
        tests=(
            "tests/log/test_find_valid_batch.py::test_the_result_equals_that_of_trying_every_position",
        ),
    ),
    # --- reports ----------------------------------------------------------------------------------
    Plant(
        bug="every error that closes a log is reported as a failed disk",
        path=f"{WRITING}/replicated_log.py",
        old='''        case LogAccessError():
            return "the file system denied access"''',
        new='''        case LogAccessError():
            return "its disk failed"''',
        tests=(
            "tests/log/writing/test_closed_log_errors.py"
            "::test_a_log_that_closed_itself_reports_the_cause_and_a_remedy",
        ),
    ),
    # --- file modes -------------------------------------------------------------------------------
    Plant(
        bug="a snapshot is created readable for all, and private afterwards",
        path="connector/raftlog/client/location.py",
        old="    files = PrivateLocalStorage()\n",
        new="""    from raftlog.storage.local import WritableLocalStorage

    files = WritableLocalStorage()
""",
        tests=(
            "tests/client/embedded/test_file_modes.py::test_a_snapshot_is_private_before_its_first_byte",
        ),
    ),
    Plant(
        bug="files of a private directory follow the umask",
        path="connector/raftlog/storage/local.py",
        old="        mode = self.file_mode & allowed\n",
        new="        mode = self.file_mode\n",
        tests=(
            "tests/client/embedded/test_file_modes.py"
            "::test_all_files_of_a_kraft_log_are_private_to_their_owner",
        ),
    ),
    Plant(
        bug="a malformed old snapshot stops retention",
        path=f"{WRITING}/snapshots.py",
        old="    except (LogNotFoundError, CorruptSnapshotError):\n",
        new="    except LogNotFoundError:\n",
        tests=(
            "tests/log/writing/test_snapshot_lock.py"
            "::test_a_malformed_old_snapshot_does_not_stop_retention",
        ),
    ),
    Plant(
        bug="the lock of a log is created through a symbolic link",
        path="connector/raftlog/storage/local.py",
        old="os.O_RDWR | os.O_NOFOLLOW | getattr",
        new="os.O_RDWR | getattr",
        tests=(
            "tests/storage/test_symbolic_links.py::test_a_lock_is_not_created_through_a_planted_link",
        ),
    ),
    Plant(
        bug="an error shows other files' bytes as offset and length",
        path="connector/raftlog/records/header.py",
        old="    is_foreign = magic > BATCH_MAGIC",
        new="    is_foreign = magic > 255",
        tests=(
            "tests/storage/test_symbolic_links.py::test_an_error_shows_no_bytes_that_are_no_batch",
        ),
    ),
    # --- readers ----------------------------------------------------------------------------------
    Plant(
        bug="a reader stops at offsets that were rewritten after the published end",
        path="connector/raftlog/log/reading/files.py",
        old="""                if count and _is_past(self.next_offset, end_offset):
                    return Stop.END_OFFSET, None
                raise gap
""",
        new="                raise gap\n",
        tests=(
            "tests/log/recovery/test_readers_before_recovery.py"
            "::test_offsets_rewritten_after_the_published_end_are_invisible",
        ),
    ),
    Plant(
        bug="a reader starts at the first segment",
        path="connector/raftlog/log/reading/directory_log.py",
        old="            if listing.is_embedded:\n                start_offset = self.files",
        new="            if not listing.segments:\n                start_offset = self.files",
        tests=(
            "tests/log/writing/test_snapshot_files.py"
            "::test_a_reader_starts_at_the_published_log_start_offset",
        ),
    ),
    # --- base offsets, which no CRC covers --------------------------------------------------------
    Plant(
        bug="a batch with a damaged base offset is read",
        path="connector/raftlog/log/segment.py",
        old="""contiguous_bytes(
                data, epochs, offset=offset, path=log.path, position=start.position
            )
""",
        new="data\n",
        tests=(
            "tests/log/writing/test_flipped_base_offsets.py"
            "::test_a_flipped_batch_is_never_read_and_the_batches_before_it_are",
        ),
    ),
    Plant(
        bug="a replica ignores a damaged base offset at startup",
        path="connector/raftlog/log/segment.py",
        old="""check_base_offset(
            batch.base_offset, self.next_offset, path=self.path, position=batch.position
        )
""",
        new="pass\n",
        tests=(
            "tests/log/writing/test_flipped_base_offsets.py::test_a_replica_finds_the_flip_at_startup",
        ),
    ),
    Plant(
        bug="a batch with a damaged leader epoch is read",
        path="connector/raftlog/log/segment.py",
        old="""            check_leader_epoch(
                header.leader_epoch,
                epochs,
                base_offset=header.base_offset,
                path=path,
                position=header.position,
            )
""",
        new="",
        tests=(
            "tests/log/writing/test_flipped_base_offsets.py"
            "::test_a_damaged_leader_epoch_is_never_read",
        ),
    ),
    Plant(
        bug="a replica ignores a damaged leader epoch at startup",
        path="connector/raftlog/log/segment.py",
        old="        if self.epochs is not None:\n",
        new="        if False:\n",
        tests=(
            "tests/log/writing/test_flipped_base_offsets.py"
            "::test_a_replica_finds_a_damaged_leader_epoch_at_startup",
        ),
    ),
    Plant(
        bug="a truncation takes damage below the high watermark for a torn tail",
        path=f"{WRITING}/quorum_log.py",
        old="write_recovery_point(max(self._segments.recovery_point, committed))",
        new="write_recovery_point(self._segments.recovery_point)",
        tests=(
            "tests/log/writing/test_quorum_log.py"
            "::test_damage_below_the_high_watermark_that_a_truncation_finds_makes_the_log_read_only",
        ),
    ),
    Plant(
        bug="a producer state that lacks records before the first segment is continued",
        path="connector/raftlog/log/recovery/load_log.py",
        old="        if producer_state is None or producer_state.end_offset < start:\n",
        new="        if producer_state is None:\n",
        tests=(
            "tests/log/writing/test_quorum_log.py"
            "::test_a_snapshot_without_producer_state_after_an_older_one_starts_an_empty_state",
        ),
    ),
    # --- backups ----------------------------------------------------------------------------------
    Plant(
        bug="backups are kept forever",
        path=f"{WRITING}/atomic_files.py",
        old="        if is_bounded or ordinal >= before:\n",
        new="        if byte_count >= 0:\n",
        tests=(
            "tests/log/writing/test_backups.py"
            "::test_backups_are_kept_up_to_a_count_and_the_oldest_are_deleted_and_reported",
        ),
    ),
    Plant(
        bug="a backup of a second damaged segment replaces the first",
        path=f"{WRITING}/segments.py",
        old='            storage.rename(path, f"{path}{DAMAGED_SUFFIX}-{ordinal}")\n',
        new="            storage.rename(path, path + DAMAGED_SUFFIX)\n            assert ordinal\n",
        tests=(
            "tests/log/writing/test_backups.py"
            "::test_a_second_damaged_segment_does_not_replace_the_backup_of_the_first",
        ),
    ),
    # --- indexes of sealed segments ---------------------------------------------------------------
    Plant(
        bug="opening checks no index of a sealed segment",
        path="connector/raftlog/log/recovery/recover.py",
        old="    if recovered.report.read_only is None:\n        recovered = _with",
        new="    if recovered.report.read_only is not None:\n        recovered = _with",
        tests=(
            "tests/log/recovery/test_sealed_indexes.py"
            "::test_opening_for_writing_rebuilds_an_index_whose_end_does_not_match",
        ),
    ),
    Plant(
        bug="repair does not check the indexes of sealed segments",
        path="connector/raftlog/client/embedded/repair.py",
        old="        if report.read_only is None:\n            rebuilt = _rebuild",
        new="        if report.read_only is not None:\n            rebuilt = _rebuild",
        tests=(
            "tests/log/recovery/test_sealed_indexes.py"
            "::test_repair_reads_all_segments_and_rebuilds_wrong_indexes",
        ),
    ),
    Plant(
        bug="after a recovery the recovery point in memory is above that on disk",
        path="connector/raftlog/log/recovery/load_log.py",
        old="            recovery_point=self._recovery_point,\n",
        new="            recovery_point=end_offset,\n",
        tests=("tests/log/recovery/test_recovery.py",),
    ),
    Plant(
        bug="after a clean opening the recovery point in memory is above that on disk",
        path="connector/raftlog/log/recovery/recover.py",
        old="        recovery_point=checkpoints.recovery_point,\n",
        new="        recovery_point=clean.end_offset,\n",
        tests=("tests/log/recovery/test_recovery.py",),
    ),
    Plant(
        bug="a damaged log start offset is written again only if it differs",
        path="connector/raftlog/log/recovery/load_log.py",
        old="            LOG_START_CHECKPOINT_NAME in damaged\n",
        new="            False\n",
        tests=("tests/log/recovery/test_recovery.py",),
    ),
    Plant(
        bug="a small file that does not fit stays on the full disk",
        path=f"{WRITING}/atomic_files.py",
        old="            storage.unlink(temporary)\n        raise\n",
        new="            pass\n        raise\n",
        tests=("tests/storage/test_atomic_files.py",),
    ),
    Plant(
        bug="the cleaner's segments are read under a name that they do not have",
        path="connector/raftlog/log/recovery/load_log.py",
        old="            if base not in listing.swapped or self._files.has(",
        new="            if True or self._files.has(",
        tests=("tests/log/recovery/test_recovery.py",),
    ),
)
