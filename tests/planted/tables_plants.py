"""Bugs of the tables, of the stream into them, and of the command line's reports of a log."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

SOURCE_OPTIONS: Final = "state/raftlog_state/tables/source_options.py"
OPTIONS: Final = "tests/state/tables/test_tables_options.py"
FOLLOWING: Final = "state/raftlog_state/tables/following.py"
BACKOFF: Final = "state/raftlog_state/tables/backoff.py"
UPKEEP_RUNS: Final = "state/raftlog_state/tables/upkeep.py"
FOLLOWER: Final = "state/raftlog_state/tables/log_follower.py"
FOLLOWED: Final = "tests/state/tables/test_log_follower.py"
GROUP_FOLLOWED: Final = "tests/state/tables/test_group_follower.py"
LATEST: Final = "state/raftlog_state/tables/latest.py"
READER: Final = "state/raftlog_state/tables/reader.py"
READ: Final = "tests/state/tables/test_reader.py"
UPKEEP: Final = "tests/state/tables/test_upkeep.py"
MATERIALIZED: Final = "tests/state/tables/test_tables_materialize_spark.py"
RANDOM_LOGS: Final = (
    "tests/state/tables/test_tables_verify_spark.py"
    "::test_a_second_replay_agrees_with_the_loader_on_random_logs[1]"
)
RANDOM_FEEDS: Final = (
    "tests/state/tables/test_tables_verify_spark.py"
    "::test_states_and_feeds_of_random_logs_equal_a_replay[1-entities0]"
)
RANDOM_RANGES: Final = (
    "tests/state/tables/test_tables_verify_spark.py"
    "::test_ranges_of_random_logs_are_verified[1-before the snapshot]"
)
RANGE: Final = (
    "tests/state/tables/test_tables_verify_spark.py"
    "::test_a_range_is_verified_from_the_rows_before_it"
)
PUBLICATION: Final = "state/raftlog_state/tables/publication.py"
HISTORY: Final = "state/raftlog_state/tables/history.py"
READS: Final = "tests/state/tables/test_tables_reads_spark.py"
INVARIANTS: Final = "state/raftlog_state/tables/invariants"
INVARIANT_TESTS: Final = "tests/state/tables/test_invariants_spark.py"
CONVERT: Final = "state/raftlog_state/tables/convert.py"
STORED_ROWS: Final = "state/raftlog_state/tables/stored_rows.py"
SLICES: Final = "state/raftlog_state/tables/change_slices.py"
STORED: Final = "tests/state/tables/test_stored_rows.py"
CONVERTED: Final = "tests/state/tables/test_tables_convert.py"
VIEWS: Final = "state/raftlog_state/tables/views.py"
SPARK: Final = "state/raftlog_state/tables/stores/spark.py"
STAGED_REWRITES: Final = "state/raftlog_state/tables/stores/staged_rewrites.py"
REWRITES: Final = "tests/state/table_stores/test_staged_rewrites.py"
DELTA_RS: Final = "state/raftlog_state/tables/stores/delta_rs.py"
DELTA_APPENDS: Final = "state/raftlog_state/tables/stores/delta_appends.py"
APPENDS: Final = "tests/state/table_stores/test_delta_appends.py"
DURABILITY: Final = "tests/state/table_stores/test_delta_durability.py"
POWER_LOSS: Final = "test_a_loss_of_power_in_an_append_leaves_all_of_it_or_nothing"
DELETE_BESIDE: Final = (
    "test_a_delete_beside_an_append_is_tried_again_if_it_may_have_to_delete_its_rows"
)
DELTA_RS_DURABLE: Final = "test_commits_of_delta_rs_and_checkpoints_are_durable_when_they_return"
CONTRACT: Final = "tests/state/table_stores/test_store_contract.py"
CLUSTERS: Final = "tests/state/tables/test_clusters.py"
CLUSTERS_SPARK: Final = "tests/state/tables/test_clusters_spark.py"

TABLES_PLANTS: Final = (
    Plant(
        bug="a publisher's tables have records that are not committed",
        path=FOLLOWER,
        old="min(end_offset, self._committed_end())",
        new="end_offset",
        tests=("tests/state/tables/test_tables_publisher.py",),
    ),
    Plant(
        bug="a Connect server gets the writer itself, whose lock cannot be pickled",
        path="state/raftlog_state/tables/micro_batches.py",
        old="return _RemoteSink(sink_of, open_writer)",
        new="return lambda rows, _: sink_of(writer).write(rows.toArrow())",
        tests=("tests/state/tables/test_micro_batches.py",),
    ),
    Plant(
        bug="delta-rs: a store that was idle misses commits whose entries were deleted",
        path=DELTA_RS,
        old="at_least = self.end_version if is_same else newest_checkpoint(log)",
        new="at_least = self.end_version",
        tests=(f"{CONTRACT}::test_a_store_that_was_not_used_for_long_reads_the_newest_version",),
    ),
    Plant(
        bug="a group continues an old checkpoint at offsets that the log has deleted since",
        path="state/raftlog_state/tables/cluster_group.py",
        old="log.incarnation, log.log_start_offset]",
        new="log.incarnation]",
        tests=(
            "tests/state/tables/test_cluster_group_spark.py::"
            "test_a_checkpoint_that_was_not_used_for_a_while_is_not_continued_at_deleted_offsets",
        ),
    ),
    Plant(
        bug="a round waits for nodes that have not answered the round before",
        path="state/raftlog_state/tables/group_follower.py",
        old="[source for source in due if not source.is_running]",
        new="list(due)",
        tests=(f"{GROUP_FOLLOWED}::test_nodes_that_do_not_answer_do_not_delay_the_other_clusters",),
    ),
    Plant(
        bug="a group ignores clusters of other owners that have no new rows",
        path="state/raftlog_state/tables/group_follower.py",
        old="if is_owned and not self._settings.take_over:",
        new="if is_owned and progress.offset < 0:",
        tests=(
            f"{GROUP_FOLLOWED}::test_a_cluster_of_another_writer_without_new_rows_is_a_failure",
        ),
    ),
    Plant(
        bug="an offset commit of an aborted transaction shows in the tables",
        path="state/raftlog_state/internal/group_replay.py",
        old="if marker.control_type is ControlType.COMMIT:",
        new="if marker.control_type is not None:",
        tests=(
            "tests/state/tables/test_internal_logs.py::"
            "test_an_aborted_commit_never_shows_and_an_open_one_when_it_has_ended",
        ),
    ),
    Plant(
        bug="tables keep rows whose tombstones were compacted away",
        path="state/raftlog_state/tables/log_follower.py",
        old="if not is_first_load and rows.num_rows < boundary - progress.next_offset:",
        new="if progress.offset != NOTHING and progress.next_offset < log.log_start_offset:",
        tests=(
            "tests/state/tables/test_internal_logs.py::"
            "test_tables_that_missed_deleted_records_get_the_state_of_the_whole_log",
        ),
    ),
    Plant(
        bug="the first load of an internal log never ends, and truncated tables miss tombstones",
        path="state/raftlog_state/tables/log_follower.py",
        old="        if self._load_end is not None and progress.next_offset >= self._load_end:\n"
        "            self._load_end = None\n",
        new="",
        tests=(
            "tests/state/tables/test_internal_logs.py::"
            "test_tables_that_are_truncated_after_the_first_load_may_have_missed_deleted_records",
        ),
    ),
    Plant(
        bug="a query of many logs keeps rows that were deleted below the start of an internal log",
        path="state/raftlog_state/tables/cluster_group.py",
        old="        if end_offset is None:\n            return None\n",
        new="        if end_offset is not None:\n            return None\n",
        tests=(
            "tests/state/tables/test_cluster_group_spark.py::"
            "test_a_query_begins_with_the_whole_of_an_internal_log_whose_start_is_after_the_tables",
        ),
    ),
    Plant(
        bug="a query of many logs keeps rows of an internal log without a record at its begin",
        path="state/raftlog_state/tables/cluster_group.py",
        old="        return with_positions(pa.concat_tables(",
        new="        return (pa.concat_tables(",
        tests=(
            "tests/state/tables/test_micro_batches.py::"
            "test_first_rows_of_a_query_and_earlier_ones_are_the_state_of_a_log_with_missed_records",
        ),
    ),
    Plant(
        bug="a query of many logs deletes rows whose records are before the end of the tables",
        path="state/raftlog_state/tables/cluster_group.py",
        old="pa.concat_tables([earlier, new_rows.select(earlier.column_names)])",
        new="new_rows",
        tests=(
            "tests/state/tables/test_micro_batches.py::"
            "test_first_rows_of_a_query_and_earlier_ones_are_the_state_of_a_log_with_missed_records",
        ),
    ),
    Plant(
        bug="a sink of many logs that is created again replaces the state of an internal log again",
        path="state/raftlog_state/tables/cluster_group.py",
        old="        if self._writer.progress(name).next_offset != end:\n",
        new="        if False:\n",
        tests=(
            "tests/state/tables/test_micro_batches.py::"
            "test_a_sink_that_is_created_again_does_not_replace_the_state_again",
        ),
    ),
    Plant(
        bug="rows of an internal log are appended to tables that were truncated meanwhile",
        path="state/raftlog_state/tables/group_writer.py",
        old="if cache.progress.next_offset < end:",
        new="if False:",
        tests=(
            "tests/state/tables/test_internal_logs.py::"
            "test_tables_that_are_truncated_while_they_are_written_get_the_records_again",
            "tests/state/tables/test_micro_batches.py::"
            "test_a_query_whose_tables_of_an_internal_log_are_truncated_ends",
        ),
    ),
    Plant(
        bug="tables take records of two topics",
        path="state/raftlog_state/tables/cluster_cache.py",
        old='for name in ("topic", "partition"):',
        new='for name in ("partition",):',
        tests=(
            "tests/state/tables/test_writer.py::"
            "test_records_of_a_topic_of_another_name_are_written_if_they_are_metadata",
        ),
    ),
    Plant(
        bug="Spark loses rows after an empty Arrow batch",
        path="state/raftlog_state/tables/stores/spark.py",
        old="[batch for batch in rows.to_batches() if batch.num_rows]",
        new="rows.to_batches()",
        tests=(
            "tests/state/table_stores/test_store_contract.py::"
            "test_rows_after_an_empty_chunk_are_written[spark]",
        ),
    ),
    Plant(
        bug="a run with a held back tail merges after every batch",
        path=SOURCE_OPTIONS,
        old="            holdback_ms=self.holdback_ms,\n",
        new="            holdback_ms=2**60,\n",
        tests=(UPKEEP,),
    ),
    Plant(
        bug="the driver opens a log as the kind that is detected, not as the one that is declared",
        path=SOURCE_OPTIONS,
        old="open_reader(self.location, self.kind,",
        new="open_reader(self.location, None,",
        tests=(
            f"{OPTIONS}::test_a_log_whose_kind_is_unknown_is_opened_as_the_one_that_is_declared",
        ),
    ),
    Plant(
        bug="the driver opens a log with the default limit of decompressed batches",
        path=SOURCE_OPTIONS,
        old="        limit = self.decompressed_bytes_max\n",
        new="        limit = DECOMPRESSED_BYTES_MAX\n",
        tests=(f"{OPTIONS}::test_a_limit_of_decompressed_batches_is_that_of_all_reads_of_a_load",),
    ),
    Plant(
        bug="changes are merged before the interval",
        path=UPKEEP_RUNS,
        old="now_s - self._merged_at_s >= MERGE_INTERVAL_S",
        new="now_s - self._merged_at_s >= 0",
        tests=(UPKEEP,),
    ),
    Plant(
        bug="a run's last batch is not merged",
        path=UPKEEP_RUNS,
        old="read_offset >= self._target_offset",
        new="read_offset > self._target_offset",
        tests=(UPKEEP,),
    ),
    Plant(
        bug="an append waits for the upkeep that is running",
        path=UPKEEP_RUNS,
        old="if self._running is not None and not is_end and not self._running[1].done():",
        new="if False:",
        tests=(f"{UPKEEP}::test_appends_do_not_wait_for_upkeep_beside_them",),
    ),
    Plant(
        bug="upkeep that has failed is not tried again at the end of a run",
        path=UPKEEP_RUNS,
        old="        if not is_end and self._upkeep.backoff.is_paused(self._now_s()):",
        new="        if self._upkeep.backoff.is_paused(self._now_s()):",
        tests=(UPKEEP,),
    ),
    Plant(
        bug="upkeep that has failed is tried again with each batch",
        path=BACKOFF,
        old="now_s < self._failed_at_s + self.pause_s",
        new="now_s < self._failed_at_s",
        tests=(UPKEEP,),
    ),
    Plant(
        bug="what was appended during a merge counts as merged",
        path="state/raftlog_state/tables/unmerged.py",
        old="            del self._parts[:count]\n",
        new="            self._parts.clear()\n",
        tests=(f"{UPKEEP}::test_appends_do_not_wait_for_upkeep_beside_them",),
    ),
    Plant(
        bug="a merge of a tail that was read again since removes changes from the new one",
        path="state/raftlog_state/tables/unmerged.py",
        old="if not count or len(begun) < count or any(map(operator.is_not, begun, tail.parts)):",
        new="if False:",
        tests=(
            "tests/state/tables/test_writer.py::"
            "test_the_end_of_a_merge_changes_nothing_if_the_tables_were_read_again_since",
        ),
    ),
    Plant(
        bug="NoOps that are new are due later than those before them",
        path=FOLLOWER,
        old="if self._range[0] != start_offset and self._delay_ms:",
        new="if self._delay_ms:",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="NoOps in front of other records wait for the delay",
        path=FOLLOWER,
        old=" and boundary == end_offset and _are_no_ops(rows)",
        new=" and _are_no_ops(rows)",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="records that change the state wait like NoOps",
        path=FOLLOWER,
        old=" and boundary == end_offset and _are_no_ops(rows)",
        new=" and boundary == end_offset",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="the changes of a merge that runs are put together with later ones",
        path="state/raftlog_state/tables/unmerged.py",
        old="        later = reversed(self._parts[self._merging_count :])\n",
        new="        later = reversed(self._parts)\n",
        tests=(
            "tests/state/tables/test_writer.py::test_many_small_appends_are_few_tables_in_memory",
        ),
    ),
    Plant(
        bug="small files are compacted once",
        path=UPKEEP_RUNS,
        old="        self.file_count -= file_count\n",
        new="        self.file_count = None\n",
        tests=(UPKEEP,),
    ),
    Plant(
        bug="files of earlier runs are not counted",
        path=UPKEEP_RUNS,
        old="self._upkeep.file_count = self._writer.small_file_count()",
        new="self._upkeep.file_count = 0",
        tests=(UPKEEP,),
    ),
    Plant(
        bug="a run that ends in an open transaction does not merge",
        path=FOLLOWING,
        old="0 if last_offset is None else last_offset + 1",
        new="self._writer.progress().next_offset",
        tests=(UPKEEP,),
    ),
    Plant(
        bug="tables load a snapshot although it is not allowed",
        path=FOLLOWING,
        old="    if progress.offset == NOTHING or allows_gap or log.topic in INTERNAL_LOGS:\n",
        new="    if True:\n",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="tables follow a log of other records than metadata",
        path=FOLLOWING,
        old="    check_is_metadata(log)\n",
        new="",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="a follower does not compare its log with the tables",
        path=FOLLOWER,
        old="        check_same_log(self._place, progress, epochs, log)\n",
        new="",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="a run with an end follows a log that grows",
        path=FOLLOWER,
        old="end_offset = min(end_offset, self._target_offset)",
        new="pass",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="upkeep of a follower has another clock",
        path=FOLLOWER,
        old="                clock=self._clock,\n                warn=self._log_event,\n",
        new="                warn=self._log_event,\n",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="the pause for missing nodes is short again if the error is another one",
        path=BACKOFF,
        old="        is_first = last is None\n",
        new="        is_first = str(last) != str(error)\n",
        tests=("tests/state/tables/test_group_follower.py",),
    ),
    Plant(
        bug="pauses for missing nodes grow without limit",
        path=BACKOFF,
        old="min(2 * self.pause_s, self._longest_s)",
        new="2 * self.pause_s",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="records are decoded for redaction and again for replay",
        path=FOLLOWER,
        old="return decode(value) if found is None else found",
        new="return decode(value)",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="a signal whose exception is lost ends nothing",
        path=FOLLOWER,
        old="            self._raise_if_stopped()\n",
        new="",
        tests=(
            "tests/state/cli/test_cli_tables.py"
            "::test_a_signal_whose_exception_is_lost_ends_the_command",
        ),
    ),
    Plant(
        bug="a signal interrupts an append",
        path="state/raftlog_state/cli/signals.py",
        old="        if not self._is_deferred:\n",
        new="        if True:\n",
        tests=("tests/state/cli/test_cli_tables.py",),
    ),
    Plant(
        bug="a reader of Arrow has the changes after its version",
        path=READER,
        old="(later, earlier, *where), columns, version=version)",
        new="(later, earlier, *where), columns, version=None)",
        tests=(f"{READ}::test_a_view_is_fixed_while_the_tables_advance",),
    ),
    Plant(
        bug="a reader of Arrow shows a later state for an offset before the merge",
        path=READER,
        old="        elif offset < base_offset:\n",
        new="        elif False:\n",
        tests=(f"{READ}::test_states_and_differences_equal_a_replay[some]",),
    ),
    Plant(
        bug="a difference has rows that a range changed back",
        path=LATEST,
        old="            if was and now and differing:\n",
        new="            if was and now:\n",
        tests=(f"{READ}::test_states_and_differences_equal_a_replay[some]",),
    ),
    Plant(
        bug="the history has versions that no offset shows",
        path=LATEST,
        old='    is_closed = pc.and_(of_table, pc.greater(changes["visible_offset"], began))\n',
        new="    is_closed = pc.and_(of_table, pc.is_valid(began))\n",
        tests=(f"{READ}::test_the_history_has_no_version_that_a_transaction_replaced",),
    ),
    Plant(
        bug="the tables' stream runs a task for each of 50 snapshot partitions",
        path="state/raftlog_state/tables/cluster.py",
        old="store.in_session(session_for_tables(store.session))",
        new="store",
        tests=(
            f"{MATERIALIZED}::test_a_stream_reads_its_tables_with_few_tasks_and_changes_no_setting",
        ),
    ),
    Plant(
        bug="a view of the past lacks the record at its offset",
        path=PUBLICATION,
        old="later = self.changes(offset, base_offset)",
        new="later = self.changes(offset - 1, base_offset)",
        tests=(f"{READS}::test_any_past_offset_can_be_viewed[128]",),
    ),
    Plant(
        bug="a view lacks the first change that state does not include",
        path=PUBLICATION,
        old="self.changes(base_offset, offset))",
        new="self.changes(base_offset + 1, offset))",
        tests=(f"{READS}::test_any_past_offset_can_be_viewed[225]",),
    ),
    Plant(
        bug="a row of state is there beside its later version",
        path=HISTORY,
        old='.join(changed, ["entity", "key"], "left_anti")',
        new="",
        tests=(f"{READS}::test_any_past_offset_can_be_viewed[225]",),
    ),
    Plant(
        bug="a view without Spark reads the newest state, and not the one it began with",
        path=READER,
        old="state = self._read(STATE_TABLE, (of_entity,), columns, version=version)",
        new="version = self.store.version(STATE_TABLE)\n"
        "        state = self._read(STATE_TABLE, (of_entity,), columns, version=version)",
        tests=(
            "tests/state/tables/test_invariants_beside_writers_spark.py"
            "::test_states_beside_writers_that_crash_satisfy_the_rules[some]",
        ),
    ),
    Plant(
        bug="a permanent view shows a row of state beside its later version",
        path=VIEWS,
        old="LEFT ANTI JOIN tail USING (cluster_id, key)",
        new="LEFT ANTI JOIN (SELECT cluster_id, concat(key, ' ') AS key FROM tail) "
        "USING (cluster_id, key)",
        tests=(f"{READS}::test_tables_may_be_in_a_schema_of_the_catalog",),
    ),
    Plant(
        bug="Spark writes times that delta-rs cannot read",
        path=SPARK,
        old='    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",\n',
        new="",
        tests=("tests/state/tables/test_engines_spark.py",),
    ),
    Plant(
        bug="an append of Spark writes all fields, of which most are null",
        path=SPARK,
        old="isinstance(rows, pa.Table) and not is_new",
        new="False",
        tests=(
            "tests/state/tables/test_engines_spark.py::"
            "test_an_append_writes_the_fields_that_its_rows_have",
        ),
    ),
    Plant(
        bug="Spark generates code for an append of a few rows",
        path=SPARK,
        old="isinstance(rows, pa.Table) and rows.num_rows <= FEW_ROWS",
        new="False",
        tests=(
            "tests/state/tables/test_engines_spark.py::"
            "test_appends_of_few_rows_have_a_session_of_their_own",
        ),
    ),
    Plant(
        bug="states of tables are computed in the session that appends",
        path=SPARK,
        old="self.in_session(_session_with(self._spark, FEW_ROWS_SETTINGS))",
        new="self",
        tests=(
            "tests/state/tables/test_engines_spark.py::"
            "test_an_append_finds_the_state_of_the_table_which_is_computed_beside_the_batch_before_it",
        ),
    ),
    Plant(
        bug="the newest version of a local table is the one that was looked up first",
        path="state/raftlog_state/tables/stores/delta_appends.py",
        old="while entry(log, since + 1).is_file():",
        new="while False:",
        tests=(
            "tests/state/tables/test_engines_spark.py::"
            "test_the_version_of_a_local_table_is_looked_up_without_a_job",
        ),
    ),
    Plant(
        bug="an append that Delta skipped counts as written",
        path=SPARK,
        old="any(commit in self._commit_ids(table, count) for count in counts)",
        new="any(self._commit_ids(table, count) for count in counts)",
        tests=(f"{CONTRACT}::test_repeated_transaction_writes_nothing[spark]",),
    ),
    Plant(
        bug="an append that Delta skipped counts as written if another writer has committed",
        path=SPARK,
        old="is_next = any(commit in line for line in lines)",
        new="is_next = bool(lines)",
        tests=(
            "tests/state/tables/test_engines_spark.py::"
            "test_an_append_is_looked_up_in_the_history_only_if_it_is_not_the_next_commit",
        ),
    ),
    Plant(
        bug="the alternatives of a read restrict nothing",
        path="state/raftlog_state/tables/stores/protocol.py",
        old="    if any_of:\n        parts.append",
        new="    if False:\n        parts.append",
        tests=(
            f"{CONTRACT}::test_an_append_has_rows_of_many_clusters_in_one_transaction[delta-rs]",
        ),
    ),
    Plant(
        bug="each append to an altered table lists and cleans Delta's log",
        path=DELTA_RS,
        old="PostCommitHookProperties(cleanup_expired_logs=False)",
        new="PostCommitHookProperties(cleanup_expired_logs=True)",
        tests=(f"{CONTRACT}::test_a_compaction_and_no_append_cleans_the_log_of_delta_rs",),
    ),
    Plant(
        bug="an append brings the handle of delta-rs up to date, which lists Delta's log",
        path=DELTA_RS,
        old="        handle, log = self._newest(table), self._log_of(table)\n",
        new="        log, _ = self._log_of(table), self._open(table)\n"
        "        handle = self._newest(table)\n",
        tests=(f"{APPENDS}::test_an_append_after_that_of_the_same_store_does_not_read_the_log",),
    ),
    Plant(
        bug="an append leaves the metadata of its file in a reference cycle",
        path=DELTA_APPENDS,
        old="groups[0].column(at).path_in_schema",
        new="metadata.schema.column(at).path",
        tests=(f"{APPENDS}::test_batches_of_a_follower_leave_nothing_to_the_garbage_collection",),
    ),
    Plant(
        bug="an append replaces the entry of a version that another writer has committed",
        path=DELTA_APPENDS,
        old="os.link(staged, name, src_dir_fd=directory, dst_dir_fd=directory)",
        new="os.replace(staged, name, src_dir_fd=directory, dst_dir_fd=directory)",
        tests=(f"{APPENDS}::test_appends_of_different_transactions_at_the_same_time_all_commit",),
    ),
    Plant(
        bug="an append ignores an earlier version of its transaction that is committed meanwhile",
        path=DELTA_RS,
        old="if not is_same or not handle.is_plain or handle.committed(transactions) != known:",
        new="if not is_same or not handle.is_plain or any(map(handle.is_committed, transactions)):",
        tests=(f"{APPENDS}::test_a_transaction_that_is_committed_meanwhile_is_a_conflict[2]",),
    ),
    Plant(
        bug="an append is valid whose version others have committed and deleted",
        path=DELTA_RS,
        old="newest_checkpoint(log) >= version and not entry(log, version - 1).exists()",
        new="False",
        tests=(f"{APPENDS}::test_an_append_whose_version_was_deleted_meanwhile_is_a_conflict",),
    ),
    Plant(
        bug="an append is refused whose version another store has put into a checkpoint",
        path=DELTA_RS,
        old=" and not entry(log, version - 1).exists()",
        new="",
        tests=(f"{APPENDS}::test_checkpoints_of_another_store_do_not_concern_appends",),
    ),
    Plant(
        bug="transactions of other stores are not read from their entries",
        path=DELTA_RS,
        old='                if "txn" in action:\n',
        new="                if False:\n",
        tests=(
            f"{APPENDS}::test_an_append_after_commits_of_other_stores_reads_their_entries_alone",
        ),
    ),
    Plant(
        bug="an entry is committed to a table that has replaced the one of the append",
        path=DELTA_APPENDS,
        old="        if inode not in (None, os.fstat(directory).st_ino):\n",
        new="        if False:\n",
        tests=(f"{APPENDS}::test_an_append_does_not_commit_to_a_table_that_replaced_its_own",),
    ),
    Plant(
        bug="appends never write a checkpoint",
        path=DELTA_RS,
        old="            self._open(table).create_checkpoint()\n",
        new="            self._open(table)\n",
        tests=(f"{APPENDS}::test_a_checkpoint_is_written_every_hundred_versions",),
    ),
    Plant(
        bug="an entry of Delta's log has its name before it is on disk",
        path=DELTA_APPENDS,
        old="        sync_descriptor(file.fileno())\n",
        new="",
        tests=(f"{DURABILITY}::{POWER_LOSS}",),
    ),
    Plant(
        bug="a commit adds a file that is not on disk",
        path=DELTA_APPENDS,
        old="    if collected:\n        sync(file)\n",
        new="",
        tests=(f"{DURABILITY}::{POWER_LOSS}",),
    ),
    Plant(
        bug="a commit adds a file whose name is not on disk",
        path=DELTA_APPENDS,
        old="    if rows is not None:\n        sync(directory)\n",
        new="",
        tests=(f"{DURABILITY}::{POWER_LOSS}",),
    ),
    Plant(
        bug="an append returns before its commit is on disk",
        path=DELTA_APPENDS,
        old="        sync_descriptor(directory)\n",
        new="",
        tests=(f"{DURABILITY}::{POWER_LOSS}",),
    ),
    Plant(
        bug="an append repeats without end the commit of a version that delta-rs does not read",
        path=DELTA_RS,
        old="            if handle.end_version == end_version:\n"
        "                raise self._not_read(table, end_version + 1)\n",
        new="            if handle.end_version == end_version:\n"
        "                raise concurrent_write(self._place, table.name)\n",
        tests=(
            f"{DURABILITY}"
            "::test_an_entry_that_no_engine_reads_is_an_error_and_not_an_endless_append",
        ),
    ),
    Plant(
        bug="a created table has its name before its files are on disk",
        path=DELTA_RS,
        old="            sync_tree(staged)\n",
        new="",
        tests=(
            f"{DURABILITY}"
            "::test_a_loss_of_power_while_a_table_is_created_leaves_all_of_it_or_nothing",
        ),
    ),
    Plant(
        bug="a delete does not conflict with rows that it has to delete",
        path=STAGED_REWRITES,
        old='_may_hold(where, any_of, one.get("stats")) for one in _with_other_rows(theirs)',
        new="False for one in theirs",
        tests=(f"{REWRITES}::{DELETE_BESIDE}[>=-left1-2]",),
    ),
    Plant(
        bug="deletes conflict with all appends",
        path=STAGED_REWRITES,
        old='_may_hold(where, any_of, one.get("stats")) for one in _with_other_rows(theirs)',
        new="True for one in _with_other_rows(theirs)",
        tests=(f"{REWRITES}::{DELETE_BESIDE}[<=-left0-1]",),
    ),
    Plant(
        bug="each compaction rewrites the earlier ones",
        path="state/raftlog_state/tables/stores/compaction.py",
        old=" if small[at] <= sums[at])",
        new=")",
        tests=(
            "tests/state/table_stores/test_table_compaction.py"
            "::test_bytes_are_rewritten_once_for_each_doubling_of_their_file[1-1000-delta-rs]",
        ),
    ),
    Plant(
        bug="an append to an altered table repeats that of another process",
        path=DELTA_RS,
        old="if [copy.transaction_version(one.app_id) for one in transactions] != known:",
        new="if False:",
        tests=(
            f"{REWRITES}::"
            "test_an_append_to_an_altered_table_is_not_repeated_after_that_of_another_process",
        ),
    ),
    Plant(
        bug="a commit to an altered table ignores other commits",
        path=DELTA_RS,
        old="self._copied(table, any_conflicts, reads_files=False)",
        new="self._copied(table, rewrite_conflicts, reads_files=False)",
        tests=(f"{REWRITES}::test_appends_to_an_altered_table_beside_other_commits",),
    ),
    Plant(
        bug="a compaction of an altered table conflicts with each append beside it",
        path=STAGED_REWRITES,
        old="_WRITER_VERSION_MAX: Final = 4\n",
        new="_WRITER_VERSION_MAX: Final = 1\n",
        tests=(f"{REWRITES}::test_a_compaction_beside_appends_commits_after_them[True]",),
    ),
    Plant(
        bug="a commit refers to change data that it does not have",
        path=DELTA_APPENDS,
        old='(action.get("add") or action.get("cdc") for action in actions)',
        new='(action.get("add") for action in actions)',
        tests=(f"{REWRITES}::test_a_table_with_a_change_data_feed_has_that_of_a_commit[delete]",),
    ),
    Plant(
        bug="the files of commits that conflict fill the disk",
        path=STAGED_REWRITES,
        old="                (directory / path).unlink(missing_ok=True)\n",
        new="                pass\n",
        tests=(f"{REWRITES}::test_of_two_compactions_at_the_same_time_one_conflicts",),
    ),
    Plant(
        bug="a commit counts as another one's as its link is reported to exist",
        path=STAGED_REWRITES,
        old="if theirs != actions and conflicts(actions, theirs):",
        new="if conflicts(actions, theirs):",
        tests=(f"{REWRITES}::test_a_commit_whose_link_is_reported_to_exist_is_not_repeated",),
    ),
    Plant(
        bug="an append is durable before a delete of delta-rs that it follows",
        path=DELTA_RS,
        old="        if self.durable_version < self.end_version:\n",
        new="        if False:\n",
        tests=(f"{REWRITES}::test_an_append_after_a_delete_of_delta_rs_is_not_durable_without_it",),
    ),
    Plant(
        bug="a merge has an entry before its files are on disk",
        path=STAGED_REWRITES,
        old="        sync(copy / path)\n",
        new="",
        tests=(f"{REWRITES}::test_a_loss_of_power_in_a_merge_leaves_all_of_it_or_nothing",),
    ),
    Plant(
        bug="a compaction has an entry before the names of its files are on disk",
        path=STAGED_REWRITES,
        old="        sync(directory / path)\n",
        new="        pass\n",
        tests=(f"{REWRITES}::test_a_loss_of_power_in_a_compaction_loses_no_row",),
    ),
    Plant(
        bug="a compaction adds rows again that another one has moved",
        path=STAGED_REWRITES,
        old='any(one["path"] in removed for one in _all("remove", theirs))',
        new="False",
        tests=(f"{REWRITES}::test_of_two_compactions_at_the_same_time_one_conflicts",),
    ),
    Plant(
        bug="two merges insert one row each for the same key",
        path=STAGED_REWRITES,
        old='one["partitionValues"] in partitions for one in _with_other_rows(theirs)',
        new="False for one in theirs",
        tests=(f"{REWRITES}::test_of_two_merges_of_a_cluster_at_the_same_time_one_conflicts",),
    ),
    Plant(
        bug="a checkpoint is not synced",
        path=DELTA_RS,
        old="            sync_checkpoint(self._log_of(table), handle.end_version)\n",
        new="",
        tests=(f"{DURABILITY}::{DELTA_RS_DURABLE}",),
    ),
    Plant(
        bug="a column that a table lacks is written to files in which no reader finds it",
        path=DELTA_APPENDS,
        old="        and _contains(stored, declared)\n",
        new="",
        tests=(f"{APPENDS}::test_a_table_without_a_declared_column_is_not_appended_to",),
    ),
    Plant(
        bug="an altered table is appended to without its other checks",
        path=DELTA_APPENDS,
        old="and checks == {name: check.sql for name, check in table.checks.items()}",
        new="and checks",
        tests=(f"{APPENDS}::test_a_table_that_was_altered_is_appended_to_by_delta_rs",),
    ),
    Plant(
        bug="a check holds for a null",
        path="state/raftlog_state/tables/schema.py",
        old="skip_nulls=False",
        new="skip_nulls=True",
        tests=(f"{APPENDS}::test_rows_that_violate_a_check_are_not_written",),
    ),
    Plant(
        bug="a file lacks the rows before its changes",
        path="state/raftlog_state/tables/stores/protocol.py",
        old="        if kind == ROW\n",
        new='        if name == "after"\n',
        tests=(f"{APPENDS}::test_files_have_the_fields_that_their_rows_have",),
    ),
    Plant(
        bug="delta-rs repeats a transaction",
        path=DELTA_RS,
        old="version is not None and version >= transaction.version",
        new="version is not None and version > transaction.version",
        tests=(f"{CONTRACT}::test_repeated_transaction_writes_nothing[delta-rs]",),
    ),
    Plant(
        bug="a change feed has every change of a transaction",
        path=HISTORY,
        old='_net_changes(of_entity, "entity", "key", "visible_offset")',
        new='_net_changes(of_entity, "entity", "key", "visible_offset", "offset")',
        tests=(RANDOM_FEEDS,),
    ),
    Plant(
        bug="a version of a row begins with the change before the last",
        path="state/raftlog_state/tables/origins.py",
        old="origins[change.key] = Origin(*written, created_offset)",
        new="origins.setdefault(change.key, Origin(*written, created_offset))",
        tests=("tests/state/tables/test_reader.py",),
    ),
    Plant(
        bug="a row that changed again has the origin that it had at the start",
        path="state/raftlog_state/tables/origins.py",
        old="        found = self._origins[entity].get(key)\n",
        new="        is_stored = key in self._stored.get(entity, {})\n"
        "        found = None if is_stored else self._origins[entity].get(key)\n",
        tests=(f"{STORED}::test_replay_continues_from_stored_rows_as_from_the_rows_in_memory[14]",),
    ),
    Plant(
        bug="a stored row is one of the block before",
        path=STORED_ROWS,
        old="self._blocks[number] = rows_of(",
        new="self._blocks[number + 1] = rows_of(",
        tests=(f"{STORED}::test_rows_are_found_in_any_order_of_the_columns[0]",),
    ),
    Plant(
        bug="the group of a row is that of the row at its place in the order of groups",
        path=STORED_ROWS,
        old="firsts = [column.take(pa.array(order[starts]))",
        new="firsts = [column.take(pa.array(starts))",
        tests=(f"{STORED}::test_replay_continues_from_stored_rows_as_from_the_rows_in_memory[14]",),
    ),
    Plant(
        bug="the last change of a slice is lost",
        path=SLICES,
        old="positions[start : start + self._slice_rows]",
        new="positions[start : start + self._slice_rows - 1]",
        tests=(f"{CONVERTED}::test_slices_have_the_rows_of_the_whole_table[37]",),
    ),
    Plant(
        bug="each slice numbers its changes from 0",
        path=SLICES,
        old="                self._seqs[part].tolist(),\n",
        new="                sequence_numbers([self._records[position] for position in part]),\n",
        tests=(f"{CONVERTED}::test_slices_have_the_rows_of_the_whole_table[1]",),
    ),
    Plant(
        bug="state has the first change of a key in a large batch",
        path=SLICES,
        old="            last[change.entity][change.key] = position\n",
        new="            last[change.entity].setdefault(change.key, position)\n",
        tests=(f"{CONVERTED}::test_slices_have_the_rows_of_the_whole_table[37]",),
    ),
    Plant(
        bug="a struct that is null is read as one of nulls",
        path="state/raftlog_state/tables/stores/protocol.py",
        old="fields=list(structs), mask=chunk.is_null())",
        new="fields=list(structs))",
        tests=(f"{CONTRACT}::test_structs_are_read_with_one_field[delta-rs]",),
    ),
    Plant(
        bug="a partition that changed after the last merge is that of the merge",
        path="state/raftlog_state/tables/stored_rows.py",
        old='    is_partition = mask_of(state, ("entity", "=", str(Entity.PARTITION)))\n',
        new='    is_partition = mask_of(state, ("entity", "=", str(Entity.TOPIC)))\n',
        tests=(
            f"{STORED}::test_later_rows_replace_stored_ones_and_a_deleted_topic_has_no_partition",
        ),
    ),
    Plant(
        bug="a difference has the first values of the later state",
        path=HISTORY,
        old='sf.max_by("after", order)',
        new='sf.min_by("after", order)',
        tests=(f"{READS}::test_the_difference_of_two_states_is_that_of_their_rows",),
    ),
    Plant(
        bug="the state at a time has the first later record",
        path="state/raftlog_state/tables/selection.py",
        old="else first - 1\n",
        new="else first\n",
        tests=(f"{READS}::test_a_time_is_the_state_before_the_first_record_not_earlier",),
    ),
    Plant(
        bug="verify does not compare the intervals of rows",
        path=HISTORY,
        old="    return found.where(is_row_wrong | is_origin_wrong).select(",
        new="    return found.where(is_row_wrong).select(",
        tests=("tests/state/tables/test_tables_verify_spark.py::test_a_changed_row_is_reported",),
    ),
    Plant(
        bug="a changed row is in the struct of another entity",
        path=CONVERT,
        old="(entities != ordinal)",
        new="(entities != ordinal + 1)",
        tests=(f"{CONVERTED}::test_changes_of_random_logs_are_those_built_row_by_row[8]",),
    ),
    Plant(
        bug="a deleted row is the row after its deletion",
        path=CONVERT,
        old="        side([id(change.before) for change in changes]),\n"
        "        side([id(change.after) for change in changes]),\n",
        new="        side([id(change.after and change.before) for change in changes]),\n"
        "        side([id(change.after or change.before) for change in changes]),\n",
        tests=(f"{CONVERTED}::test_changes_of_random_logs_are_those_built_row_by_row[8]",),
    ),
    Plant(
        bug="the endpoints of a broker begin where those of another end",
        path=CONVERT,
        old="accumulate(map(len, values))",
        new="accumulate(map(len, reversed(values)))",
        tests=(f"{CONVERTED}::test_any_rows_are_converted_one_by_one_and_back[broker]",),
    ),
    Plant(
        bug="a difference reported by verify shows a secret",
        path="state/raftlog_state/tables/verify.py",
        old="        if _is_secret(table, key, column):\n",
        new="        if False:\n",
        tests=("tests/state/tables/test_tables_verify_spark.py::test_a_changed_row_is_reported",),
    ),
    Plant(
        bug="check of a damaged log exits as if it were valid",
        path="state/raftlog_state/cli/maintenance.py",
        old="    return 1 if damage_count else 0\n",
        new="    return 0\n",
        tests=("tests/state/cli/test_cli_check.py",),
    ),
    Plant(
        bug="cat prints records without content that were not asked for",
        path="state/raftlog_state/cli/cat_log.py",
        old="        if api_key in self.hidden_api_keys:\n            return False\n",
        new="",
        tests=("tests/state/cli/test_cli_cat.py",),
    ),
    Plant(
        bug="verify sorts cordoned directories, which Kafka keeps in the record's order",
        path="state/raftlog_state/tables/sql_cluster.py",
        old='sf.col("cordonedLogDirs").alias("cordoned"),\n        sf.lit("reg',
        new='sorted_uuids(sf.col("cordonedLogDirs")).alias("cordoned"),\n        sf.lit("reg',
        tests=(
            RANDOM_LOGS,
            RANDOM_RANGES,
        ),
    ),
    Plant(
        bug="a topic whose partitions follow in its batch violates a rule",
        path=f"{INVARIANTS}/topic_has_partitions.sql",
        old="t._offset < e.last_offset",
        new="t._offset <= e.last_offset",
        tests=(f"{INVARIANT_TESTS}::test_valid_rows_satisfy_all_rules",),
    ),
    Plant(
        bug="a rule compares a partition's epochs with those of any partition",
        path=f"{INVARIANTS}/partition_epochs_never_fall.sql",
        old="PARTITION BY cluster_id, topic_id, partition_id ORDER BY valid_from",
        new="PARTITION BY cluster_id ORDER BY valid_from",
        tests=(f"{INVARIANT_TESTS}::test_valid_rows_satisfy_all_rules",),
    ),
    Plant(
        bug="the first violated rule hides the others",
        path=f"{INVARIANTS}/__init__.py",
        old="in sorted(found))",
        new="in sorted(found)[:1])",
        tests=("tests/state/tables/test_tables_verify_spark.py::test_a_changed_row_is_reported",),
    ),
    Plant(
        bug="Spark merges a cluster's rows into those of another",
        path=SPARK,
        old='f"ON old.cluster_id IN ({clusters}) AND old.cluster_id = new.cluster_id "\n'
        '                "AND old.entity',
        new='"ON old.entity',
        tests=(f"{CONTRACT}::test_rows_of_clusters_are_kept_apart[spark]",),
    ),
    Plant(
        bug="Spark's merges of different clusters conflict",
        path=SPARK,
        old='f"ON old.cluster_id IN ({clusters}) AND old.cluster_id',
        new='"ON old.cluster_id',
        tests=(f"{CONTRACT}::test_concurrent_merges_of_different_clusters_commit[spark]",),
    ),
    Plant(
        bug="delta-rs merges a cluster's rows into those of another",
        path=DELTA_RS,
        old='same_key = f"t.{CLUSTER_ID} IN ({clusters}) AND {_SAME_KEY}"',
        new='same_key = "t.entity = s.entity AND t.key = s.key"',
        tests=(f"{CONTRACT}::test_rows_of_clusters_are_kept_apart[delta-rs]",),
    ),
    Plant(
        bug="merges of different clusters by delta-rs conflict",
        path=DELTA_RS,
        old='same_key = f"t.{CLUSTER_ID} IN ({clusters}) AND {_SAME_KEY}"',
        new="same_key = _SAME_KEY",
        tests=(f"{CONTRACT}::test_concurrent_merges_of_different_clusters_commit[delta-rs]",),
    ),
    Plant(
        bug="state has one partition for all clusters",
        path="state/raftlog_state/tables/schema.py",
        old="    partitioned_by=(CLUSTER_ID,),\n",
        new="",
        tests=(f"{CONTRACT}::test_concurrent_merges_of_different_clusters_commit[delta-rs]",),
    ),
    Plant(
        bug="the first of several clusters is opened if none is named",
        path="state/raftlog_state/tables/progress.py",
        old="    if len(found) > 1:\n",
        new="    if not found:\n",
        tests=(f"{CLUSTERS}::test_the_cluster_must_be_named_if_there_are_several",),
    ),
    Plant(
        bug="a view has the rows of all clusters",
        path=PUBLICATION,
        old="store.frame(table, version).where(sf.col(CLUSTER_ID) == cluster_id)",
        new="store.frame(table, version)",
        tests=(f"{CLUSTERS_SPARK}::test_a_cluster_is_added_to_the_tables_of_another",),
    ),
    Plant(
        bug="a permanent view lacks changes that the state of another cluster includes",
        path=VIEWS,
        old="LEFT JOIN base USING (cluster_id)\n  WHERE",
        new="LEFT JOIN (SELECT base_offset, base_incarnation FROM base)\n  WHERE",
        tests=(f"{CLUSTERS_SPARK}::test_views_of_a_schema_have_the_rows_of_each_cluster",),
    ),
    Plant(
        bug="a permanent view hides a key that changed in another cluster",
        path=VIEWS,
        old="LEFT ANTI JOIN tail USING (cluster_id, key)",
        new="LEFT ANTI JOIN tail USING (key)",
        tests=(f"{CLUSTERS_SPARK}::test_views_of_a_schema_have_the_rows_of_each_cluster",),
    ),
    Plant(
        bug="verify of a range replays no transaction that was open at its start",
        path="state/raftlog_state/tables/verify.py",
        old="    return 0 if last is None else last + 1\n",
        new="    return since + 1\n",
        tests=(RANDOM_RANGES,),
    ),
    Plant(
        bug="verify of a range compares rows that no record changed with nothing",
        path="state/raftlog_state/tables/expected.py",
        old="return Expected(found, base.is_complete)",
        new="return Expected(found, True)",
        tests=(RANGE,),
    ),
    Plant(
        bug="verify of a range passes over changes of tables without records",
        path="state/raftlog_state/tables/expected.py",
        old="if starts and not base.is_complete else base.changed_tables\n",
        new="if starts and not base.is_complete else frozenset()\n",
        tests=(RANGE,),
    ),
    Plant(
        bug="verify does not replay configs if a log has a removed topic alone",
        path="state/raftlog_state/tables/expected.py",
        old='("CONFIG_RECORD", *_OF_TOPICS)',
        new='("CONFIG_RECORD",)',
        tests=(
            "tests/state/tables/test_tables_verify_spark.py"
            "::test_the_replay_of_a_table_reads_the_record_types_that_are_declared",
        ),
    ),
    Plant(
        bug="verify checks no rule if some tables have no rows",
        path="state/raftlog_state/tables/verify.py",
        old="if any(reads(query, name) for name in names)",
        new="if all(reads(query, name) for name in names)",
        tests=("tests/state/tables/test_tables_verify_spark.py::test_a_changed_row_is_reported",),
    ),
    Plant(
        bug="verify passes over a damaged record",
        path="state/raftlog_state/tables/verify.py",
        old="    differences = _damage_differences(contents)\n",
        new="    differences: list[Difference] = []\n",
        tests=(RANGE,),
    ),
    Plant(
        bug="the second decoder skips a null that is not allowed",
        path="state/raftlog_state/tables/verify_decoder.py",
        old="    return read if field.is_nullable else read_not_null\n",
        new="    return read\n",
        tests=("tests/state/tables/test_verify_decoder.py",),
    ),
    Plant(
        bug="a log that cannot be read ends the round of all",
        path="state/raftlog_state/tables/group_follower.py",
        old="                self._failed(source, error)\n                continue\n",
        new="                raise\n",
        tests=(f"{GROUP_FOLLOWED}::test_bad_logs_do_not_keep_the_others_from_being_written",),
    ),
    Plant(
        bug="a run with an end leaves out clusters after a round whose rows were rejected",
        path="state/raftlog_state/tables/group_follower.py",
        old="            if cluster_count is not None:\n",
        new="            if cluster_count:\n",
        tests=(
            f"{GROUP_FOLLOWED}::"
            "test_a_run_writes_the_other_clusters_if_all_rows_of_a_round_are_rejected",
        ),
    ),
    Plant(
        bug="a run whose logs are all away does not end at a signal that was dropped",
        path="state/raftlog_state/tables/group_follower.py",
        old="        while True:\n            self._raise_if_stopped()\n",
        new="        while True:\n",
        tests=(f"{GROUP_FOLLOWED}::test_a_run_whose_logs_are_all_away_ends_at_a_signal",),
    ),
    Plant(
        bug="a run whose first read of the log's end failed has no end",
        path=FOLLOWER,
        old="        if self._settings.is_once and self._target_offset is None:\n",
        new="        if self._settings.is_once and not self._log:\n",
        tests=(f"{FOLLOWED}::test_a_run_ends_where_the_log_ended_although_its_first_read_failed",),
    ),
    Plant(
        bug="a group does not find out that a cluster whose log diverged was truncated",
        path="state/raftlog_state/tables/group_follower.py",
        old="            self._writer.refresh()  #",
        new="            pass  #",
        tests=(
            f"{GROUP_FOLLOWED}::"
            "test_a_cluster_that_is_truncated_after_its_log_diverged_is_followed_again",
        ),
    ),
    Plant(
        bug="options of TLS beside --sources are ignored",
        path="state/raftlog_state/cli/tables.py",
        old="        check_no_node_options(arguments)  #",
        new="        pass  #",
        tests=("tests/state/cli/test_cli_tables.py::test_wrong_calls_are_explained",),
    ),
    Plant(
        bug="a misspelled option of TLS in the file of --sources is ignored",
        path="state/raftlog_state/cli/tables.py",
        old="            if name.lower().removeprefix(PREFIX) not in known:\n",
        new="            if False:\n",
        tests=("tests/state/cli/test_cli_tables.py::test_wrong_sources_are_explained",),
    ),
    Plant(
        bug="a run with an end hides the errors of clusters",
        path="state/raftlog_state/tables/group_follower.py",
        old="        if self.failures:\n",
        new="        if False:\n",
        tests=(f"{GROUP_FOLLOWED}::test_bad_logs_do_not_keep_the_others_from_being_written",),
    ),
    Plant(
        bug="the state at a time has the changes of that time",
        path=READER,
        old='rows_where(rows, ("log_time", ">=", time_us))',
        new='rows_where(rows, ("log_time", ">", time_us))',
        tests=(f"{READ}::test_a_time_is_that_of_the_log_although_clocks_go_back",),
    ),
    Plant(
        bug="the state at a time ignores the records without changes",
        path=READER,
        old="            if version is not None:\n                within: Where",
        new="            if table is CHANGES_TABLE:\n                within: Where",
        tests=(f"{READ}::test_a_time_is_that_of_the_log_although_clocks_go_back",),
    ),
    Plant(
        bug="the state at a time is read without the last offset of each part of the log",
        path=READER,
        old='(offset, "<", end_offset))',
        new='(offset, "<", end_offset - 1))',
        tests=(f"{READ}::test_a_time_is_that_of_the_log_although_clocks_go_back",),
    ),
    Plant(
        bug="a diagnosis of damage is only a note",
        path="state/raftlog_state/check/diagnosis.py",
        old="        return Level.PROBLEM\n    is_warning",
        new="        return Level.NOTE\n    is_warning",
        tests=("tests/golden_errors/test_golden_diagnoses.py",),
    ),
    Plant(
        bug="the ages of fetches are those of the clock of the client",
        path="state/raftlog_state/check/diagnosis.py",
        old="            return replica.fetched_ms\n",
        new="            return now_ms\n",
        tests=(
            "tests/state/cli/test_cli_doctor.py::test_ages_are_those_of_the_clock_of_the_leader",
        ),
    ),
    Plant(
        bug="a name of a log ends the script of a report",
        path="state/raftlog_state/report/page.py",
        old='.replace("<", "\\\\u003c")',
        new="",
        tests=(
            "tests/state/cli/test_cli_report.py"
            "::test_names_and_values_of_a_log_are_texts_not_markup",
        ),
    ),
    Plant(
        bug="a bucket of a report lacks the value before its first change",
        path="state/raftlog_state/report/history.py",
        old="peak = self._peaks.get(bucket, self.value)",
        new="peak = self._peaks.get(bucket, 0)",
        tests=(
            "tests/state/report/test_history.py"
            "::test_a_bucket_has_the_maximum_of_the_time_that_it_covers",
        ),
    ),
)
