"""Embedded log: a directory that any number of threads and processes use without a server."""
