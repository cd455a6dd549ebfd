"""Open transactions, the last stable offset, and aborted transactions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batch_feeder import BatchFeeder, restarted

from raftlog.log.reading.transactions import Marker, Outcome, TransactionSpan
from raftlog.log.segment import AbortedTransaction
from raftlog.log.writing.producer_state import ENDED_TRANSACTIONS_MAX, ProducerStateManager

BEGIN, END, ABORT = Marker.BEGIN, Marker.END, Marker.ABORT
ALSO_RESTARTED = pytest.mark.parametrize(
    "then",
    [lambda producer_state: producer_state, restarted, ProducerStateManager.copy],
    ids=["same", "restarted", "copy"],
)


# --- metadata transactions ---


@ALSO_RESTARTED
def test_an_open_transaction_bounds_the_last_stable_offset(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(4)
    feeder.data(3, markers={1: BEGIN}, name="move topics")
    feeder.data(5)
    producer_state = then(feeder.producer_state)
    assert producer_state.open_transaction == TransactionSpan(
        5, None, Outcome.OPEN, -1, "move topics"
    )
    # base offset of the batch with the begin marker
    assert producer_state.last_stable_offset(12) == 4
    assert producer_state.last_stable_offset(4) == 4


@ALSO_RESTARTED
@pytest.mark.parametrize("how", [END, ABORT])
def test_its_end_or_abort_advances_the_last_stable_offset(
    how: Marker, then: Callable[[ProducerStateManager], ProducerStateManager]
) -> None:
    feeder = BatchFeeder()
    feeder.data(4)
    feeder.data(1, markers={0: BEGIN})
    feeder.data(5)
    feeder = BatchFeeder(then(feeder.producer_state))
    feeder.data(2, markers={1: how})
    assert feeder.producer_state.open_transaction is None
    assert feeder.producer_state.last_stable_offset(12) == 12


def test_a_transaction_that_ended_above_the_high_watermark_is_still_open() -> None:
    feeder = BatchFeeder()
    feeder.data(4)
    feeder.data(2, markers={0: BEGIN})
    feeder.data(2, markers={1: END})
    feeder.data(1)
    assert [feeder.producer_state.last_stable_offset(end) for end in (4, 6, 8, 9)] == [4, 4, 8, 9]


def test_begin_and_end_in_one_batch_leave_no_open_transaction() -> None:
    feeder = BatchFeeder()
    feeder.data(4)
    feeder.data(3, markers={0: BEGIN, 2: END})
    assert feeder.producer_state.last_stable_offset(7) == 7


def test_a_batch_may_end_one_transaction_and_begin_another() -> None:
    feeder = BatchFeeder()
    feeder.data(1, markers={0: BEGIN}, name="a")
    feeder.data(3, markers={1: END, 2: BEGIN}, name="b")
    assert feeder.producer_state.open_transaction == TransactionSpan(3, None, Outcome.OPEN, -1, "b")
    assert feeder.producer_state.last_stable_offset(4) == 0
    producer_state = restarted(feeder.producer_state)
    assert producer_state.open_transaction == feeder.producer_state.open_transaction
    assert producer_state.last_stable_offset(4) == 0  # not 1, which is inside the first transaction
    feeder.producer_state.drop_decided(4)
    assert feeder.producer_state.last_stable_offset(4) == 0


def test_contradicting_markers_are_ignored() -> None:
    feeder = BatchFeeder()
    feeder.data(2, markers={0: END, 1: ABORT})
    feeder.data(2, markers={0: BEGIN, 1: BEGIN}, name="first")
    assert feeder.producer_state.open_transaction == TransactionSpan(
        2, None, Outcome.OPEN, -1, "first"
    )
    for _ in range(1000):
        feeder.data(1, markers={0: BEGIN})
    feeder.data(1, markers={0: END})
    assert feeder.producer_state.last_stable_offset(feeder.end) == feeder.end


def test_a_log_without_its_first_segments_may_start_inside_a_transaction() -> None:
    feeder = BatchFeeder(ProducerStateManager("/log", end_offset=50, is_whole=False))
    feeder.data(4)
    feeder.data(2, markers={1: END})
    assert feeder.producer_state.last_stable_offset(54) == 50
    assert feeder.producer_state.last_stable_offset(56) == 56


def test_the_end_of_that_transaction_does_not_decrease_the_last_stable_offset() -> None:
    feeder = BatchFeeder(ProducerStateManager("/log", end_offset=50, is_whole=False))
    feeder.data(4)
    feeder.producer_state.drop_decided(54)
    assert feeder.producer_state.last_stable_offset(54) == 54
    feeder.data(2, markers={1: END})
    assert feeder.producer_state.last_stable_offset(54) == 54


def test_a_batch_may_end_that_transaction_and_begin_the_next() -> None:
    feeder = BatchFeeder(ProducerStateManager("/log", end_offset=50, is_whole=False))
    feeder.data(4)
    feeder.data(2, markers={0: END, 1: BEGIN})
    assert feeder.producer_state.last_stable_offset(56) == 50
    assert restarted(feeder.producer_state).last_stable_offset(56) == 50


def test_ended_transactions_are_forgotten_as_the_high_watermark_advances() -> None:
    feeder = BatchFeeder()
    for _ in range(100):
        feeder.data(3, markers={0: BEGIN, 2: END})
    feeder.data(1, markers={0: BEGIN})
    feeder.producer_state.drop_decided(300)
    assert feeder.producer_state.last_stable_offset(300) == 300
    assert feeder.producer_state.last_stable_offset(301) == 300


@pytest.mark.slow
def test_the_number_of_ended_transactions_is_bounded() -> None:
    feeder = BatchFeeder()
    count = 2 * (ENDED_TRANSACTIONS_MAX + 5)
    feeder.data(count, markers={at: (BEGIN, END)[at % 2] for at in range(count)})
    kept = feeder.producer_state._begun_transactions().spans(0, feeder.end, with_committed=True)
    assert len(kept) == ENDED_TRANSACTIONS_MAX


# --- transactions of producers ---


@ALSO_RESTARTED
def test_the_oldest_open_transaction_bounds_the_last_stable_offset(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(4)
    feeder.data(2, producer=7, in_transaction=True)
    feeder.data(2, producer=8, in_transaction=True)
    feeder.data(2, producer=7, sequence=2, in_transaction=True)
    feeder = BatchFeeder(then(feeder.producer_state))
    assert feeder.producer_state.last_stable_offset(10) == 4
    assert feeder.end_transaction(7, commit=True) == ()
    assert feeder.producer_state.last_stable_offset(11) == 6
    assert feeder.producer_state.last_stable_offset(10) == 4
    assert feeder.producer_state.open_transaction is None  # there is no metadata transaction
    aborted = feeder.end_transaction(8, commit=False)
    assert aborted == (
        AbortedTransaction(producer_id=8, first_offset=6, last_offset=11, last_stable_offset=12),
    )
    assert feeder.producer_state.last_stable_offset(12) == 12


def test_an_aborted_transaction_has_the_last_stable_offset_at_its_end() -> None:
    feeder = BatchFeeder()
    feeder.data(2, producer=7, in_transaction=True)
    feeder.data(2, producer=8, in_transaction=True)
    feeder.data(2, producer=9, in_transaction=True)
    (first,) = feeder.end_transaction(8, commit=False)
    assert (first.first_offset, first.last_offset, first.last_stable_offset) == (2, 6, 0)
    (second,) = feeder.end_transaction(7, commit=False)
    assert second.last_stable_offset == 4


def test_a_marker_of_a_transaction_without_records_aborts_nothing() -> None:
    feeder = BatchFeeder()
    assert feeder.end_transaction(7, commit=False) == ()
    assert feeder.end_transaction(-1, commit=False) == ()
    assert feeder.producer_state.last_stable_offset(2) == 2


def test_transactional_batches_without_sequences_begin_a_transaction() -> None:
    feeder = BatchFeeder()
    feeder.data(2, producer=7, sequence=-1, in_transaction=True)
    assert feeder.producer_state.last_stable_offset(2) == 0
    assert restarted(feeder.producer_state).last_stable_offset(2) == 0


# --- compared with a simple model ---

AT_ANY_TIME = st.tuples(st.sampled_from(["data", "restart", "forget", "copy"]), st.integers(1, 3))
MARKERS = st.tuples(st.just("markers"), st.lists(st.sampled_from([BEGIN, END, ABORT]), max_size=4))
PRODUCERS = st.tuples(st.sampled_from(["write", "write", "commit", "abort"]), st.integers(0, 3))
STEPS = st.one_of(  # no log has both kinds
    st.lists(st.one_of(AT_ANY_TIME, MARKERS), max_size=25),
    st.lists(st.one_of(AT_ANY_TIME, PRODUCERS), max_size=25),
)


@given(STEPS)
def test_everything_below_the_last_stable_offset_is_decided(
    steps: list[tuple[str, int | list[Marker]]],
) -> None:
    feeder = BatchFeeder()
    undecided: dict[int, int] = {}  # by producer, -1 for metadata: the batch boundary before it
    for step in steps:
        base = feeder.end
        match step:
            case ("data", int(count)):
                feeder.data(count)
            case ("write", int(producer)):
                feeder.data(2, producer=producer, sequence=-1, in_transaction=True)
                undecided.setdefault(producer, base)
            case ("commit" | "abort" as how, int(producer)):
                feeder.end_transaction(producer, commit=how == "commit")
                undecided.pop(producer, None)
            case ("restart", _):
                feeder = BatchFeeder(restarted(feeder.producer_state))
            case ("copy", _):
                feeder = BatchFeeder(feeder.producer_state.copy())
            case ("forget", _):
                feeder.producer_state.drop_decided(base)
            case ("markers", list(markers)):
                feeder.data(5, markers=dict(enumerate(markers)))
                before = undecided.pop(-1, None)
                is_open = markers[-1] is BEGIN if markers else before is not None
                if is_open:
                    undecided[-1] = base if before is None else before
        stable_offset = min(undecided.values(), default=feeder.end)
        assert feeder.producer_state.last_stable_offset(feeder.end) == stable_offset
