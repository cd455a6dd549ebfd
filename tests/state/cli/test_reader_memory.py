"""Memory of readers: a small multiple of the size to which one batch may expand."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.state.cli.test_decompression_limit import LIMIT, compressed, partition
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.peak_memory import peak_memory
from tests.support.sweep_size import nightly_except

from raftlog.limits import MIB
from raftlog.records import Compression, Header, NewRecord
from raftlog.records.batch_columns import Column, RecordColumns
from raftlog.records.control import LeaderChange, LeaderChangeVoter, encode_control
from raftlog.records.scan import scan
from raftlog_state.cli import cat_log

LIMIT_BYTES = 32 * MIB
RATIO = 3
"""Expanded batch, the column of its values, and the codec's own window or buffers."""
MARGIN_BYTES = 8 * MIB

TWO_CODECS = [Compression.ZSTD, Compression.GZIP]
FIELD = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
HEADERS = st.lists(st.builds(Header, st.text(max_size=6), FIELD), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(FIELD, FIELD, HEADERS), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def idle_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Memory of a command that reads almost nothing."""
    log = partition(tmp_path_factory.mktemp("idle"), compressed(b"small"))
    return peak_memory("cat", log)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "command", "codec"),
    nightly_except(
        [(LIMIT_BYTES - MIB, "cat", Compression.GZIP)],
        itertools.product((LIMIT_BYTES - MIB, 6 * LIMIT_BYTES), ("cat", "check"), TWO_CODECS),
    ),
)
def test_peak_memory_is_bounded_by_the_limit(
    tmp_path: Path, idle_bytes: int, command: str, size: int, codec: Compression
) -> None:
    log = partition(tmp_path, compressed(bytes(size), codec=codec))
    status, peak_bytes, err = peak_memory(command, log, LIMIT, str(LIMIT_BYTES))
    assert status == int(size > LIMIT_BYTES), err
    assert peak_bytes - idle_bytes < RATIO * LIMIT_BYTES + MARGIN_BYTES


@pytest.mark.nightly
def test_a_filter_by_key_has_no_copy_of_a_large_record(tmp_path: Path, idle_bytes: int) -> None:
    """``make test`` has the memory of the command without a filter."""
    record = NewRecord(b"k", bytes(LIMIT_BYTES - MIB))
    large = NewRecordBatch(records=(record,), base_timestamp_ms=5, compression=Compression.ZSTD)
    log = partition(tmp_path, large)
    status, peak_bytes, err = peak_memory("cat", log, LIMIT, str(LIMIT_BYTES), "--key", "k")
    assert status == 0, err
    assert peak_bytes - idle_bytes < RATIO * LIMIT_BYTES + MARGIN_BYTES


def columns_of(rows: list[tuple[bytes | None, bytes | None, tuple[Header, ...]]]) -> RecordColumns:
    records = tuple(NewRecord(key, value, None, headers) for key, value, headers in rows)
    new = NewRecordBatch(records=records, base_timestamp_ms=5)
    found = scan(encode_batch(new, base_offset=7, leader_epoch=1), columns=Column.ALL)
    assert len(found.records) == len(rows)
    return found.records


def printed(records: RecordColumns) -> list[str]:
    everything = cat_log.select((), control=True, noop=True)
    return [
        line if isinstance(line, str) else "".join(line)
        for part in cat_log.slices(records)
        for line in cat_log.partition_lines(part, everything, on_damage=lambda *_: None)
    ]


@given(rows=RECORDS)
def test_the_parts_of_a_line_are_the_line(
    rows: list[tuple[bytes | None, bytes | None, tuple[Header, ...]]],
) -> None:
    records = columns_of(rows)
    whole = printed(records)
    assert len(whole) == len(rows)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cat_log, "_SLICE_BYTES_MAX", 1)
        patched.setattr(cat_log, "_PART_BYTES", 3)
        assert printed(records) == whole


def test_a_long_record_is_never_a_single_string() -> None:
    records = columns_of([(b"k", b"\0" * 3 * MIB, (Header("h", b"\xff" * 3 * MIB),))])
    everything = cat_log.select((), control=True, noop=True)
    (part,) = cat_log.slices(records)
    (line,) = cat_log.partition_lines(part, everything, on_damage=lambda *_: None)
    assert not isinstance(line, str)
    assert max(len(text) for text in line) < MIB


def test_slices_of_a_scan_are_bounded() -> None:
    large = bytes(MIB // 4)
    records = columns_of([(None, large, ())] * 10 + [(None, None, (Header("h", large),))] * 10)
    counts = [len(part) for part in cat_log.slices(records)]
    assert sum(counts) == 20
    assert max(counts) <= 4


def test_texts_of_large_control_records_are_not_kept() -> None:
    """A damaged log may have many of them, each of a whole batch."""
    voters = tuple(LeaderChangeVoter(voter_id=one) for one in range(5_000))
    kept = cat_log._cached_control_text.cache_info
    before = kept().currsize
    for leader_id in range(3):
        large = LeaderChange(leader_id=leader_id, voters=voters)
        assert f'"leaderId":{leader_id}' in cat_log._control_json(*encode_control(large))
    assert kept().currsize == before
    cat_log._control_json(*encode_control(LeaderChange(leader_id=987_654)))
    assert kept().currsize == min(before + 1, kept().maxsize or 0)
