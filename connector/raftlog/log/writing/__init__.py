"""The write half of a log: segments, indexes, snapshots, recovery, and what a log remembers."""
