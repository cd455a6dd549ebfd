"""Bugs in what a node lets its callers take: memory, connections, descriptors."""

from __future__ import annotations

from typing import Final

from .plant import Plant

NODE: Final = "connector/raftlog/node"
BUDGETS: Final = "tests/node/test_request_budget.py"
ACCOUNTS: Final = "tests/node/test_connection_accounts.py"
MEMORY: Final = "tests/node/test_held_memory.py"

NODE_LIMIT_PLANTS: Final = (
    Plant(
        bug="a frame that is announced is held before it has arrived",
        path=f"{NODE}/connection.py",
        old="        self.held.arrived_byte_count = self._splitter.kept_byte_count\n",
        new="        self.held.arrived_byte_count = self._splitter.awaited_byte_count\n",
        tests=(ACCOUNTS, MEMORY),
    ),
    Plant(
        bug="a part of a frame is not counted",
        path=f"{NODE}/connection.py",
        old="        self.held.arrived_byte_count = self._splitter.kept_byte_count\n",
        new="",
        tests=(ACCOUNTS, MEMORY),
    ),
    Plant(
        bug="frames that have begun wait for each other",
        path=f"{NODE}/connection.py",
        old="budget.has_room or budget.may_overdraw(self._take_frames_later)",
        new="budget.has_room",
        tests=(MEMORY,),
    ),
    Plant(
        bug="one principal takes all the memory for requests",
        path=f"{NODE}/request_budget.py",
        old="        return self._byte_count < self.budget.free_byte_count\n",
        new="        return self.budget.has_room\n",
        tests=(BUDGETS,),
    ),
    Plant(
        bug="all frames of a principal are received without room",
        path=f"{NODE}/request_budget.py",
        old="        return self._overdrawn_by == go_on\n",
        new="        return True\n",
        tests=(BUDGETS,),
    ),
    Plant(
        bug="a byte now and then buys a peer all the time",
        path=f"{NODE}/pace.py",
        old="            later_s = self._deadline_s + byte_count / self._bytes_per_second_min\n",
        new="            later_s = now_s + self.stalled_s\n",
        tests=(BUDGETS,),
    ),
    Plant(
        bug="a connection keeps memory that others wait for",
        path=f"{NODE}/server.py",
        old="            self._relieve(now_s)\n",
        new="",
        tests=(MEMORY,),
    ),
)
