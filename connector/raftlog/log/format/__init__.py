"""Files of a log as values, both ways: names, index entries, checkpoints. No I/O."""
