"""The compiled core ``raftlog._native``: whether it is used.

It is built from ``connector/native`` where cargo is installed. Without it, with
``RAFTLOG_NATIVE=0`` in the environment, or if it has another interface than this package, the same
functions run in Python, with the same results and errors. A function of the core returns None for
input that is not plain, which Python then handles, so that each error has one place and one text.

``make check`` fails for a core that was built from other sources than those beside this package.
"""

from __future__ import annotations

from typing import Final

__all__ = ["core", "describe", "is_native"]

INTERFACE: Final = 14
"""``_native.INTERFACE`` of the sources beside this file."""

try:
    import raftlog._native as core
except ImportError:
    is_native = False
else:
    is_native = core.INTERFACE == INTERFACE


def describe() -> str:
    """Return which implementation runs, for ``raftlog --version``."""
    return "compiled core" if is_native else "pure Python"
