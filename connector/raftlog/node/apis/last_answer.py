"""Response after which the connection is closed.

A client that may send a request to any node repeats it on its open connection, whatever the
response (Kafka: ``NetworkClient.leastLoadedNode``). After the connection is closed it tries another
node.
"""

from __future__ import annotations


class LastAnswer(bytes):
    """Body of a response: send it, then close the connection."""

    __slots__ = ()
