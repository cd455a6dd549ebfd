"""Bugs of a cluster's state: replayed records, metadata transactions, images, redaction, tables."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

STATE: Final = "state/raftlog_state"
TYPED: Final = "tests/state/records/test_typed_columns.py"
TRANSACTIONS: Final = "tests/state/loader/test_metadata_transactions.py"
FOLD: Final = "tests/state/loader/test_loader.py"
INVARIANTS: Final = "tests/state/loader/test_loader_invariants.py"
BOOTSTRAP: Final = "tests/state/loader/test_snapshot_loading.py"
IMAGE: Final = "tests/state/loader/test_image.py"
LAYERED: Final = "tests/state/loader/test_layered_map.py"
REDACTION: Final = "tests/state/records/test_redaction.py"
BATCH: Final = "tests/state/tables/test_tables_batch.py"
EXPORTS: Final = "tests/state/exports/test_exports.py"

TOPIC_ROWS: Final = "tests/state/loader/test_topic_rows.py"
CHANGES: Final = "tests/state/loader/test_merged_changes.py"

STATE_PLANTS: Final = (
    Plant(
        bug="changes are merged across a deletion of their topic",
        path="state/raftlog_state/replay/row_versions.py",
        old="require(is_plain=np.array_equal(of_topics[len(created.rows) :], of_last))",
        new="require(is_plain=len(of_last) == len(changed.rows))",
        tests=(
            f"{CHANGES}::test_changes_before_and_after_a_deletion_of_their_topic_are_not_merged",
        ),
    ),
    Plant(
        bug="a merged change increments the leader epoch once",
        path="state/raftlog_state/replay/row_versions.py",
        old="elections = np.where(merged.counts > 1, merged.set_counts, of_changed)",
        new="elections = of_changed",
        tests=(f"{CHANGES}::test_merged_changes_of_partitions_have_the_same_state",),
    ),
    Plant(
        bug="a replay for an image leaves out the last change of a broker's registration",
        path="state/raftlog_state/loader/scans.py",
        old="is_last = np.arange(len(changes)) >= np.array(",
        new="is_last = np.arange(len(changes)) > np.array(",
        tests=("tests/state/loader/test_topic_rows.py",),
    ),
    Plant(
        bug="a row that was deleted since the start is there",
        path=f"{STATE}/image/layered_map.py",
        old="            return self._changed[key] is not None\n",
        new="            return True\n",
        tests=(f"{LAYERED}::test_a_layered_map_is_a_dict_with_all_changes",),
    ),
    Plant(
        bug="an image changes with the next one",
        path=f"{STATE}/image/layered_map.py",
        old="found._changed = {**self._changed, **changes}\n",
        new="found._changed = self._changed\n        found._changed |= changes\n",
        tests=(f"{LAYERED}::test_a_layered_map_is_a_dict_with_all_changes",),
    ),
    Plant(
        bug="an image is copied as a whole for each commit that changes one of its rows",
        path=f"{STATE}/image/layered_map.py",
        old="    if len(entries) >= LAYERED_MIN and",
        new="    if False and",
        tests=(f"{LAYERED}::test_the_memory_of_successive_mappings_is_that_of_their_changes",),
    ),
    Plant(
        bug="an image copies all changes since the process started for each commit",
        path=f"{STATE}/image/layered_map.py",
        old="        if isinstance(self._base, dict) and",
        new="        if False and",
        tests=(
            f"{LAYERED}::"
            "test_a_mapping_releases_a_replaced_value_after_a_bounded_number_of_changes",
        ),
    ),
    Plant(
        bug="the memory of a state grows with all rows that ever were",
        path=f"{STATE}/image/layered_map.py",
        old="                del found._changed[key]  #",
        new="                pass  #",
        tests=(
            f"{LAYERED}::test_a_layered_map_forgets_removed_entries_that_its_base_does_not_have",
        ),
    ),
    Plant(
        bug="check replays a log with its secrets redacted, and snapshots without",
        path=f"{STATE}/check/replay_check.py",
        old="Redactor(reveal=True)",
        new="Redactor()",
        tests=("tests/state/cli/test_cli_check.py::test_every_snapshot_is_compared_with_the_log",),
    ),
    Plant(
        bug="check compares the keys of topics' rows with a snapshot, and not their values",
        path=f"{STATE}/loader/topic_rows.py",
        old="    found: bool = before.equals(after)\n",
        new="    found: bool = before.num_rows == after.num_rows\n",
        tests=(
            "tests/state/cli/test_cli_check.py::"
            "test_one_row_of_a_snapshot_that_differs_is_found_and_later_snapshots_are_compared",
        ),
    ),
    Plant(
        bug="check does not compare rows of no topic with a snapshot whose topics are columns",
        path=f"{STATE}/loader/scans.py",
        old="            if entity not in (Entity.TOPIC, Entity.PARTITION)\n",
        new="            if entity is Entity.CONFIG\n",
        tests=(
            "tests/state/cli/test_cli_check.py::"
            "test_one_row_of_a_snapshot_that_differs_is_found_and_later_snapshots_are_compared",
        ),
    ),
    Plant(
        bug="by columns: a snapshot may remove topics",
        path=f"{STATE}/loader/topic_rows.py",
        old="        require(is_plain=not len(found.by_type[RemoveTopicRecord].rows))\n",
        new="",
        tests=(f"{TOPIC_ROWS}::test_what_no_snapshot_has_is_loaded_record_by_record",),
    ),
    Plant(
        bug="by columns: a topic that is created again under another name has the first one, too",
        path=f"{STATE}/loader/topic_rows.py",
        old="np.logical_or.reduceat(versions.is_deleted, first)",
        new="versions.is_deleted[last]",
        tests=(f"{TOPIC_ROWS}::test_topics_in_transactions_and_with_secrets_have_the_same_state",),
    ),
    Plant(
        bug="partitions of a removed topic that no record of the range names stay in the image",
        path=f"{STATE}/loader/topic_rows.py",
        old="    for topic_id in whole:\n",
        new="    for topic_id in cleared_names:\n",
        tests=(
            f"{TOPIC_ROWS}::"
            "test_partitions_before_a_window_are_deleted_with_a_topic_that_it_removes",
        ),
    ),
    Plant(
        bug="configs set before a topic of their name is created survive its removal in one range",
        path=f"{STATE}/loader/topic_rows.py",
        old="for name in (*created_names, *(row.name for row in removed)):",
        new="for name in (row.name for row in removed):",
        tests=(TOPIC_ROWS,),
    ),
    Plant(
        bug="configs of brokers are left out of an image",
        path=f"{STATE}/replay/topic_records.py",
        old="            is_of_topics[rows[is_of_topic]] = True\n",
        new="            is_of_topics[rows] = True\n",
        tests=(TOPIC_ROWS,),
    ),
    Plant(
        bug="records after the last one that is not of a topic are not counted",
        path=f"{STATE}/loader/scans.py",
        old="last=(offset, leader_epoch, timestamp_ms)",
        new="last=(offsets[-1], leader_epoch, timestamp_ms)",
        tests=(TOPIC_ROWS,),
    ),
    Plant(
        bug="by columns: a change has the row after it as that before",
        path=f"{STATE}/loader/topic_rows.py",
        old="np.searchsorted(used, which - 1)",
        new="np.searchsorted(used, which)",
        tests=(f"{TOPIC_ROWS}::test_changes_by_columns_are_those_of_a_loader",),
    ),
    Plant(
        bug="by columns: changes in a transaction are before those that took effect earlier",
        path=f"{STATE}/loader/topic_rows.py",
        old="np.lexsort((rows, visible_offsets[rows]))",
        new="np.lexsort((numbers, visible_offsets[rows]))",
        tests=(
            f"{TOPIC_ROWS}::test_changes_in_transactions_and_with_secrets_are_those_of_a_loader",
        ),
    ),
    Plant(
        bug="changes of other records are after those of all topics of a window",
        path=f"{STATE}/loader/scans.py",
        old="merge(topics, matching(self.others, filters), key=_order)",
        new="iter([*topics, *matching(self.others, filters)])",
        tests=(f"{TOPIC_ROWS}::test_changes_of_other_records_are_between_those_of_topics",),
    ),
    Plant(
        bug="rows that a filter does not name are among the changes",
        path=f"{STATE}/loader/topic_rows.py",
        old="                of_filter &= _equal(",
        new="                of_filter |= _equal(",
        tests=(f"{TOPIC_ROWS}::test_changes_by_columns_are_those_of_a_loader",),
    ),
    Plant(
        bug="records skipped before a snapshot are counted after it",
        path=f"{STATE}/loader/metadata_loader.py",
        old="        self._skipped = {}\n        for unknown",
        new="        for unknown",
        tests=("tests/state/loader/test_snapshot_loading.py",),
    ),
    Plant(
        bug="records of an aborted transaction change the state",
        path=f"{STATE}/loader/metadata_loader.py",
        old="        if marker.outcome is TransactionOutcome.COMMITTED:\n",
        new="        if True:\n",
        tests=(TRANSACTIONS,),
    ),
    Plant(
        bug="a replay keeps the keys of all rows that were deleted",
        path=f"{STATE}/image/delta.py",
        old="if after is None and self.image.get(entity, key) is None:",
        new="if after is None and before is None:",
        tests=(IMAGE,),
    ),
    Plant(
        bug="changes of a transaction are visible from their own offsets on",
        path=f"{STATE}/loader/metadata_loader.py",
        old="dataclasses.replace(record_at, visible_offset=at.offset)",
        new="dataclasses.replace(record_at)",
        tests=(TRANSACTIONS,),
    ),
    Plant(
        bug="an open transaction advances the image's offset",
        path=f"{STATE}/loader/metadata_loader.py",
        old="        if self._transaction is None:\n            self._visible = (offset,",
        new="        if True:\n            self._visible = (offset,",
        tests=(TRANSACTIONS,),
    ),
    Plant(
        bug="control records inside a transaction are lost",
        path=f"{STATE}/loader/metadata_loader.py",
        old="            self._replay_control(control, control_at, changes)\n",
        new="            pass\n",
        tests=(TRANSACTIONS,),
    ),
    Plant(
        bug="a failed call leaves its records in the open transaction",
        path=f"{STATE}/loader/metadata_loader.py",
        old="            savepoint.transaction.truncate(savepoint.transaction_sizes)\n",
        new="            pass\n",
        tests=(TRANSACTIONS, FOLD),
    ),
    Plant(
        bug="a failed call reverts only its last record",
        path=f"{STATE}/loader/metadata_loader.py",
        old="        for done in reversed(changes):\n",
        new="        for done in changes[:0]:\n",
        tests=(FOLD,),
    ),
    Plant(
        bug="a snapshot at the offset of the state is loaded again",
        path=f"{STATE}/loader/metadata_loader.py",
        old="        if snapshot_id.end_offset < self._next_offset:\n",
        new="        if snapshot_id.end_offset + 1 < self._next_offset:\n",
        tests=(BOOTSTRAP,),
    ),
    Plant(
        bug="a snapshot that ends inside the open transaction is loaded",
        path=f"{STATE}/loader/metadata_loader.py",
        old="        if snapshot_id.end_offset < self._next_offset:\n",
        new="        if snapshot_id.end_offset <= before.offset:\n",
        tests=(INVARIANTS,),
    ),
    Plant(
        bug="the rows of a loader that is used in its own input are kept",
        path=f"{STATE}/loader/metadata_loader.py",
        old="            assert not unreturned_count, ",
        new="            assert True, ",
        tests=(INVARIANTS,),
    ),
    Plant(
        bug="records that are appended while a snapshot is read are kept in no image",
        path=f"{STATE}/loader/metadata_loader.py",
        old="            self._check_unchanged(savepoint)\n",
        new="            pass\n",
        tests=(INVARIANTS,),
    ),
    Plant(
        bug="a loader with a violated invariant returns its image",
        path=f"{STATE}/loader/metadata_loader.py",
        old="        if self._violation is not None:\n",
        new="        if False:\n",
        tests=(INVARIANTS,),
    ),
    Plant(
        bug="an undone creation counts as a row",
        path=f"{STATE}/image/delta.py",
        old="            self._added_count -= 1\n",
        new="            pass\n",
        tests=(INVARIANTS, FOLD),
    ),
    Plant(
        bug="loading keeps rows that the snapshot lacks",
        path=f"{STATE}/loader/snapshot_loader.py",
        old="        if deletions:\n",
        new="        if False:\n",
        tests=(BOOTSTRAP,),
    ),
    Plant(
        bug="an end marker in an unknown version is skipped",
        path=f"{STATE}/loader/transactions.py",
        old="    if api_key == _END:\n",
        new="    if api_key == _END and not isinstance(record, UnknownRecord):\n",
        tests=(TRANSACTIONS,),
    ),
    Plant(
        bug="a transaction's row ends before its end marker",
        path=f"{STATE}/loader/transactions.py",
        old="            end_offset=marker_offset + 1,\n",
        new="            end_offset=marker_offset,\n",
        tests=(TRANSACTIONS,),
    ),
    Plant(
        bug="the digest includes rows that were deleted or replaced",
        path=f"{STATE}/image/delta.py",
        old="                    removed.append(before)\n",
        new="                    pass\n",
        tests=(IMAGE,),
    ),
    Plant(
        bug="the name of a deleted topic stays taken",
        path=f"{STATE}/image/delta.py",
        old="                keys.pop(key, None)\n",
        new="",
        tests=("tests/state/loader/test_replay_topics.py",),
    ),
    Plant(
        bug="the leader epoch is unchanged when the same leader is given again",
        path=f"{STATE}/replay/topics.py",
        old="(record.leader != LEADER_UNCHANGED)",
        new="(record.leader not in (LEADER_UNCHANGED, row.leader))",
        tests=("tests/state/loader/test_replay_topics.py",),
    ),
    Plant(
        bug="an empty list in a partition change keeps the previous one",
        path=f"{STATE}/image/row_schema.py",
        old='is_same = "is None" if field.default is None else',
        new='is_same = "in (None, ())" if field.default is None else',
        tests=("tests/state/loader/test_replay_topics.py",),
    ),
    Plant(
        bug="configs of a deleted topic are kept",
        path=f"{STATE}/replay/topics.py",
        old="        state.delete(Entity.CONFIG, key)\n",
        new="        pass\n",
        tests=("tests/state/loader/test_replay_topics.py",),
    ),
    Plant(
        bug="a topic that is created again has its name before, too",
        path=f"{STATE}/loader/topic_rows.py",
        old="if key not in kept or kept[key] != name]",
        new="if key not in kept]",
        tests=(TOPIC_ROWS,),
    ),
    Plant(
        bug="rows that a window does not change are lost",
        path=f"{STATE}/loader/topic_rows.py",
        old="        if is_kept.any():\n            tables",
        new="        if not is_kept.any():\n            tables",
        tests=(TOPIC_ROWS,),
    ),
    Plant(
        bug="rows of topics are written again over those of later records",
        path=f"{STATE}/loader/scans.py",
        old="        topics, self.topics = self.topics, None\n",
        new="        topics = self.topics\n",
        tests=(f"{TOPIC_ROWS}::test_rows_are_in_the_loader_after_an_error",),
    ),
    Plant(
        bug="a snapshot below the log start is no state even at its own end",
        path=f"{STATE}/loader/image_reader.py",
        old="        return base == end_offset or self._log_start_offset <= base < end_offset\n",
        new="        return self._log_start_offset <= base < end_offset\n",
        tests=("tests/state/loader/test_base_images.py",),
    ),
    Plant(
        bug="a snapshot that ends after the log is not the newest state",
        path=f"{STATE}/loader/image_reader.py",
        old="    if newest is None or newest.end_offset > end_offset:\n        return newest\n",
        new="    if newest is None or newest.end_offset > end_offset:\n        return None\n",
        tests=("tests/state/loader/test_base_images.py",),
    ),
    Plant(
        bug="the log is replayed up to a snapshot of a later leader epoch",
        path=f"{STATE}/loader/image_reader.py",
        old="            return iter(())  # which of them were committed is unknown\n",
        new="            pass\n",
        tests=("tests/state/loader/test_base_images.py",),
    ),
    Plant(
        bug="trailing bytes of a record are accepted",
        path=f"{STATE}/records/serde.py",
        old="        record, end = read(value, 3)\n        if end != len(value):\n",
        new="        record, end = read(value, 3)\n        if False:\n",
        tests=("tests/state/records/test_damaged_records.py",),
    ),
    Plant(
        bug="a transaction does not hang if its producer is in another transaction",
        path=f"{STATE}/internal/joined_rows.py",
        old="""row is not None and f"{topic}-{partition}" in row["partitions"]""",
        new="row is not None",
        tests=("tests/state/internal/test_joined_rows.py",),
    ),
    Plant(
        bug="a segment that the local log begins in is only remote",
        path=f"{STATE}/internal/joined_rows.py",
        old="""row.end_offset < local""",
        new="""row.start_offset < local""",
        tests=("tests/state/internal/test_joined_rows.py",),
    ),
    Plant(
        bug="an offset commit of an aborted transaction is a committed offset",
        path="connector/raftlog/log/reading/latest_by_key.py",
        old="        if commit:\n",
        new="        if True:\n",
        tests=("tests/log/test_latest_by_key.py",),
    ),
    Plant(
        bug="the end of a transaction replaces a later record of the same key",
        path="connector/raftlog/log/reading/latest_by_key.py",
        old="            if known is None or known.offset < record.offset:\n",
        new="            if True:\n",
        tests=("tests/log/test_latest_by_key.py",),
    ),
    Plant(
        bug="lengths of versions that are not flexible are read as compact ones",
        path=f"{STATE}/records/reader.py",
        old="    is_flexible = version >= kind.schema.flexible_since\n",
        new="    is_flexible = True\n",
        tests=("tests/state/records/test_internal_records.py",),
    ),
    Plant(
        bug="full redaction shows the user data of a consumer's subscription",
        path=f"{STATE}/records/redaction.py",
        old="        protocol = replace(protocol, **self._hide_client(protocol, False))\n",
        new="",
        tests=("tests/state/records/test_internal_records.py",),
    ),
    Plant(
        bug="a decoded record is written in the latest version",
        path=f"{STATE}/records/serde.py",
        old="        version = record.version if version is None else version\n",
        new="",
        tests=("tests/state/records/test_golden_records.py",),
    ),
    Plant(
        bug="an unknown field of one struct among several is shown",
        path=f"{STATE}/records/redaction.py",
        old="        if any(redacted):\n",
        new="        if all(redacted):\n",
        tests=(REDACTION,),
    ),
    Plant(
        bug="an unknown record shows its bytes",
        path=f"{STATE}/records/redaction.py",
        old='return DecodedRecord(decoded.version, replace(record, payload=b""))',
        new="return DecodedRecord(decoded.version, record)",
        tests=(REDACTION,),
    ),
    Plant(
        bug="the salt of a password is shown",
        path=f"{STATE}/records/redaction.py",
        old='("salt", "stored_key", "server_key")',
        new='("stored_key", "server_key")',
        tests=(REDACTION,),
    ),
    Plant(
        bug="a row shows what its record hides",
        path=f"{STATE}/image/row_schema.py",
        old='            entry.repr = (entry.metadata["record"] or name) not in secret\n',
        new="            pass\n",
        tests=("tests/state/loader/test_row_schema.py", REDACTION),
    ),
    Plant(
        bug="one secret in two fields has one mask",
        path=f"{STATE}/records/redaction.py",
        old='        salted = f"{len(label)} {label} ".encode(*_ANY_TEXT) + secret\n',
        new="        salted = secret\n",
        tests=(REDACTION,),
    ),
    Plant(
        bug="records of an open transaction are written to the tables",
        path=f"{STATE}/tables/batch.py",
        old="    return records if begin_row is None else records.slice(0, begin_row)\n",
        new="    return records\n",
        tests=(BATCH,),
    ),
    Plant(
        bug="a repeated record is written to the tables twice",
        path=f"{STATE}/tables/batch.py",
        old="    wrong = np.flatnonzero(np.diff(offset) != 1)\n",
        new="    wrong = np.flatnonzero(np.diff(offset) > 1)\n",
        tests=(BATCH,),
    ),
    Plant(
        bug="a snapshot without its footer is loaded",
        path=f"{STATE}/tables/batch.py",
        old="        and control[-1].as_py() == _FOOTER\n",
        new="",
        tests=(BATCH,),
    ),
    Plant(
        bug="a snapshot one record above the tables' end is skipped",
        path=f"{STATE}/tables/batch.py",
        old="    if last < next_offset:\n",
        new="    if last <= next_offset:\n",
        tests=(BATCH,),
    ),
    Plant(
        bug="a decreasing leader epoch inside a batch is accepted",
        path=f"{STATE}/tables/batch.py",
        old="    falls = np.flatnonzero(np.diff(epoch) < 0)\n",
        new="    falls = np.flatnonzero(np.diff(epoch) < -1)\n",
        tests=(BATCH,),
    ),
    Plant(
        bug="an exported snapshot loses that a broker is shutting down",
        path=f"{STATE}/image/row_schema.py",
        old="        if name in columns and name not in given:\n",
        new="        if name in columns and columns[name].kind is not Scalar.BOOL:\n",
        tests=("tests/state/loader/test_image_records.py",),
    ),
    Plant(
        bug="the positions of a record's changes restart in the table",
        path=f"{STATE}/tables/convert.py",
        old="np.arange(len(offsets)) - np.repeat(starts, lengths)",
        new="np.zeros(len(offsets), np.int64)",
        tests=("tests/state/tables/test_tables_convert.py",),
    ),
    Plant(
        bug="an updated row loses its creation offset",
        path=f"{STATE}/tables/origins.py",
        old="record.offset if before is None else before.created_offset",
        new="record.offset",
        tests=("tests/state/tables/test_tables_convert.py",),
    ),
    Plant(
        bug="a secret is in the typed columns",
        path=f"{STATE}/records/typed_columns.py",
        old="redactor.redact(decode(value)).record for",
        new="decode(value).record for",
        tests=(f"{TYPED}::test_no_secret_is_in_the_columns_unless_it_is_shown",),
    ),
    Plant(
        bug="a typed column of all rows repeats a record where another type is",
        path=f"{STATE}/records/typed_columns.py",
        old="pa.array(ordinals, mask=is_other)",
        new="pa.array(ordinals)",
        tests=(f"{TYPED}::test_a_column_of_all_rows_is_null_where_another_type_is",),
    ),
    Plant(
        bug="an exported script deletes the topics whose names match",
        path=f"{STATE}/exports/commands.py",
        old="""    return topic.replace(".", "\\\\.")
""",
        new="""    return topic
""",
        tests=(f"{EXPORTS}::test_a_name_is_no_regular_expression_where_kafka_reads_one",),
    ),
    Plant(
        bug="an exported script splits values at commas",
        path=f"{STATE}/exports/commands.py",
        old='re.compile(r"[,=\\s]")',
        new='re.compile(r"[=\\s]")',
        tests=(f"{EXPORTS}::test_a_list_is_one_value_of_a_config",),
    ),
    Plant(
        bug="an export has templates of Terraform",
        path=f"{STATE}/exports/terraform.py",
        old='if character in "$%" and following == "{":',
        new="if False:",
        tests=(f"{EXPORTS}::test_a_text_is_that_text_in_hcl",),
    ),
    Plant(
        bug="users of Strimzi lose the rules that did not change",
        path=f"{STATE}/exports/strimzi.py",
        old="""        operations.setdefault(key, []).append(operation)
""",
        new="""        operations[key] = [operation]
""",
        tests=(f"{EXPORTS}::test_a_user_has_its_acls_quotas_and_kind_of_credential",),
    ),
    Plant(
        bug="a rejected removal of a snapshot deletes the topic",
        path=f"{STATE}/loader/snapshot_loader.py",
        old="            self._undo(changes)\n",
        new="",
        tests=("tests/state/loader/test_rejected_records.py",),
    ),
    Plant(
        bug="a node writes snapshots without the records that its own snapshot rejects",
        path=f"{STATE}/publishing/loader.py",
        old="        self._loader, self._failure = loader, None\n",
        new="        self._loader, self._failure, self._rejected = loader, None, None\n",
        tests=("tests/state/publishing/test_rejected_snapshots.py",),
    ),
)
