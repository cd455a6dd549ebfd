"""Paths as people write them.

Rules of this file:

1. ``file:///a``, ``file:/a`` and ``/a`` are one path. Other schemes are refused, and not shown: a
   key may be in such a URL.
"""

from __future__ import annotations

import re
from typing import Final

from raftlog.errors import OptionError

_FILE_SCHEME = "file:"
_OTHER_SCHEME: Final = re.compile(r"(?:^|,)\s*(?!file:)([A-Za-z][A-Za-z0-9+.-]*)://")


def without_scheme(path: str) -> str:
    """The path itself. Raises ``OptionError`` for a URL of another scheme than ``file``."""
    refuse_schemes(path)
    if not path.startswith(_FILE_SCHEME):
        return path
    rest = path[len(_FILE_SCHEME) :]
    return "/" + rest.lstrip("/") if rest.startswith("/") else rest


def refuse_schemes(paths: str) -> None:
    """Check that no path, of several with commas between, is a URL of another scheme.

    Raises ``OptionError``.
    """
    found = _OTHER_SCHEME.search(paths)
    if found is not None:
        reason = f"a log is not read from {found[1][:20]}://; give a path of a mounted file system"
        raise OptionError(option="path", reason=reason)
