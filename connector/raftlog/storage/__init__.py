"""Storage protocol of the log, and its implementation with local files."""
