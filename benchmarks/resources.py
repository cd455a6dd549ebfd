"""Memory, descriptors and threads of a process in a long run, and bounds of their growth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Final

from raftlog.limits import MIB

RSS_GROWTH_MAX: Final = 1.1
"""Bound of the mean memory of the last third of a run by that of the second third."""
POOL_MAX: Final = 2
"""Threads, and files, that are created when they are needed first."""


@dataclass(slots=True)
class Resources:
    """What a process has in use at several moments of a run (Linux)."""

    rss_mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    append_count: int = 0
    """Appends between the first and the last moment."""

    def look(self, pid: int) -> None:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        self.rss_mib.append(int(found["VmRSS"].split()[0]) / 1024)
        self.threads.append(int(found["Threads"]))
        self.descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))

    def rss_growth(self) -> float:
        """Return the mean memory of the last third by that of the second one."""
        third = max(1, len(self.rss_mib) // 3)
        return mean(self.rss_mib[-third:]) / mean(self.rss_mib[-2 * third : -third] or self.rss_mib)

    def broken_bounds(self) -> Iterator[str]:
        """Return the bounds that were exceeded, as text."""
        if self.rss_growth() > RSS_GROWTH_MAX:
            yield f"memory grew by {self.rss_growth():.2f}: at most {RSS_GROWTH_MAX}"
        for name, counts in (("descriptors", self.descriptors), ("threads", self.threads)):
            third = max(1, len(counts) // 3)
            before_end = max(counts[-2 * third : -third] or counts)
            if max(counts[-third:]) > before_end + POOL_MAX:
                yield f"{name} grew: {counts[0]} at first, {counts[-1]} at the end"

    def lines(self) -> Iterator[str]:
        """Return the first, the greatest and the last value of each, as text."""
        for name in ("rss_mib", "descriptors", "threads"):
            values = getattr(self, name)
            yield (
                f"{name}: {values[0]:,.0f} at first, at most {max(values):,.0f}, "
                f"{values[-1]:,.0f} at the end"
            )
        if self.append_count:
            grown = (self.rss_mib[-1] - self.rss_mib[0]) * MIB / self.append_count
            yield f"memory by append: {grown:,.0f} bytes of {self.append_count:,}"
