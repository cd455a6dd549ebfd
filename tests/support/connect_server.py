"""Scripts with a session of a local Spark Connect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .child_processes import python_path_with_sources

HOME = Path(__file__).parents[2]


def connect_environment() -> dict[str, str]:
    """Return the environment of a process with a session of a local Connect server."""
    for package in ("grpc", "pandas"):
        pytest.importorskip(package, reason='pip install "raftlog[connect]"')
    return {
        **os.environ,
        "SPARK_REMOTE": "local[2]",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": python_path_with_sources(),
    }


def run_connected(*command: str) -> str:
    """Run Python with a session of a local Connect server; return its output."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=HOME,
        env=connect_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout
