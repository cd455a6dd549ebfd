"""The same call in the compiled core and in Python, to be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from raftlog import compiled

T = TypeVar("T")


@contextmanager
def pure_python() -> Iterator[None]:
    """Run the block without the compiled core."""
    before = compiled.is_native
    compiled.is_native = False
    try:
        yield
    finally:
        compiled.is_native = before


def in_both(call: Callable[[], T]) -> tuple[T, T]:
    """Return the result of the compiled core and that of Python."""
    assert compiled.is_native
    native = call()
    with pure_python():
        return native, call()


def in_each(call: Callable[[], T]) -> list[T]:
    """Return the result of each implementation that this installation has, that of Python last."""
    if compiled.is_native:
        return list(in_both(call))
    return [call()]


def differences(native: object, python: object, name: str = "") -> list[str]:
    """Return where two results differ: columns and their types, and errors with all their facts."""
    if type(native) is not type(python):
        return [f"{name}: {native!r} instead of {python!r}"]
    if isinstance(native, np.ndarray):
        assert isinstance(python, np.ndarray)
        same = native.dtype == python.dtype and np.array_equal(native, python)
    elif isinstance(native, pa.Array):
        native.validate(full=True)
        same = native.equals(python)
    elif isinstance(native, Exception):
        same = str(native) == str(python) and vars_of(native) == vars_of(python)
    elif is_dataclass(native):
        return [
            found
            for one in fields(native)
            for found in differences(
                getattr(native, one.name), getattr(python, one.name), f"{name}.{one.name}"
            )
        ]
    else:
        same = native == python
    return [] if same else [f"{name}: {native!r} instead of {python!r}"]


def vars_of(error: object) -> dict[str, object]:
    names = getattr(error, "__dataclass_fields__", {})
    return {name: getattr(error, name) for name in names}
