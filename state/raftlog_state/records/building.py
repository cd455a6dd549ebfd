"""Fast construction of frozen records.

The ``__init__`` of a frozen dataclass calls ``object.__setattr__`` for each field, which costs more
than decoding a record. A mutable twin of the same layout assigns them, then its instance's
``__class__`` is changed to the frozen class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .declare import Struct


def builder(cls: type[Struct], order: tuple[str, ...]) -> Callable[..., Struct]:
    """Compile a constructor of ``cls`` from positional values of all its fields in ``order``."""
    assert sorted(order) == sorted(entry.name for entry in dataclasses.fields(cls))
    plain: Any = dataclasses.make_dataclass(cls.__name__, order)
    body = {
        "__slots__": cls.__slots__,
        "__init__": plain.__init__,
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,
    }
    twin: Any = type(cls.__name__, cls.__bases__, body)

    def build(*values: Any) -> Struct:
        instance: Struct = twin(*values)
        instance.__class__ = cls
        return instance

    return build
