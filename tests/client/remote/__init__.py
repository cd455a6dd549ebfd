"""Tests of the client of a quorum."""
