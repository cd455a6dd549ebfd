"""State that the requests of one connection share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from raftlog.append.requests import InOrderGate

from .access import Principal
from .request_budget import BudgetShare


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Principal of a connection, and state that its requests share.

    ``budget`` counts the memory of requests and responses, per principal. ``placing`` is locked
    while an append of this connection is decoded and submitted, so that appends keep their order.
    ``gate`` keeps the order if appends fail on a full disk.
    """

    caller: Principal
    budget: BudgetShare
    placing: asyncio.Lock = field(default_factory=asyncio.Lock)
    gate: InOrderGate = field(default_factory=InOrderGate)
