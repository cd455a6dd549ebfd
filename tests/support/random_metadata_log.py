"""Random metadata logs in files: records in batches, transactions and leader changes."""

from __future__ import annotations

import random
from pathlib import Path

from raftlog_state.records import NO_OP_VALUE, encode
from tests.support.log_builder import begin, control_batch, leader_change
from tests.support.random_metadata import RandomLog
from tests.support.small_logs import (
    ABORT_TRANSACTION,
    END_TRANSACTION,
    LogWriter,
)


def write_random_log(directory: Path, seed: int, record_count: int) -> LogWriter:
    """Write a log of about as many records, always the same for a seed."""
    chance = random.Random(f"log {seed}")
    random_log = RandomLog(seed, level=chance.choice((11, 17, 25, 30)))
    random_log.grow(record_count)
    values = [encode(record) for record in random_log.records]
    log = LogWriter(directory / "__cluster_metadata-0", cluster_id="random")
    epoch, time_ms = 1, 1_700_000_000_000
    while values:
        time_ms += chance.randint(0, 5_000)
        size = chance.randint(1, 12)
        part, values = values[:size], values[size:]
        part = _with_no_ops(part, chance)
        roll = chance.random()
        if roll < 0.1:
            epoch += chance.randint(1, 2)
            control = control_batch(
                [leader_change(epoch % 3, (0, 1, 2))],
                base_offset=log.end_offset,
                epoch=epoch,
                timestamp_ms=time_ms,
            )
            log.append_encoded(control, 1, epoch=epoch)
        elif roll < 0.2:
            half = len(part) // 2
            log.append(begin("t"), *part[:half], epoch=epoch, timestamp_ms=time_ms)
            log.append(*part[half:], END_TRANSACTION, epoch=epoch, timestamp_ms=time_ms)
            continue
        elif roll < 0.25:
            log.append(begin(), *part, ABORT_TRANSACTION, epoch=epoch, timestamp_ms=time_ms)
        log.append(*part, epoch=epoch, timestamp_ms=time_ms)
    return log


def _with_no_ops(values: list[bytes], chance: random.Random) -> list[bytes]:
    found = list(values)
    for _ in range(chance.randint(0, 3)):
        found.insert(chance.randint(0, len(found)), NO_OP_VALUE)
    return found
