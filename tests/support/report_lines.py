"""Report at the end of a test run: figures of tests, and files that became slower."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.durations import report_durations

REPORT_LINE: Final = "report line"
"""Pass this name and a sentence to ``record_property``."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines, also of tests that ran in other processes."""
    passed = terminalreporter.getreports("passed")
    lines = [
        str(value) for one in passed for name, value in one.user_properties if name == REPORT_LINE
    ]
    for line in sorted(lines):
        terminalreporter.write_line(line)
    report_durations(terminalreporter)
