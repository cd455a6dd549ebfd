"""One change into the draft: a single function, with one implementation for each kind of change."""

from __future__ import annotations

import functools

from .changes import Change
from .draft import Draft


@functools.singledispatch
def write(change: Change, draft: Draft) -> None:
    """Check a change against the state and write its records into ``draft``.

    Raises ``Refused``; what was written until then is the caller's to take back
    (``Draft.whole_change``).
    """
    raise AssertionError(f"no writer for {type(change).__name__}")
