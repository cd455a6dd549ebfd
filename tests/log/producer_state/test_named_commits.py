"""Named commits: checks, answers to retries, refusals and eviction."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.batch_feeder import BatchFeeder, restarted

from raftlog.errors import ForeignCommitError, OptionError, StaleCommitError
from raftlog.limits import COMMIT_ID_BYTES_MAX, COMMITS_MAX
from raftlog.log.reading.transactions import VERSION_MAX, CommitName
from raftlog.log.writing.producer_state import Duplicate, LastCommit, ProducerStateManager

ALSO_RESTARTED = pytest.mark.parametrize(
    "then",
    [lambda producer_state: producer_state, restarted, ProducerStateManager.copy],
    ids=["same", "restarted", "copy"],
)


def commit(version: int, query: str = "q1", app: str = "app") -> CommitName:
    return CommitName(app, query, version)


@ALSO_RESTARTED
def test_the_last_commit_has_its_offsets_and_timestamp(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(5)
    feeder.data(3, commit=commit(4))
    feeder.data(1)
    producer_state = then(feeder.producer_state)
    assert producer_state.last_commit("app") == LastCommit(commit(4), 5, 7, feeder.time_ms - 1)
    assert producer_state.last_commit("other") is None


@ALSO_RESTARTED
def test_a_retry_of_the_last_commit_gets_its_offsets(
    then: Callable[[ProducerStateManager], ProducerStateManager],
) -> None:
    feeder = BatchFeeder()
    feeder.data(3, commit=commit(0))
    feeder.data(3, commit=commit(1))
    feeder.data(9)  # the log's end has advanced, whatever offset the retry requires
    producer_state = then(feeder.producer_state)
    assert producer_state.check_commit(commit(1)) == Duplicate(3, 5)
    assert producer_state.check_commit(commit(1), take_over_from="q1") == Duplicate(3, 5)
    assert producer_state.check_commit(commit(2)) is None
    # versions increase, not necessarily by 1
    assert producer_state.check_commit(commit(815)) is None


@ALSO_RESTARTED
@pytest.mark.parametrize("take_over_from", [None, "q1", "q2"])
def test_an_older_version_is_refused(
    take_over_from: str | None, then: Callable[[ProducerStateManager], ProducerStateManager]
) -> None:
    feeder = BatchFeeder()
    feeder.data(1, commit=commit(7))
    with pytest.raises(StaleCommitError) as refused:
        then(feeder.producer_state).check_commit(commit(6), take_over_from=take_over_from)
    assert (refused.value.version, refused.value.last_version) == (6, 7)


@ALSO_RESTARTED
@pytest.mark.parametrize("version", [0, 7, 8])
def test_another_query_is_refused_unless_it_takes_over(
    version: int, then: Callable[[ProducerStateManager], ProducerStateManager]
) -> None:
    feeder = BatchFeeder()
    feeder.data(1, commit=commit(7))
    producer_state = then(feeder.producer_state)
    with pytest.raises(ForeignCommitError) as refused:
        producer_state.check_commit(commit(version, "q2"))
    assert (refused.value.query_id, refused.value.last_query_id) == ("q2", "q1")
    assert "take over the id" in str(refused.value)
    with pytest.raises(ForeignCommitError):
        producer_state.check_commit(commit(version, "q2"), take_over_from="q0")
    assert producer_state.check_commit(commit(version, "q2"), take_over_from="q1") is None


def test_a_query_is_refused_after_another_took_over() -> None:
    feeder = BatchFeeder()
    feeder.data(1, commit=commit(7))
    feeder.data(1, commit=commit(0, "q2"))
    with pytest.raises(ForeignCommitError):
        feeder.producer_state.check_commit(commit(8))
    assert feeder.producer_state.check_commit(commit(1, "q2")) is None


def test_application_ids_are_independent() -> None:
    feeder = BatchFeeder()
    feeder.data(1, commit=commit(7))
    assert feeder.producer_state.check_commit(commit(0, "q2", "app 2")) is None


def test_the_least_recently_used_application_id_is_evicted() -> None:
    feeder = BatchFeeder()
    for app in range(COMMITS_MAX):
        feeder.data(1, commit=commit(0, app=str(app)))
    feeder.data(1, commit=commit(1, app="0"))
    feeder.data(1, commit=commit(0, app="one more"))
    producer_state = restarted(feeder.producer_state)
    assert len(producer_state.commits) == COMMITS_MAX
    assert producer_state.last_commit("0") is not None
    assert producer_state.last_commit("1") is None
    BatchFeeder(producer_state).data(
        1, commit=commit(0, app="two more")
    )  # a restart preserves the order
    assert producer_state.last_commit("2") is None
    assert len(producer_state.commits) == COMMITS_MAX


@pytest.mark.parametrize(
    ("app", "query", "version"),
    [
        ("", "q", 0),
        ("a", "", 0),
        ("a" * (COMMIT_ID_BYTES_MAX + 1), "q", 0),
        ("a", "ü" * (COMMIT_ID_BYTES_MAX // 2 + 1), 0),
        ("a", "\ud800", 0),
        ("a", "q", -1),
        ("a", "q", VERSION_MAX + 1),
    ],
)
def test_a_name_that_no_log_can_store_is_refused(app: str, query: str, version: int) -> None:
    with pytest.raises(OptionError):
        CommitName(app, query, version)


def test_names_of_the_maximum_length_are_stored() -> None:
    name = CommitName("ü" * (COMMIT_ID_BYTES_MAX // 2), "x" * COMMIT_ID_BYTES_MAX, VERSION_MAX)
    feeder = BatchFeeder()
    feeder.data(1, commit=name)
    assert restarted(feeder.producer_state).check_commit(name) == Duplicate(0, 0)
