"""Where a question comes from: who asks, and what it shares with others on its way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from raftlog.client.in_order_gate import InOrderGate

from .access import Principal
from .request_budget import BudgetShare


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """One connection's, for all its questions.

    ``budget`` counts the memory they take, for one principal. ``placing`` is held while an append
    of this connection is read and placed: later ones wait, in order. ``gate`` keeps that
    order where there is no room.
    """

    caller: Principal
    budget: BudgetShare
    placing: asyncio.Lock = field(default_factory=asyncio.Lock)
    gate: InOrderGate = field(default_factory=InOrderGate)
