"""Fast construction of frozen dataclasses.

The ``__init__`` of a frozen dataclass calls ``object.__setattr__`` for each field, which costs more
than decoding or replaying a record. Constructors compiled here assign the fields of a mutable twin
of the same layout, then change its ``__class__`` to the frozen class. They are compiled from text,
as those of ``dataclasses`` are, since one function for a constructor and for the conversions of its
arguments takes a third of the time of separate ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def fast_dataclass(cls: Callable[P, T]) -> Callable[P, T]:
    """Return a faster constructor of a frozen, slotted dataclass, with the same arguments.

    For classes without default factories and without a ``__post_init__``.
    """
    assert isinstance(cls, type)
    positional: list[str] = []
    keywords: list[str] = []
    defaults: dict[str, object] = {}
    for entry in dataclasses.fields(cls):
        parameter = entry.name
        if entry.default is not dataclasses.MISSING:
            defaults[f"_default_{entry.name}"] = entry.default
            parameter += f"=_default_{entry.name}"
        (keywords if entry.kw_only else positional).append(parameter)
    parameters = [*positional, "*", *keywords] if keywords else positional
    values = {entry.name: entry.name for entry in dataclasses.fields(cls)}
    return compile_constructor(cls, parameters, values, defaults)


def positional_constructor(cls: type[T], order: Sequence[str]) -> Callable[..., T]:
    """Return a faster constructor with all fields as positional arguments, in ``order``."""
    return compile_constructor(cls, order, {name: name for name in order}, {})


def compile_constructor(
    cls: type[T], parameters: Sequence[str], values: Mapping[str, str], names: Mapping[str, object]
) -> Callable[..., T]:
    """Compile a function that returns an instance of a frozen, slotted dataclass.

    Args:
        parameters: the function's parameters.
        values: an expression of them for each field.
        names: objects that the expressions and the defaults of parameters use. A name that begins
            with an underscore is not that of a field or parameter.
    """
    declared: Any = cls
    assert sorted(values) == sorted(entry.name for entry in dataclasses.fields(declared)), cls
    body = {
        "__slots__": declared.__slots__,
        "__setattr__": object.__setattr__,  # the frozen base class has its own of both
        "__delattr__": object.__delattr__,
    }
    twin = type(cls.__name__, cls.__bases__, body)
    lines = (
        f"def {cls.__name__}({', '.join(parameters)}):",
        "_made = _new(_twin)",
        *(f"_made.{name} = {value}" for name, value in values.items()),
        "_made.__class__ = _class",
        "return _made",
    )
    namespace: dict[str, Any] = {"_new": object.__new__, "_twin": twin, "_class": cls, **names}
    exec("\n    ".join(lines), namespace)
    constructor: Callable[..., T] = namespace[cls.__name__]
    return constructor
