"""Idempotent producers: Kafka's rules for duplicates, gaps, fencing and restarts, one case each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.batch_feeder import BatchFeeder, restarted

from raftlog.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from raftlog.limits import PRODUCERS_MAX
from raftlog.log.writing.producer_state import Duplicate, ProducerStateManager
from raftlog.records.builder import decremented, incremented

LAST = 2**31 - 1
DAY_MS = 24 * 60 * 60 * 1000


def same(producer_state: ProducerStateManager) -> ProducerStateManager:
    return producer_state


BOTH = pytest.mark.parametrize("then", [same, restarted, ProducerStateManager.copy])
"""Invariants must also hold after a restart and in a copy."""


def test_an_unknown_producer_may_start_with_any_sequence() -> None:
    producer_state = BatchFeeder().producer_state
    assert producer_state.check_producer(7, 0, 0, 1) is None
    assert producer_state.check_producer(7, 3, 815, 1) is None  # its state may have been evicted


def test_records_without_a_producer_are_never_duplicates() -> None:
    feeder = BatchFeeder()
    feeder.data(3)
    assert feeder.producer_state.check_producer(-1, -1, -1, 3) is None
    assert feeder.producer_state.producers == ()


@BOTH
def test_only_the_next_sequence_is_accepted(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(3, producer=7, sequence=0)
    feeder.data(2, producer=7, sequence=3)
    producer_state = then(feeder.producer_state)
    assert producer_state.check_producer(7, 0, 5, 10) is None
    for sequence in (4, 6, 7, LAST):
        with pytest.raises(OutOfOrderSequenceError) as refused:
            producer_state.check_producer(7, 0, sequence, 10)
        assert (refused.value.sequence, refused.value.expected_sequence) == (sequence, 5)


@BOTH
def test_the_last_five_batches_are_recognised_as_duplicates(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(4)
    for sequence in range(0, 60, 10):
        feeder.data(10, producer=7, sequence=sequence)
        feeder.data(1)
    producer_state = then(feeder.producer_state)
    for at, sequence in enumerate(range(10, 60, 10), start=1):
        base_offset = 4 + at * 11
        duplicate = producer_state.check_producer(7, 0, sequence, 10)
        assert duplicate == Duplicate(base_offset, base_offset + 9)
    with pytest.raises(OutOfOrderSequenceError):  # the sixth last
        producer_state.check_producer(7, 0, 0, 10)


def test_only_the_same_range_of_sequences_is_a_duplicate() -> None:
    feeder = BatchFeeder()
    feeder.data(10, producer=7, sequence=0)
    for sequence, count in ((0, 9), (1, 9), (0, 11), (5, 10)):
        with pytest.raises(OutOfOrderSequenceError):
            feeder.producer_state.check_producer(7, 0, sequence, count)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_sequences_wrap_around_after_the_maximum(
    count: int, then: Callable[[ProducerStateManager], ProducerStateManager]
) -> None:
    feeder = BatchFeeder()
    feeder.data(10, producer=7, sequence=LAST - 14)
    feeder.data(5, producer=7, sequence=LAST - 4)
    producer_state = then(feeder.producer_state)
    assert producer_state.check_producer(7, 0, 0, count) is None
    with pytest.raises(OutOfOrderSequenceError):
        producer_state.check_producer(7, 0, 1, count)


@BOTH
def test_a_batch_across_the_maximum_sequence_is_recognised(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(10, producer=7, sequence=LAST - 4)
    producer_state = then(feeder.producer_state)
    assert producer_state.check_producer(7, 0, LAST - 4, 10) == Duplicate(0, 9)
    assert producer_state.check_producer(7, 0, 5, 1) is None
    assert producer_state.producers[0].last_sequence == 4


def test_sequences_are_counted_across_the_maximum() -> None:
    assert incremented(LAST, 1) == 0
    assert incremented(LAST - 3, 10) == 6
    assert decremented(6, 10) == LAST - 3
    assert incremented(-1, 1) == 0


@BOTH
def test_an_older_epoch_is_fenced(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(1, producer=7, epoch=4)
    producer_state = then(feeder.producer_state)
    with pytest.raises(InvalidProducerEpochError) as refused:
        producer_state.check_producer(7, 3, 1, 1)
    assert (refused.value.producer_epoch, refused.value.current_producer_epoch) == (3, 4)
    assert refused.value.kafka_code == 47


@BOTH
def test_a_later_epoch_starts_at_sequence_0_and_forgets_earlier_batches(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(3, producer=7, epoch=4, sequence=0)
    producer_state = then(feeder.producer_state)
    with pytest.raises(OutOfOrderSequenceError):
        producer_state.check_producer(7, 5, 3, 1)
    # not a duplicate of the batch in the old epoch
    assert producer_state.check_producer(7, 5, 0, 3) is None
    feeder = BatchFeeder(producer_state)
    feeder.data(2, producer=7, epoch=5, sequence=0)
    assert producer_state.check_producer(7, 5, 0, 2) == Duplicate(3, 4)
    with pytest.raises(InvalidProducerEpochError):
        producer_state.check_producer(7, 4, 0, 3)


def test_a_stored_batch_of_an_older_epoch_does_not_lower_the_fence() -> None:
    feeder = BatchFeeder()
    feeder.data(1, producer=7, epoch=4)
    feeder.data(1, producer=7, epoch=2)
    entry = feeder.producer_state.producers[0]
    assert (entry.producer_epoch, len(entry.batches)) == (4, 1)


@BOTH
def test_a_marker_of_a_later_epoch_fences_and_resets_the_sequence(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(3, producer=7, epoch=1, in_transaction=True)
    feeder.end_transaction(7, commit=False, epoch=2, coordinator_epoch=9)
    producer_state = then(feeder.producer_state)
    with pytest.raises(InvalidProducerEpochError):
        producer_state.check_producer(7, 1, 3, 1)
    with pytest.raises(OutOfOrderSequenceError):
        producer_state.check_producer(7, 2, 3, 1)
    assert producer_state.check_producer(7, 2, 0, 1) is None
    assert producer_state.producers[0].coordinator_epoch == 9


@BOTH
def test_a_marker_of_the_same_epoch_keeps_the_sequences(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(3, producer=7, epoch=1, in_transaction=True)
    feeder.end_transaction(7, commit=True, epoch=1)
    producer_state = then(feeder.producer_state)
    assert producer_state.check_producer(7, 1, 3, 1) is None
    assert producer_state.check_producer(7, 1, 0, 3) == Duplicate(0, 2)


@BOTH
def test_a_producer_known_from_a_marker_only_starts_at_0(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.end_transaction(7, commit=True, epoch=3)
    producer_state = then(feeder.producer_state)
    with pytest.raises(OutOfOrderSequenceError):
        producer_state.check_producer(7, 3, 1, 1)
    assert producer_state.check_producer(7, 3, 0, 1) is None


def test_producers_are_independent() -> None:
    feeder = BatchFeeder()
    feeder.data(3, producer=7, sequence=0)
    feeder.data(3, producer=8, sequence=0)
    assert feeder.producer_state.check_producer(7, 0, 0, 3) == Duplicate(0, 2)
    assert feeder.producer_state.check_producer(8, 0, 0, 3) == Duplicate(3, 5)


def test_a_producers_timestamp_is_at_least_the_logs() -> None:
    feeder = BatchFeeder()
    feeder.data(1, time_ms=100 * DAY_MS)
    feeder.data(1, producer=7, time_ms=0)
    assert feeder.producer_state.producers[0].timestamp_ms == 100 * DAY_MS


def test_the_least_recently_used_producer_is_evicted() -> None:
    feeder = BatchFeeder()
    feeder.data(1, producer=0, in_transaction=True)
    for producer in range(1, PRODUCERS_MAX):
        feeder.data(1, producer=producer)
    feeder.data(1, producer=1, sequence=1)
    feeder.data(1, producer=PRODUCERS_MAX)
    known = [entry.producer_id for entry in feeder.producer_state.producers]
    assert len(known) == PRODUCERS_MAX
    assert known[:2] == [0, 3]  # 0 has an open transaction, 1 has appended again, 2 is evicted
    assert known[-2:] == [1, PRODUCERS_MAX]


def test_a_copy_tracks_appends_that_are_not_yet_written() -> None:
    feeder = BatchFeeder()
    feeder.data(2, producer=7, sequence=0)
    group = feeder.producer_state.copy()
    BatchFeeder(group).data(2, producer=7, sequence=2)
    assert group.check_producer(7, 0, 4, 1) is None
    assert group.check_producer(7, 0, 2, 2) == Duplicate(2, 3)
    assert feeder.producer_state.check_producer(7, 0, 2, 2) is None
    assert (feeder.producer_state.end_offset, group.end_offset) == (2, 4)


def test_a_batch_without_sequences_is_no_gap() -> None:
    feeder = BatchFeeder()
    feeder.data(2, producer=7, sequence=0)
    feeder.data(2, producer=7, sequence=-1)
    assert feeder.producer_state.check_producer(7, 0, 2, 1) is None
