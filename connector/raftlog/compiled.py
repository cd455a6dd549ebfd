"""The compiled core ``raftlog._native``, and whether it is used.

It is built from ``connector/native`` if cargo is installed. The same functions run in Python, with
the same results and errors, if the core is missing, if ``RAFTLOG_NATIVE=0`` is in the environment,
or if the core has another interface than this package. A function of the core returns None for
input that is not plain. Python then handles the input, so each error is raised in one place with
one text.

``make check`` fails if the core was built from other sources than those beside this package.
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
