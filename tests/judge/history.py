"""Calls of a log's clients, their results, and the final log.

The simulator, three real processes and stock clients are checked in this form. Times are integers
of one clock: microseconds of the simulation, nanoseconds of a host.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class Outcome(enum.Enum):
    """Outcome of a call. ``REFUSED``: nothing was written. ``UNKNOWN``: it may have been."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call of a client; if it took effect, then within ``[invoked, returned]``."""

    client: int
    invoked: int
    returned: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Call):
    """Append of ``values``, conditional if ``required_base_offset`` is given.

    Without values it only checks that the log ends at that offset.

    ``base_offset``: of an append that succeeded. ``observed_end_offset``: the end offset in a
    refusal, None if it has none.
    """

    values: tuple[bytes, ...]
    required_base_offset: int | None = None
    base_offset: int | None = None
    observed_end_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEnd(Call):
    """Read of the end offset, confirmed by a majority."""

    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange(Call):
    """Read of the records of ``[start_offset, end_offset)`` by offset.

    ``is_confirmed``: ``end_offset`` was the log's end, confirmed by a majority, during the call.
    Otherwise it may be stale.
    """

    start_offset: int = 0
    end_offset: int = 0
    records: tuple[tuple[int, bytes], ...] = ()
    is_confirmed: bool = False


@dataclass(frozen=True, slots=True)
class FinalLog:
    """The log after everything has settled.

    ``values``: value by offset, control records left out. ``ends``: the end offset of every batch,
    and the log's start.
    """

    values: Mapping[int, bytes]
    ends: frozenset[int]
    offsets: Mapping[bytes, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        offsets: dict[bytes, list[int]] = {}
        for offset, value in self.values.items():
            offsets.setdefault(value, []).append(offset)
        object.__setattr__(self, "offsets", offsets)

    @classmethod
    def of_batches(cls, batches: Iterable[tuple[bytes, ...]]) -> FinalLog:
        """Return the log from offset 0 that holds these batches and nothing else."""
        values: dict[int, bytes] = {}
        ends = {0}
        for batch in batches:
            values.update(enumerate(batch, start=len(values)))
            ends.add(len(values))
        return cls(values, frozenset(ends))
