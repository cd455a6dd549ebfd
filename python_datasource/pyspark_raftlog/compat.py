"""The parts of the stream API that came with Spark 4.2, and stand-ins for 4.0 and 4.1.

Spark 4.2 passes limits to ``latestOffset``; 4.0 and 4.1 call it without arguments and know none of
these names. Only 4.2 is tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # Spark 4.0 and 4.1
        from dataclasses import dataclass

        class ReadLimit:
            """Stands in for the base class of limits."""

        class ReadAllAvailable(ReadLimit):
            """Stands in for "no limit"."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Stands in for a limit of records."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """Stands in for the mix-in that asks for a fixed target."""


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]
