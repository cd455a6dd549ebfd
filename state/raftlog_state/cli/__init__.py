"""The command line: ``raftlog cat | state | diff | check``. Needs neither Spark nor Java."""
