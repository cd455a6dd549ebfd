"""Making frozen records fast.

The ``__init__`` of a frozen dataclass sets each field through ``object.__setattr__``, which costs
more than all of a record's decoding. A twin class of the same layout sets them plainly, and its
instance then becomes one of the frozen class, before anybody else has seen it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .declare import Struct


def builder(cls: type[Struct], order: tuple[str, ...]) -> Callable[..., Struct]:
    """Compile ``cls``'s constructor over positional values in this ``order`` of all its fields."""
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
        made: Struct = twin(*values)
        made.__class__ = cls
        return made

    return build
