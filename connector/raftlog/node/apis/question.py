"""Client request as passed to its handler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raftlog.node.access import Principal
from raftlog.node.origin import Origin

from .metadata_cache import MetadataCache

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Question(Generic[R]):
    """Decoded request with its version and origin.

    A handler sets ``is_last`` to have the connection closed after the response, so that the client
    tries another node.
    """

    view: MetadataCache
    version: int
    request: R
    origin: Origin
    is_last: bool = field(default=False, init=False)

    @property
    def caller(self) -> Principal:
        return self.origin.caller
