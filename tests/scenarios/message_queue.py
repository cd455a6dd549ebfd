"""Messages in flight between the nodes of a scenario; the script delivers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftlog.quorum.messages import Request, Response


@dataclass(slots=True, eq=False)
class Message:
    """Request in flight from ``asker`` to ``asked``, or its response.

    ``life`` is the incarnation of the asker's process; no other one accepts the response.
    """

    asker: int
    asked: int
    life: int
    correlation_id: int
    kind: str
    body: Request | Response
    is_response: bool = False

    def words(self) -> str:
        return f"{self.asker} {'<-' if self.is_response else '->'} {self.asked} {self.kind}"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Selection of messages: ``1 -> 2 Fetch``, ``1 <- 2``, or all."""

    asker: int | None = None
    asked: int | None = None
    is_response: bool | None = None
    kind: str | None = None

    @classmethod
    def parse(cls, words: list[str]) -> MessageFilter:
        if not words:
            return cls()
        asker, arrow, asked, *kind = words
        assert arrow in ("->", "<-"), f"neither -> nor <-: {arrow}"
        return cls(int(asker), int(asked), arrow == "<-", kind[0] if kind else None)

    def matches(self, message: Message) -> bool:
        return all(
            wanted is None or wanted == found
            for wanted, found in (
                (self.asker, message.asker),
                (self.asked, message.asked),
                (self.is_response, message.is_response),
                (self.kind, message.kind),
            )
        )


class MessageQueue:
    """Messages in flight, oldest first, and the cut connections."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line = write_line
        self._under_way: list[Message] = []
        self._late: list[Message] = []
        self._cut: set[frozenset[int]] = set()
        self.muted: int | None = None
        """Nodes whose requests are lost."""

    def send(self, message: Message, words: str) -> None:
        """Send a message and write it as ``words``."""
        is_muted = message.asker == self.muted and not message.is_response
        if is_muted or self.is_cut(message.asker, message.asked):
            self._write_line(f"{words} (lost)")
            return
        self._write_line(words)
        self._under_way.append(message)

    def cut(self, one: int, other: int) -> None:
        """Cut the connection between two nodes; messages in flight are lost."""
        self._cut.add(frozenset((one, other)))
        self._drop(lambda message: {message.asker, message.asked} == {one, other})

    def heal(self) -> None:
        self._cut.clear()

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self._cut

    def of(self, which: MessageFilter) -> list[Message]:
        return [message for message in self._under_way if which.matches(message)]

    def first(self, which: MessageFilter) -> Message:
        found = self.of(which)
        assert found, f"nothing of the kind is under way: {[m.words() for m in self._under_way]}"
        return found[0]

    def take(self, message: Message) -> bool:
        """Remove a message; return whether it was in flight."""
        if message not in self._under_way:
            return False
        self._under_way.remove(message)
        return True

    def drop(self, which: MessageFilter) -> list[Message]:
        return self._drop(which.matches)

    def duplicate(self, which: MessageFilter) -> None:
        first = self.first(which)
        copy = Message(
            first.asker,
            first.asked,
            first.life,
            first.correlation_id,
            first.kind,
            first.body,
            first.is_response,
        )
        self._under_way.append(copy)

    def delay(self, which: MessageFilter) -> None:
        """Hold messages until ``release``; later messages overtake them."""
        self._late += self.drop(which)

    def release(self) -> None:
        self._under_way += self._late
        self._late = []

    def _drop(self, fits: Callable[[Message], bool]) -> list[Message]:
        dropped = [message for message in self._under_way if fits(message)]
        self._under_way = [message for message in self._under_way if message not in dropped]
        return dropped
