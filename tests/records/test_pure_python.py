"""Without the compiled core the tests of records, of reading and of metadata pass too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog import compiled

HOME = Path(__file__).parents[2]
TESTS = (
    "tests/records",
    "tests/log/test_damaged_logs.py",
    "tests/log/test_read_plans.py",
    "tests/log/recovery",
    "tests/state/records",
    "tests/state/source_rows",
    "tests/state/loader",
    "tests/state/cli/test_cli_cat.py",
    "tests/state/cli/test_cli_state.py",
    "tests/state/cli/test_cli_check.py",
)


@pytest.mark.slow
@pytest.mark.skipif(not compiled.is_native, reason="all tests run in Python")
def test_the_same_tests_pass_without_the_compiled_core() -> None:
    is_quick = "not slow and not nightly and not spark and not kafka"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", is_quick]
    done = subprocess.run(
        [*command, "-p", "no:xdist", "--tb=short", *TESTS],
        cwd=HOME,
        env={**os.environ, "RAFTLOG_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert done.stdout.count(".") > 300
