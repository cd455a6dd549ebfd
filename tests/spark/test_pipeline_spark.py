"""The notebook with a declarative pipeline, run by ``spark-pipelines`` of the installed pyspark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest
import yaml
from tests.support.connect_server import HOME, connect_environment

import raftlog
from raftlog_state import apply_changes

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

CATALOG = ("--conf", "spark.sql.catalogImplementation=hive")
"""A catalog that the next run continues; a static option, which a specification cannot set."""
BROKER = {"change": "register_broker", "broker_id": 1, "endpoints": {"CLIENT": "localhost:9092"}}
UNFENCED = {"change": "unfence_broker", "broker_id": 1}
FENCED = {"change": "fence_broker", "broker_id": 1}


def run_pipeline(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = connect_environment() | {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    del environment["SPARK_REMOTE"]  # the command has a server of its own
    return subprocess.run(
        ["spark-pipelines", "run", "--spec", "spark-pipeline.yml", *CATALOG, *options],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def written(decisions: Path) -> list[str]:
    with raftlog.open(decisions) as log:
        return [(record.value or b"").decode() for record in log.read(0)]


def test_a_pipeline_reads_a_log_and_writes_each_decision_to_a_log_once(tmp_path: Path) -> None:
    notebooks = HOME / "notebooks"
    decisions = tmp_path / "decisions-0"
    spec = yaml.safe_load((notebooks / "spark-pipeline.yml").read_text())
    spec["storage"] = (tmp_path / "storage").as_uri()
    spec["configuration"] |= {
        "raftlog.path": str(tmp_path / "cluster-0"),
        "raftlog.decisions": str(decisions),
    }
    (tmp_path / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))
    (tmp_path / "pipeline.py").write_text((notebooks / "pipeline.py").read_text())

    with raftlog.open(tmp_path / "cluster-0", values="kraft") as log:
        level = {"change": "set_feature", "feature": "metadata.version", "level": 30}
        apply_changes(log, [level, BROKER, UNFENCED])
        apply_changes(log, [FENCED])
        fenced_below = log.end_offset
        done = run_pipeline(tmp_path)
        assert done.returncode == 0, done.stdout[-5_000:]
        assert "Run is COMPLETED" in done.stdout
        found = written(decisions)
        assert len(found) == 1
        assert found[0].startswith("examine broker 1, offset ")
        assert int(found[0].rpartition(" ")[2]) < fenced_below

        apply_changes(log, [UNFENCED])
        apply_changes(log, [FENCED])
    done = run_pipeline(tmp_path)
    assert done.returncode == 0, done.stdout[-5_000:]
    assert written(decisions)[:1] == found
    assert len(written(decisions)) == 2

    done = run_pipeline(tmp_path, "--full-refresh-all")
    assert done.returncode != 0
    assert "RAFTLOG_FOREIGN_COMMIT" in done.stdout + done.stderr
    assert len(written(decisions)) == 2
    assert os.listdir(tmp_path / "spark-warehouse")
