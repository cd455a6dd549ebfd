"""Paths as people write them.

Rules of this file:

1. ``file:///a``, ``file:/a`` and ``/a`` are one path. Other schemes are none of ours.
"""

from __future__ import annotations

_FILE_SCHEME = "file:"


def without_scheme(path: str) -> str:
    """The path itself."""
    if not path.startswith(_FILE_SCHEME):
        return path
    rest = path[len(_FILE_SCHEME) :]
    return "/" + rest.lstrip("/") if rest.startswith("/") else rest
