"""RequestManager: one in-flight request per node, one response each, backoff after a failure."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.quorum.messages import BeginQuorumEpochRequest
from raftlog.quorum.request_manager import RequestManager

ASKED = BeginQuorumEpochRequest(epoch=1, leader_id=1, voter=None)


def test_a_node_has_one_request_in_flight() -> None:
    book = RequestManager()
    first = book.start(2, ASKED, deadline_ms=100)
    assert not book.is_ready(2, 0)
    assert book.is_ready(3, 0)
    found = book.complete(first)
    assert found is not None
    assert (found.node_id, found.request) == (2, ASKED)
    assert book.is_ready(2, 0)
    assert book.complete(first) is None, "a response is processed once"


def test_a_request_fails_at_its_timeout() -> None:
    book = RequestManager()
    first = book.start(2, ASKED, deadline_ms=100)
    assert book.next_deadline_ms(0) == 100
    assert book.expire(99) == []
    assert [late.correlation_id for late in book.expire(100)] == [first]
    assert book.complete(first) is None
    assert book.next_deadline_ms(100) is None


def test_after_a_failure_requests_to_the_node_back_off() -> None:
    book = RequestManager()
    book.back_off(2, until_ms=20)
    assert not book.is_ready(2, 19)
    assert book.next_deadline_ms(19) == 20
    assert book.is_ready(2, 20)
    assert book.next_deadline_ms(20) is None, "no request of an ended role is pending"


def test_a_role_transition_drops_requests_in_flight() -> None:
    book = RequestManager()
    first = book.start(2, ASKED, deadline_ms=100)
    book.back_off(3, until_ms=50)
    book.reset()
    assert book.complete(first) is None
    assert book.is_ready(2, 0)
    assert book.is_ready(3, 0)
    assert book.start(2, ASKED, deadline_ms=100) != first, (
        "its response is not that of the next one"
    )


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("anxf"), st.integers(1, 3))))
def test_correlation_ids_are_unique(script: list[tuple[str, int]]) -> None:
    book, given_out, open_ids, now_ms = RequestManager(), set[int](), dict[int, int](), 0
    for what, node_id in script:
        now_ms += 10
        if what == "a" and book.is_ready(node_id, now_ms):
            number = book.start(node_id, ASKED, deadline_ms=now_ms + 25)
            assert number not in given_out
            given_out.add(number)
            open_ids[node_id] = number
        elif what == "n":
            found = book.complete(open_ids.pop(node_id, 0))
            assert found is None or found.node_id == node_id
        elif what == "x":
            for late in book.expire(now_ms):
                open_ids.pop(late.node_id)
        elif what == "f":
            book.reset()
            open_ids.clear()
        assert all(not book.is_ready(one, now_ms) for one in open_ids)
