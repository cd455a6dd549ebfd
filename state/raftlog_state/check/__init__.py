"""Verification of a log (``raftlog check``): reads all of it and repairs nothing."""

from __future__ import annotations

from .findings import Finding, Kind, Severity
from .log_check import LogCheck

__all__ = ["Finding", "Kind", "LogCheck", "Severity"]
