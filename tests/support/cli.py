"""Run the command line inside this process."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from raftlog_state.cli.main import main


def run(*argv: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    stdout, stderr = io.BytesIO(), io.StringIO()
    status = main([str(word) for word in argv], stdout, stderr)
    return status, stdout.getvalue().decode(), stderr.getvalue()


def rows(*argv: str | Path) -> list[dict[str, Any]]:
    """The JSON lines of a command that must succeed."""
    status, out, err = run(*argv)
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]
