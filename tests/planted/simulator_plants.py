"""Bugs that the simulator's faults and the small model must find.

The rules are those of ``plant``.
"""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

SIMULATION: Final = "tests/simulation/test_simulation.py"


def last_round(seed: int) -> tuple[str, ...]:
    """Return a test that runs the simulator with all rounds of faults and violates a guarantee."""
    return (
        f"{SIMULATION}::test_invariants_hold_for_the_seeds_of_the_last_round_that_once_failed[{seed}]",
    )


COMPACTED: Final = (
    f"{SIMULATION}::test_logs_that_nodes_compact_on_their_own_have_the_same_last_values_under"
    "_random_faults",
)

SIMULATOR_PLANTS: Final = (
    Plant(
        bug="a formatted disk is taken for the voter of its node id",
        path="connector/raftlog/types.py",
        old="""        return self.node_id == replica.node_id and self.directory_id in (
            ZERO_UUID,
            replica.directory_id,
        )""",
        new="        return self.node_id == replica.node_id",
        tests=last_round(2071),
    ),
    Plant(
        bug="a leader does not send up to where its log may lack tombstones",
        path="connector/raftlog/node/replica.py",
        old="                    tombstone_start_offset=log.tombstone_start_offset,\n",
        new="                    tombstone_start_offset=0,\n",
        tests=COMPACTED,
    ),
    Plant(
        bug="a replica compacts records that are not committed",
        path="connector/raftlog/log/writing/replicated_log.py",
        old="            self.last_stable_offset,\n            now_ms=now_ms,\n",
        new="            self.end_offset,\n            now_ms=now_ms,\n",
        tests=COMPACTED,
    ),
)
