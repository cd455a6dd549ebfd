"""The one door for what clients ask: bytes of a request in, bytes of its answer out.

Rules of this file:

1. A request is decoded, handed to the one who answers its kind, and the answer encoded. Who answers
   knows neither frames nor versions, but where Kafka's meaning changed with them.
2. An append is placed before the first ``await``: requests of one connection keep their order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from raftlog.errors import UnservedApiError
from raftlog.node.access import Caller
from raftlog.node.log_service import LogService
from raftlog.quorum.voters import Endpoint
from raftlog.wire import ApiKey, decode, encode, wide

from .cluster_view import ClusterView
from .last_answer import LastAnswer
from .metadata import answer_metadata
from .question import Question

_Answerer: TypeAlias = Callable[[Question[Any]], Awaitable[object]]


class ClientApis:
    """Answers clients for one node. It belongs to the node's loop."""

    def __init__(
        self, node: LogService, *, endpoints: Mapping[int, Endpoint] | None = None
    ) -> None:
        """``endpoints``: where nodes listen for clients whose entry among the voters does not say
        it (static voters), by node id."""
        self._view: Final = ClusterView(node, endpoints or {})
        self._answerers: Final[dict[int, tuple[type[Any], _Answerer]]] = {
            ApiKey.METADATA: (wide.MetadataRequest, answer_metadata),
        }

    async def answer(
        self, api_key: int, version: int, frame: bytes, body_start: int, caller: Caller
    ) -> bytes | None:
        """The body of the answer to a request whose header was read, without a header.

        None: there is no answer, and the next one follows (Produce with acks 0). A ``LastAnswer``:
        close the connection behind it. Raises ``MalformedMessageError``, and ``SilentRefusalError``
        if something failed that wants no answer: close the connection at once.
        """
        entry = self._answerers.get(api_key)
        if entry is None:
            listener = str(caller.listener)
            raise UnservedApiError(api_key=api_key, version=version, listener=listener)
        kind, answerer = entry
        request = decode(kind, version, frame, start=body_start)
        question = Question(self._view, version, request, caller)
        response = await answerer(question)
        if response is None:
            return None
        body = encode(response, version)
        return LastAnswer(body) if question.is_last else body
