"""One request on its way to who answers it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raftlog.node.access import Principal
from raftlog.node.origin import Origin

from .metadata_cache import MetadataCache

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Question(Generic[R]):
    """A decoded request, in its version, and where it comes from. ``is_last`` is set by who answers
    it: the caller must look for another node, so the connection is closed."""

    view: MetadataCache
    version: int
    request: R
    origin: Origin
    is_last: bool = field(default=False, init=False)

    @property
    def caller(self) -> Principal:
        return self.origin.caller
