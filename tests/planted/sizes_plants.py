"""Bugs about sizes: what one batch may hold, and what is decoded of it."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

SIZES_PLANTS: Final = (
    Plant(
        bug="a compressed batch is bounded by its stored size alone",
        path="connector/raftlog/records/builder.py",
        old="raw_room = self.raw_byte_count_max - self._byte_count if is_packed else room",
        new="raw_room = 2**31 if is_packed else room",
        tests=(
            "tests/records/test_builder.py"
            "::test_a_compressed_batch_is_bounded_before_compression_too",
            "tests/remote/test_sendings.py"
            "::test_a_compressed_append_is_bounded_before_compression_too",
        ),
    ),
    Plant(
        bug="a producer's batch may expand to more than readers decompress",
        path="connector/raftlog/node/apis/produced_records.py",
        old="        log_limit = RAW_BATCH_BYTES_MAX\n",
        new="        log_limit = 8 * RAW_BATCH_BYTES_MAX\n",
        tests=(
            "tests/node_apis/test_producing.py"
            "::test_a_batch_is_bounded_before_compression_in_every_log",
        ),
    ),
    Plant(
        bug="a limit of decompression is read as a batch without a commit's name",
        path="connector/raftlog/log/writing/batch_facts.py",
        old="        raise  # a name may be there: a limit is no damage\n",
        new="        return None\n",
        tests=(
            "tests/log_memory/test_batch_facts.py"
            "::test_a_limit_is_not_taken_for_a_batch_without_a_name",
        ),
    ),
    Plant(
        bug="a whole batch is decompressed to find the name of its commit",
        path="connector/raftlog/records/forward.py",
        old="        self._pieces = _pieces(batch)\n",
        new='        self._pieces = iter([b"".join(_pieces(batch))])\n',
        tests=(
            "tests/log_memory/test_batch_facts.py"
            "::test_nothing_after_the_first_record_s_headers_is_decompressed",
        ),
    ),
)
