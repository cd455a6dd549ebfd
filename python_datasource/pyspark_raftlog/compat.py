"""The parts of the stream API that came with Spark 4.2, and stand-ins for 4.0 and 4.1.

Spark 4.2 passes limits to ``latestOffset``; 4.0 and 4.1 call it without arguments and know none of
these names. Only 4.2 is tested.
"""

from __future__ import annotations

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.0 and 4.1
    from dataclasses import dataclass

    class ReadLimit:  # type: ignore[no-redef]
        """Stands in for the base class of limits."""

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Stands in for "no limit"."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """Stands in for a limit of records."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """Stands in for a limit of bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the mix-in that asks for a fixed target."""


__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
