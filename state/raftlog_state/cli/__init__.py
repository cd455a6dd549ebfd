"""The command line tool ``raftlog``. Needs neither Spark nor Java."""
