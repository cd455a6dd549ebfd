"""Encoding of snapshots: an image as the bytes of a ``.checkpoint`` file; values in batches."""

from __future__ import annotations

from .file import batch_chunks, encoded_batches, snapshot_bytes

__all__ = ["batch_chunks", "encoded_batches", "snapshot_bytes"]
