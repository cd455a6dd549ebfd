"""Metadata records import neither numpy nor Arrow, so that the command line starts fast."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "pyarrow", "pyspark")


def test_records_import_no_large_module() -> None:
    code = f"import sys, raftlog_state.records; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
