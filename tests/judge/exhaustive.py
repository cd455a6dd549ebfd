"""A search for a linearization, for histories of a few calls: the judge of ``linearizability``.

Wing and Gong's algorithm on the specification itself, without any argument about offsets: try every
order that respects real time; calls of unknown outcome may take effect or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from .history import Append, Call, FinalLog, Outcome, ReadEnd, ReadRange

State = tuple[bytes, ...]


def is_linearizable(history: Sequence[Call], log: FinalLog) -> bool:
    """Return whether some order of the calls explains all answers and ends in ``log``.

    The log has no control records and starts at offset 0: its offsets are counted.
    """
    final = tuple(value for _, value in sorted(log.values.items()))
    seen: set[tuple[frozenset[int], State]] = set()

    def search(remaining: frozenset[int], state: State) -> bool:
        if all(history[at].outcome is Outcome.UNKNOWN for at in remaining) and state == final:
            return True
        if (remaining, state) in seen or state != final[: len(state)]:
            return False
        seen.add((remaining, state))
        first_return = (
            min(
                history[at].returned
                for at in remaining
                if history[at].outcome is not Outcome.UNKNOWN
            )
            if any(history[at].outcome is not Outcome.UNKNOWN for at in remaining)
            else None
        )
        for at in remaining:
            call = history[at]
            if first_return is not None and call.invoked > first_return:
                continue
            after = apply(call, state)
            if after is not None and search(remaining - {at}, after):
                return True
        return False

    return search(frozenset(range(len(history))), ())


def apply(call: Call, state: State) -> State | None:
    """Return the log after the call took effect; None if its answer is wrong in this state."""
    end = len(state)
    if isinstance(call, Append):
        return _apply_append(call, state)
    if call.outcome is not Outcome.OK:
        return state
    if isinstance(call, ReadEnd):
        return state if call.end_offset == end else None
    if isinstance(call, ReadRange):
        records = tuple(enumerate(state))[call.start_offset : call.end_offset]
        return state if call.end_offset == end and call.records == records else None
    raise AssertionError(f"no specification of {call}")


def _apply_append(call: Append, state: State) -> State | None:
    end, required = len(state), call.required_base_offset
    is_right = required in (None, end)
    if call.outcome is Outcome.UNKNOWN:
        return state + call.values if is_right else None
    if call.outcome is Outcome.OK:
        return state + call.values if is_right and call.base_offset == end else None
    if call.observed_end_offset is None:
        return state
    return state if call.observed_end_offset == end and not is_right else None
