"""Base class of objects with ``close`` that are context managers."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self


class Closeable(abc.ABC):
    """Context manager that calls ``close`` on exit, such as a file, a snapshot or a log."""

    __slots__ = ()

    @abc.abstractmethod
    def close(self) -> None:
        """Release the resource. Closing twice is allowed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
