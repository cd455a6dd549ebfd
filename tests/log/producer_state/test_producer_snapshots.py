"""Producer state round trips through the bytes of a snapshot, and damage is found."""

from __future__ import annotations

import contextlib
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batch_feeder import BatchFeeder, restarted

from raftlog.errors import CorruptFileError, CorruptSnapshotError
from raftlog.limits import BATCH_BYTES_MAX, COMMIT_ID_BYTES_MAX, COMMITS_MAX, PRODUCERS_MAX
from raftlog.log.format.directory import (
    ProducerState,
    encode_producer_snapshot,
    parse_producer_snapshot,
    split_producer_snapshot,
)
from raftlog.log.reading.transactions import CommitName, Marker
from raftlog.log.writing.producer_state import HEADER_FIELD_TAG, ProducerStateManager
from raftlog.records.control import SnapshotHeader, decode_control, encode_control
from raftlog.records.fields import TaggedField

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
STATES = st.builds(
    ProducerState,
    producer_id=INT64,
    producer_epoch=st.integers(-(2**15), 2**15 - 1),
    last_sequence=INT32,
    last_offset=INT64,
    offset_delta=INT32,
    timestamp_ms=INT64,
    coordinator_epoch=INT32,
    open_transaction_first_offset=st.none() | st.integers(0, 2**63 - 1),
)


def sample_state() -> ProducerStateManager:
    feeder = BatchFeeder()
    for sequence in range(0, 14, 2):
        feeder.data(2, producer=7, sequence=sequence)
    feeder.data(3, producer=2**40, epoch=3, in_transaction=True)
    feeder.end_transaction(9, commit=True, epoch=1, coordinator_epoch=4)
    feeder.data(5, commit=CommitName("app", "q", 12))
    feeder.data(2, commit=CommitName("ü" * 20, "r", 0), time_ms=2**40)
    feeder.data(3, markers={1: Marker.BEGIN}, name="open")
    return feeder.producer_state


def sealed(data: bytes) -> bytes:
    """Return the bytes with a correct CRC: errors in them that no checksum finds."""
    return data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:]


@given(st.lists(STATES, max_size=8), st.binary(max_size=40))
def test_entries_round_trip(states: list[ProducerState], trailing: bytes) -> None:
    data = encode_producer_snapshot(states, trailing)
    assert parse_producer_snapshot(data, "/x") == tuple(states)
    assert split_producer_snapshot(data, "/x") == (tuple(states), trailing)


def test_an_empty_snapshot_is_the_one_that_kafka_writes() -> None:
    assert encode_producer_snapshot(()) == bytes.fromhex("000148674bc700000000")


def test_all_producer_state_survives_a_restart() -> None:
    before = sample_state()
    after = restarted(before)
    assert after.producers == before.producers
    assert after.commits == before.commits
    assert after.open_transaction == before.open_transaction
    assert (after.end_offset, after.log_time_ms) == (before.end_offset, before.log_time_ms)
    assert after.encode_snapshot() == before.encode_snapshot()
    assert len(after.producers[0].batches) == 5


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(0, 3), st.integers(0, 2), st.integers(-1, 9)),
        st.tuples(st.just("transactional"), st.integers(0, 3), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("commit"), st.integers(0, 3), st.integers(0, 2), st.integers(0, 5)),
        st.tuples(st.just("marker"), st.integers(23, 25), st.just(0), st.just(0)),
    ),
    max_size=30,
)


def feed(feeder: BatchFeeder, step: tuple[str, int, int, int]) -> None:
    kind, first, second, third = step
    match kind:
        case "data" | "transactional":
            is_open = kind == "transactional"
            feeder.data(2, producer=first, epoch=second, sequence=third, in_transaction=is_open)
        case "end":
            feeder.end_transaction(first, commit=bool(third), epoch=second)
        case "commit":
            feeder.data(1, commit=CommitName(f"app {first}", f"q{second}", third))
        case "marker":
            feeder.data(3, markers={1: Marker(first)}, name="x")


@given(STEPS, st.integers(0, 30))
def test_a_restart_at_any_time_makes_no_difference(
    steps: list[tuple[str, int, int, int]], restart_at: int
) -> None:
    always, stopped = BatchFeeder(), BatchFeeder()
    for at, step in enumerate(steps):
        if at == restart_at:
            time_ms = stopped.time_ms
            stopped = BatchFeeder(restarted(stopped.producer_state))
            stopped.time_ms = time_ms
        feed(always, step)
        feed(stopped, step)
    assert stopped.producer_state.encode_snapshot() == always.producer_state.encode_snapshot()
    end = always.end
    assert stopped.producer_state.open_transaction == always.producer_state.open_transaction
    assert stopped.producer_state.last_stable_offset(
        end
    ) == always.producer_state.last_stable_offset(end)


@given(STEPS)
def test_a_copy_is_equal_and_independent(steps: list[tuple[str, int, int, int]]) -> None:
    feeder = BatchFeeder()
    for step in steps[:15]:
        feed(feeder, step)
    before = feeder.producer_state.encode_snapshot()
    twin = BatchFeeder(feeder.producer_state.copy())
    assert twin.producer_state.encode_snapshot() == before
    for step in steps[15:]:
        feed(twin, step)
    assert feeder.producer_state.encode_snapshot() == before


# --- snapshots by others, and damage ---


def test_kafkas_own_snapshot_has_producers_only() -> None:
    states = parse_producer_snapshot(sample_state().encode_snapshot(), "/x")
    producer_state = ProducerStateManager.decode_snapshot(
        encode_producer_snapshot(states), "/x", 40
    )
    assert [entry.producer_id for entry in producer_state.producers] == [7, 2**40, 9]
    assert [len(entry.batches) for entry in producer_state.producers] == [1, 1, 0]
    assert producer_state.commits == ()
    assert producer_state.open_transaction is None
    assert producer_state.last_stable_offset(40) == 14  # of the producer's transaction


@pytest.mark.parametrize("trailing", [b"\0", b"raftlo", b"something else entirely"])
def test_unknown_bytes_after_the_entries_are_ignored(trailing: bytes) -> None:
    producer_state = ProducerStateManager.decode_snapshot(
        encode_producer_snapshot((), trailing), "/x", 40
    )
    assert (producer_state.producers, producer_state.commits) == ((), ())


def test_a_trailer_of_another_version_is_refused() -> None:
    data = encode_producer_snapshot((), b"raftlog\x02" + bytes(50))
    with pytest.raises(CorruptFileError, match="unsupported trailer version 0x02, expected 1"):
        ProducerStateManager.decode_snapshot(data, "/x", 40)


def test_a_longer_trailer_is_accepted() -> None:
    data = sample_state().encode_snapshot()
    assert data.endswith(b"\0")  # no tagged fields
    grown = ProducerStateManager.decode_snapshot(sealed(data[:-1] + b"\x01\x05\x02ab"), "/x", 40)
    assert grown.commits == sample_state().commits


def test_every_flipped_bit_of_a_snapshot_is_found() -> None:
    data = sample_state().encode_snapshot()
    for at in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptFileError):
            ProducerStateManager.decode_snapshot(bytes(damaged), "/x", 40)


def test_every_truncated_snapshot_is_found() -> None:
    data = sample_state().encode_snapshot()
    for byte_count in range(len(data)):
        with pytest.raises(CorruptFileError):
            ProducerStateManager.decode_snapshot(data[:byte_count], "/x", 40)


def test_wrong_bytes_under_a_valid_crc_are_refused_or_decoded() -> None:
    data = sample_state().encode_snapshot()
    for at in range(6, len(data)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] = value
            for bytes_of_it in (bytes(damaged), data[:at]):
                with contextlib.suppress(CorruptFileError):
                    ProducerStateManager.decode_snapshot(sealed(bytes_of_it), "/x", 40)


@given(st.binary(max_size=200))
def test_a_missing_trailer_is_an_error_of_another_type(data: bytes) -> None:
    snapshot = encode_producer_snapshot((), b"raftlog\x01" + data)
    with contextlib.suppress(CorruptFileError):
        ProducerStateManager.decode_snapshot(snapshot, "/x", 40)


# --- in the header of a snapshot ---


def test_a_snapshots_header_has_the_producer_state() -> None:
    producer_state = sample_state()
    header = SnapshotHeader(
        last_contained_log_timestamp_ms=5, tagged_fields=(producer_state.to_header_field(),)
    )
    read = decode_control(*encode_control(header))
    assert isinstance(read, SnapshotHeader)
    assert read.last_contained_log_timestamp_ms == 5
    again = ProducerStateManager.from_header_field(
        read.tagged_fields, "/c", producer_state.end_offset
    )
    assert again is not None
    assert again.encode_snapshot() == producer_state.encode_snapshot()


def test_the_header_of_a_snapshot_by_kafka_has_none() -> None:
    assert ProducerStateManager.from_header_field((), "/c", 9) is None
    assert ProducerStateManager.from_header_field((TaggedField(1, b"x"),), "/c", 9) is None


def test_a_damaged_header_makes_the_snapshot_damaged() -> None:
    with pytest.raises(CorruptSnapshotError):
        ProducerStateManager.from_header_field((TaggedField(HEADER_FIELD_TAG, b"x" * 20),), "/c", 9)


@pytest.mark.slow
def test_the_largest_producer_state_fits_into_one_batch() -> None:
    feeder = BatchFeeder()
    for number in range(PRODUCERS_MAX):
        for sequence in range(5):
            feeder.data(1, producer=number, sequence=sequence)
    for number in range(COMMITS_MAX):
        app = f"{number:0{COMMIT_ID_BYTES_MAX}d}"
        feeder.data(1, commit=CommitName(app, app, number))
    data = feeder.producer_state.encode_snapshot()
    assert BATCH_BYTES_MAX // 2 < len(data) < BATCH_BYTES_MAX
    assert restarted(feeder.producer_state).encode_snapshot() == data
