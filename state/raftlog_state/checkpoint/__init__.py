"""Checkpoints: a whole ``.checkpoint`` file from an image."""

from __future__ import annotations

from .file import checkpoint_bytes

__all__ = ["checkpoint_bytes"]
