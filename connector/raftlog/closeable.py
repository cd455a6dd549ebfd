"""What is closed at the end of a ``with`` statement, however that ends."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self


class Closeable(abc.ABC):
    """Something that is to be closed. Files, snapshots and logs are."""

    __slots__ = ()

    @abc.abstractmethod
    def close(self) -> None:
        """Give it back. Closing twice is allowed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
