"""Which transactions are open, how far the log is decided, and which were aborted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.facts import Teller, restarted

from raftlog.log.transactions import Marker, Outcome, TransactionSpan
from raftlog.log.txn_index import AbortedTransaction
from raftlog.log.writing.memory import ENDED_TRANSACTIONS_MAX, LogMemory

BEGIN, END, ABORT = Marker.BEGIN, Marker.END, Marker.ABORT
ALSO_RESTARTED = pytest.mark.parametrize(
    "then", [lambda memory: memory, restarted, LogMemory.copy], ids=["same", "restarted", "copy"]
)


# --- metadata transactions ---


@ALSO_RESTARTED
def test_a_transaction_that_is_left_open_holds_the_stable_offset_back(
    then: Callable[[LogMemory], LogMemory],
) -> None:
    told = Teller()
    told.data(4)
    told.data(3, markers={1: BEGIN}, name="move topics")
    told.data(5)
    memory = then(told.memory)
    assert memory.open_transaction == TransactionSpan(5, None, Outcome.OPEN, -1, "move topics")
    assert memory.last_stable_offset(12) == 4  # where the batch of the Begin begins
    assert memory.last_stable_offset(4) == 4


@ALSO_RESTARTED
@pytest.mark.parametrize("how", [END, ABORT])
def test_its_end_or_its_abort_decides_it(
    how: Marker, then: Callable[[LogMemory], LogMemory]
) -> None:
    told = Teller()
    told.data(4)
    told.data(1, markers={0: BEGIN})
    told.data(5)
    told = Teller(then(told.memory))
    told.data(2, markers={1: how})
    assert told.memory.open_transaction is None
    assert told.memory.last_stable_offset(12) == 12


def test_a_transaction_that_ended_above_the_high_watermark_is_not_decided() -> None:
    told = Teller()
    told.data(4)
    told.data(2, markers={0: BEGIN})
    told.data(2, markers={1: END})
    told.data(1)
    assert [told.memory.last_stable_offset(end) for end in (4, 6, 8, 9)] == [4, 4, 8, 9]


def test_begin_and_end_in_one_batch_leave_nothing_open() -> None:
    told = Teller()
    told.data(4)
    told.data(3, markers={0: BEGIN, 2: END})
    assert told.memory.last_stable_offset(7) == 7


def test_a_batch_may_end_one_transaction_and_begin_another() -> None:
    told = Teller()
    told.data(1, markers={0: BEGIN}, name="a")
    told.data(3, markers={1: END, 2: BEGIN}, name="b")
    assert told.memory.open_transaction == TransactionSpan(3, None, Outcome.OPEN, -1, "b")
    assert told.memory.last_stable_offset(4) == 0
    memory = restarted(told.memory)
    assert memory.open_transaction == told.memory.open_transaction
    assert memory.last_stable_offset(4) == 0  # not 1, which is inside the first
    told.memory.forget_decided(4)
    assert told.memory.last_stable_offset(4) == 0


def test_markers_that_contradict_change_nothing_and_never_fail() -> None:
    told = Teller()
    told.data(2, markers={0: END, 1: ABORT})
    told.data(2, markers={0: BEGIN, 1: BEGIN}, name="first")
    assert told.memory.open_transaction == TransactionSpan(2, None, Outcome.OPEN, -1, "first")
    for _ in range(1000):
        told.data(1, markers={0: BEGIN})
    told.data(1, markers={0: END})
    assert told.memory.last_stable_offset(told.end) == told.end


def test_a_log_whose_beginning_is_gone_may_begin_inside_a_transaction() -> None:
    told = Teller(LogMemory("/log", end_offset=50, is_whole=False))
    told.data(4)
    told.data(2, markers={1: END})
    assert told.memory.last_stable_offset(54) == 50
    assert told.memory.last_stable_offset(56) == 56


def test_it_may_begin_the_next_one_in_the_batch_that_ends_the_first() -> None:
    told = Teller(LogMemory("/log", end_offset=50, is_whole=False))
    told.data(4)
    told.data(2, markers={0: END, 1: BEGIN})
    assert told.memory.last_stable_offset(56) == 50
    assert restarted(told.memory).last_stable_offset(56) == 50


def test_ended_transactions_are_forgotten_as_the_high_watermark_moves() -> None:
    told = Teller()
    for _ in range(100):
        told.data(3, markers={0: BEGIN, 2: END})
    told.data(1, markers={0: BEGIN})
    told.memory.forget_decided(300)
    assert told.memory.last_stable_offset(300) == 300
    assert told.memory.last_stable_offset(301) == 300


@pytest.mark.slow
def test_ended_transactions_are_bounded_though_nobody_forgets_them() -> None:
    told = Teller()
    count = 2 * (ENDED_TRANSACTIONS_MAX + 5)
    told.data(count, markers={at: (BEGIN, END)[at % 2] for at in range(count)})
    kept = told.memory._book.spans(0, told.end, with_committed=True)
    assert len(kept) == ENDED_TRANSACTIONS_MAX


# --- transactions of producers ---


@ALSO_RESTARTED
def test_the_oldest_open_transaction_holds_the_stable_offset_back(
    then: Callable[[LogMemory], LogMemory],
) -> None:
    told = Teller()
    told.data(4)
    told.data(2, producer=7, in_transaction=True)
    told.data(2, producer=8, in_transaction=True)
    told.data(2, producer=7, sequence=2, in_transaction=True)
    told = Teller(then(told.memory))
    assert told.memory.last_stable_offset(10) == 4
    assert told.end_transaction(7, commit=True) == ()
    assert told.memory.last_stable_offset(11) == 6
    assert told.memory.last_stable_offset(10) == 4
    assert told.memory.open_transaction is None  # of metadata there is none
    aborted = told.end_transaction(8, commit=False)
    assert aborted == (
        AbortedTransaction(producer_id=8, first_offset=6, last_offset=11, last_stable_offset=12),
    )
    assert told.memory.last_stable_offset(12) == 12


def test_an_abort_names_the_stable_offset_that_the_others_leave() -> None:
    told = Teller()
    told.data(2, producer=7, in_transaction=True)
    told.data(2, producer=8, in_transaction=True)
    told.data(2, producer=9, in_transaction=True)
    (first,) = told.end_transaction(8, commit=False)
    assert (first.first_offset, first.last_offset, first.last_stable_offset) == (2, 6, 0)
    (second,) = told.end_transaction(7, commit=False)
    assert second.last_stable_offset == 4


def test_a_marker_of_a_transaction_that_wrote_nothing_here_aborts_nothing() -> None:
    told = Teller()
    assert told.end_transaction(7, commit=False) == ()
    assert told.end_transaction(-1, commit=False) == ()
    assert told.memory.last_stable_offset(2) == 2


def test_transactional_batches_without_sequences_open_one_too() -> None:
    told = Teller()
    told.data(2, producer=7, sequence=-1, in_transaction=True)
    assert told.memory.last_stable_offset(2) == 0
    assert restarted(told.memory).last_stable_offset(2) == 0


# --- against counting by hand ---

AT_ANY_TIME = st.tuples(st.sampled_from(["data", "restart", "forget", "copy"]), st.integers(1, 3))
MARKERS = st.tuples(st.just("markers"), st.lists(st.sampled_from([BEGIN, END, ABORT]), max_size=4))
PRODUCERS = st.tuples(st.sampled_from(["write", "write", "commit", "abort"]), st.integers(0, 3))
STEPS = st.one_of(  # no log has both kinds
    st.lists(st.one_of(AT_ANY_TIME, MARKERS), max_size=25),
    st.lists(st.one_of(AT_ANY_TIME, PRODUCERS), max_size=25),
)


@given(STEPS)
def test_nothing_below_the_stable_offset_is_undecided(
    steps: list[tuple[str, int | list[Marker]]],
) -> None:
    told = Teller()
    undecided: dict[int, int] = {}  # by producer, -1 for metadata: the boundary before it
    for step in steps:
        base = told.end
        match step:
            case ("data", int(count)):
                told.data(count)
            case ("write", int(producer)):
                told.data(2, producer=producer, sequence=-1, in_transaction=True)
                undecided.setdefault(producer, base)
            case ("commit" | "abort" as how, int(producer)):
                told.end_transaction(producer, commit=how == "commit")
                undecided.pop(producer, None)
            case ("restart", _):
                told = Teller(restarted(told.memory))
            case ("copy", _):
                told = Teller(told.memory.copy())
            case ("forget", _):
                told.memory.forget_decided(base)
            case ("markers", list(markers)):
                told.data(5, markers=dict(enumerate(markers)))
                before = undecided.pop(-1, None)
                is_open = markers[-1] is BEGIN if markers else before is not None
                if is_open:
                    undecided[-1] = base if before is None else before
        stable_offset = min(undecided.values(), default=told.end)
        assert told.memory.last_stable_offset(told.end) == stable_offset
