"""Runs of the command line, in this process and in others."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from raftlog_state.cli.main import main


def run(*argv: str | Path) -> tuple[int, str, str]:
    """Run a command; return exit code, stdout and stderr."""
    stdout, stderr = io.BytesIO(), io.StringIO()
    status = main([str(word) for word in argv], stdout, stderr)
    return status, stdout.getvalue().decode(), stderr.getvalue()


class Terminal(io.BytesIO):
    """stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(*argv: str | Path) -> list[str]:
    """Run a command that must succeed on a terminal without colors; return the lines of stdout."""
    terminal = Terminal()
    with mock.patch.dict(os.environ, {"NO_COLOR": "1"}):
        assert main([str(word) for word in argv], terminal, io.StringIO()) == 0
    return terminal.getvalue().decode().splitlines()


def rows(*argv: str | Path) -> list[dict[str, Any]]:
    """Run a command that must succeed; return its JSON lines."""
    status, out, err = run(*argv)
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]


def start_follower(command: str, *source: str) -> subprocess.Popen[str]:
    """Start a follower in a process that handles SIGINT, as one of a shell does."""
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from raftlog_state.cli.main import main\n"
        "sys.exit(main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, command, *source, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
