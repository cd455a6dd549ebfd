"""Tests of a node's responses to clients."""
