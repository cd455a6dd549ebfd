"""Fast construction of frozen dataclasses.

The ``__init__`` of a frozen dataclass calls ``object.__setattr__`` for each field, which costs more
than replaying a record. A mutable twin of the same layout assigns them, then changes its
``__class__`` to the frozen class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def fast_dataclass(cls: Callable[P, T]) -> Callable[P, T]:
    """Return a faster constructor of a frozen, slotted dataclass, with the same arguments.

    For classes without default factories and without a ``__post_init__``.
    """
    assert isinstance(cls, type)
    assert dataclasses.is_dataclass(cls)

    def freeze(self: Any) -> None:
        self.__class__ = cls

    specs: list[tuple[str, Any, Any]] = [
        (entry.name, Any, dataclasses.field(default=entry.default, kw_only=entry.kw_only))
        for entry in dataclasses.fields(cls)
    ]
    namespace = {"__post_init__": freeze}
    twin: Any = dataclasses.make_dataclass(cls.__name__, specs, namespace=namespace, slots=True)
    constructor: Callable[P, T] = twin
    return constructor
