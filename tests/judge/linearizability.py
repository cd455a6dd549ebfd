"""Whether a history of appends, conditional appends and reads is linearizable.

The general problem is NP-complete; for this shape one pass is enough, since every answer names the
version of the log that it belongs to. A call that took effect has an interval of end offsets:

    append at base b with n records   [b, b + n]   the log ended at b, then at b + n
    check or read of the end e        [e, e]
    refusal that names the end e      [e, e]       and e is not the required offset

A call that returned before another was invoked precedes it, so the end of its interval must be <=
the start of the other's. If that holds for every such pair, the order by intervals is a
linearization; if it does not, it has none. ``exhaustive.is_linearizable`` searches without this
argument, and the tests compare both on random histories.

Source: Herlihy and Wing, "Linearizability", 1990; Wing and Gong's search, 1993.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .history import Append, Call, FinalLog, Outcome, ReadEnd, ReadRange

Interval = tuple[int, int]
_NEVER = float("inf")


def anomalies(history: Sequence[Call], log: FinalLog) -> list[str]:
    """Return why no order of the calls explains the history and the log; empty if one does."""
    ends = _ends(history, log)
    found = [text for call in history for text in _wrong_by_itself(call, log, ends)]
    found += _phantoms(history, log)
    return found or _wrong_order(history, log)


def _ends(history: Sequence[Call], log: FinalLog) -> frozenset[int]:
    """Return the end offsets that the log has had: after batches, and after appends within them."""
    appends = (
        (log.offsets[call.values[0]][0], len(call.values))
        for call in history
        if isinstance(call, Append) and call.values and call.values[0] in log.offsets
    )
    return log.ends | {end for base, count in appends for end in (base, base + count)}


def _wrong_by_itself(call: Call, log: FinalLog, ends: frozenset[int]) -> list[str]:
    """Return what the final log shows to be wrong with one call, whatever the others are."""
    if isinstance(call, Append):
        return _wrong_append(call, log, ends)
    if call.outcome is not Outcome.OK:
        return []
    if isinstance(call, ReadRange):
        wanted = tuple(
            (offset, log.values[offset])
            for offset in range(call.start_offset, call.end_offset)
            if offset in log.values
        )
        wrong = [] if call.records == wanted else [f"read other records than the log has: {call}"]
    else:
        wrong = []
    end_offset = call.end_offset if isinstance(call, ReadEnd | ReadRange) else 0
    if end_offset not in ends:
        wrong.append(f"the log never ended there: {call}")
    return wrong


def _wrong_append(call: Append, log: FinalLog, ends: frozenset[int]) -> list[str]:
    places = [log.offsets.get(value, []) for value in call.values]
    if any(len(place) > 1 for place in places):
        return [f"written more than once: {call}"]
    written = [place[0] for place in places if place]
    if written and written != list(range(written[0], written[0] + len(call.values))):
        return [f"not appended as a whole: {call}"]
    required, wrong = call.required_base_offset, []
    if call.outcome is Outcome.OK:
        if call.values and (not written or written[0] != call.base_offset):
            wrong.append(f"acknowledged, and not in the log at its offset: {call}")
        if required is not None and call.base_offset != required:
            wrong.append(f"succeeded at another offset than the required one: {call}")
        if not call.values and call.base_offset not in ends:
            wrong.append(f"the log never ended there: {call}")
    if call.outcome is Outcome.REFUSED and written:
        wrong.append(f"refused, and in the log: {call}")
    if call.outcome is Outcome.REFUSED and call.observed_end_offset is not None:
        if call.observed_end_offset == required:
            wrong.append(f"refused although the log ends at the required offset: {call}")
        if call.observed_end_offset not in ends:
            wrong.append(f"the log never ended where the refusal says: {call}")
    if call.outcome is Outcome.UNKNOWN and written and required not in (None, written[0]):
        wrong.append(f"written at another offset than the required one: {call}")
    return wrong


def _phantoms(history: Sequence[Call], log: FinalLog) -> list[str]:
    """Return the values in the log that no call appended."""
    asked = {value for call in history if isinstance(call, Append) for value in call.values}
    return [f"never appended: {value!r}" for value in log.offsets if value not in asked]


def _wrong_order(history: Sequence[Call], log: FinalLog) -> list[str]:
    """Return each call that took effect before one that had returned when it was invoked."""
    intervals = [
        (call, interval)
        for call in sorted(history, key=lambda call: call.invoked)
        if (interval := _interval(call, log)) is not None
    ]
    found: list[str] = []
    returned: list[tuple[float, int, Call]] = []
    """Pending calls, by the time of their return; their number only breaks ties."""
    latest_end, latest = -1, None
    for number, (call, (start, _)) in enumerate(intervals):
        while returned and returned[0][0] < call.invoked:
            _, at, earlier = heapq.heappop(returned)
            if intervals[at][1][1] > latest_end:
                latest_end, latest = intervals[at][1][1], earlier
        if start < latest_end:
            found.append(
                f"{latest} had returned before {call} was invoked, which took effect first"
            )
        is_known = call.outcome is not Outcome.UNKNOWN
        heapq.heappush(returned, (call.returned if is_known else _NEVER, number, call))
    return found


def _interval(call: Call, log: FinalLog) -> Interval | None:
    """Return the end offsets of the log before and after the call; None if it shows none."""
    if isinstance(call, Append):
        if call.outcome is Outcome.REFUSED:
            end = call.observed_end_offset
            return None if end is None else (end, end)
        if not call.values:
            base = call.base_offset
            return None if call.outcome is Outcome.UNKNOWN or base is None else (base, base)
        places = log.offsets.get(call.values[0])
        return None if not places else (places[0], places[0] + len(call.values))
    if call.outcome is not Outcome.OK:
        return None
    if isinstance(call, ReadEnd):
        return call.end_offset, call.end_offset
    if isinstance(call, ReadRange) and call.is_confirmed:
        return call.end_offset, call.end_offset
    return None
