"""A node that writes no snapshots logs a warning if retention is configured for a kraft log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.served_node import served_node


def warnings_of(home: Path, extra: str) -> list[dict[str, Any]]:
    """Return the warnings of a node that starts with these lines in its configuration."""

    async def run() -> list[dict[str, Any]]:
        async with served_node(home, extra) as served:
            return served.lines("retention")

    return asyncio.run(run())


@pytest.mark.parametrize("setting", ["retention_ms = 1000", "retention_bytes = 1000"])
def test_retention_of_a_kraft_log_is_warned_of(tmp_path: Path, setting: str) -> None:
    (warning,) = warnings_of(tmp_path, f'[log]\nvalues = "kraft"\n{setting}\n')
    assert warning["level"] == "warning"
    assert "this program writes none, so it keeps every record" in warning["reason"]


@pytest.mark.parametrize("extra", ['[log]\nvalues = "kraft"\n', "[log]\nretention_ms = 1000\n"])
def test_retention_of_other_logs_is_not_warned_of(tmp_path: Path, extra: str) -> None:
    assert warnings_of(tmp_path, extra) == []
