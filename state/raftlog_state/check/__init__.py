"""Look for damage in a log: everything is read, nothing is repaired, every finding is given."""

from __future__ import annotations

from .findings import Finding, Kind, Severity
from .log_check import LogCheck

__all__ = ["Finding", "Kind", "LogCheck", "Severity"]
