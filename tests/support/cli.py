"""Runs of the command line in this process."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from raftlog_state.cli.main import main


def run(*argv: str | Path) -> tuple[int, str, str]:
    """Run a command; return exit code, stdout and stderr."""
    stdout, stderr = io.BytesIO(), io.StringIO()
    status = main([str(word) for word in argv], stdout, stderr)
    return status, stdout.getvalue().decode(), stderr.getvalue()


def rows(*argv: str | Path) -> list[dict[str, Any]]:
    """Run a command that must succeed; return its JSON lines."""
    status, out, err = run(*argv)
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]
