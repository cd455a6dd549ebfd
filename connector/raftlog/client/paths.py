"""Log paths as users give them.

``file:///a``, ``file:/a`` and ``/a`` are the same path. URLs of other schemes are refused, and not
shown in the error, since a URL may contain an access key.
"""

from __future__ import annotations

import re
from typing import Final

from raftlog.errors import OptionError

_FILE_SCHEME = "file:"
_OTHER_SCHEME: Final = re.compile(r"(?:^|,)\s*(?!file:)([A-Za-z][A-Za-z0-9+.-]*)://")


def without_scheme(path: str) -> str:
    """Return the path without ``file:``. Raises ``OptionError`` for a URL of another scheme."""
    refuse_schemes(path)
    if not path.startswith(_FILE_SCHEME):
        return path
    rest = path[len(_FILE_SCHEME) :]
    return "/" + rest.lstrip("/") if rest.startswith("/") else rest


def refuse_schemes(paths: str) -> None:
    """Raise ``OptionError`` if one of several comma-separated paths is a URL, but not ``file:``."""
    found = _OTHER_SCHEME.search(paths)
    if found is not None:
        reason = f"{found[1][:20]}:// is not supported; give a path on a mounted file system"
        raise OptionError(option="path", reason=reason)
