"""Checkpoints: a whole ``.checkpoint`` file from an image, and an image from one."""

from __future__ import annotations

from .file import checkpoint_bytes, checkpoint_log_records, image_from_records

__all__ = ["checkpoint_bytes", "checkpoint_log_records", "image_from_records"]
