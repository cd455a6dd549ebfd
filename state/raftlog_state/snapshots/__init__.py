"""Encoding of snapshots: the bytes of a ``.checkpoint`` file from an image; values in batches."""

from __future__ import annotations

from .file import batch_chunks, encoded_batches, snapshot_bytes

__all__ = ["batch_chunks", "encoded_batches", "snapshot_bytes"]
