"""The linearizability checker agrees with an exhaustive search on correct and altered histories."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.judge.exhaustive import is_linearizable
from tests.judge.history import Append, Call, FinalLog, Outcome, ReadEnd, ReadRange
from tests.judge.linearizability import anomalies

OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN


def random_run(rng: random.Random) -> tuple[list[Call], FinalLog]:
    """Return a correct history: calls take effect at times inside their intervals."""
    calls: list[Call] = []
    batches: list[tuple[bytes, ...]] = []
    end = 0
    moments = sorted(rng.sample(range(10, 1_000), rng.randint(1, 6)))
    for number, moment in enumerate(moments):
        span = {
            "client": number,
            "invoked": moment - rng.randint(0, 150),
            "returned": moment + rng.randint(0, 150),
        }
        kind = rng.choice(["append", "append", "token", "check", "end", "range"])
        is_unknown = rng.random() < 0.25
        if kind in ("append", "token", "check"):
            values = tuple(b"%d.%d" % (number, at) for at in range(rng.randint(1, 2)))
            values = () if kind == "check" else values
            required = (
                None if kind == "append" else rng.choice([end, end, max(0, end - 1), end + 1])
            )
            if is_unknown:
                outcome, base, observed = UNKNOWN, None, None
                takes_effect = required in (None, end) and rng.random() < 0.5
            elif required in (None, end):
                outcome, base, observed, takes_effect = OK, end, None, True
            else:
                outcome, base, takes_effect = REFUSED, None, False
                observed = end
            calls.append(
                Append(
                    **span,
                    outcome=outcome,
                    values=values,
                    required_base_offset=required,
                    base_offset=base,
                    observed_end_offset=observed,
                )
            )
            if takes_effect and values:
                batches.append(values)
                end += len(values)
        elif kind == "end":
            calls.append(ReadEnd(**span, outcome=OK, end_offset=end))
        else:
            records = tuple(enumerate(value for batch in batches for value in batch))
            calls.append(
                ReadRange(**span, outcome=OK, end_offset=end, records=records, is_confirmed=True)
            )
    return calls, FinalLog.of_batches(batches)


def altered(rng: random.Random, calls: list[Call], log: FinalLog) -> tuple[list[Call], FinalLog]:
    """Return the history with one change, after which it may still be linearizable."""
    calls = list(calls)
    at = rng.randrange(len(calls))
    call = calls[at]
    change = rng.randrange(6)
    if change == 0:
        calls[at] = replace(_without_answer(call), outcome=rng.choice(list(Outcome)))
    elif change == 1:
        shift = rng.randint(-300, 300)
        calls[at] = replace(call, invoked=call.invoked + shift, returned=call.returned + shift)
    elif change == 2 and isinstance(call, ReadEnd):
        calls[at] = replace(call, end_offset=max(0, call.end_offset + rng.choice((-1, 1))))
    elif change == 3 and isinstance(call, Append) and call.base_offset is not None:
        calls[at] = replace(call, base_offset=max(0, call.base_offset + rng.choice((-1, 1))))
    elif change == 4 and log.values:
        values = [value for _, value in sorted(log.values.items())]
        first = rng.randrange(len(values))
        second = rng.randrange(len(values))
        values[first], values[second] = values[second], values[first]
        log = FinalLog(dict(enumerate(values)), log.ends)
    elif change == 5 and log.values:
        values = [value for _, value in sorted(log.values.items())]
        values.append(rng.choice(values))
        log = FinalLog(dict(enumerate(values)), log.ends | {len(values)})
    return calls, log


def _without_answer(call: Call) -> Call:
    if isinstance(call, Append):
        return replace(call, base_offset=None, observed_end_offset=None)
    return call


@pytest.mark.parametrize("seed", range(4))
def test_a_correct_history_has_no_anomaly(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        calls, log = random_run(rng)
        assert anomalies(calls, log) == []
        assert is_linearizable(calls, log)


@pytest.mark.parametrize("seed", range(8))
def test_the_checker_agrees_with_an_exhaustive_search(seed: int) -> None:
    rng = random.Random(1_000 + seed)
    wrong = 0
    for _ in range(400):
        calls, log = altered(rng, *random_run(rng))
        expected = is_linearizable(calls, log)
        assert (anomalies(calls, log) == []) == expected, (calls, log)
        wrong += not expected
    assert 40 < wrong < 360, "both verdicts must occur"
