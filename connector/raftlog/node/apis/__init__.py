"""Handlers of client requests: Kafka's APIs on one log."""

from __future__ import annotations

from .client_apis import ClientApis

__all__ = ["ClientApis"]
