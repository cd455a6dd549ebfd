"""Handlers of client requests: Kafka's APIs on one log."""

from __future__ import annotations

from .client_apis import ClientApis
from .last_answer import LastAnswer

__all__ = ["ClientApis", "LastAnswer"]
