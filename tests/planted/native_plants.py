"""Bugs of the compiled core, and of what Python does with its results."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

RUST: Final = "connector/native/src"
SCAN: Final = "tests/records/test_native_scan.py"
MUTATED: Final = f"{SCAN}::test_mutated_logs_are_scanned_alike"
EVERY_KIND: Final = f"{SCAN}::test_batches_of_every_kind_are_scanned_alike"
LATE: Final = f"{SCAN}::test_what_is_different_from_the_other_records_of_a_batch_is_scanned_alike"
EVERY_LOG: Final = f"{SCAN}::test_every_real_log_is_scanned_alike"

JSON: Final = "tests/state/records/test_native_json.py"
MUTATED_VALUES: Final = f"{JSON}::test_mutated_values_are_written_alike_or_given_back"
CONFIGS: Final = f"{JSON}::test_a_secret_is_given_back_and_a_public_config_is_written"
LINES: Final = f"{JSON}::test_lines_have_the_places_and_only_the_selected_types"

CHANGES: Final = "tests/state/loader/test_merged_changes.py"
TYPED: Final = "tests/state/records/test_typed_columns.py"

BUILD: Final = "tests/records/test_native_build.py"
DISTINCT: Final = "tests/state/loader/test_distinct_values.py"
MEMORY: Final = "tests/records/test_native_memory.py"
MERGED: Final = "tests/state/records/test_merged_records.py"
FOLLOWED: Final = (
    "tests/log/writing/test_quorum_log.py::test_batches_of_a_leader_are_appended_or_refused_alike"
)
PRODUCED: Final = (
    "tests/node/apis/test_sealed_batches.py"
    "::test_a_batch_that_the_core_has_read_gives_the_request_that_python_reads"
)
ATTRIBUTES: Final = (
    "tests/node/apis/test_sealed_batches.py::test_a_batch_of_any_attribute_is_read_by_python"
)
REQUESTED: Final = (
    "tests/wire/test_produce_codec.py::test_mutated_requests_of_one_batch_are_decoded_alike"
)

NATIVE_PLANTS: Final = (
    Plant(
        bug="a follower appends a batch of the core that is not at the end of its log",
        path=f"{RUST}/append.rs",
        old="header.base_offset == expected_offset\n",
        new="header.base_offset >= expected_offset\n",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="a follower appends a batch of the core after the epoch of the leader",
        path=f"{RUST}/append.rs",
        old="(epoch..=leader_epoch).contains",
        new="(epoch..).contains",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="the core names the commit of a header that is there twice",
        path=f"{RUST}/append.rs",
        old="if count == 1 { found }",
        new="if count >= 1 { found }",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="the core takes control records of a leader for records",
        path=f"{RUST}/append.rs",
        old="            && !header.is_control()\n",
        new="",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="the core returns the batches before a torn one",
        path=f"{RUST}/append.rs",
        old="(batches.position() == data.len()).then_some(found)",
        new="Some(found)",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="the core accepts a batch whose largest timestamp is not that of its records",
        path=f"{RUST}/append.rs",
        old=" || latest_ms != header.max_timestamp_ms",
        new="",
        tests=(PRODUCED,),
    ),
    Plant(
        bug="the core accepts a producer's batch without an epoch of the producer",
        path=f"{RUST}/append.rs",
        old="header.producer_epoch >= 0 && header.base_sequence >= 0",
        new="header.base_sequence >= 0",
        tests=(PRODUCED,),
    ),
    Plant(
        bug="the core accepts a producer's batch of another attribute",
        path=f"{RUST}/append.rs",
        old="        && header.attributes == 0\n",
        new="",
        tests=(ATTRIBUTES,),
    ),
    Plant(
        bug="the core takes any first header for the name of a commit",
        path=f"{RUST}/append.rs",
        old="if key == name => Some(value)",
        new="if !key.is_empty() => Some(value)",
        tests=(PRODUCED,),
    ),
    Plant(
        bug="the core accepts a Produce request with tagged fields",
        path=f"{RUST}/append.rs",
        old="    is_next(&mut fields, 0)?; // no tagged fields of partition, topic and request\n",
        new="    fields.byte()?;\n",
        tests=(REQUESTED,),
    ),
    Plant(
        bug="the core merges changes across a creation of their partition",
        path=f"{RUST}/merge.rs",
        old="            entry.run = NONE;\n",
        new="",
        tests=(f"{MERGED}::test_merged_changes_have_the_effects_of_all",),
    ),
    Plant(
        bug="the core merges a number that is out of bounds",
        path=f"{RUST}/merge.rs",
        old="number < lowest || number > highest",
        new="number < lowest",
        tests=(f"{CHANGES}::test_changes_that_contradict_the_state_are_not_merged",),
    ),
    Plant(
        bug="the core merges a change whose list is null",
        path=f"{RUST}/merge.rs",
        old="read_length(field.nullable, &mut inner)??;",
        new="read_length(field.nullable, &mut inner)?.unwrap_or(0);",
        tests=(f"{MERGED}::test_a_list_that_is_null_is_as_an_absent_one",),
    ),
    Plant(
        bug="the core gathers the elements of lists as bytes",
        path=f"{RUST}/gather.rs",
        old="let begin = first.checked_mul(self.element_bytes)?;",
        new="let begin = first;",
        tests=(f"{DISTINCT}::test_gathered_rows_are_those_of_take",),
    ),
    Plant(
        bug="the core has no null among gathered rows",
        path=f"{RUST}/gather.rs",
        old="(null_count > 0)",
        new="(null_count > codes.len())",
        tests=(f"{DISTINCT}::test_gathered_rows_are_those_of_take",),
    ),
    Plant(
        bug="the core does not verify CRCs",
        path=f"{RUST}/batch.rs",
        old="crc32c::crc32c(covered) == self.header.crc",
        new="crc32c::crc32c(covered) == self.header.crc || !covered.is_empty()",
        tests=(MUTATED,),
    ),
    Plant(
        bug="the core accepts varints of more than 32 bits",
        path=f"{RUST}/reader.rs",
        old="if ordinal == MAX - 1 && byte > last_max {",
        new="if ordinal == MAX && byte > last_max {",
        tests=(f"{SCAN}::test_a_varint_of_too_many_bits_is_damage_in_both",),
    ),
    Plant(
        bug="the core accepts offset deltas that do not ascend",
        path=f"{RUST}/scan.rs",
        old="if !(last_delta < record.offset_delta",
        new="if !(last_delta <= record.offset_delta",
        tests=(f"{SCAN}::test_equal_offset_deltas_are_damage_in_both",),
    ),
    Plant(
        bug="the core accepts equal offset deltas of records without keys",
        path=f"{RUST}/scan.rs",
        old="if offset_delta <= last_delta {",
        new="if offset_delta < last_delta {",
        tests=(LATE,),
    ),
    Plant(
        bug="the core keeps the rows of a batch that it reads again",
        path=f"{RUST}/scan.rs",
        old="            self.values.truncate(before);\n",
        new="",
        tests=(LATE,),
    ),
    Plant(
        bug="the core returns all records of a batch in which a range ends",
        path=f"{RUST}/scan.rs",
        old="end.is_none_or(|end| header.last_offset() < end)",
        new="end.is_none_or(|end| header.base_offset < end)",
        tests=(LATE,),
    ),
    Plant(
        bug="the core returns the records of a damaged batch",
        path=f"{RUST}/scan.rs",
        old="            self.rows = before.0;\n",
        new="",
        tests=(f"{SCAN}::test_equal_offset_deltas_are_damage_in_both",),
    ),
    Plant(
        bug="the core ignores bytes after the last record",
        path=f"{RUST}/scan.rs",
        old="        if records.is_at_end() {",
        new="        if records.is_at_end() || count > 0 {",
        tests=(MUTATED, EVERY_KIND),
    ),
    Plant(
        bug="the core filters offsets by the end of the batch",
        path=f"{RUST}/scan.rs",
        old="range.end.is_none_or(|end| offset < end)",
        new="range.end.is_none_or(|end| header.base_offset < end)",
        tests=(EVERY_LOG, EVERY_KIND),
    ),
    Plant(
        bug="the core omits control records from a scan of some values",
        path=f"{RUST}/scan.rs",
        old="                || header.is_control()\n",
        new="",
        tests=("tests/records/test_scan.py", EVERY_LOG),
    ),
    Plant(
        bug="the core returns records without a value from a scan of some values",
        path=f"{RUST}/scan.rs",
        old="value.is_some_and(|bytes| self.prefixes",
        new="value.is_none_or(|bytes| self.prefixes",
        tests=("tests/records/test_scan.py", LATE),
    ),
    Plant(
        bug="the core ignores the time of the log",
        path=f"{RUST}/scan.rs",
        old="if header.is_log_append_time() {",
        new="if header.is_log_append_time() && header.is_control() {",
        tests=(EVERY_KIND,),
    ),
    Plant(
        bug="the core skips batches before a range that begins inside them",
        path=f"{RUST}/batch.rs",
        old="header.last_offset() < start",
        new="header.base_offset < start",
        tests=(EVERY_LOG,),
    ),
    Plant(
        bug="the core walks over invalid headers",
        path=f"{RUST}/batch.rs",
        old="checks == Checks::Headers && !header.is_valid()",
        new="checks == Checks::Headers && !header.is_valid() && header.record_count > 0",
        tests=(MUTATED,),
    ),
    Plant(
        bug="a panic of the core ends the process",
        path=f"{RUST}/python.rs",
        old="catch_unwind(AssertUnwindSafe(work)).unwrap_or(Ok(None))",
        new="work()",
        tests=(f"{SCAN}::test_a_panic_of_the_core_is_caught_and_the_scan_is_done_in_python",),
    ),
    Plant(
        bug="the core ends the process where memory is exhausted",
        path=f"{RUST}/memory.rs",
        old="self.try_reserve_exact(count).ok()",
        new="Some(self.reserve(count))",
        tests=(f"{MEMORY}::test_an_exhausted_memory_is_given_back_and_ends_no_process",),
    ),
    Plant(
        bug="the core keeps the headers of every walk",
        path=f"{RUST}/batch.rs",
        old="let mut headers = borrowed();",
        new="let mut headers = { let _ = borrowed::<(usize, Header)>; Vec::new() };",
        tests=(f"{MEMORY}::test_repeated_calls_keep_the_memory_of_one",),
    ),
    Plant(
        bug="the core's columns begin with the elements of earlier ones",
        path=f"{RUST}/memory.rs",
        old="    vector.clear();\n",
        new="",
        tests=(f"{MEMORY}::test_scans_in_the_memory_of_earlier_ones_return_what_python_does",),
    ),
    Plant(
        bug="the core gives back an interrupt during decompression",
        path=f"{RUST}/python.rs",
        old="crate::scan::scan(bytes, request, expander(decompress))?",
        new="crate::scan::scan(bytes, request, expander(decompress)).unwrap_or(None)",
        tests=(f"{SCAN}::test_an_exception_during_decompression_is_raised_and_not_given_back",),
    ),
    Plant(
        bug="the header columns of the core are read in another order",
        path="connector/raftlog/records/batch_columns.py",
        old="        base_timestamp_ms=int64s[3],\n        max_timestamp_ms=int64s[4],\n",
        new="        base_timestamp_ms=int64s[4],\n        max_timestamp_ms=int64s[3],\n",
        tests=(EVERY_KIND,),
    ),
    Plant(
        bug="the core's JSON shows every config",
        path=f"{RUST}/program.rs",
        old="            if field.hidden && !shows.reveal && !self",
        new="            if field.hidden && shows.reveal && !self",
        tests=(CONFIGS,),
    ),
    Plant(
        bug="the core's JSON shows configs of any resource type",
        path=f"{RUST}/program.rs",
        old="Some(names.is_some_and(|names| names.contains(name)))",
        new="Some(names.is_some() && self.public.values().any(|names| names.contains(name)))",
        tests=(f"{JSON}::test_a_public_name_of_another_resource_type_is_a_secret",),
    ),
    Plant(
        bug="the core's JSON has unknown tagged fields as known ones",
        path=f"{RUST}/program.rs",
        old="                (field.tag == Some(tag)).then_some((at, field))\n            })?;",
        new="                (field.tag >= Some(tag)).then_some((at, field))\n            })?;",
        tests=(f"{JSON}::test_random_records_of_every_version_are_written_alike", MUTATED_VALUES),
    ),
    Plant(
        bug="the core's JSON ignores bytes after a record",
        path=f"{RUST}/program.rs",
        old="        if !reader.is_at_end() {",
        new="        if !reader.is_at_end() && body.fields.is_empty() {",
        tests=(MUTATED_VALUES,),
    ),
    Plant(
        bug="the core's JSON has tagged fields at their default",
        path=f"{RUST}/program.rs",
        old="            if is_default(field, bytes)? {\n",
        new="            if is_default(field, bytes)? && false {\n",
        tests=(f"{JSON}::test_a_tagged_field_at_its_default_is_not_written",),
    ),
    Plant(
        bug="the core's JSON has tagged fields in the order of their tags",
        path=f"{RUST}/program.rs",
        old="            if at < last {\n                return Some(false);",
        new="            if at < last && false {\n                return Some(false);",
        tests=(f"{JSON}::test_tagged_fields_are_written_in_the_order_of_their_declaration",),
    ),
    Plant(
        bug="the core's JSON has control characters",
        path=f"{RUST}/program.rs",
        old="matches!(character, ' '..='~' |",
        new="matches!(character, ' '..='\\u{9f}' |",
        tests=(f"{JSON}::test_only_printable_characters_are_written",),
    ),
    Plant(
        bug="the core's lines have the place of another record",
        path=f"{RUST}/program.rs",
        old="column.get(row * N..)?",
        new="column.get(row / 2 * N..)?",
        tests=(LINES,),
    ),
    Plant(
        bug="the core's lines are those of all types",
        path=f"{RUST}/program.rs",
        old="&& *takes.get(usize::from(api_key))? == 0",
        new="&& *takes.get(usize::from(api_key))? == 7",
        tests=(LINES,),
    ),
    Plant(
        bug="rows that the core gave back are printed after those that it wrote",
        path="state/raftlog_state/cli/cat_log.py",
        old="        end = int(written.ends[rows[at]])  # a row for Python has no text\n",
        new="        end = int(written.ends[-1])\n",
        tests=(f"{JSON}::test_cat_prints_the_same_in_both",),
    ),
    Plant(
        bug="values that the core gave back are shown unredacted",
        path="state/raftlog_state/source_rows/metadata_columns.py",
        old="else self._merged(self._values, in_python)\n",
        new="else self._values\n",
        tests=(f"{JSON}::test_columns_of_records_are_equal_in_both",),
    ),
    Plant(
        bug="a batch of the core has a wrong CRC with a producer",
        path=f"{RUST}/build.rs",
        old="crc32c::crc32c_append(crc32c::crc32c(&covered), payload)",
        new="crc32c::crc32c_append(u32::from(fields.producer_id > 0), payload)",
        tests=(f"{BUILD}::test_batches_are_built_alike_and_hold_the_values",),
    ),
    Plant(
        bug="records of the core have offset deltas from zero in each part",
        path=f"{RUST}/build.rs",
        old="        self.varint(zigzag(delta))?;",
        new="        self.varint(zigzag(delta & 0x1fff))?;",
        tests=(f"{BUILD}::test_values_are_encoded_alike",),
    ),
    Plant(
        bug="the core builds batches without their last offset",
        path=f"{RUST}/new_records.rs",
        old="fields.last_offset_delta = count - 1;",
        new="fields.last_offset_delta = count.min(1) - 1;",
        tests=(f"{BUILD}::test_a_batch_is_built_in_one_step_as_by_a_builder",),
    ),
    Plant(
        bug="a standalone batch has the offset of the batch before it",
        path="connector/raftlog/records/builder.py",
        old="        self._next_offset += batch.record_count\n",
        new="",
        tests=("tests/records/test_builder.py",),
    ),
    Plant(
        bug="the core encodes one byte more than fits",
        path=f"{RUST}/new_records.rs",
        old="if byte_count > request.byte_count_max {",
        new="if byte_count > request.byte_count_max + 1 {",
        tests=(f"{BUILD}::test_values_are_encoded_alike",),
    ),
    Plant(
        bug="the core stamps a batch of records with its own time alone",
        path=f"{RUST}/new_records.rs",
        old="        fields.max_timestamp_ms = found.max_timestamp_ms;\n",
        new="",
        tests=(f"{BUILD}::test_a_batch_is_built_in_one_step_as_by_a_builder",),
    ),
    Plant(
        bug="the core counts no headers of the records that fit",
        path=f"{RUST}/new_records.rs",
        old="""        byte_count = byte_count.checked_add(build::whole_bytes(body_bytes))?;
        header_count = header_count.checked_add(headers.len())?;
""",
        new="        byte_count = byte_count.checked_add(build::whole_bytes(body_bytes))?;\n",
        tests=(f"{BUILD}::test_headers_beyond_those_of_a_batch_do_not_fit",),
    ),
    Plant(
        bug="the core writes fields to the typed columns of others",
        path=f"{RUST}/columns.rs",
        old="        column.add_field(program, field, &mut reader, shows, row)?;",
        new="        columns.first_mut()?.add_field(program, field, &mut reader, shows, row)?;",
        tests=(f"{TYPED}::test_random_records_of_every_version_have_what_is_decoded",),
    ),
    Plant(
        bug="the core writes an empty array where one is absent that is null by default",
        path=f"{RUST}/columns.rs",
        old="if field.nullable && field.default == -1 {",
        new="if field.nullable && field.default == -2 {",
        tests=(f"{TYPED}::test_random_records_of_every_version_have_what_is_decoded",),
    ),
    Plant(
        bug="a record that the core gives back leaves fields in the typed columns",
        path=f"{RUST}/columns.rs",
        old="column.truncate(done))?",
        new="column.truncate(done + 1))?",
        tests=(f"{TYPED}::test_the_core_gives_back_secrets_and_unknown_tags",),
    ),
    Plant(
        bug="rows of other types leave no room in the core's typed columns",
        path=f"{RUST}/columns.rs",
        old="            done = row;\n",
        new="",
        tests=(f"{TYPED}::test_records_of_real_logs_and_golden_ones_have_what_is_decoded",),
    ),
    Plant(
        bug="a row of typed columns that the core gave back is that of another record",
        path="state/raftlog_state/records/typed_columns.py",
        old="fields = _replaced(fields, in_python, own[given_back])",
        new="fields = _replaced(fields, in_python, given_back)",
        tests=(f"{TYPED}::test_records_of_real_logs_and_golden_ones_have_what_is_decoded",),
    ),
    Plant(
        bug="the core shows a secret in typed columns",
        path=f"{RUST}/columns.rs",
        old="if body.hides && !shows.reveal {",
        new="if body.hides && shows.reveal {",
        tests=(f"{TYPED}::test_the_core_gives_back_secrets_and_unknown_tags",),
    ),
    Plant(
        bug="the core takes typed columns' tagged fields in the order of their declaration",
        path=f"{RUST}/program.rs",
        old="            by_tag.sort_by_key(|&at| tag_of(at));\n",
        new="",
        tests=(f"{TYPED}::test_the_core_decodes_tagged_fields_that_are_declared_in_another_order",),
    ),
    Plant(
        bug="the core ignores bytes after a tagged field in typed columns",
        path=f"{RUST}/columns.rs",
        old="        if !inner.is_at_end() {",
        new="        if !inner.is_at_end() && body.fields.is_empty() {",
        tests=(f"{TYPED}::test_tagged_fields_in_any_order_are_decoded_alike_or_given_back",),
    ),
    Plant(
        bug="a list that is null in some rows is null in none in the core's typed columns",
        path=f"{RUST}/columns.rs",
        old="if self.nullable && matches!(self.absent, Absent::Empty) {",
        new="if self.nullable {",
        tests=(f"{TYPED}::test_lists_that_are_null_in_all_or_many_rows_are_decoded_alike",),
    ),
    Plant(
        bug="records that the core gave back are after the others in typed columns",
        path="state/raftlog_state/records/typed_columns.py",
        old="pa.concat_arrays([plain, others]).take(pa.array(ordinals))",
        new="pa.concat_arrays([plain, others])",
        tests=(f"{TYPED}::test_records_of_real_logs_and_golden_ones_have_what_is_decoded",),
    ),
)
