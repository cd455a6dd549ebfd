"""Jepsen's classes of anomalies for Kafka, for one partition without transactions.

They are found from the records that consumers polled, not from the log's files, so that raftlog's
client and stock clients are checked alike. Jepsen: ``tests/kafka.clj``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .history import Outcome


@dataclass(frozen=True, slots=True)
class Send:
    """One value that a producer sent, in its order; ``offset`` if it was acknowledged."""

    producer: int
    value: bytes
    outcome: Outcome
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """Result of one poll of a consumer. ``is_first``: after an assignment or a seek."""

    consumer: int
    records: tuple[tuple[int, bytes], ...]
    is_first: bool = False


def anomalies(sends: Sequence[Send], polls: Sequence[Poll]) -> dict[str, list[str]]:
    """Return what is wrong by class; classes without an anomaly are left out.

    ``sends`` and ``polls`` hold each client's in its own order. The last consumers must have polled
    to the end for ``unseen`` to be meaningful.
    """
    values_at: defaultdict[int, set[bytes]] = defaultdict(set)
    offsets_of: defaultdict[bytes, set[int]] = defaultdict(set)
    polled: dict[bytes, int] = {}
    for offset, value in _observations(sends, polls):
        values_at[offset].add(value)
        offsets_of[value].add(offset)
    for poll in polls:
        polled.update((value, offset) for offset, value in poll.records)
    order = sorted(values_at)
    found = {
        "inconsistent-offsets": [
            f"offset {offset} holds {sorted(values)}"
            for offset, values in sorted(values_at.items())
            if len(values) > 1
        ],
        "duplicate": [
            f"{value!r} is at {sorted(offsets)}"
            for value, offsets in offsets_of.items()
            if len(offsets) > 1
        ],
        "aborted-read": [
            f"{send.value!r} was refused, and is at {polled[send.value]}"
            for send in sends
            if send.outcome is Outcome.REFUSED and send.value in polled
        ],
        **_missing(sends, polled),
        **_poll_order(polls, order),
        "nonmonotonic-send": list(_sends_out_of_order(sends)),
        "phantom": [
            f"{value!r} was never sent" for value in polled.keys() - {one.value for one in sends}
        ],
    }
    return {name: texts for name, texts in found.items() if texts}


def _observations(sends: Sequence[Send], polls: Sequence[Poll]) -> Iterator[tuple[int, bytes]]:
    for send in sends:
        if send.offset is not None:
            yield send.offset, send.value
    for poll in polls:
        yield from poll.records


def _missing(sends: Sequence[Send], polled: dict[bytes, int]) -> dict[str, list[str]]:
    """Return acknowledged values that no consumer polled: lost below the highest polled offset."""
    highest = max(polled.values(), default=-1)
    missing: dict[str, list[str]] = {"lost-write": [], "unseen": []}
    for send in sends:
        if send.outcome is Outcome.OK and send.value not in polled:
            assert send.offset is not None
            kind = "lost-write" if send.offset <= highest else "unseen"
            missing[kind].append(f"{send.value!r}, acknowledged at {send.offset}")
    return missing


def _poll_order(polls: Sequence[Poll], order: list[int]) -> dict[str, list[str]]:
    """Return where a consumer's offsets decrease or skip an offset that has a record."""
    rank = {offset: at for at, offset in enumerate(order)}
    found: dict[str, list[str]] = {"nonmonotonic-poll": [], "poll-skip": []}
    last: dict[int, int] = {}
    for poll in polls:
        if poll.is_first:
            last.pop(poll.consumer, None)
        for offset, _ in poll.records:
            before = last.get(poll.consumer)
            text = f"consumer {poll.consumer} polled {offset} after {before}"
            if before is not None and offset <= before:
                found["nonmonotonic-poll"].append(text)
            elif before is not None and rank[offset] != rank[before] + 1:
                found["poll-skip"].append(text)
            last[poll.consumer] = offset
    return found


def _sends_out_of_order(sends: Sequence[Send]) -> Iterator[str]:
    by_producer: defaultdict[int, list[Send]] = defaultdict(list)
    for send in sends:
        if send.offset is not None:
            by_producer[send.producer].append(send)
    for producer, own in by_producer.items():
        for earlier, later in itertools.pairwise(own):
            assert earlier.offset is not None
            assert later.offset is not None
            if later.offset <= earlier.offset:
                places = f"{later.offset} after {earlier.offset}"
                yield f"producer {producer}: {later.value!r} at {places}"
