"""Encoding of snapshots: the bytes of a ``.checkpoint`` file from an image."""

from __future__ import annotations

from .file import snapshot_bytes

__all__ = ["snapshot_bytes"]
