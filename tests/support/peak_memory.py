"""Measurement of the memory of a command in its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""A small intermediate process: the peak of a child includes that of its parent at the fork."""


def peak_memory(*argv: str | Path) -> tuple[int, int, str]:
    """Run ``raftlog`` with these arguments; return exit code, peak memory in bytes, and stderr."""
    raftlog = (sys.executable, "-m", "raftlog_state.cli")
    words = (sys.executable, "-S", "-c", _MEASURE, *raftlog, *map(str, argv))
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    status, kibibytes = done.stdout.split()
    return int(status), int(kibibytes) * 1024, done.stderr
