"""Classes of Spark 4.2's streaming API, with substitutes for Spark 4.0 and 4.1.

Spark 4.2 passes limits to ``latestOffset``; 4.0 and 4.1 call it without arguments and lack these
classes. The nightly tests run the source, the sink and the table functions with 4.1 and 4.3.
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
            """Substitute for the base class of limits."""

        class ReadAllAvailable(ReadLimit):
            """Substitute for "no limit"."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Substitute for a limit of records."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """Substitute for the mix-in of ``Trigger.AvailableNow``."""


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]
