"""An answer behind which the connection is closed.

A client that may ask any node keeps asking the one that it is connected to (Kafka:
``NetworkClient.leastLoadedNode``), whatever that answers. Behind a closed connection it looks for
another one.
"""

from __future__ import annotations


class LastAnswer(bytes):
    """The body of an answer: send it, then close the connection."""

    __slots__ = ()
