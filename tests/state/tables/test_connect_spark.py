"""Tables over Spark Connect: a local server runs ``foreachBatch`` in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.connect_server import HOME, run_connected

LOGS = HOME / "tests/data/kraft-logs"

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


def test_a_connect_server_runs_the_notebook() -> None:
    output = run_connected("notebooks/run.py", "notebooks/cluster_history.py")
    assert "Delta tables contain the cluster state at offset 3131" in output
    assert "668 rows match the log" in output


def test_a_group_of_clusters_is_written_by_a_connect_server(tmp_path: Path) -> None:
    logs = [str(LOGS / name) for name in ("three-nodes-4.3.1/node-1", "trimmed-3.9.2/node-1")]
    places = [str(tmp_path / name) for name in ("tables", "checkpoint")]
    output = run_connected("-m", "tests.state.tables.connect_driver", *places, *logs)
    offsets = [line for line in output.splitlines() if line.startswith("offsets")]
    assert len(offsets) == 2
    assert len(set(offsets)) == 1
