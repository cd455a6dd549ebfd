"""The wheel is complete: three packages, and Spark finds the source unregistered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
LOG = HOME / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"

pytestmark = pytest.mark.xdist_group("wheel")
"""One worker builds the wheel: two builds write to the same directory of the sources."""

READ_UNREGISTERED = """
import sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate())
import raftlog
print("from", raftlog.__file__)
print("rows", spark.read.format("raftlog").load(sys.argv[1]).count())
print("stream", spark.readStream.format("raftlog").load(sys.argv[1]).isStreaming)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(HOME)],
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_three_typed_packages_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"raftlog", "raftlog_state", "pyspark_raftlog"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    rules = (HOME / "state/raftlog_state/tables/invariants").glob("*.sql")
    assert {f"raftlog_state/tables/invariants/{rule.name}" for rule in rules} <= set(names)
    assert not [name for name in names if re.search(r"(^|/)(tests?|conftest|test_)", name)]


@pytest.mark.slow
def test_the_command_line_runs_from_the_wheel_as_a_zip(wheel: Path, tmp_path: Path) -> None:
    """Executors get a zip archive: no module may need a file beside it."""
    archive = wheel.with_suffix(".zip")
    archive.write_bytes(wheel.read_bytes())
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from raftlog_state.cli.main import main; "
    )
    program += "import raftlog; assert '.zip' in raftlog.__file__; sys.exit(main(sys.argv[2:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(archive), "cat", "--to", "12", str(LOG)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"BEGIN_TRANSACTION_RECORD"' in done.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_spark_finds_the_source_in_an_installed_wheel_without_registration(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-t", str(site), str(wheel)],
        check=True,
        capture_output=True,
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", READ_UNREGISTERED, str(LOG)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"from {site}" in done.stdout
    assert "stream True" in done.stdout
    (rows,) = [line for line in done.stdout.splitlines() if line.startswith("rows")]
    assert int(rows.split()[1]) > 3000
