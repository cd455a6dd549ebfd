"""Bugs of the Spark source and sink: planned batches, visibility, commits, rows, options."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

SPARK: Final = "python_datasource/pyspark_raftlog"
ROWS: Final = "state/raftlog_state/source_rows"
PROGRESS: Final = "tests/spark/test_source_progress.py"
WITHOUT_START: Final = "tests/spark/test_source_without_start.py"
SOURCES: Final = "tests/spark/test_sources_progress.py"
SIZES: Final = "tests/spark/test_sources_sizes.py"
WATCHING: Final = "tests/client/test_watching.py"
OFFSETS: Final = "tests/spark/test_source_offsets.py"
OPTIONS: Final = "tests/spark/test_source_options.py"
VISIBLE: Final = "tests/spark/test_source_transactions.py"
MESSAGES: Final = "tests/spark/writing/test_commit_message.py"
APPENDING: Final = "tests/spark/writing/test_sink_append.py"
WRITTEN: Final = "tests/spark/writing/test_write_rows.py"

TYPED: Final = "tests/spark/test_source_typed_spark.py"

FUNCTIONS: Final = "tests/spark/test_table_functions.py"

SPARK_PLANTS: Final = (
    Plant(
        bug="a reader is not closed after its block",
        path="connector/raftlog/storage/protocol.py",
        old="        self.close()\n",
        new="        pass\n",
        tests=(
            f"{FUNCTIONS}::"
            "test_the_log_is_closed_after_a_call_also_if_it_fails_or_is_abandoned[1-RaftlogState]",
        ),
    ),
    Plant(
        bug="table functions show secrets",
        path=f"{SPARK}/reader.py",
        old="reveal=options.redaction is Redaction.OFF,",
        new="reveal=True,",
        tests=(f"{FUNCTIONS}::test_secrets_are_redacted_unless_that_is_disabled",),
    ),
    Plant(
        bug="the row of a deletion is taken from after it",
        path=f"{SPARK}/table_functions.py",
        old='frozenset({"update_preimage", "delete"})',
        new='frozenset({"update_preimage"})',
        tests=(FUNCTIONS,),
    ),
    Plant(
        bug="a NULL argument of a table function has the effect of none",
        path=f"{SPARK}/table_functions.py",
        old="    if argument.value is None:\n",
        new="    if False:\n",
        tests=(FUNCTIONS,),
    ),
    Plant(
        bug="a table function has no rows for a name of another table",
        path=f"{SPARK}/table_functions.py",
        old="    if not kept:\n",
        new="    if False:\n",
        tests=(FUNCTIONS,),
    ),
    Plant(
        bug="typed columns that are not selected are decoded",
        path=f"{ROWS}/row_builder.py",
        old="if name in self.builder.columns]\n",
        new="]\n",
        tests=(f"{TYPED}::test_types_that_are_not_selected_are_not_decoded",),
    ),
    Plant(
        bug="typed columns show secrets",
        path=f"{ROWS}/metadata_columns.py",
        old="return spread_columns(self._values, self._kinds, self._redactor, self._frames)",
        new="return spread_columns(self._values, self._kinds, Redactor(reveal=True), self._frames)",
        tests=(f"{TYPED}::test_no_secret_is_in_typed_columns_or_the_plan",),
    ),
    Plant(
        bug="typed columns of an ordinary log are all null instead of an error",
        path=f"{SPARK}/reader.py",
        old="if options.has_typed_columns and log.kind is not LogKind.METADATA:",
        new="if options.has_typed_columns and log.kind is None:",
        tests=(f"{TYPED}::test_typed_columns_of_an_ordinary_log_are_refused",),
    ),
    Plant(
        bug="the lag of the partitions of a pattern is that of one of them",
        path=f"{SPARK}/stream_lag.py",
        old="            return {log_id: (end.offset, _unread(logs[log_id])) for log_id, end in",
        new="            return {end.cluster_id: (end.offset, {}) for log_id, end in",
        tests=("tests/spark/test_stream_lag.py",),
    ),
    Plant(
        bug="a stream uses the snapshot of another query",
        path=f"{SPARK}/log_stream.py",
        old="        follows = before is None or before.offset == batch.start_offset\n",
        new="        follows = True\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="in Spark 4.1 the first batch of a query lacks its snapshot",
        path=f"{SPARK}/log_stream.py",
        old="batch, start_offset=start_offset, snapshot=snapshot, lost=is_lost\n",
        new="batch, start_offset=start_offset, lost=is_lost\n",
        tests=(WITHOUT_START,),
    ),
    Plant(
        bug="in Spark 4.1 a query whose first batch was deleted cannot be restarted",
        path=f"{SPARK}/log_stream.py",
        old="            elif start_offset == log.log_start_offset:\n",
        new="            elif False:\n",
        tests=(WITHOUT_START,),
    ),
    Plant(
        bug="in Spark 4.1 a restarted stream continues in a log that was created again",
        path=f"{SPARK}/log_stream.py",
        old="        loss = check_data_loss(log, before, self.options)\n",
        new="        loss = None\n",
        tests=(WITHOUT_START,),
    ),
    Plant(
        bug="an AvailableNow run has no end while the log grows",
        path=f"{SPARK}/log_stream.py",
        old="            end_offset = min(end_offset, self._target_offset)\n",
        new="            pass\n",
        tests=(PROGRESS, SOURCES),
    ),
    Plant(
        bug="the first batch of a query waits for minOffsetsPerTrigger",
        path=f"{SPARK}/stream_reader.py",
        old="least or self._triggered_at_ms is None:\n            return False\n        waited_ms",
        new="least:\n            return False\n        if self._triggered_at_ms is None:\n"
        "            return True\n        waited_ms",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="a batch with lost rows is planned with the remaining ones",
        path=f"{SPARK}/log_stream.py",
        old="            if self.options.fail_on_data_loss:\n                raise loss\n",
        new="",
        tests=(PROGRESS, SOURCES),
    ),
    Plant(
        bug="a stream that waits for a snapshot starts with another cluster's",
        path=f"{SPARK}/log_stream.py",
        old="(loss is None or not loss.is_different_log)",
        new="True",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="records that are held back are not read before the log grows",
        path=f"{SPARK}/log_stream.py",
        old="        is_idle = found.is_empty and not lost and not is_held_back\n",
        new="        is_idle = found.is_empty and not lost\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="an idle log is read again although no file has changed",
        path=f"{SPARK}/log_stream.py",
        old="stamp is not None and self._idle == (position, self._target_offset, stamp):\n",
        new="False:\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="a log that was read to its end is not read again",
        path="connector/raftlog/client/watching.py",
        old="    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns\n",
        new="    return found.st_dev, found.st_ino, 0, 0\n",
        tests=(WATCHING,),
    ),
    Plant(
        bug="a change that follows another within the clock's resolution is not seen",
        path="connector/raftlog/client/watching.py",
        old="self._now_ns() - (RECENT_NS if changed_ns % _MS else RECENT_COARSE_NS):\n",
        new="self._now_ns():\n",
        tests=(WATCHING,),
    ),
    Plant(
        bug="a stream continues after its last record was replaced",
        path=f"{SPARK}/admission.py",
        old="        differs = epoch not in (-1, position.epoch)\n",
        new="        differs = False\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="a stream continues in another cluster's log",
        path=f"{SPARK}/admission.py",
        old="    return known and position.cluster_id != log.cluster_id\n",
        new="    return False\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="a stream continues in a log that was deleted and created again",
        path=f"{SPARK}/admission.py",
        old="    if position.topic_id is None or topic_id in (None, position.topic_id):\n",
        new="    if True:\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="a limited batch has the log after the snapshot too",
        path=f"{SPARK}/admission.py",
        old="        offset = offset if limits.whole else start.offset\n",
        new="        pass\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="a batch truncated at the log's end is planned without an error",
        path=f"{SPARK}/admission.py",
        old='            lose(DataLoss.LOG_TRUNCATED, f"{extent} ends at {log.log_end_offset}")\n',
        new="",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="an offset of a later release is read as one of this release",
        path=f"{SPARK}/offsets.py",
        old="    if version > SOURCES_VERSION:\n",
        new="    if False:\n",
        tests=(OFFSETS,),
    ),
    Plant(
        bug="a stored offset does not record that records were lost",
        path=f"{SPARK}/offsets.py",
        old='            written["lost"] = True\n',
        new="            pass\n",
        tests=(OFFSETS,),
    ),
    Plant(
        bug="a batch read to an offset by number reads records that may be truncated",
        path=f"{SPARK}/planning.py",
        old="    return min(ending.offset, end.offset)\n",
        new="    return ending.offset\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="a start timestamp reads above the last stable offset",
        path=f"{SPARK}/planning.py",
        old="        return min(offset, end_offset)\n",
        new="        return offset\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="an abort marker is shown as a record of the log",
        path=f"{ROWS}/transactions.py",
        old="spans.find(offset, last_is_inside=True)",
        new="spans.find(offset, last_is_inside=False)",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="an aborted record has a visible offset",
        path=f"{ROWS}/transactions.py",
        old="np.where(inside & ~spans.committed[which], NEVER, _OWN)",
        new="np.where(inside, _OWN, _OWN)",
        tests=(VISIBLE,),
    ),
    Plant(
        bug="records whose transaction has an unreadable end are shown",
        path=f"{ROWS}/transactions.py",
        old="        if found.error is None:\n            return visibility\n",
        new="        return visibility\n",
        tests=(VISIBLE,),
    ),
    Plant(
        bug="rows of a task that were corrupted in transit are appended",
        path=f"{SPARK}/commit.py",
        old="    if crc32c(data) != message.crc:\n",
        new="    if False:\n",
        tests=(MESSAGES,),
    ),
    Plant(
        bug="the rows of a task that ran twice are appended twice",
        path=f"{SPARK}/commit.py",
        old="    if len(set(partitions)) != len(partitions):\n",
        new="    if False:\n",
        tests=(MESSAGES,),
    ),
    Plant(
        bug="rows are appended in the order in which tasks ended",
        path=f"{SPARK}/commit.py",
        old="    found.sort(key=lambda message: message.partition)\n",
        new="",
        tests=(MESSAGES,),
    ),
    Plant(
        bug="a write without a name whose response was lost is repeated",
        path=f"{SPARK}/commit.py",
        old="            if commit is None or not records or attempt == ATTEMPTS_MAX:\n",
        new="            if not records or attempt == ATTEMPTS_MAX:\n",
        tests=(APPENDING,),
    ),
    Plant(
        bug="a take-over from one query takes over from any",
        path=f"{SPARK}/commit.py",
        old="            if options.txn_take_over_from != foreign.last_query_id:\n",
        new="            if options.txn_take_over_from is None:\n",
        tests=(APPENDING,),
    ),
    Plant(
        bug="all queries of an application share their batch ids",
        path=f"{SPARK}/options.py",
        old="CommitName(self.txn_app_id or query_id, query_id, batch_id)",
        new="CommitName(self.txn_app_id or query_id, self.txn_app_id or query_id, batch_id)",
        tests=("tests/spark/writing/test_write_options.py", APPENDING),
    ),
    Plant(
        bug="a decision is appended to a log that has new records",
        path=f"{SPARK}/optimistic_commit.py",
        old="    return log.append(decision, required_base_offset=at)\n",
        new="    return log.append(decision)\n",
        tests=("tests/spark/writing/test_commit_loop.py",),
    ),
    Plant(
        bug="a user's header that names a commit is written",
        path=f"{SPARK}/sink_rows.py",
        old='        if names.null_count or pc.call_function("any", [reserved]).as_py():\n',
        new="        if names.null_count:\n",
        tests=(WRITTEN,),
    ),
    Plant(
        bug="the number of a refused row is counted from its batch",
        path=f"{SPARK}/sink_rows.py",
        old="row=self.row_count + at, reason",
        new="row=at, reason",
        tests=(WRITTEN,),
    ),
    Plant(
        bug="a row's timestamp is lost if it has neither key nor headers",
        path=f"{SPARK}/sink_rows.py",
        old="        if key is None and time_ms is None and not record_headers",
        new="        if key is None and not record_headers",
        tests=(WRITTEN,),
    ),
    Plant(
        bug="the text of the options has the redaction key",
        path=f"{SPARK}/options.py",
        old="    redact_key: bytes | None = field(default=None, repr=False)\n",
        new="    redact_key: bytes | None = field(default=None)\n",
        tests=(OPTIONS,),
    ),
    Plant(
        bug="an option given under two names is accepted",
        path=f"{SPARK}/options.py",
        old="        if attribute in names:\n",
        new="        if False:\n",
        tests=(OPTIONS,),
    ),
    Plant(
        bug="a stream accepts a version that is for batch writes",
        path=f"{SPARK}/options.py",
        old="        if self.txn_version is not None:\n            raise OptionError(\n",
        new="        if False:\n            raise OptionError(\n",
        tests=("tests/spark/writing/test_write_options.py",),
    ),
    Plant(
        bug="an error that Spark passes on as text is restored as another type",
        path=f"{SPARK}/errors.py",
        old="        if found is not None:\n            return found\n        seen.append(at)\n",
        new="        seen.append(at)\n",
        tests=("tests/spark/writing/test_typed_errors.py",),
    ),
)

SOURCES_PLANTS: Final = (
    Plant(
        bug="the text of the offset of several logs depends on the order in which they were read",
        path=f"{SPARK}/offsets.py",
        old="for cluster_id in sorted(self.logs)}\n",
        new="for cluster_id in self.logs}\n",
        tests=(OFFSETS,),
    ),
    Plant(
        bug="a part of an offset that has changed is not parsed again",
        path=f"{SPARK}/offsets.py",
        old="            if cluster_id not in known or known[cluster_id][0] != part:\n",
        new="            if cluster_id not in known:\n",
        tests=(OFFSETS,),
    ),
    Plant(
        bug="a log without new records has the rows of its last batch again",
        path=f"{SPARK}/offsets.py",
        old="            if not end.initial and end != before.logs.get(cluster_id)\n",
        new="            if not end.initial\n",
        tests=(SOURCES,),
    ),
    Plant(
        bug="each log has the whole limit of a micro-batch",
        path=f"{SPARK}/admission.py",
        old="max(limit * backlog // total, 1)",
        new="limit",
        tests=(SIZES,),
    ),
    Plant(
        bug="a log with few new records waits until the others have none",
        path=f"{SPARK}/admission.py",
        old="max(limit * backlog // total, 1)",
        new="limit * backlog // total",
        tests=(SIZES,),
    ),
    Plant(
        bug="the data loss of one log is not noticed",
        path=f"{SPARK}/source_logs.py",
        old=" or (log.options.fail_on_data_loss and not is_unavailable(error)):\n",
        new=":\n",
        tests=(SOURCES,),
    ),
    Plant(
        bug="a log that cannot be reached ends the stream of all others",
        path=f"{SPARK}/source_logs.py",
        old="(log.options.fail_on_data_loss and not is_unavailable(error))",
        new="log.options.fail_on_data_loss",
        tests=(SOURCES,),
    ),
    Plant(
        bug="a log that cannot be reached is reported again and again",
        path=f"{SPARK}/source_logs.py",
        old="        if log.problem is None or log.problem.code != error.code:\n",
        new="        if True:\n",
        tests=(SOURCES,),
    ),
    Plant(
        bug="the result of a slow node is dropped, so that its log is never read",
        path=f"{SPARK}/source_logs.py",
        old="                if late is not None and late[0] == key:\n",
        new="                if late is not None and False:\n",
        tests=("tests/spark/remote/test_sources_remote.py",),
    ),
    Plant(
        bug="a batch is planned again with the log as it was before",
        path=f"{SPARK}/log_stream.py",
        old="        if self._log is None or batch != checked:",
        new="        if self._log is None:",
        tests=(SOURCES,),
    ),
    Plant(
        bug="the rows of another cluster's log have the cluster id of the one before it",
        path=f"{SPARK}/reader.py",
        old="    if log.cluster_id not in (None, cluster_of(cluster_id)):\n",
        new="    if False:\n",
        tests=(SOURCES,),
    ),
    Plant(
        bug="two logs of one cluster overwrite each other's offset",
        path=f"{SPARK}/source_logs.py",
        old="        if first is not log:\n",
        new="        if False:\n",
        tests=(SOURCES,),
    ),
    Plant(
        bug="an added log that is idle starts later after each restart",
        path=f"{SPARK}/sources_reader.py",
        old="        updates = added | {",
        new="        updates = {",
        tests=(SOURCES,),
    ),
    Plant(
        bug="the offset of a removed log is dropped",
        path=f"{SPARK}/sources_reader.py",
        old="        return SourcesOffset({**position.logs, **updates}) if updates else None\n",
        new="        kept = {key: end for key, end in position.logs.items() if key in found}\n"
        "        return SourcesOffset({**kept, **updates}) if updates else None\n",
        tests=(SOURCES,),
    ),
    Plant(
        bug="the first part of each task but the first is lost",
        path=f"{SPARK}/planning.py",
        old="            packed.append([])\n            size = 0\n",
        new="            packed.append([])\n            size = 0\n"
        "            if len(packed) > 1:\n                continue\n",
        tests=(SIZES,),
    ),
    Plant(
        bug="each log is a task of its own",
        path=f"{SPARK}/planning.py",
        old="        if not packed or size + added > records_max:\n",
        new="        if True:\n",
        tests=(SIZES,),
    ),
    Plant(
        bug="a catalog stores the password of one of several logs",
        path="python_datasource/pyspark_raftlog/schema.py",
        old='    if name.lower() != "sources":\n',
        new="    if True:\n",
        tests=(
            "tests/spark/test_source_schema.py::"
            "test_no_secret_of_one_of_several_logs_is_stored_with_a_table",
        ),
    ),
)
