"""Mutated snapshots of metadata, each batch with a valid CRC: a state, or a typed error."""

from __future__ import annotations

from typing import Final

import pytest
from tests.support.batch_strategies import resealed
from tests.support.corpora import COUNT, SEED, Input, fuzz
from tests.support.memory_storage import MemoryStorage

from raftlog.client import open_path
from raftlog.errors import RaftlogError
from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.log.reading import snapshot
from raftlog_state import read_state
from raftlog_state.loader import image_reader, metadata_loader, payload
from raftlog_state.records import redaction, serde

NAME: Final = "snapshots"
PATH: Final = "/logs/__cluster_metadata-0/00000000000000000100-0000000001.checkpoint"
MODULES: Final = (snapshot, image_reader, metadata_loader, payload, redaction, serde)


def run(given: Input) -> None:
    """Read the state of a snapshot with these batches."""
    storage = MemoryStorage()
    storage.write(
        PATH, b"".join(resealed(one) if len(one) >= BATCH_HEADER_BYTES else one for one in given)
    )
    try:
        with open_path(PATH, storage=storage) as log:
            read_state(log)
    except RaftlogError:
        pass
    assert storage.open_files == 0


def test_mutated_snapshots_are_read_or_refused() -> None:
    fuzz(NAME, run, MODULES, seed=1, count=150)


@pytest.mark.nightly
def test_many_mutated_snapshots_are_read_or_refused() -> None:
    fuzz(NAME, run, MODULES, seed=SEED, count=COUNT)
