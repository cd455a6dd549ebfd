"""Bugs about the memory of readers: limits that are not passed on, and copies."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

MEMORY_PLANTS: Final = (
    Plant(
        bug="a bootstrap checkpoint without its end is read as one with fewer voters",
        path="connector/raftlog/log/reading/bootstrap.py",
        old="    if last is None or not ends_with_footer(last):\n",
        new="    if last is None:\n",
        tests=("tests/node/config/test_formatting.py",),
    ),
    Plant(
        bug="the epoch of a bootstrap checkpoint is not checked",
        path="connector/raftlog/log/reading/bootstrap.py",
        old="        if last.leader_epoch != BOOTSTRAP_ID.epoch:\n",
        new="        if False:\n",
        tests=("tests/node/config/test_formatting.py",),
    ),
    Plant(
        bug="a compressed batch is expanded up to the maximum, whatever limit its reader has",
        path="connector/raftlog/log/reading/chunks.py",
        old="                decompressed_bytes_max=self.decompressed_bytes_max,\n",
        new="                decompressed_bytes_max=2**29,\n",
        tests=(
            "tests/state/cli/test_decompression_limit.py"
            "::test_a_batch_that_expands_above_the_limit_is_not_called_damaged",
        ),
    ),
    Plant(
        bug="the decompression limit is not passed on when a path is opened",
        path="connector/raftlog/log/reading/opening.py",
        old="    log.files.decompressed_bytes_max = decompressed_bytes_max\n",
        new="",
        tests=(
            "tests/state/cli/test_decompression_limit.py"
            "::test_a_batch_above_the_default_is_read_with_a_higher_limit",
        ),
    ),
    Plant(
        bug="a live cluster's records have the default decompression limit only",
        path="connector/raftlog/client/remote/log.py",
        old="        decoder = ColumnDecoder(columns, chunk_bytes, self._decompressed_bytes_max)\n",
        new="        decoder = ColumnDecoder(columns, chunk_bytes, DECOMPRESSED_BYTES_MAX)\n",
        tests=(
            "tests/state/cli/test_decompression_limit.py"
            "::test_a_running_clusters_records_have_the_same_limit",
        ),
    ),
    Plant(
        bug="Spark's option maxDecompressedBytes has no effect",
        path="python_datasource/pyspark_raftlog/reader.py",
        old="    log = open_reader(options, options.kind, decompressed_bytes_max=limit)\n",
        new="    log = open_reader(options, options.kind)\n",
        tests=(
            "tests/spark/test_source_real_logs.py"
            "::test_a_batch_that_expands_above_the_limit_is_not_read",
        ),
    ),
    Plant(
        bug="readers expand batches far beyond the documented limit",
        path="connector/raftlog/limits.py",
        old="DECOMPRESSED_BYTES_MAX: Final = 128 * MIB\n",
        new="DECOMPRESSED_BYTES_MAX: Final = 192 * MIB\n",
        tests=(
            "tests/state/cli/test_decompression_limit.py"
            "::test_every_writable_batch_is_readable_by_default",
        ),
    ),
    Plant(
        bug="an expanded batch is held twice",
        path="connector/raftlog/records/compression.py",
        old="            out += piece\n",
        new="            out[:] = out + piece\n",
        tests=("tests/records/test_compression.py::test_decompressed_bytes_are_allocated_once",),
    ),
    Plant(
        bug="a snapshot above the decompression limit is reported as damaged",
        path="connector/raftlog/log/reading/snapshot.py",
        old="        if isinstance(error, DecompressionLimitError):\n",
        new="        if False:\n",
        tests=(
            "tests/state/cli/test_decompression_limit.py"
            "::test_a_snapshot_above_the_limit_is_not_called_damaged",
        ),
    ),
    Plant(
        bug="long values of a scan are cut at the wrong position",
        path="connector/raftlog/records/record_columns.py",
        old="        values[begin:end] = data[at : at + end - begin]\n",
        new="        values[begin:end] = data[begin:end]\n",
        tests=("tests/records/test_scan.py::test_long_values_equal_those_of_the_records",),
    ),
    Plant(
        bug="a long record is printed as one string",
        path="state/raftlog_state/cli/cat_log.py",
        old="    if is_long and not records.is_control[0]:\n",
        new="    if False:\n",
        tests=(
            "tests/state/cli/test_reader_memory.py::test_a_long_record_is_never_a_single_string",
            "tests/state/cli/test_reader_memory.py::test_peak_memory_is_bounded_by_the_limit",
        ),
    ),
    Plant(
        bug="bytes that are not UTF-8 are dropped from a long value",
        path="state/raftlog_state/cli/cat_log.py",
        old='decoder = codecs.getincrementaldecoder("utf-8")()',
        new='decoder = codecs.getincrementaldecoder("utf-8")("ignore")',
        tests=("tests/state/cli/test_reader_memory.py::test_the_parts_of_a_line_are_the_line",),
    ),
    Plant(
        bug="all records of a scan become objects together",
        path="state/raftlog_state/cli/cat_log.py",
        old="begun + _SLICE_BYTES_MAX, side=",
        new="begun + 2**40, side=",
        tests=("tests/state/cli/test_reader_memory.py::test_slices_of_a_scan_are_bounded",),
    ),
    Plant(
        bug="headers do not count in a slice of records",
        path="state/raftlog_state/cli/cat_log.py",
        old="        byte_count += np.diff(np.concatenate(([0], whole))[ends], prepend=0)\n",
        new="",
        tests=("tests/state/cli/test_reader_memory.py::test_slices_of_a_scan_are_bounded",),
    ),
    Plant(
        bug="a check takes a batch above the decompression limit for a damaged end",
        path="state/raftlog_state/check/segments.py",
        old="        if isinstance(error, DecompressionLimitError):\n",
        new="        if False:\n",
        tests=(
            "tests/state/cli/test_decompression_limit.py"
            "::test_a_check_continues_after_a_batch_above_the_limit",
        ),
    ),
    Plant(
        bug="node: each full garbage collection visits all metadata",
        path="connector/raftlog/node/process.py",
        old="        survivors_frozen(),\n",
        new="",
        tests=("tests/node/test_garbage_collection.py",),
    ),
    Plant(
        bug="node: every full garbage collection freezes what connections have, however little",
        path="connector/raftlog/node/garbage_collection.py",
        old="    if is_full and _visited_count(gc.get_objects(_OLDEST)) >= SURVIVORS_MIN:",
        new="    if is_full:",
        tests=("tests/node/test_garbage_collection.py",),
    ),
    Plant(
        bug="node: each full garbage collection visits the keys of all metadata",
        path="connector/raftlog/node/garbage_collection.py",
        old="            count += len(one)\n",
        new="            pass\n",
        tests=("tests/node/test_garbage_collection.py",),
    ),
    Plant(
        bug="node: many open connections are frozen, and keep their memory after they are closed",
        path="connector/raftlog/node/garbage_collection.py",
        old="            count -= CONNECTION_OBJECTS_MAX\n",
        new="            pass\n",
        tests=("tests/node/test_garbage_collection.py",),
    ),
    Plant(
        bug="node: the process of a program stays frozen after its node",
        path="connector/raftlog/node/garbage_collection.py",
        old="        gc.unfreeze()\n",
        new="",
        tests=("tests/node/test_garbage_collection.py",),
    ),
)
