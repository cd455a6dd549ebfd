"""Checkpoints: a whole ``.checkpoint`` file from an image."""

from __future__ import annotations

from .file import snapshot_bytes

__all__ = ["snapshot_bytes"]
