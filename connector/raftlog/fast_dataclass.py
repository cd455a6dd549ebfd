"""Fast construction of frozen dataclasses.

The ``__init__`` of a frozen dataclass calls ``object.__setattr__`` for each field, which costs more
than decoding or replaying a record, and a tenth of an append to a quorum. Constructors compiled
here assign the fields of a mutable twin of the same layout, then change its ``__class__`` to the
frozen class. They are compiled from text, as those of ``dataclasses`` are, since one function for a
constructor and for the conversions of its arguments takes a third of the time of separate ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
_CHANGE_CLASS: Final = object.__dict__["__class__"].__set__
"""Assigns ``__class__`` of an instance of a frozen class, too."""


def fast_dataclass(cls: Callable[P, T]) -> Callable[P, T]:
    """Return a faster constructor of a frozen, slotted dataclass, with the same arguments.

    For classes without default factories and without a ``__post_init__``.
    """
    assert isinstance(cls, type)
    parameters, defaults = _parameters(cls)
    values = {entry.name: entry.name for entry in dataclasses.fields(cls)}
    return compile_constructor(cls, parameters, values, defaults)


def fast_init(cls: type[T]) -> type[T]:
    """Replace the ``__init__`` of a frozen, slotted dataclass by a faster one: a decorator.

    For classes as of ``fast_dataclass`` that have no subclasses.
    """
    declared: Any = cls
    parameters, defaults = _parameters(cls)
    lines = (
        f"def __init__({', '.join(('self', *parameters))}):",
        "_change_class(self, _twin)",
        *(f"self.{entry.name} = {entry.name}" for entry in dataclasses.fields(declared)),
        "self.__class__ = _class",
    )
    names = {"_change_class": _CHANGE_CLASS, "_twin": _mutable_twin(cls), "_class": cls, **defaults}
    init = _compile(lines, names)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = declared.__init__.__annotations__
    declared.__init__ = init
    return cls


def _parameters(declared: Any) -> tuple[list[str], dict[str, object]]:
    """Return the parameters of the constructor of a dataclass, and the defaults that they name."""
    positional: list[str] = []
    keywords: list[str] = []
    defaults: dict[str, object] = {}
    for entry in dataclasses.fields(declared):
        parameter = entry.name
        if entry.default is not dataclasses.MISSING:
            defaults[f"_default_{entry.name}"] = entry.default
            parameter += f"=_default_{entry.name}"
        (keywords if entry.kw_only else positional).append(parameter)
    return ([*positional, "*", *keywords] if keywords else positional), defaults


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
    lines = (
        f"def {cls.__name__}({', '.join(parameters)}):",
        "_made = _new(_twin)",
        *(f"_made.{name} = {value}" for name, value in values.items()),
        "_made.__class__ = _class",
        "return _made",
    )
    return _compile(
        lines, {"_new": object.__new__, "_twin": _mutable_twin(cls), "_class": cls, **names}
    )


def _mutable_twin(declared: Any) -> type:
    """Return a class with the layout of a frozen one, whose attributes can be assigned."""
    body = {
        "__slots__": declared.__slots__,
        "__setattr__": object.__setattr__,  # the frozen base class has its own of both
        "__delattr__": object.__delattr__,
    }
    return type(declared.__name__, declared.__bases__, body)


def _compile(lines: Sequence[str], names: Mapping[str, object]) -> Callable[..., Any]:
    """Return the function of these lines, the first of which declares it."""
    namespace = dict(names)
    before = set(namespace)
    exec("\n    ".join(lines), namespace)
    (name,) = namespace.keys() - before - {"__builtins__"}
    compiled: Any = namespace[name]
    return cast("Callable[..., Any]", compiled)
