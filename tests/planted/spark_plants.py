"""Bugs of the Spark source and sink: planned batches, visibility, commits, rows, options."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

SPARK: Final = "python_datasource/pyspark_raftlog"
ROWS: Final = "state/raftlog_state/source_rows"
PROGRESS: Final = "tests/spark/test_source_progress.py"
OFFSETS: Final = "tests/spark/test_source_offsets.py"
OPTIONS: Final = "tests/spark/test_source_options.py"
VISIBLE: Final = "tests/spark/test_source_transactions.py"
MESSAGES: Final = "tests/spark/writing/test_commit_message.py"
APPENDING: Final = "tests/spark/writing/test_sink_append.py"
WRITTEN: Final = "tests/spark/writing/test_write_rows.py"

SPARK_PLANTS: Final = (
    Plant(
        bug="a stream uses the snapshot of another query",
        path=f"{SPARK}/stream_reader.py",
        old="        follows = before.offset == batch.start_offset\n",
        new="        follows = True\n",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="an AvailableNow run has no end while the log grows",
        path=f"{SPARK}/stream_reader.py",
        old="            end_offset = min(end_offset, self._target_offset)\n",
        new="            pass\n",
        tests=(PROGRESS,),
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
        path=f"{SPARK}/stream_reader.py",
        old="            if self._options.fail_on_data_loss:\n                raise loss\n",
        new="",
        tests=(PROGRESS,),
    ),
    Plant(
        bug="a stream that waits for a snapshot starts with another cluster's",
        path=f"{SPARK}/stream_reader.py",
        old="(loss is None or not loss.is_different_log)",
        new="True",
        tests=(PROGRESS,),
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
        old="        if version > VERSION:\n",
        new="        if False:\n",
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
        old="    return min(options.ending_offset, end.offset)\n",
        new="    return options.ending_offset\n",
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
        old="            if attribute in names:\n",
        new="            if False:\n",
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
