"""Bugs of loads of long logs by parallel tasks."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

TABLES: Final = "state/raftlog_state/tables"
BUCKETS: Final = f"{TABLES}/topic_buckets.py"
REPLAY: Final = f"{TABLES}/bucket_replay.py"
ROUTING: Final = f"{TABLES}/range_routing.py"
PARTS: Final = f"{TABLES}/bucket_parts.py"
VERSIONS: Final = "state/raftlog_state/replay/row_versions.py"
WRITER: Final = f"{TABLES}/writer.py"
LOADED: Final = "tests/state/tables/test_bulk_load.py"
RANDOM: Final = f"{LOADED}::test_a_load_of_a_random_log_gives_the_tables_of_single_batches"
COLUMNS: Final = "tests/state/tables/test_columnar_replay.py"
RANDOM_COLUMNS: Final = f"{COLUMNS}::test_changes_of_random_topics_are_those_of_a_loader"
DISTINCT: Final = "tests/state/loader/test_distinct_values.py"
FILES: Final = (
    "tests/state/table_stores/test_store_contract.py::test_rows_of_files_are_written_in_one_commit"
)
STORES: Final = "tests/state/table_stores/test_store_contract.py"
LACKED: Final = f"{STORES}::test_fields_that_a_file_lacks_are_read_as_null"
SLICES: Final = (
    "tests/state/table_stores/test_store_contract.py::test_slices_are_written_in_one_commit"
)

BULK_LOAD_PLANTS: Final = (
    Plant(
        bug="change rows of a load wrap times that no timestamp can hold",
        path=f"{TABLES}/columnar_replay.py",
        old="    found[times_ms > limit], found[times_ms < -limit] = LONG_MAX, -LONG_MAX\n",
        new="",
        tests=(f"{COLUMNS}::test_times_that_no_timestamp_can_hold_are_those_of_a_loader",),
    ),
    Plant(
        bug="codes without a value have those that the buffers of a slice have beyond it",
        path="state/raftlog_state/replay/distinct_values.py",
        old="    own = ends[: (len(values) + 1) * _NUMBER_BYTES]",
        new="    own = ends",
        tests=(
            f"{DISTINCT}::"
            "test_a_code_without_a_value_is_an_error_also_where_the_buffers_of_a_slice_have_one",
        ),
    ),
    Plant(
        bug="a null struct of change rows has the values of its row's number",
        path="state/raftlog_state/replay/distinct_values.py",
        old="[bitmap, pa.py_buffer(own)]",
        new="[None, pa.py_buffer(own)]",
        tests=(
            f"{DISTINCT}::test_rows_of_structs_are_null_where_they_are_masked_whatever_their_number",
        ),
    ),
    Plant(
        bug="configs of a topic are in another bucket than the topic",
        path=BUCKETS,
        old='field("resource_type"), CONFIG_OF_TOPIC)',
        new='field("resource_type"), -1)',
        tests=(RANDOM,),
    ),
    Plant(
        bug="a record for all topics is replayed by bucket",
        path=BUCKETS,
        old="            if not name:\n",
        new="            if name is None:\n",
        tests=(RANDOM,),
    ),
    Plant(
        bug="a topic id in two buckets is not noticed",
        path=BUCKETS,
        old="        if known != bucket:\n",
        new="        if known < 0:\n",
        tests=(
            f"{LOADED}::test_a_record_that_is_rejected_raises_as_in_single_batches",
            f"{LOADED}::test_a_topic_id_that_is_created_again_under_other_names_is_loaded_by_tasks",
        ),
    ),
    Plant(
        bug="records that were routed before their buckets were joined are not routed again",
        path=ROUTING,
        old="                if buckets.joined == joined:\n",
        new="                if joined:\n",
        tests=(
            f"{LOADED}::test_a_topic_id_that_is_created_again_under_other_names_is_loaded_by_tasks",
        ),
    ),
    Plant(
        bug="by columns: an id is created again before its topic is removed",
        path=VERSIONS,
        old="        for column in (self.ids, self.names):",
        new="        for column in (self.names,):",
        tests=(f"{COLUMNS}::test_records_that_a_loader_rejects_are_left_to_it",),
    ),
    Plant(
        bug="by columns: a change is one of a partition of an earlier topic of the id",
        path=VERSIONS,
        old="        is_absent[1:] |= self.events.is_deleted[:-1]\n",
        new="",
        tests=(f"{COLUMNS}::test_records_that_a_loader_rejects_are_left_to_it",),
    ),
    Plant(
        bug="a range may end inside of a transaction",
        path=PARTS,
        old="        if begin_offset is not None:\n",
        new="        if begin_offset == -1:\n",
        tests=(
            f"{LOADED}::test_a_range_does_not_end_in_a_transaction_with_a_record_of_all_topics",
        ),
    ),
    Plant(
        bug="each bucket writes the rows of transactions",
        path=PARTS,
        old="one.changes[0].entity not in self._without]",
        new="one.changes]",
        tests=(
            f"{LOADED}::test_topics_with_more_bytes_than_columns_may_have_give_the_same_tables",
        ),
    ),
    Plant(
        bug="records of other buckets are not counted in a transaction",
        path="state/raftlog_state/loader/metadata_loader.py",
        old="self._transaction.record_count += count",
        new="self._transaction.record_count += 0",
        tests=(RANDOM,),
    ),
    Plant(
        bug="a control record is decoded as a metadata record",
        path=ROUTING,
        old="    if controls:\n",
        new="    if not controls:\n",
        tests=(f"{LOADED}::test_ranges_with_leader_changes_are_split",),
    ),
    Plant(
        bug="by columns: a row that was deleted is the one before its next version",
        path=VERSIONS,
        old="        found[1:] &= ~self.is_deleted[:-1]\n",
        new="",
        tests=(RANDOM_COLUMNS,),
    ),
    Plant(
        bug="by columns: a change of leader does not increment the leader epoch",
        path=VERSIONS,
        old="    elects = is_change & ",
        new="    elects = ~is_change & ",
        tests=(RANDOM_COLUMNS,),
    ),
    Plant(
        bug="by columns: an empty list is no change",
        path=VERSIONS,
        old="self.events.filled(codes, codes != NULL)",
        new="self.events.filled(codes, (codes != NULL) & (codes != empty))",
        tests=(RANDOM_COLUMNS,),
    ),
    Plant(
        bug="by columns: a clear of the ELR changes partitions without one",
        path=VERSIONS,
        old="clears.at(~self._is_idle())",
        new="clears",
        tests=(RANDOM_COLUMNS,),
    ),
    Plant(
        bug="by columns: a clear of the ELR is one of partitions that are created later",
        path=VERSIONS,
        old="positions[at] < found.rows",
        new="positions[at] != found.rows",
        tests=(RANDOM_COLUMNS,),
    ),
    Plant(
        bug="by columns: directories of new replicas are those of the old ones",
        path=VERSIONS,
        old="    codes[unknown] = added[which]\n",
        new="",
        tests=(RANDOM_COLUMNS,),
    ),
    Plant(
        bug="by columns: configs stay when their topic is removed",
        path=VERSIONS,
        old="is_set & of_name & (found",
        new="~is_set & of_name & (found",
        tests=(RANDOM_COLUMNS,),
    ),
    Plant(
        bug="by columns: an aborted transaction takes effect",
        path="state/raftlog_state/replay/topic_records.py",
        old="~is_inside | (api_keys[ends] == _END)",
        new="~is_inside | (api_keys[ends] != _BEGIN)",
        tests=(RANDOM_COLUMNS,),
    ),
    Plant(
        bug="by columns: a change of a partition that was never created is filled from another",
        path=VERSIONS,
        old="        require(is_plain=np.all(self.events.is_whole[is_absent]))",
        new="        require(is_plain=True)",
        tests=(f"{COLUMNS}::test_records_that_a_loader_rejects_are_left_to_it",),
    ),
    Plant(
        bug="a load uses incomplete files of an interrupted one",
        path=f"{TABLES}/staging.py",
        old="            pq.read_metadata(file)\n",
        new="            Path(file).stat()\n",
        tests=(f"{LOADED}::test_an_incomplete_file_of_an_interrupted_load_is_written_again",),
    ),
    Plant(
        bug="a load uses files of records that the log does not have any more",
        path=REPLAY,
        old="known is not None and known.checksum == routed.checksum",
        new="known is not None",
        tests=(f"{LOADED}::test_files_of_records_that_the_log_had_before_are_not_published",),
    ),
    Plant(
        bug="raftlog tables load: SIGTERM is success",
        path="state/raftlog_state/cli/tables_load.py",
        old="            return _TERMINATED\n",
        new="            return 0\n",
        tests=(
            "tests/state/cli/test_cli_tables_load.py::test_a_load_that_is_ended_is_quiet_and_continued",
        ),
    ),
    Plant(
        bug="processes of a load print that the one that started them was killed",
        path=f"{TABLES}/task_processes.py",
        old="    with suppress(EOFError, ConnectionError):\n",
        new="    with suppress(InterruptedError):\n",
        tests=(
            "tests/state/cli/test_cli_tables_load.py::test_a_load_that_is_ended_is_quiet_and_continued",
        ),
    ),
    Plant(
        bug="two loads have one staging directory",
        path="state/raftlog_state/tables/bulk_load.py",
        old='exclusive(self._directory.with_suffix(".lock"))',
        new='exclusive(self._directory.with_suffix(f".{id(self)}"))',
        tests=(f"{LOADED}::test_a_second_load_with_the_staging_directory_is_refused",),
    ),
    Plant(
        bug="a load whose appends conflict never ends",
        path="state/raftlog_state/tables/bulk_load.py",
        old="            self._conflict_count += 1\n",
        new="            self._conflict_count += 0\n",
        tests=(f"{LOADED}::test_a_load_whose_appends_always_conflict_ends",),
    ),
    Plant(
        bug="tasks of a continued load have another time than those of the interrupted one",
        path="state/raftlog_state/tables/bulk_load.py",
        old="            return int(path.read_text())\n",
        new="            return self._clock_us() or int(path.read_text())\n",
        tests=(f"{LOADED}::test_all_rows_of_an_append_have_its_time",),
    ),
    Plant(
        bug="delta-rs: statistics of an added file have its least values as the greatest",
        path=f"{TABLES}/stores/delta_appends.py",
        old="max(found.max for found in known)",
        new="min(found.min for found in known)",
        tests=(f"{FILES}[delta-rs]",),
    ),
    Plant(
        bug="delta-rs: a file of a load that is about to be added has its age",
        path=f"{TABLES}/stores/delta_appends.py",
        old="    os.utime(added)",
        new="    os.stat(added)",
        tests=(f"{STORES}::test_a_vacuum_does_not_delete_an_old_file_that_is_about_to_be_added",),
    ),
    Plant(
        bug="structs that are null are not null where a file lacks their fields",
        path=f"{TABLES}/stores/protocol.py",
        old="fields=list(kind), mask=structs.is_null())",
        new="fields=list(kind))",
        tests=(f"{LACKED}[memory]",),
    ),
    Plant(
        bug="Spark leaves out the rows besides those of files",
        path=f"{TABLES}/stores/spark.py",
        old="files.union(self._in_memory(rows.rest))",
        new="files",
        tests=(f"{FILES}[spark]",),
    ),
    Plant(
        bug="Spark leaves out the second slice",
        path=f"{TABLES}/stores/spark.py",
        old="chain((first, second), slices)",
        new="chain((first,), slices)",
        tests=(f"{SLICES}[spark]",),
    ),
    Plant(
        bug="a load publishes what an interrupted one with another redaction has left",
        path="state/raftlog_state/tables/bulk_load.py",
        old="        own = _name_of(*source, *secret_free, self._settings.writes_log, SOFTWARE)\n",
        new="        own = _name_of(*source, self._settings.writes_log, SOFTWARE)\n",
        tests=(
            f"{LOADED}::test_rows_of_an_interrupted_load_with_other_settings_are_not_published",
        ),
    ),
    Plant(
        bug="a load publishes what an interrupted one without table log has left",
        path="state/raftlog_state/tables/bulk_load.py",
        old="        own = _name_of(*source, *secret_free, self._settings.writes_log, SOFTWARE)\n",
        new="        own = _name_of(*source, *secret_free, SOFTWARE)\n",
        tests=(
            f"{LOADED}::test_rows_of_an_interrupted_load_with_other_settings_are_not_published",
        ),
    ),
)
