"""Embedded log: a directory without a server, used by any number of threads and processes."""
