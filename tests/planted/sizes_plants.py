"""Bugs about sizes: limits of a batch, and of its decoded part."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

SIZES_PLANTS: Final = (
    Plant(
        bug="a compressed batch is bounded only by its stored size",
        path="connector/raftlog/records/builder.py",
        old="raw_room = self.raw_byte_count_max - self._byte_count if is_packed else room",
        new="raw_room = 2**31 if is_packed else room",
        tests=(
            "tests/records/test_builder.py"
            "::test_a_compressed_batch_is_also_bounded_before_compression",
            "tests/client/remote/test_producer_batches.py"
            "::test_a_compressed_append_is_also_bounded_by_its_uncompressed_size",
        ),
    ),
    Plant(
        bug="a producer's batch may expand to more than readers decompress",
        path="connector/raftlog/node/apis/produced_batch.py",
        old="        log_limit = RAW_BATCH_BYTES_MAX\n",
        new="        log_limit = 8 * RAW_BATCH_BYTES_MAX\n",
        tests=(
            "tests/node/apis/test_producing.py"
            "::test_a_batch_is_bounded_before_compression_in_every_log",
        ),
    ),
    Plant(
        bug="exceeding a decompression limit is read as a batch without a commit name",
        path="connector/raftlog/log/reading/transactions.py",
        old="        raise  # not damage: the batch may hold a name\n",
        new="        return None\n",
        tests=(
            "tests/log/producer_state/test_batch_metadata.py"
            "::test_exceeding_a_limit_is_not_reported_as_a_missing_name",
        ),
    ),
    Plant(
        bug="a whole batch is decompressed to find its commit name",
        path="connector/raftlog/records/batch.py",
        old="        self._pieces = _pieces(batch)\n",
        new='        self._pieces = iter([b"".join(_pieces(batch))])\n',
        tests=(
            "tests/log/producer_state/test_batch_metadata.py"
            "::test_nothing_after_the_first_records_headers_is_decompressed",
        ),
    ),
    Plant(
        bug="a record with a timestamp in the far future is accepted",
        path="connector/raftlog/records/builder.py",
        old="    if latest_ms > now_ms + TIMESTAMP_AFTER_MS_MAX:\n",
        new="    if latest_ms > 2**62:\n",
        tests=(
            "tests/records/test_builder.py"
            "::test_a_timestamp_far_ahead_of_the_clock_is_refused_without_side_effect",
        ),
    ),
    Plant(
        bug="a read from above the end returns nothing",
        path="connector/raftlog/client/log_handle.py",
        old="                log.check_offset(start_offset)\n",
        new="                pass\n",
        tests=(
            "tests/client/embedded/test_handle.py"
            "::test_an_offset_above_the_last_stable_offset_is_in_range",
        ),
    ),
    Plant(
        bug="a header name that is not UTF-8 is changed",
        path="connector/raftlog/records/record.py",
        old='        return Header(key.decode("utf-8", "replace"), value, key)\n',
        new='        return Header(key.decode("utf-8", "replace"), value)\n',
        tests=(
            "tests/node/apis/test_produced_batch.py"
            "::test_header_names_that_are_not_utf_8_are_stored_unchanged",
        ),
    ),
    Plant(
        bug="a map with an array as key ends a msgpack append without a response",
        path="connector/raftlog/append.py",
        old="        except TypeError:\n            _refuse",
        new="        except KeyError:\n            _refuse",
        tests=("tests/append/test_user_records.py::test_a_map_with_an_invalid_key_is_refused",),
    ),
    Plant(
        bug="a record's headers are counted after they are decoded",
        path="connector/raftlog/records/record.py",
        old="    if count > HEADERS_PER_RECORD_MAX:\n",
        new="    if count > 2**31:\n",
        tests=(
            "tests/records/test_damage.py::test_an_excessive_header_count_is_refused_before_one_is_decoded",
            "tests/node/apis/test_produced_batch.py::test_a_batch_with_very_many_headers_creates_no_objects",
        ),
    ),
    Plant(
        bug="the headers of a batch are not bounded together in a scan",
        path="connector/raftlog/records/record_columns.py",
        old="        if header_count.sum() > HEADERS_PER_BATCH_MAX:\n",
        new="        if header_count.max() > HEADERS_PER_BATCH_MAX:\n",
        tests=("tests/records/test_damage.py::test_a_batch_s_headers_are_bounded_together",),
    ),
    Plant(
        bug="a writer accepts more headers in one batch than readers decode",
        path="connector/raftlog/records/builder.py",
        old="        return HEADERS_PER_BATCH_MAX - self._header_count\n",
        new="        return 2**31\n",
        tests=("tests/records/test_builder.py::test_the_headers_of_a_batch_are_bounded",),
    ),
    Plant(
        bug="a large produced batch is compressed on the event loop",
        path="connector/raftlog/node/apis/produced_batch.py",
        old="        packed = packed.with_compressed(config.compression)\n",
        new="        pass\n",
        tests=(
            "tests/node/apis/test_produced_batch.py"
            "::test_a_large_batch_is_named_and_compressed_in_an_executor",
        ),
    ),
    Plant(
        bug="memory of a decompressed batch is not counted",
        path="connector/raftlog/node/apis/produce.py",
        old="            byte_count = records.byte_count()\n",
        new="            byte_count = 0\n",
        tests=(
            "tests/node/apis/test_produced_batch.py"
            "::test_memory_of_a_decompressed_batch_is_held_until_it_is_answered",
        ),
    ),
)
