"""Bugs about the memory that reading takes: limits that are not passed on, and copies."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

MEMORY_PLANTS: Final = (
    Plant(
        bug="a compressed batch is expanded to the largest limit, whatever its reader was given",
        path="connector/raftlog/log/pieces.py",
        old="                decompressed_bytes_max=self.decompressed_bytes_max,\n",
        new="                decompressed_bytes_max=2**29,\n",
        tests=(
            "tests/cli/test_decompression_limit.py"
            "::test_a_batch_that_expands_beyond_the_limit_is_not_called_damaged",
        ),
    ),
    Plant(
        bug="the limit of decompression that was asked for is lost when a path is opened",
        path="connector/raftlog/log/opening.py",
        old="    log.files.decompressed_bytes_max = decompressed_bytes_max\n",
        new="",
        tests=(
            "tests/cli/test_decompression_limit.py"
            "::test_a_batch_beyond_the_default_is_read_if_the_limit_is_raised",
        ),
    ),
    Plant(
        bug="a live cluster's records are decompressed by the default limit only",
        path="connector/raftlog/client/remote/remote_log.py",
        old="        reading = ReadScans(columns, chunk_bytes, self._decompressed_bytes_max)\n",
        new="        reading = ReadScans(columns, chunk_bytes, DECOMPRESSED_BYTES_MAX)\n",
        tests=(
            "tests/cli/test_decompression_limit.py"
            "::test_a_live_cluster_s_records_have_the_same_limit",
        ),
    ),
    Plant(
        bug="Spark's option maxDecompressedBytes changes nothing",
        path="python_datasource/pyspark_raftlog/reader.py",
        old="    return open_reader(options, options.kind, decompressed_bytes_max=limit)\n",
        new="    return open_reader(options, options.kind)\n",
        tests=(
            "tests/spark/test_source_real_logs.py"
            "::test_a_batch_that_expands_beyond_the_limit_is_not_read",
        ),
    ),
    Plant(
        bug="readers refuse batches that raftlog writes",
        path="connector/raftlog/limits.py",
        old="DECOMPRESSED_BYTES_MAX: Final = 128 * MIB\n",
        new="DECOMPRESSED_BYTES_MAX: Final = 16 * MIB\n",
        tests=(
            "tests/cli/test_decompression_limit.py"
            "::test_every_batch_that_may_be_written_is_read_by_default",
        ),
    ),
    Plant(
        bug="what a batch expands to is held twice",
        path="connector/raftlog/records/compression.py",
        old="            out += piece\n",
        new="            out[:] = out + piece\n",
        tests=("tests/records/test_compression.py::test_what_is_appended_is_held_once",),
    ),
    Plant(
        bug="a checkpoint beyond the limit of decompression is called broken",
        path="connector/raftlog/log/snapshot.py",
        old="        if isinstance(error, DecompressionLimitError):\n",
        new="        if False:\n",
        tests=(
            "tests/cli/test_decompression_limit.py"
            "::test_a_checkpoint_beyond_the_limit_is_not_called_broken",
        ),
    ),
)
